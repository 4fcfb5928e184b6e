// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// One end of the calls of calls.h, on librdmacm: in a guest, over kernel rxe.
//
//   rdmacm_calls DIR active|passive OWN-IP PEER-IP [computes|peer-computes]
#include "calls.h"

#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include <poll.h>
#include <rdma/rdma_cma.h>

#include "rdmacm_name.h"

namespace {

using calls::Completion;
using calls::Event;
using calls::News;
using traffic::fail;
using traffic::Name;

constexpr int kPatienceMs = std::chrono::milliseconds(traffic::kPatience).count();
constexpr int kResolveMs = 5000;
/// 67 ms: rdma_cm's own time-out of seconds, which each repeat takes that is lost, is no measure.
constexpr std::uint8_t kStreamTimeout = 14;
constexpr int kMemoryAccess =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

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

class RdmaCmEnd final : public calls::End {
  public:
    RdmaCmEnd(const traffic::Options& options, std::span<std::byte> memory)
        : options_(options), memory_(memory) {
        channel_ = need(rdma_create_event_channel(), "rdma_create_event_channel");
    }

    void listen(std::uint16_t service) override {
        need(rdma_create_id(channel_, &listener_, nullptr, RDMA_PS_TCP), "rdma_create_id");
        need(rdma_bind_addr(listener_, Name(options_.own_ip, service).get()), "rdma_bind_addr");
        need(rdma_listen(listener_, 1), "rdma_listen");
        register_memory(listener_->verbs);
    }

    void call(std::uint16_t service, const std::string& data) override {
        need(rdma_create_id(channel_, &id_, nullptr, RDMA_PS_TCP), "rdma_create_id");
        if (options_.is_stream) {
            std::uint8_t timeout = kStreamTimeout;
            need(rdma_set_option(id_, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout,
                                 sizeof timeout),
                 "rdma_set_option");
        }
        need(rdma_resolve_addr(id_, Name(options_.own_ip, 0).get(),
                               Name(options_.peer_ip, service).get(), kResolveMs),
             "rdma_resolve_addr");
        await(RDMA_CM_EVENT_ADDR_RESOLVED);
        need(rdma_resolve_route(id_, kResolveMs), "rdma_resolve_route");
        await(RDMA_CM_EVENT_ROUTE_RESOLVED);
        register_memory(id_->verbs);
        prepare();
        rdma_conn_param param = parameters(data);
        need(rdma_connect(id_, &param), "rdma_connect");
    }

    void prepare() override {
        ibv_qp_init_attr attr{};
        attr.send_cq = cq_;
        attr.recv_cq = receive_cq_;
        attr.cap = {.max_send_wr = calls::kMaxRequests,
                    .max_recv_wr = calls::kMaxRequests,
                    .max_send_sge = 1,
                    .max_recv_sge = 1,
                    .max_inline_data = 0};
        attr.qp_type = IBV_QPT_RC;
        attr.sq_sig_all = 1;
        need(rdma_create_qp(id_, pd_, &attr), "rdma_create_qp");
    }

    void accept(const std::string& data) override {
        rdma_conn_param param = parameters(data);
        need(rdma_accept(id_, &param), "rdma_accept");
    }
    void refuse(const std::string& data) override {
        refused_ = {.request = request_, .answer = data};
        reject(id_, data);
        forget();
    }
    void hang_up() override { need(rdma_disconnect(id_), "rdma_disconnect"); }
    void forget() override {
        if (id_->qp != nullptr) {
            rdma_destroy_qp(id_);
        }
        need(rdma_destroy_id(id_), "rdma_destroy_id");
        id_ = nullptr;
        ibv_wc flushed;
        while (ibv_poll_cq(cq_, 1, &flushed) > 0 || ibv_poll_cq(receive_cq_, 1, &flushed) > 0) {
        }
    }

    Event next_event() override {
        rdma_cm_event* event = next();
        while (is_refused(*event)) {
            refuse_again(event);
            event = next();
        }
        Event told{.text = rdma_event_str(event->event), .data = data_of(*event)};
        switch (event->event) {
            case RDMA_CM_EVENT_CONNECT_REQUEST:
                told.news = News::kRequest;
                id_ = event->id;
                request_ = told.data;
                break;
            case RDMA_CM_EVENT_ESTABLISHED: told.news = News::kConnected; break;
            case RDMA_CM_EVENT_REJECTED: told.news = News::kRefused; break;
            case RDMA_CM_EVENT_DISCONNECTED:
                told.news = News::kEnded;
                rdma_disconnect(id_);  // that is the answer, if the peer has hung up
                break;
            default: told.news = News::kOther; break;
        }
        rdma_ack_cm_event(event);
        return told;
    }

    std::uint64_t key() override { return mr_->rkey; }

    void post_receive(std::span<std::byte> memory) override {
        ibv_sge sge = piece(memory);
        ibv_recv_wr request{};
        request.sg_list = &sge;
        request.num_sge = 1;
        ibv_recv_wr* bad = nullptr;
        need(ibv_post_recv(id_->qp, &request, &bad), "ibv_post_recv");
    }
    void post_send(std::span<std::byte> memory) override { post(IBV_WR_SEND, memory, 0, 0); }
    void post_write(std::span<std::byte> memory, std::uint64_t to, std::uint64_t key) override {
        post(IBV_WR_RDMA_WRITE, memory, to, key);
    }
    void post_read(std::span<std::byte> memory, std::uint64_t from, std::uint64_t key) override {
        post(IBV_WR_RDMA_READ, memory, from, key);
    }

    Completion complete_request() override { return complete(cq_); }
    Completion complete_receive() override { return complete(receive_cq_); }

  private:
    static rdma_conn_param parameters(const std::string& data) {
        rdma_conn_param param{};
        param.private_data = data.data();
        param.private_data_len = static_cast<std::uint8_t>(data.size());
        param.responder_resources = calls::kReads;
        param.initiator_depth = calls::kReads;
        param.retry_count = 7;
        param.rnr_retry_count = 7;  // for ever
        return param;
    }

    void register_memory(ibv_context* device) {
        if (mr_ != nullptr) {
            return;
        }
        pd_ = need(ibv_alloc_pd(device), "ibv_alloc_pd");
        mr_ = need(ibv_reg_mr(pd_, memory_.data(), memory_.size(), kMemoryAccess), "ibv_reg_mr");
        cq_ = need(ibv_create_cq(device, 2 * calls::kMaxRequests, nullptr, nullptr, 0),
                   "ibv_create_cq");
        receive_cq_ = need(ibv_create_cq(device, 2 * calls::kMaxRequests, nullptr, nullptr, 0),
                           "ibv_create_cq");
    }

    /// What is said of connections that are over already is passed over.
    rdma_cm_event* next() {
        for (;;) {
            pollfd waits{.fd = channel_->fd, .events = POLLIN, .revents = 0};
            if (poll(&waits, 1, kPatienceMs) != 1) {
                fail("no event of librdmacm");
            }
            rdma_cm_event* event = nullptr;
            need(rdma_get_cm_event(channel_, &event), "rdma_get_cm_event");
            if (event->event != RDMA_CM_EVENT_TIMEWAIT_EXIT) {
                return event;
            }
            rdma_ack_cm_event(event);
        }
    }

    static std::string data_of(const rdma_cm_event& event) {
        const rdma_conn_param& param = event.param.conn;
        return param.private_data == nullptr
                   ? ""
                   : std::string(static_cast<const char*>(param.private_data),
                                 param.private_data_len);
    }

    /// The kernel keeps nothing of a call that it has refused: where the REJ is lost, the caller's
    /// next REQ is a new request to it.
    [[nodiscard]] bool is_refused(const rdma_cm_event& event) const {
        return event.event == RDMA_CM_EVENT_CONNECT_REQUEST && !refused_.request.empty() &&
               data_of(event) == refused_.request;
    }
    void refuse_again(rdma_cm_event* event) {
        rdma_cm_id* const id = event->id;
        rdma_ack_cm_event(event);
        reject(id, refused_.answer);
        need(rdma_destroy_id(id), "rdma_destroy_id");
    }
    static void reject(rdma_cm_id* id, const std::string& data) {
        need(rdma_reject(id, data.data(), static_cast<std::uint8_t>(data.size())), "rdma_reject");
    }

    void await(rdma_cm_event_type type) {
        rdma_cm_event* const event = next();
        if (event->event != type) {
            fail(std::string("librdmacm says ") + rdma_event_str(event->event));
        }
        rdma_ack_cm_event(event);
    }

    [[nodiscard]] ibv_sge piece(std::span<std::byte> memory) const {
        return {.addr = reinterpret_cast<std::uint64_t>(memory.data()),
                .length = static_cast<std::uint32_t>(memory.size()),
                .lkey = mr_->lkey};
    }

    void post(ibv_wr_opcode opcode, std::span<std::byte> memory, std::uint64_t remote,
              std::uint64_t key) {
        ibv_sge sge = piece(memory);
        ibv_send_wr request{};
        request.opcode = opcode;
        request.sg_list = &sge;
        request.num_sge = 1;
        request.wr.rdma.remote_addr = remote;
        request.wr.rdma.rkey = static_cast<std::uint32_t>(key);
        ibv_send_wr* bad = nullptr;
        need(ibv_post_send(id_->qp, &request, &bad), "ibv_post_send");
    }

    static Completion complete(ibv_cq* cq) {
        ibv_wc wc;
        calls::await_completion([&] { return ibv_poll_cq(cq, 1, &wc) != 0; });
        return {.problem = wc.status != IBV_WC_SUCCESS ? ibv_wc_status_str(wc.status) : "",
                .bytes = wc.byte_len};
    }

    const traffic::Options& options_;
    const std::span<std::byte> memory_;
    std::string request_;  // what the last one said
    struct {
        std::string request, answer;
    } refused_;
    rdma_event_channel* channel_ = nullptr;
    rdma_cm_id* listener_ = nullptr;
    rdma_cm_id* id_ = nullptr;
    ibv_pd* pd_ = nullptr;
    ibv_mr* mr_ = nullptr;
    ibv_cq* cq_ = nullptr;
    ibv_cq* receive_cq_ = nullptr;
};

}  // namespace

int main(int argc, char** argv) {
    const traffic::Options options = traffic::read_options(argc, argv);
    std::vector<std::byte> memory(calls::kMemoryBytes);
    RdmaCmEnd end(options, memory);
    return calls::run(end, memory, options);
}
