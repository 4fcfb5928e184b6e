// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// One end of the operations of operations.h, on rvt's RoCEv2 device at port 4791, for a kernel rxe
// device or another rxe_peer at the other end.
//
//   rxe_peer DIR active|passive OWN-IP PEER-IP [lossy|strays]
#include <cstdlib>
#include <cstring>
#include <memory>

#include "core/ah.h"
#include "core/context.h"
#include "core/device.h"
#include "core/mr.h"
#include "core/qp.h"
#include "core/registry.h"
#include "core/stats.h"
#include "core/verbs_cq.h"
#include "rxe_device.h"
#include "traffic.h"

namespace rvt::core {
namespace {

using traffic::Completion;
using traffic::fail;
using traffic::kPairs;
using traffic::Outcome;
using traffic::Pair;
using traffic::Service;

constexpr traffic::Verbs kAllVerbs = ~traffic::Verbs{0};

QpType type_of(Pair pair) {
    switch (traffic::service_of(pair)) {
        case Service::kUc: return QpType::kUc;
        case Service::kUd: return QpType::kUd;
        case Service::kRc: break;
    }
    return QpType::kRc;
}

WrOpcode opcode_of(traffic::Verb verb) {
    constexpr WrOpcode kOpcodes[] = {
        WrOpcode::kSend,        WrOpcode::kSendImm, WrOpcode::kSendInv,  WrOpcode::kWrite,
        WrOpcode::kWriteImm,    WrOpcode::kRead,    WrOpcode::kFetchAdd, WrOpcode::kCas,
        WrOpcode::kAtomicWrite, WrOpcode::kFlush};
    return kOpcodes[static_cast<std::size_t>(verb)];
}

Outcome outcome_of(WcStatus status) {
    switch (status) {
        case WcStatus::kSuccess: return Outcome::kSuccess;
        case WcStatus::kRemAccessErr: return Outcome::kRemoteAccessError;
        case WcStatus::kWrFlushErr: return Outcome::kFlushed;
        default: return Outcome::kOther;
    }
}

class RvtEnd final : public traffic::End {
  public:
    RvtEnd(const traffic::Options& options, std::span<std::byte> memory)
        : device_(open_rxe_device(registry_, options.own_ip)),
          context_(need(open_device(device_->device()), "open_device")),
          pd_(need(alloc_pd(*context_), "alloc_pd")),
          cq_(need(create_cq(*context_, traffic::kMaxCompletions), "create_cq")),
          peer_(core::to_address(rxe_address(options.peer_ip))) {
        const iovec all{.iov_base = memory.data(), .iov_len = memory.size()};
        mr_ = need(reg_mr(*pd_, {.segments = {&all, 1},
                                 .access = Access::kLocalWrite | Access::kRemoteWrite |
                                           Access::kRemoteRead | Access::kRemoteAtomic |
                                           Access::kMwBind | Access::kFlushGlobal}),
                   "reg_mr");
        addr_ = reinterpret_cast<std::uint64_t>(memory.data());
        window_ = need(alloc_mw(*pd_), "alloc_mw");
        for (const Pair pair : kPairs) {
            make_pair(pair);
        }
        ah_ = need(create_ah(*pd_, {.dest = peer_}), "create_ah");
        group_ = need(
            create_ah(*pd_,
                      {.dest = core::to_address(rxe_address(traffic::group_of(options.own_ip)))}),
            "create_ah to a group");
    }

    traffic::Card card(std::uint32_t psn) override {
        traffic::Card card{.psn = psn,
                           .key = mr_->rkey(),
                           .window_key = window_key(),
                           .addr = addr_,
                           .asks = kAllVerbs,
                           .answers = kAllVerbs};
        for (const Pair pair : kPairs) {
            card.qpns[index(pair)] = qp(pair).qpn();
        }
        return card;
    }

    void connect(const traffic::Card& own, const traffic::Card& peer) override {
        peer_ud_ = peer.qpns[index(Pair::kUd)];
        for (const Pair pair : kPairs) {
            connect(pair, own.psn, peer);
        }
        need(qp(Pair::kGroup).attach_mcast(group_->attr().dest), "attach to the group");
    }

    void bind_window(std::span<std::byte> memory) override {
        const SendWr bind{.opcode = WrOpcode::kBindMw,
                          .bind = {.mw_key = window_->key(),
                                   .new_key = window_key(),
                                   .lkey = mr_->lkey(),
                                   .addr = reinterpret_cast<std::uint64_t>(memory.data()),
                                   .length = memory.size(),
                                   .access = Access::kRemoteWrite}};
        need(qp(Pair::kWindow).post_send(bind), "bind the window");
        std::optional<Completion> done;
        while (!(done = poll())) {
        }
        if (done->outcome != Outcome::kSuccess) {
            fail(std::string("bind the window: ") + done->text);
        }
    }

    void post_receive(Pair pair, std::uint64_t wr_id, std::span<std::byte> memory) override {
        const Sge sge = sge_of(memory);
        need(qp(pair).post_recv(
                 {.wr_id = wr_id, .sg_list = {&sge, memory.empty() ? std::size_t{0} : 1}}),
             "post_recv");
    }

    void post(const traffic::Request& request) override {
        const Sge sge = sge_of(request.local);
        const bool is_flush = request.verb == traffic::Verb::kFlush;
        const bool is_to_group = request.pair == Pair::kGroup;
        need(qp(request.pair)
                 .post_send(
                     {.wr_id = request.wr_id,
                      .opcode = opcode_of(request.verb),
                      .imm = request.verb == traffic::Verb::kSendInv ? request.key : request.imm,
                      .sg_list = {&sge, request.local.empty() || is_flush ? std::size_t{0} : 1},
                      .remote_addr = request.remote_addr,
                      .rkey = request.key,
                      .compare_add = request.compare_add,
                      .swap = request.swap,
                      .ah = is_to_group ? group_ : ah_,
                      .remote_qpn = is_to_group ? kMulticastQpn : peer_ud_,
                      .remote_qkey = traffic::kQkey,
                      .flush = {.type = FlushType::kGlobal,
                                .level =
                                    request.of_region ? FlushLevel::kRegion : FlushLevel::kRange,
                                .length = sge.length}}),
             "post_send");
    }

    std::optional<Completion> poll() override {
        device_->device().progress();
        Wc wc;
        if (cq_->poll({&wc, 1}) == 0) {
            return std::nullopt;
        }
        Completion completion{.wr_id = wc.wr_id,
                              .outcome = outcome_of(wc.status),
                              .text = to_string(wc.status),
                              .bytes = wc.byte_len};
        if (has_all(wc.flags, WcFlags::kWithImm)) {
            completion.imm = wc.imm;
        }
        if (has_all(wc.flags, WcFlags::kWithInv)) {
            completion.invalidated = wc.imm;
        }
        return completion;
    }

    std::uint64_t receiver_not_ready_count() override {
        return device_->device().stats().sum(Stat::kRnrNaks);
    }

    void end(Pair pair) override {
        need(qp(pair).modify({.state = QpState::kErr}, QpMask::kState), "modify_qp to ERR");
    }

  private:
    static std::size_t index(Pair pair) { return static_cast<std::size_t>(pair); }
    Qp& qp(Pair pair) { return *qps_[index(pair)]; }

    /// Of the window once it is bound.
    [[nodiscard]] std::uint32_t window_key() const {
        return (window_->key() & ~0xffu) | ((window_->key() + 1) & 0xffu);
    }

    [[nodiscard]] Sge sge_of(std::span<std::byte> memory) const {
        return {.addr = reinterpret_cast<std::uint64_t>(memory.data()),
                .length = static_cast<std::uint32_t>(memory.size()),
                .lkey = mr_->lkey()};
    }

    void make_pair(Pair pair) {
        const QpType type = type_of(pair);
        Qp* qp = need(create_qp(*pd_, {.type = type,
                                       .send_cq = cq_,
                                       .recv_cq = cq_,
                                       .cap = {.max_send_wr = traffic::kMaxSends,
                                               .max_recv_wr = traffic::kMaxReceives,
                                               .max_send_sge = 1,
                                               .max_recv_sge = 1},
                                       .signal_all = true}),
                      "create_qp");
        using enum QpMask;
        QpAttr attr{
            .state = QpState::kInit, .access = Access::kRemoteWrite, .qkey = traffic::kQkey};
        if (type == QpType::kRc) {
            attr.access =
                attr.access | Access::kRemoteRead | Access::kRemoteAtomic | Access::kFlushGlobal;
        }
        need(qp->modify(attr, kState | kPkeyIndex | kPort |
                                  (type == QpType::kUd ? QpMask::kQkey : kAccess)),
             "modify_qp to INIT");
        qps_[index(pair)] = qp;
    }

    void connect(Pair pair, std::uint32_t psn, const traffic::Card& peer) {
        using enum QpMask;
        const bool is_rc = type_of(pair) == QpType::kRc;
        const bool is_ud = type_of(pair) == QpType::kUd;
        QpAttr attr{.state = QpState::kRtr,
                    .ah = {.dest = peer_},
                    .dest_qpn = peer.qpns[index(pair)],
                    .rq_psn = peer.psn,
                    .sq_psn = psn,
                    .path_mtu_bytes = traffic::kMtuBytes,
                    .max_rd_atomic = traffic::kMaxReads,
                    .max_dest_rd_atomic = traffic::kMaxReads,
                    .min_rnr_timer = traffic::kMinRnrTimer,
                    .timeout = traffic::kTimeout,
                    .retry_cnt = traffic::kRetries,
                    .rnr_retry = traffic::kRnrRetries};
        need(qp(pair).modify(attr, kState | (is_ud ? kNone : kAv | kPathMtu | kDestQpn | kRqPsn) |
                                       (is_rc ? kMaxDestRdAtomic | kMinRnrTimer : kNone)),
             "modify_qp to RTR");
        attr.state = QpState::kRts;
        need(qp(pair).modify(attr,
                             kState | kSqPsn |
                                 (is_rc ? kTimeout | kRetryCnt | kRnrRetry | kMaxRdAtomic : kNone)),
             "modify_qp to RTS");
    }

    Registry registry_;
    std::unique_ptr<roce::PacketDevice> device_;
    Context* context_;
    Pd* pd_;
    VerbsCq* cq_;
    Address peer_;
    Mr* mr_ = nullptr;
    Mw* window_ = nullptr;
    Ah* ah_ = nullptr;
    Ah* group_ = nullptr;
    std::array<Qp*, kPairs.size()> qps_{};
    std::uint64_t addr_ = 0;
    std::uint32_t peer_ud_ = 0;
};

}  // namespace
}  // namespace rvt::core

int main(int argc, char** argv) {
    const traffic::Options options = traffic::read_options(argc, argv);
    std::vector<std::byte> memory = traffic::first_memory(options);
    rvt::core::RvtEnd end(options, memory);
    const int status = traffic::run(end, memory, options);
    // Objects that peers may still ask for end with the process.
    std::_Exit(status);
}
