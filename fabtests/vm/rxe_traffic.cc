// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// One end of the operations of operations.h, on the first device of libibverbs: in a guest, kernel
// rxe.
//
//   rxe_traffic DIR active|passive OWN-IP PEER-IP [lossy|strays]
#include <cerrno>
#include <cstring>
#include <fstream>

#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "traffic.h"

namespace {

using traffic::Completion;
using traffic::fail;
using traffic::kPairs;
using traffic::Outcome;
using traffic::Pair;
using traffic::Service;

constexpr std::uint8_t kPort = 1;
constexpr int kMemoryAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                              IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
                              IBV_ACCESS_MW_BIND;

// Of what a device says that it has; libibverbs 44 has no name for it.
constexpr std::uint64_t kHasAtomicWrite = 1ull << 40;

/// rxe hands its flags over in the numbers of the kernel, and there bit 2 has this meaning
/// (IB_WC_WITH_INVALIDATE).
constexpr unsigned kWithInvalidate = IBV_WC_WITH_INV | 1u << 2;

template <class T>
T* need(T* object, const char* what) {
    if (object == nullptr) {
        fail(std::string(what) + ": " + strerrordesc_np(errno));
    }
    return object;
}
void need(int error, const char* what) {
    if (error != 0) {
        fail(std::string(what) + ": " + strerrordesc_np(error));
    }
}

ibv_gid gid_of(const std::string& ip) {
    ibv_gid gid{};
    if (inet_pton(AF_INET6, ip.c_str(), gid.raw) == 1) {
        return gid;
    }
    gid.raw[10] = gid.raw[11] = 0xff;
    if (inet_pton(AF_INET, ip.c_str(), gid.raw + 12) != 1) {
        fail("no address: " + ip);
    }
    return gid;
}

ibv_qp_type type_of(Pair pair) {
    switch (traffic::service_of(pair)) {
        case Service::kUc: return IBV_QPT_UC;
        case Service::kUd: return IBV_QPT_UD;
        case Service::kRc: break;
    }
    return IBV_QPT_RC;
}

ibv_wr_opcode opcode_of(traffic::Verb verb) {
    constexpr ibv_wr_opcode kOpcodes[] = {IBV_WR_SEND,
                                          IBV_WR_SEND_WITH_IMM,
                                          IBV_WR_SEND_WITH_INV,
                                          IBV_WR_RDMA_WRITE,
                                          IBV_WR_RDMA_WRITE_WITH_IMM,
                                          IBV_WR_RDMA_READ,
                                          IBV_WR_ATOMIC_FETCH_AND_ADD,
                                          IBV_WR_ATOMIC_CMP_AND_SWP};
    return kOpcodes[static_cast<std::size_t>(verb)];
}

Outcome outcome_of(ibv_wc_status status) {
    switch (status) {
        case IBV_WC_SUCCESS: return Outcome::kSuccess;
        case IBV_WC_REM_ACCESS_ERR: return Outcome::kRemoteAccessError;
        case IBV_WC_WR_FLUSH_ERR: return Outcome::kFlushed;
        default: return Outcome::kOther;
    }
}

class VerbsEnd final : public traffic::End {
  public:
    VerbsEnd(const traffic::Options& options, std::span<std::byte> memory)
        : own_ip_(options.own_ip), peer_(gid_of(options.peer_ip)), is_lossy_(options.is_lossy) {
        ibv_device** devices = need(ibv_get_device_list(nullptr), "ibv_get_device_list");
        ibv_device* device = need(devices[0], "no device");
        counter_ = std::string(device->ibdev_path) + "/ports/1/hw_counters/send_rnr_err";
        context_ = need(ibv_open_device(device), "ibv_open_device");
        pd_ = need(ibv_alloc_pd(context_), "ibv_alloc_pd");
        cq_ = need(ibv_create_cq(context_, traffic::kMaxCompletions, nullptr, nullptr, 0),
                   "ibv_create_cq");
        answers_ = answers();
        mr_ = need(ibv_reg_mr(pd_, memory.data(), memory.size(), kMemoryAccess), "ibv_reg_mr");
        window_ = need(ibv_alloc_mw(pd_, IBV_MW_TYPE_2), "ibv_alloc_mw");
        own_gid_index_ = find_gid(gid_of(own_ip_));
        for (const Pair pair : kPairs) {
            make_pair(pair);
        }
        ibv_ah_attr to_peer = path_to(peer_);
        ah_ = need(ibv_create_ah(pd_, &to_peer), "ibv_create_ah");
        ibv_ah_attr to_group = path_to(gid_of(traffic::group_of(own_ip_)));
        group_ = need(ibv_create_ah(pd_, &to_group), "ibv_create_ah to a group");
    }

    traffic::Card card(std::uint32_t psn) override {
        traffic::Card card{.psn = psn,
                           .key = mr_->rkey,
                           .window_key = ibv_inc_rkey(window_->rkey),
                           .addr = reinterpret_cast<std::uint64_t>(mr_->addr),
                           // What rxe of Linux 6.12 sends again of it has the address 0.
                           .asks = is_lossy_ ? 0 : answers_,
                           .answers = answers_};
        for (const Pair pair : kPairs) {
            card.qpns[index(pair)] = qp(pair)->qp_num;
        }
        return card;
    }

    void connect(const traffic::Card& own, const traffic::Card& peer) override {
        peer_ud_ = peer.qpns[index(Pair::kUd)];
        for (const Pair pair : kPairs) {
            connect(pair, own.psn, peer);
        }
        join_group();
    }

    void bind_window(std::span<std::byte> memory) override {
        ibv_send_wr wr{};
        wr.opcode = IBV_WR_BIND_MW;
        wr.bind_mw.mw = window_;
        wr.bind_mw.rkey = ibv_inc_rkey(window_->rkey);
        wr.bind_mw.bind_info = {.mr = mr_,
                                .addr = reinterpret_cast<std::uint64_t>(memory.data()),
                                .length = memory.size(),
                                .mw_access_flags = IBV_ACCESS_REMOTE_WRITE};
        post(Pair::kWindow, wr);
        std::optional<Completion> done;
        while (!(done = poll())) {
        }
        if (done->outcome != Outcome::kSuccess) {
            fail(std::string("bind the window: ") + done->text);
        }
    }

    void post_receive(Pair pair, std::uint64_t wr_id, std::span<std::byte> memory) override {
        ibv_sge sge = sge_of(memory);
        ibv_recv_wr wr{};
        wr.wr_id = wr_id;
        wr.sg_list = &sge;
        wr.num_sge = memory.empty() ? 0 : 1;
        ibv_recv_wr* bad = nullptr;
        need(ibv_post_recv(qp(pair), &wr, &bad), "ibv_post_recv");
    }

    void post(const traffic::Request& request) override {
        if (request.verb == traffic::Verb::kAtomicWrite) {
            post_atomic_write(request);
            return;
        }
        ibv_sge sge = sge_of(request.local);
        ibv_send_wr wr{};
        wr.wr_id = request.wr_id;
        wr.opcode = opcode_of(request.verb);
        wr.sg_list = &sge;
        wr.num_sge = request.local.empty() ? 0 : 1;
        wr.imm_data = htonl(request.imm);
        if (wr.opcode == IBV_WR_SEND_WITH_INV) {
            wr.invalidate_rkey = request.key;
        }
        if (type_of(request.pair) == IBV_QPT_UD) {
            const bool is_to_group = request.pair == Pair::kGroup;
            wr.wr.ud = {.ah = is_to_group ? group_ : ah_,
                        .remote_qpn = is_to_group ? traffic::kGroupQpn : peer_ud_,
                        .remote_qkey = traffic::kQkey};
        } else if (wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ||
                   wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
            wr.wr.atomic = {.remote_addr = request.remote_addr,
                            .compare_add = request.compare_add,
                            .swap = request.swap,
                            .rkey = request.key};
        } else {
            wr.wr.rdma = {.remote_addr = request.remote_addr, .rkey = request.key};
        }
        post(request.pair, wr);
    }

    std::optional<Completion> poll() override {
        ibv_wc wc{};
        const int found = ibv_poll_cq(cq_, 1, &wc);
        if (found < 0) {
            fail("ibv_poll_cq");
        }
        if (found == 0) {
            return std::nullopt;
        }
        Completion completion{.wr_id = wc.wr_id,
                              .outcome = outcome_of(wc.status),
                              .text = ibv_wc_status_str(wc.status),
                              .bytes = wc.byte_len};
        if ((wc.wc_flags & IBV_WC_WITH_IMM) != 0) {
            completion.imm = ntohl(wc.imm_data);
        }
        if ((wc.wc_flags & kWithInvalidate) != 0) {
            completion.invalidated = wc.invalidated_rkey;
        }
        return completion;
    }

    std::uint64_t receiver_not_ready_count() override {
        std::uint64_t count = 0;
        if (!(std::ifstream(counter_) >> count)) {
            fail("cannot read " + counter_);
        }
        return count;
    }

    void end(Pair pair) override {
        ibv_qp_attr attr{};
        attr.qp_state = IBV_QPS_ERR;
        need(ibv_modify_qp(qp(pair), &attr, IBV_QP_STATE), "ibv_modify_qp to ERR");
    }

  private:
    static std::size_t index(Pair pair) { return static_cast<std::size_t>(pair); }
    ibv_qp* qp(Pair pair) { return qps_[index(pair)]; }
    /// As the group is.
    [[nodiscard]] bool is_v4() const { return own_ip_.find(':') == std::string::npos; }

    [[nodiscard]] ibv_sge sge_of(std::span<std::byte> memory) const {
        return {.addr = reinterpret_cast<std::uint64_t>(memory.data()),
                .length = static_cast<std::uint32_t>(memory.size()),
                .lkey = mr_->lkey};
    }

    void post(Pair pair, ibv_send_wr& wr) {
        ibv_send_wr* bad = nullptr;
        need(ibv_post_send(qp(pair), &wr, &bad), "ibv_post_send");
    }

    /// Only the newer way of posting has it.
    void post_atomic_write(const traffic::Request& request) {
        ibv_qp_ex* const ex = ibv_qp_to_qp_ex(qp(request.pair));
        ibv_wr_start(ex);
        ex->wr_id = request.wr_id;
        ex->wr_flags = IBV_SEND_SIGNALED;
        ibv_wr_atomic_write(ex, request.key, request.remote_addr, request.local.data());
        need(ibv_wr_complete(ex), "ibv_wr_complete");
    }

    /// What this device carries out of the verbs that not every one has. rxe of Linux 6.12 has
    /// FLUSH too, but computes its ICRC over the headers twice: it hears only other rxe devices.
    [[nodiscard]] traffic::Verbs answers() const {
        ibv_device_attr_ex attr{};
        need(ibv_query_device_ex(context_, nullptr, &attr), "ibv_query_device_ex");
        const auto has = [&](std::uint64_t flag, traffic::Verb verb) {
            return (attr.device_cap_flags_ex & flag) != 0 ? traffic::set_of(verb) : 0;
        };
        return has(kHasAtomicWrite, traffic::Verb::kAtomicWrite);
    }

    [[nodiscard]] std::uint8_t find_gid(const ibv_gid& wanted) const {
        ibv_gid gid{};
        for (std::uint8_t i = 0; ibv_query_gid(context_, kPort, i, &gid) == 0; ++i) {
            if (std::memcmp(&gid, &wanted, sizeof gid) == 0) {
                return i;
            }
        }
        fail("the device does not have the address " + own_ip_);
    }

    [[nodiscard]] ibv_ah_attr path_to(const ibv_gid& gid) const {
        ibv_ah_attr attr{};
        attr.is_global = 1;
        attr.port_num = kPort;
        attr.grh.dgid = gid;
        attr.grh.sgid_index = own_gid_index_;
        attr.grh.hop_limit = 64;
        return attr;
    }

    void make_pair(Pair pair) {
        const ibv_qp_type type = type_of(pair);
        ibv_qp_init_attr_ex init{};
        init.send_cq = init.recv_cq = cq_;
        init.cap = {.max_send_wr = traffic::kMaxSends,
                    .max_recv_wr = traffic::kMaxReceives,
                    .max_send_sge = 1,
                    .max_recv_sge = 1,
                    .max_inline_data = 0};
        init.qp_type = type;
        init.sq_sig_all = 1;
        init.pd = pd_;
        init.comp_mask = IBV_QP_INIT_ATTR_PD;
        if (type == IBV_QPT_RC && answers_ != 0) {
            init.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
            init.send_ops_flags = IBV_QP_EX_WITH_ATOMIC_WRITE;
        }
        qps_[index(pair)] = need(ibv_create_qp_ex(context_, &init), "ibv_create_qp_ex");
        ibv_qp_attr attr{};
        attr.qp_state = IBV_QPS_INIT;
        attr.port_num = kPort;
        attr.qkey = traffic::kQkey;
        attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
        if (type == IBV_QPT_RC) {
            attr.qp_access_flags |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
        }
        need(ibv_modify_qp(qp(pair), &attr,
                           IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                               (type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)),
             "ibv_modify_qp to INIT");
    }

    void connect(Pair pair, std::uint32_t psn, const traffic::Card& peer) {
        const bool is_rc = type_of(pair) == IBV_QPT_RC;
        const bool is_ud = type_of(pair) == IBV_QPT_UD;
        ibv_qp_attr attr{};
        attr.qp_state = IBV_QPS_RTR;
        attr.path_mtu = IBV_MTU_1024;
        attr.dest_qp_num = peer.qpns[index(pair)];
        attr.rq_psn = peer.psn;
        attr.sq_psn = psn;
        attr.max_rd_atomic = attr.max_dest_rd_atomic = traffic::kMaxReads;
        attr.min_rnr_timer = traffic::kMinRnrTimer;
        attr.timeout = traffic::kTimeout;
        attr.retry_cnt = traffic::kRetries;
        attr.rnr_retry = traffic::kRnrRetries;
        attr.ah_attr = path_to(peer_);
        constexpr int kConnected = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
        need(ibv_modify_qp(qp(pair), &attr,
                           IBV_QP_STATE | (is_ud ? 0 : kConnected) |
                               (is_rc ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0)),
             "ibv_modify_qp to RTR");
        attr.qp_state = IBV_QPS_RTS;
        constexpr int kRequester =
            IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
        need(
            ibv_modify_qp(qp(pair), &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | (is_rc ? kRequester : 0)),
            "ibv_modify_qp to RTS");
    }

    /// The kernel's IP layer passes on what is sent to groups that some socket has joined. The
    /// socket stays open as long as the process.
    void join_group() {
        const char* const group = traffic::group_of(own_ip_);
        const int fd = socket(is_v4() ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        ip_mreqn join{};
        ipv6_mreq join6{};  // at the only Ethernet
        const bool has_joined =
            is_v4() ? inet_pton(AF_INET, group, &join.imr_multiaddr) == 1 &&
                          inet_pton(AF_INET, own_ip_.c_str(), &join.imr_address) == 1 &&
                          setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &join, sizeof join) == 0
                    : inet_pton(AF_INET6, group, &join6.ipv6mr_multiaddr) == 1 &&
                          setsockopt(fd, IPPROTO_IPV6, IPV6_JOIN_GROUP, &join6, sizeof join6) == 0;
        if (!has_joined) {
            fail(std::string("join the group: ") + strerrordesc_np(errno));
        }
        const ibv_gid gid = gid_of(group);
        need(ibv_attach_mcast(qp(Pair::kGroup), &gid, 0), "ibv_attach_mcast");
    }

    const std::string own_ip_;
    const ibv_gid peer_;
    const bool is_lossy_;
    std::string counter_;
    traffic::Verbs answers_{};
    ibv_context* context_ = nullptr;
    ibv_pd* pd_ = nullptr;
    ibv_cq* cq_ = nullptr;
    ibv_mr* mr_ = nullptr;
    ibv_mw* window_ = nullptr;
    ibv_ah* ah_ = nullptr;
    ibv_ah* group_ = nullptr;
    std::array<ibv_qp*, kPairs.size()> qps_{};
    std::uint8_t own_gid_index_ = 0;
    std::uint32_t peer_ud_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
    const traffic::Options options = traffic::read_options(argc, argv);
    std::vector<std::byte> memory = traffic::first_memory(options);
    VerbsEnd end(options, memory);
    return traffic::run(end, memory, options);
}
