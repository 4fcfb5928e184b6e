// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// One end of a fixed list of RC, UC and UD operations, on rvt's RoCEv2 device at port 4791. The
// other end is rxe_traffic.c on a kernel rxe device, or this program again. The ends find each
// other through files in a folder that both see.
//
//   rxe_peer DIR active|passive OWN-NAME OWN-IP PEER-NAME PEER-IP
//
// Ends with 0 when every operation had the outcome that it must have.
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <unistd.h>

#include "backend/roce/addresses.h"
#include "backend/roce/packet_device.h"
#include "core/ah.h"
#include "core/context.h"
#include "core/device.h"
#include "core/mr.h"
#include "core/qp.h"
#include "core/registry.h"
#include "core/verbs_cq.h"

namespace rvt::core {
namespace {

constexpr std::size_t kMemoryBytes = 16384;
constexpr std::size_t kUpperHalf = 8192;  // receives, and what READs bring
constexpr std::uint32_t kCommonQkey = 0x11111111;
constexpr std::uint32_t kImm = 0xc0ffee42;
constexpr std::uint64_t kAdd = 0x0102030405060708;
constexpr int kReceives = 8;           // of each pair
constexpr int kMessagesToPassive = 9;  // 5 RC, 2 UC, 2 UD
constexpr std::chrono::seconds kPatience{30};

[[noreturn]] void fail(const std::string& what) {
    std::fprintf(stderr, "rxe_peer: %s\n", what.c_str());
    std::exit(1);
}

template <class T>
T need(Result<T> result, const char* what) {
    if (!result.is_ok()) {
        fail(std::string(what) + ": " + strerrordesc_np(result.error()));
    }
    return result.take();
}
void need(Status status, const char* what) {
    if (!status.is_ok()) {
        fail(std::string(what) + ": " + strerrordesc_np(status.error()));
    }
}

struct Options {
    std::string dir;
    bool is_active = false;
    std::string own_name;
    util::SockAddr own;
    std::string peer_name;
    util::SockAddr peer;
};

/// What each end writes down for the other.
struct Card {
    std::uint32_t rc = 0;
    std::uint32_t ud = 0;
    std::uint32_t uc = 0;
    std::uint32_t psn = 0;
    std::uint32_t rkey = 0;
    std::uint64_t addr = 0;
};

class Peer {
  public:
    explicit Peer(const Options& options)
        : options_(options),
          device_(need(roce::PacketDevice::open(
                           registry_, {.address = options.own, .mtu_bytes = 1024, .limits = {}}),
                       "open the device")),
          context_(need(open_device(device_->device()), "open_device")),
          pd_(need(alloc_pd(*context_), "alloc_pd")),
          cq_(need(create_cq(*context_, 256, nullptr), "create_cq")),
          memory_(kMemoryBytes) {
        for (std::size_t i = 0; i < memory_.size(); ++i) {
            memory_[i] = static_cast<std::uint8_t>(i * 31 + (options.is_active ? 1 : 128));
        }
        const iovec all{.iov_base = memory_.data(), .iov_len = memory_.size()};
        mr_ = need(reg_mr(*pd_, {.segments = {&all, 1},
                                 .access = Access::kLocalWrite | Access::kRemoteWrite |
                                           Access::kRemoteRead | Access::kRemoteAtomic}),
                   "reg_mr");
        rc_ = make_pair(QpType::kRc);
        ud_ = make_pair(QpType::kUd);
        uc_ = make_pair(QpType::kUc);
    }

    int run() {
        exchange_cards();
        for (Qp* qp : {rc_, ud_, uc_}) {
            connect(*qp);
        }
        if (!options_.is_active) {
            for (int i = 0; i < kReceives; ++i) {
                for (Qp* qp : {rc_, ud_, uc_}) {
                    const Sge room = sge(kUpperHalf, kMemoryBytes - kUpperHalf);
                    need(qp->post_recv({.sg_list = {&room, 1}}), "post_recv");
                }
            }
        }
        std::ofstream(path("rdy." + options_.own_name)).close();
        await_file("rdy." + options_.peer_name);
        return options_.is_active ? be_active() : be_passive();
    }

  private:
    [[nodiscard]] std::string path(const std::string& name) const {
        return options_.dir + "/" + name;
    }
    [[nodiscard]] Sge sge(std::size_t offset, std::size_t bytes) const {
        return {.addr = reinterpret_cast<std::uint64_t>(memory_.data() + offset),
                .length = static_cast<std::uint32_t>(bytes),
                .lkey = mr_->key()};
    }

    /// Moves the device until `is_done()`. Returns: false when that takes too long.
    bool await(const std::function<bool()>& is_done) {
        const auto end = std::chrono::steady_clock::now() + kPatience;
        while (!is_done()) {
            device_->device().progress();
            if (std::chrono::steady_clock::now() > end) {
                return false;
            }
            // The peer may need this processor.
            std::this_thread::yield();
        }
        return true;
    }
    void await_file(const std::string& name) {
        if (!await([&] { return access(path(name).c_str(), F_OK) == 0; })) {
            fail("no " + path(name));
        }
    }

    Qp* make_pair(QpType type) {
        Qp* qp = need(
            create_qp(*pd_, {.type = type, .send_cq = cq_, .recv_cq = cq_, .signal_all = true}),
            "create_qp");
        using enum QpMask;
        QpAttr attr{.state = QpState::kInit, .access = Access::kRemoteWrite, .qkey = kCommonQkey};
        if (type == QpType::kRc) {
            attr.access = attr.access | Access::kRemoteRead | Access::kRemoteAtomic;
        }
        need(qp->modify(attr, kState | kPkeyIndex | kPort |
                                  (type == QpType::kUd ? QpMask::kQkey : kAccess)),
             "modify_qp to INIT");
        return qp;
    }

    void exchange_cards() {
        const std::string own = path("qp." + options_.own_name);
        own_.psn = options_.is_active ? 0xfffff0 : 0x123456;  // the first wraps on the way
        {
            std::ofstream file(own + ".new");
            file << rc_->qpn() << ' ' << ud_->qpn() << ' ' << uc_->qpn() << ' ' << own_.psn << ' '
                 << mr_->key() << ' ' << reinterpret_cast<std::uint64_t>(memory_.data()) << '\n';
        }
        if (std::rename((own + ".new").c_str(), own.c_str()) != 0) {
            fail("cannot write " + own);
        }
        await_file("qp." + options_.peer_name);
        std::ifstream file(path("qp." + options_.peer_name));
        if (!(file >> peer_.rc >> peer_.ud >> peer_.uc >> peer_.psn >> peer_.rkey >> peer_.addr)) {
            fail("cannot read the peer's card");
        }
    }

    void connect(Qp& qp) {
        using enum QpMask;
        const bool is_rc = qp.type() == QpType::kRc;
        const bool is_ud = qp.type() == QpType::kUd;
        QpAttr attr{.state = QpState::kRtr,
                    .ah = {.dest = roce::to_address(options_.peer)},
                    .dest_qpn = is_rc ? peer_.rc : peer_.uc,
                    .rq_psn = peer_.psn,
                    .sq_psn = own_.psn,
                    .path_mtu_bytes = 1024,
                    .max_rd_atomic = 4,
                    .max_dest_rd_atomic = 4,
                    .min_rnr_timer = 12,
                    .timeout = 18,
                    .retry_cnt = 7,
                    .rnr_retry = kRnrRetryForEver};
        need(qp.modify(attr, kState | (is_ud ? kNone : kAv | kPathMtu | kDestQpn | kRqPsn) |
                                 (is_rc ? kMaxDestRdAtomic | kMinRnrTimer : kNone)),
             "modify_qp to RTR");
        attr.state = QpState::kRts;
        need(qp.modify(attr, kState | kSqPsn |
                                 (is_rc ? kTimeout | kRetryCnt | kRnrRetry | kMaxRdAtomic : kNone)),
             "modify_qp to RTS");
        if (is_ud) {
            ah_ = need(create_ah(*pd_, attr.ah), "create_ah");
        }
    }

    /// The next completion, printed. Returns: its status.
    WcStatus next(const char* what) {
        Wc wc;
        if (!await([&] { return cq_->poll({&wc, 1}) == 1; })) {
            fail(std::string(what) + ": no completion");
        }
        std::printf("%-20s %s, %llu bytes\n", what, to_string(wc.status),
                    static_cast<unsigned long long>(wc.byte_len));
        std::fflush(stdout);
        return wc.status;
    }

    int be_passive() {
        int good = 0;
        for (int i = 0; i < kMessagesToPassive; ++i) {
            good += next("receive") == WcStatus::kSuccess ? 1 : 0;
        }
        await_file("done");
        return good == kMessagesToPassive ? 0 : 1;
    }

    /// Posts one request and waits for it. `wr` lacks its list of `bytes` at `offset`.
    void expect(const char* what, Qp& qp, SendWr wr, std::size_t offset, std::size_t bytes,
                WcStatus status = WcStatus::kSuccess) {
        const Sge list = sge(offset, bytes);
        wr.sg_list = {&list, bytes != 0 ? 1u : 0u};
        wr.remote_qpn = peer_.ud;
        wr.remote_qkey = kCommonQkey;
        wr.ah = qp.type() == QpType::kUd ? ah_ : nullptr;
        need(qp.post_send(wr), what);
        is_bad_ = next(what) != status || is_bad_;
    }

    int be_active() {
        const SendWr write{
            .opcode = WrOpcode::kWrite, .remote_addr = peer_.addr, .rkey = peer_.rkey};
        const SendWr write_imm{.opcode = WrOpcode::kWriteImm,
                               .imm = kImm,
                               .remote_addr = peer_.addr,
                               .rkey = peer_.rkey};
        const SendWr read{.opcode = WrOpcode::kRead, .remote_addr = peer_.addr, .rkey = peer_.rkey};
        expect("RC SEND 37", *rc_, {.flags = SendFlags::kSolicited}, 0, 37);
        expect("RC SEND 0", *rc_, {}, 0, 0);
        expect("RC SEND imm 64", *rc_, {.opcode = WrOpcode::kSendImm, .imm = kImm}, 0, 64);
        expect("RC SEND 3001", *rc_, {}, 0, 3001);
        expect("RC WRITE 16", *rc_, write, 0, 16);
        expect("RC WRITE 0", *rc_, write, 0, 0);
        expect("RC WRITE 2050", *rc_, write, 0, 2050);
        expect("RC WRITE imm 1500", *rc_, write_imm, 0, 1500);
        expect("RC READ 8", *rc_, read, kUpperHalf, 8);
        expect("RC READ 3003", *rc_, read, kUpperHalf, 3003);
        is_bad_ = std::memcmp(memory_.data(), memory_.data() + kUpperHalf, 2050) != 0 || is_bad_;
        try_atomics();
        expect("UC SEND 100", *uc_, {}, 0, 100);
        expect("UC WRITE imm 1100", *uc_, write_imm, 0, 1100);
        expect("UD SEND 99", *ud_, {}, 0, 99);
        expect("UD SEND imm 1000", *ud_, {.opcode = WrOpcode::kSendImm, .imm = kImm}, 0, 1000);
        SendWr refused = write;
        refused.rkey ^= 0xff;
        expect("RC WRITE wrong key", *rc_, refused, 0, 8, WcStatus::kRemAccessErr);
        std::ofstream(path("done")).close();
        std::puts(is_bad_ ? "FAILED" : "all ok");
        return is_bad_ ? 1 : 0;
    }

    void try_atomics() {
        const std::uint64_t at = peer_.addr + 4096;
        expect("RC FETCH_ADD", *rc_,
               {.opcode = WrOpcode::kFetchAdd,
                .remote_addr = at,
                .rkey = peer_.rkey,
                .compare_add = kAdd},
               kUpperHalf, 8);
        std::uint64_t before = 0;
        std::memcpy(&before, memory_.data() + kUpperHalf, sizeof before);
        const SendWr swap{.opcode = WrOpcode::kCas,
                          .remote_addr = at,
                          .rkey = peer_.rkey,
                          .compare_add = before + kAdd,
                          .swap = 0x1122334455667788};
        expect("RC COMPARE_SWAP", *rc_, swap, kUpperHalf, 8);
        std::uint64_t found = 0;
        std::memcpy(&found, memory_.data() + kUpperHalf, sizeof found);
        is_bad_ = found != before + kAdd || is_bad_;
    }

    const Options& options_;
    Registry registry_;
    std::unique_ptr<roce::PacketDevice> device_;
    Context* context_;
    Pd* pd_;
    VerbsCq* cq_;
    std::vector<std::uint8_t> memory_;
    Mr* mr_ = nullptr;
    Qp* rc_ = nullptr;
    Qp* ud_ = nullptr;
    Qp* uc_ = nullptr;
    Ah* ah_ = nullptr;
    Card own_;
    Card peer_;
    bool is_bad_ = false;
};

util::SockAddr roce_address(const char* ip) {
    const std::string with_port = std::strchr(ip, ':') != nullptr ? "[" + std::string(ip) + "]:4791"
                                                                  : std::string(ip) + ":4791";
    return need(util::SockAddr::from_string(with_port.c_str()), ip);
}

}  // namespace
}  // namespace rvt::core

int main(int argc, char** argv) {
    using rvt::core::fail;
    using rvt::core::Options;
    using rvt::core::Peer;
    using rvt::core::roce_address;
    if (argc != 7) {
        fail("usage: rxe_peer DIR active|passive OWN-NAME OWN-IP PEER-NAME PEER-IP");
    }
    const Options options{.dir = argv[1],
                          .is_active = std::strcmp(argv[2], "active") == 0,
                          .own_name = argv[3],
                          .own = roce_address(argv[4]),
                          .peer_name = argv[5],
                          .peer = roce_address(argv[6])};
    Peer peer(options);
    const int status = peer.run();
    std::fflush(stdout);
    // Objects that peers may still ask for end with the process.
    std::_Exit(status);
}
