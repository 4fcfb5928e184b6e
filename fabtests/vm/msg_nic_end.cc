// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Messages both ways over a connection of FI_EP_MSG between two guests, one of which takes its own
// NIC, rxe0, away meanwhile. What the other one sends can arrive no more, and it is told. The
// active end calls.
//
//   msg_nic_end DIR active|passive OWN-IP PEER-IP [takes-nic]
#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "msg_end.h"

namespace {

using calls::Completion;
using calls::Event;
using calls::News;
using traffic::fail;

constexpr std::size_t kDepth = 4;  // messages that are always under way, each way
constexpr std::size_t kBytes = 3000;
constexpr unsigned kRounds = 24;
constexpr std::uint16_t kService = 7473;

struct Memory {
    std::array<std::byte, kBytes> sent;
    std::array<std::byte, kBytes> received;
};

void expect(const Event& event, News news) {
    if (event.news != news) {
        fail("not what has to come next: " + event.text);
    }
}

/// A connection, with as many receives and sends under way as there are to be.
class Stream {
  public:
    Stream(const traffic::Options& options, Memory& memory)
        : end_(calls::make_msg_end(options, std::as_writable_bytes(std::span(&memory, 1)))),
          memory_(memory) {
        const traffic::Folder folder(options.dir);
        if (options.is_active) {
            folder.await("listening");
            end_->call(kService, "");
        } else {
            end_->listen(kService);
            folder.put("listening", "");
            expect(end_->next_event(), News::kRequest);
            end_->prepare();
        }
        for (std::size_t i = 0; i < kDepth; ++i) {
            receive();
        }
        if (!options.is_active) {
            end_->accept("");
        }
        expect(end_->next_event(), News::kConnected);
        for (std::size_t i = 0; i < kDepth; ++i) {
            send();
        }
    }

    /// A message each way has arrived, and others follow. Returns: whether it is so.
    bool go_on() {
        if (!has_sent()) {
            return false;
        }
        send();
        if (!has_received()) {
            return false;
        }
        receive();
        return true;
    }

    /// Once that is not so any more. Returns: what is wrong.
    std::string end_of_sends() {
        bool is_late = false;  // a send that arrives after one that has not
        while (sends_ > 0) {
            const bool had_failed = failed_ > 0;
            is_late = has_sent() && had_failed ? true : is_late;
        }
        return failed_ == 0 ? "none does" : is_late ? "one arrives after one that has not" : "";
    }
    std::string end_of_receives() {
        bool is_late = false;
        while (receives_ > 0) {
            is_late = has_received() || is_late;
        }
        return is_late ? "one has a message after that" : "";
    }

  private:
    void send() {
        end_->post_send(memory_.sent);
        ++sends_;
    }
    void receive() {
        end_->post_receive(memory_.received);
        ++receives_;
    }
    bool has_sent() {
        const bool is_good = end_->complete_request().problem.empty();
        --sends_;
        failed_ += is_good ? 0 : 1;
        return is_good;
    }
    bool has_received() {
        const Completion one = end_->complete_receive();
        --receives_;
        if (one.problem.empty() && one.bytes != kBytes) {
            fail("a message of " + std::to_string(one.bytes) + " bytes");
        }
        return one.problem.empty();
    }

    std::unique_ptr<calls::End> end_;
    Memory& memory_;
    std::size_t sends_ = 0;  // under way
    std::size_t receives_ = 0;
    std::size_t failed_ = 0;  // of the sends
};

}  // namespace

int main(int argc, char** argv) {
    const traffic::Options options = traffic::read_options(argc, argv);
    const traffic::Folder folder(options.dir);
    const auto memory = std::make_unique<Memory>();
    Stream stream(options, *memory);
    for (unsigned round = 0; round < kRounds; ++round) {
        if (!stream.go_on()) {
            fail("a message fails while both have their NICs");
        }
    }
    if (options.takes_nic) {
        traffic::take_nic_away();
        folder.await("told");
        return 0;
    }
    traffic::Report report;
    while (stream.go_on()) {
    }
    report.line("sends to a host that has lost its NIC end with errors", stream.end_of_sends());
    report.line("and so do receives", stream.end_of_receives());
    folder.put("told", "");
    return report.status();
}
