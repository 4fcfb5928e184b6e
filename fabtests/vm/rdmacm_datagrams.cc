// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// One end of the datagrams of datagrams.h, on librdmacm: in a guest, over kernel rxe. All that it
// answers for, and all that it sends, is one pair of its own.
//
//   rdmacm_datagrams DIR active|passive OWN-IP PEER-IP [strays]
#include "datagrams.h"

#include <cerrno>
#include <cstring>
#include <vector>

#include <poll.h>
#include <rdma/rdma_cma.h>

#include "rdmacm_name.h"

namespace {

using datagrams::Outcome;
using datagrams::Received;
using datagrams::Sent;
using traffic::fail;
using traffic::Name;

constexpr int kPatienceMs = std::chrono::milliseconds(traffic::kPatience).count();
constexpr int kResolveMs = 5000;
constexpr std::size_t kRouteBytes = 40;                // in front of each datagram
constexpr int kMemoryAccess = IBV_ACCESS_LOCAL_WRITE;  // ibv_reg_mr() is a macro that wants an int
constexpr std::size_t kRoom = kRouteBytes + datagrams::kMostBytes;

template <class T>
T* need(T* object, const char* what) {
    if (object == nullptr) {
        fail(std::string(what) + ": " + strerrordesc_np(errno));
    }
    return object;
}
void need(int result, const char* what) {
    if (result != 0) {
        fail(std::string(what) + ": " + strerrordesc_np(result > 0 ? result : errno));
    }
}

class RdmaCmEnd final : public datagrams::End {
  public:
    RdmaCmEnd(const traffic::Options& options, std::span<std::byte> memory)
        : options_(options), memory_(memory) {
        requests_ = need(rdma_create_event_channel(), "rdma_create_event_channel");
        news_ = need(rdma_create_event_channel(), "rdma_create_event_channel");
    }

    void open(std::uint16_t service) override {
        rdma_cm_id* listener = nullptr;
        need(rdma_create_id(requests_, &listener, nullptr, RDMA_PS_UDP), "rdma_create_id");
        need(rdma_bind_addr(listener, Name(options_.own_ip, service).get()), "rdma_bind_addr");
        open_pair(listener->verbs);
        need(rdma_listen(listener, 8), "rdma_listen");
    }

    Sent send(std::uint16_t service, std::span<std::byte> memory) override {
        if (service != found_service_) {
            const Sent found = find(service);
            if (found.outcome != Outcome::kSent) {
                return found;
            }
        }
        ibv_sge sge = piece(memory.data(), memory.size());
        ibv_send_wr request{};
        request.opcode = IBV_WR_SEND;
        request.send_flags = IBV_SEND_SIGNALED;
        request.sg_list = &sge;
        request.num_sge = 1;
        request.wr.ud.ah = peer_;
        request.wr.ud.remote_qpn = peer_qpn_;
        request.wr.ud.remote_qkey = peer_qkey_;
        ibv_send_wr* bad = nullptr;
        need(ibv_post_send(qp_, &request, &bad), "ibv_post_send");
        const ibv_wc wc = complete(cq_);
        return {.outcome = wc.status == IBV_WC_SUCCESS ? Outcome::kSent : Outcome::kOther,
                .text = ibv_wc_status_str(wc.status)};
    }

    Received receive() override {
        const ibv_wc wc = complete(receive_cq_);
        if (wc.status != IBV_WC_SUCCESS) {
            return {.problem = ibv_wc_status_str(wc.status)};
        }
        return {.buffer = wc.wr_id,
                .bytes = wc.byte_len - kRouteBytes,
                .is_from_peer = wc.src_qp == peer_qpn_};
    }

    [[nodiscard]] std::span<const std::byte> buffer(std::size_t index) const override {
        return std::span(buffers_).subspan(index * kRoom + kRouteBytes, datagrams::kMostBytes);
    }

    void close() override { need(ibv_destroy_qp(qp_), "ibv_destroy_qp"); }

  private:
    void open_pair(ibv_context* device) {
        pd_ = need(ibv_alloc_pd(device), "ibv_alloc_pd");
        mr_ = need(ibv_reg_mr(pd_, memory_.data(), memory_.size(), kMemoryAccess), "ibv_reg_mr");
        buffers_mr_ =
            need(ibv_reg_mr(pd_, buffers_.data(), buffers_.size(), kMemoryAccess), "ibv_reg_mr");
        cq_ =
            need(ibv_create_cq(device, datagrams::kReceives, nullptr, nullptr, 0), "ibv_create_cq");
        receive_cq_ =
            need(ibv_create_cq(device, datagrams::kReceives, nullptr, nullptr, 0), "ibv_create_cq");
        ibv_qp_init_attr init{};
        init.send_cq = cq_;
        init.recv_cq = receive_cq_;
        init.cap.max_send_wr = 1;
        init.cap.max_recv_wr = datagrams::kReceives;
        init.cap.max_send_sge = 1;
        init.cap.max_recv_sge = 1;
        init.qp_type = IBV_QPT_UD;
        qp_ = need(ibv_create_qp(pd_, &init), "ibv_create_qp");
        ibv_qp_attr attr{};
        attr.qp_state = IBV_QPS_INIT;
        attr.port_num = 1;
        attr.qkey = RDMA_UDP_QKEY;
        need(
            ibv_modify_qp(qp_, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY),
            "ibv_modify_qp");
        attr.qp_state = IBV_QPS_RTR;
        need(ibv_modify_qp(qp_, &attr, IBV_QP_STATE), "ibv_modify_qp");
        attr.qp_state = IBV_QPS_RTS;
        need(ibv_modify_qp(qp_, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), "ibv_modify_qp");
        for (std::size_t i = 0; i < datagrams::kReceives; ++i) {
            post_receive(i);
        }
    }

    void post_receive(std::size_t i) {
        ibv_sge sge = piece(&buffers_[i * kRoom], kRoom);
        sge.lkey = buffers_mr_->lkey;
        ibv_recv_wr request{};
        request.wr_id = i;
        request.sg_list = &sge;
        request.num_sge = 1;
        ibv_recv_wr* bad = nullptr;
        need(ibv_post_recv(qp_, &request, &bad), "ibv_post_recv");
    }

    [[nodiscard]] rdma_conn_param own_pair() const {
        rdma_conn_param param{};
        param.qp_num = qp_->qp_num;
        return param;
    }

    // ---- questions ----

    Sent find(std::uint16_t service) {
        rdma_cm_id* id = nullptr;
        need(rdma_create_id(news_, &id, nullptr, RDMA_PS_UDP), "rdma_create_id");
        need(rdma_resolve_addr(id, Name(options_.own_ip, 0).get(),
                               Name(options_.peer_ip, service).get(), kResolveMs),
             "rdma_resolve_addr");
        await(RDMA_CM_EVENT_ADDR_RESOLVED);
        need(rdma_resolve_route(id, kResolveMs), "rdma_resolve_route");
        await(RDMA_CM_EVENT_ROUTE_RESOLVED);
        rdma_conn_param param = own_pair();
        need(rdma_connect(id, &param), "rdma_connect");
        rdma_cm_event* const event = next();
        Sent found{.outcome = event->event == RDMA_CM_EVENT_ESTABLISHED   ? Outcome::kSent
                              : event->event == RDMA_CM_EVENT_UNREACHABLE ? Outcome::kRefused
                                                                          : Outcome::kOther,
                   .text = rdma_event_str(event->event)};
        if (found.outcome == Outcome::kSent) {
            rdma_ud_param& ud = event->param.ud;
            peer_ = need(ibv_create_ah(pd_, &ud.ah_attr), "ibv_create_ah");
            peer_qpn_ = ud.qp_num;
            peer_qkey_ = ud.qkey;
            found_service_ = service;
        }
        rdma_ack_cm_event(event);
        return found;
    }

    rdma_cm_event* next() {
        pollfd waits{.fd = news_->fd, .events = POLLIN, .revents = 0};
        if (poll(&waits, 1, kPatienceMs) != 1) {
            fail("no event of librdmacm");
        }
        rdma_cm_event* event = nullptr;
        need(rdma_get_cm_event(news_, &event), "rdma_get_cm_event");
        return event;
    }

    void await(rdma_cm_event_type type) {
        rdma_cm_event* const event = next();
        if (event->event != type) {
            fail(std::string("librdmacm says ") + rdma_event_str(event->event));
        }
        rdma_ack_cm_event(event);
    }

    // ---- answers ----

    /// A question that is repeated is another request, and gets the same answer.
    void answer_requests() {
        pollfd waits{.fd = requests_->fd, .events = POLLIN, .revents = 0};
        while (poll(&waits, 1, 0) == 1) {
            rdma_cm_event* event = nullptr;
            need(rdma_get_cm_event(requests_, &event), "rdma_get_cm_event");
            if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
                rdma_conn_param param = own_pair();
                need(rdma_accept(event->id, &param), "rdma_accept");
            }
            rdma_ack_cm_event(event);
        }
    }

    ibv_wc complete(ibv_cq* cq) {
        ibv_wc wc;
        datagrams::await([&] {
            answer_requests();
            return ibv_poll_cq(cq, 1, &wc) != 0;
        });
        return wc;
    }

    [[nodiscard]] ibv_sge piece(const std::byte* data, std::size_t bytes) const {
        return {.addr = reinterpret_cast<std::uint64_t>(data),
                .length = static_cast<std::uint32_t>(bytes),
                .lkey = mr_->lkey};
    }

    const traffic::Options& options_;
    const std::span<std::byte> memory_;
    std::vector<std::byte> buffers_ =
        std::vector<std::byte>(datagrams::kReceives * kRoom, datagrams::kUntouched);
    rdma_event_channel* requests_ = nullptr;
    rdma_event_channel* news_ = nullptr;
    ibv_pd* pd_ = nullptr;
    ibv_mr* mr_ = nullptr;
    ibv_mr* buffers_mr_ = nullptr;
    ibv_cq* cq_ = nullptr;
    ibv_cq* receive_cq_ = nullptr;
    ibv_qp* qp_ = nullptr;
    std::uint16_t found_service_ = 0;
    ibv_ah* peer_ = nullptr;
    std::uint32_t peer_qpn_ = 0;
    std::uint32_t peer_qkey_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
    const traffic::Options options = traffic::read_options(argc, argv);
    std::vector<std::byte> memory(datagrams::kMostBytes);
    RdmaCmEnd end(options, memory);
    return datagrams::run(end, memory, options);
}
