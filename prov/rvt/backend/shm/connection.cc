// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The application's side of a Connector: hands everything to the control thread.
#include "backend/shm/connection.h"

#include <memory>
#include <utility>

#include "backend/shm/peer_memory.h"
#include "backend/shm/switchboard.h"
#include "util/control_thread.h"
#include "util/params.h"

namespace rvt::shm {
namespace {

class ThreadedConnector final : public Connector {
  public:
    ThreadedConnector(std::shared_ptr<util::ControlThread> thread,
                      std::unique_ptr<Switchboard> board)
        : thread_(std::move(thread)), board_(std::move(board)) {}
    ~ThreadedConnector() override {
        thread_->run(
            [this] { board_.reset(); });  // in a forked child the member's destructor does it
    }
    ThreadedConnector(const ThreadedConnector&) = delete;
    ThreadedConnector& operator=(const ThreadedConnector&) = delete;

    util::Status start() {
        util::Status status;
        thread_->run([&] { status = board_->start(); });
        return status;
    }

    void connect(const util::SockAddr& address) override {
        post([address](Switchboard& board) { board.connect(address); });
    }
    void look_for(const util::SockAddr& address) override {
        post([address](Switchboard& board) { board.look_for(address); });
    }
    void wake_peer(std::uint64_t link) noexcept override {
        if (!thread_->is_inherited()) {
            board_->wake_peer(link);
        }
    }
    void note_polling(bool has_sleepers) noexcept override {
        post([has_sleepers](Switchboard& board) { board.note_polling(has_sleepers); });
    }
    void request_region(std::uint64_t link, std::uint64_t key) noexcept override {
        post([link, key](Switchboard& board) { board.request_region(link, key); });
    }
    bool is_in_use(std::uint64_t mark) override {
        bool is_used = false;
        if (board_->has_handshakes()) {
            thread_->run([&] { is_used = board_->is_in_use(mark); });
        }
        return is_used;
    }
    void close(std::uint64_t link) noexcept override {
        post([link](Switchboard& board) { board.close(link); });
    }

  private:
    /// Commands are executed in order. One that the control thread gives, in a call of the user
    /// while the connector is being destroyed, comes behind the switchboard's end.
    template <class Command>
    void post(Command command) {
        thread_->post([board = std::weak_ptr(board_), command] {
            if (const std::shared_ptr<Switchboard> open = board.lock()) {
                command(*open);
            }
        });
    }

    const std::shared_ptr<util::ControlThread> thread_;
    std::shared_ptr<Switchboard> board_;  // nobody else keeps it for longer than a command
};

ListenAttr with_defaults(ListenAttr attr) noexcept {
    if (attr.connect_timeout_ms == 0) {
        attr.connect_timeout_ms =
            static_cast<unsigned>(util::param_number(util::ParamId::kConnectTimeoutMs));
    }
    if (attr.refused_timeout_ms == 0) {
        attr.refused_timeout_ms =
            static_cast<unsigned>(util::param_number(util::ParamId::kRefusedTimeoutMs));
    }
    return attr;
}

}  // namespace

util::Result<std::unique_ptr<Connector>> Connector::open(const ListenAttr& attr) {
    util::Result<std::shared_ptr<util::ControlThread>> thread = util::ControlThread::acquire();
    if (!thread.is_ok()) {
        return thread.status();
    }
    register_membarrier();
    util::Result<std::unique_ptr<Switchboard>> board =
        Switchboard::open(*thread.value(), with_defaults(attr));
    if (!board.is_ok()) {
        return board.status();
    }
    auto connector = std::make_unique<ThreadedConnector>(thread.take(), board.take());
    const util::Status status = connector->start();
    if (!status.is_ok()) {
        return status;
    }
    return std::unique_ptr<Connector>(std::move(connector));
}

}  // namespace rvt::shm
