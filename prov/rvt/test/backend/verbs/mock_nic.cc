// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The functions of the mock.
#include "backend/verbs/mock_nic.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <mutex>
#include <utility>

#include <sys/eventfd.h>
#include <unistd.h>

#include "backend/verbs/mock_objects.h"

namespace rvt::verbs {

MockNic* mock = nullptr;

bool fails(std::string_view call) {
    errno = mock->is_gone ? EIO : mock->error;
    return mock->is_gone || mock->failing == call;
}

namespace {

constexpr std::uint32_t kFinishedBytes = 64;  // of a receive that nobody has sent anything

/// Of all that pairs and queues hold.
std::mutex traffic;

struct MockChannel : ibv_comp_channel {
    std::deque<ibv_cq*> told;
};
struct MockSrq : ibv_srq {
    std::deque<Receive> receives;
};
std::vector<MockPair*> pairs;
std::vector<MockPair*> late_pairs;  // that have ended, see MockNic::looks_before_flush
std::vector<MockSrq*> shared_queues;

MockPair* pair_of(std::uint32_t qpn) {
    const auto found = std::ranges::find(pairs, qpn, &MockPair::number);
    return found != pairs.end() ? *found : nullptr;
}

void push(ibv_cq* queue, const ibv_wc& wc) {
    auto& cq = MockCq::of(queue);
    cq.entries.push_back(wc);
    if (cq.is_armed) {
        cq.is_armed = false;
        static_cast<MockChannel*>(cq.channel)->told.push_back(queue);
        eventfd_write(cq.channel->fd, 1);
    }
}

void complete(const MockPair& pair, std::uint64_t wr_id, ibv_wc_status status, bool is_receive,
              std::uint32_t bytes = 0) {
    ibv_wc wc{};
    wc.wr_id = wr_id;
    wc.status = status;
    wc.opcode = is_receive ? IBV_WC_RECV : IBV_WC_SEND;
    wc.byte_len = bytes;
    wc.qp_num = pair.number();
    if (status != IBV_WC_SUCCESS) {  // what is left of another one: ibv_poll_cq(3)
        wc.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
        wc.byte_len = 0xdead;
        wc.wc_flags = IBV_WC_WITH_IMM;
    }
    push(is_receive ? pair.qp_base.recv_cq : pair.qp_base.send_cq, wc);
}

void tell(ibv_event_type type, ibv_qp* pair) {
    ibv_async_event event{};
    event.event_type = type;
    event.element.qp = pair;
    mock->events.push_back(event);
}

/// What it has taken of a shared queue.
void flush_held(MockPair& pair) {
    for (const Receive& receive : std::exchange(pair.held, {})) {
        complete(pair, receive.wr_id, IBV_WC_WR_FLUSH_ERR, true);
    }
    if (pair.qp_base.srq != nullptr && mock->tells_last_receive) {
        tell(IBV_EVENT_QP_LAST_WQE_REACHED, &pair.qp_base);
    }
}

/// What is under way completes, with `first` to begin with.
void end_pair(MockPair& pair, ibv_wc_status first = IBV_WC_WR_FLUSH_ERR) {
    if (pair.now == IBV_QPS_ERR) {
        return;
    }
    pair.now = IBV_QPS_ERR;
    for (const Frame& frame : pair.waiting) {
        if (frame.is_rdma() && mock->is_rdma_unfinished) {
            pair.unfinished.push_back(frame.wr_id);
            continue;
        }
        complete(pair, frame.wr_id, std::exchange(first, IBV_WC_WR_FLUSH_ERR), false);
    }
    pair.waiting.clear();
    if (mock->looks_before_flush != 0) {
        late_pairs.push_back(&pair);
    } else {
        flush_held(pair);
    }
    for (const bool is_receive : {false, true}) {
        for (const std::uint64_t posted : std::exchange(pair.posted(is_receive), {})) {
            if (mock->flushes) {
                complete(pair, posted, IBV_WC_WR_FLUSH_ERR, is_receive);
            }
        }
    }
}

/// Returns: false when there is no receive.
bool deliver(const MockPair& to, std::span<const char> bytes) {
    auto& receives = static_cast<MockSrq*>(to.qp_base.srq)->receives;
    if (receives.empty()) {
        return false;
    }
    const Receive receive = receives.front();
    receives.pop_front();
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the address that was posted
    std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(receive.room.addr));
    complete(to, receive.wr_id, IBV_WC_SUCCESS, true, static_cast<std::uint32_t>(bytes.size()));
    return true;
}

/// Whether the key names that memory, with this right.
bool is_granted(const Frame& frame, std::size_t bytes, int right) {
    const std::size_t number = frame.key / 2;  // of regions, from 1 on
    if (frame.key % 2 == 0 || number == 0 || number > mock->regions.size()) {
        return false;
    }
    const MockNic::Region& region = mock->regions[number - 1];
    return region.is_there && (region.access & right) != 0 && frame.address >= region.iova &&
           frame.address + bytes <= region.iova + region.length;
}

/// Returns: false when the peer's NIC refuses.
bool read(const Frame& frame) {
    if (!is_granted(frame, frame.to.length, IBV_ACCESS_REMOTE_READ)) {
        return false;
    }
    // NOLINTBEGIN(performance-no-int-to-ptr): the addresses that were posted
    std::memcpy(reinterpret_cast<void*>(frame.to.addr), reinterpret_cast<void*>(frame.address),
                frame.to.length);
    // NOLINTEND(performance-no-int-to-ptr)
    ++mock->reads;
    return true;
}
bool write(const Frame& frame) {
    if (!is_granted(frame, frame.bytes.size(), IBV_ACCESS_REMOTE_WRITE)) {
        return false;
    }
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the address that was posted
    std::ranges::copy(frame.bytes, reinterpret_cast<char*>(frame.address));
    ++mock->writes;
    return true;
}

/// Sends what can be sent.
void run(MockPair& pair) {
    while (!pair.waiting.empty()) {
        const MockPair* const to = pair_of(pair.peer);
        if (mock->is_cut || to == nullptr || to->peer != pair.number() || to->now == IBV_QPS_ERR) {
            end_pair(pair, IBV_WC_RETRY_EXC_ERR);
            return;
        }
        const Frame& frame = pair.waiting.front();
        if (frame.is_rdma() && mock->is_rdma_stopped) {
            return;
        }
        if (mock->next_request != IBV_WC_SUCCESS) {
            end_pair(pair, std::exchange(mock->next_request, IBV_WC_SUCCESS));
            return;
        }
        if (frame.is_rdma() && !(frame.is_read ? read(frame) : write(frame))) {
            end_pair(pair, IBV_WC_REM_ACCESS_ERR);
            return;
        }
        if (!frame.is_rdma() && !deliver(*to, frame.bytes)) {
            return;
        }
        if (frame.is_signaled) {
            complete(pair, frame.wr_id, IBV_WC_SUCCESS, false);
        }
        pair.waiting.pop_front();
    }
}

ibv_pd* alloc_pd(ibv_context* context) {
    return fails("alloc_pd") ? nullptr : make<ibv_pd>({.context = context, .handle = 0});
}

ibv_comp_channel* create_channel(ibv_context* context) {
    if (fails("create_comp_channel")) {
        return nullptr;
    }
    MockChannel made{};
    made.context = context;
    made.fd = eventfd(0, EFD_CLOEXEC);
    return make(made);
}
int destroy_channel(ibv_comp_channel* channel) {
    close(channel->fd);
    return destroy(static_cast<MockChannel*>(channel));
}
ibv_cq* create_cq(ibv_context* context, int, void* user, ibv_comp_channel* channel, int) {
    if (fails("create_cq")) {
        return nullptr;
    }
    auto* const made = new MockCq{};
    ++mock->live;
    made->context = context;
    made->cq_context = user;
    made->channel = channel;
    return made->base();
}
int destroy_cq(ibv_cq* queue) {
    const std::lock_guard guard(traffic);
    return destroy(&MockCq::of(queue));
}
int poll_cq(ibv_cq* queue, int most, ibv_wc* to) {
    const std::lock_guard guard(traffic);
    auto& own = MockCq::of(queue).entries;
    auto& entries = own.empty() ? mock->completions : own;
    int taken = 0;
    for (; taken < most && !entries.empty() && !mock->is_gone; ++taken) {
        to[taken] = entries.front();
        entries.pop_front();
    }
    if (!late_pairs.empty() && --mock->looks_before_flush == 0) {
        for (MockPair* const pair : std::exchange(late_pairs, {})) {
            flush_held(*pair);
        }
    }
    return taken;
}
int req_notify_cq(ibv_cq* queue, int) {
    const std::lock_guard guard(traffic);
    if (fails("req_notify_cq")) {
        return errno;
    }
    MockCq::of(queue).is_armed = true;
    return 0;
}
int get_cq_event(ibv_comp_channel* channel, ibv_cq** queue, void** user) {
    const std::lock_guard guard(traffic);
    auto& told = static_cast<MockChannel*>(channel)->told;
    if (told.empty()) {
        return -1;
    }
    *queue = told.front();
    *user = (*queue)->cq_context;
    told.pop_front();
    eventfd_t value = 0;
    if (told.empty()) {
        eventfd_read(channel->fd, &value);
    }
    return 0;
}
void ack_cq_events(ibv_cq*, unsigned) {}

ibv_srq* create_srq(ibv_pd* pd, ibv_srq_init_attr* init) {
    if (fails("create_srq")) {
        return nullptr;
    }
    const int most = mock->attr.max_srq_sge != 0 ? mock->attr.max_srq_sge : mock->attr.max_sge;
    if (init->attr.max_sge > static_cast<std::uint32_t>(most)) {
        errno = EINVAL;
        return nullptr;
    }
    auto* const made = new MockSrq{};
    ++mock->live;
    made->context = pd->context;
    const std::lock_guard guard(traffic);
    shared_queues.push_back(made);
    return made;
}
int destroy_srq(ibv_srq* queue) {
    const std::lock_guard guard(traffic);
    std::erase(shared_queues, queue);
    return destroy(static_cast<MockSrq*>(queue));
}
int post_srq_recv(ibv_srq* queue, ibv_recv_wr* wr, ibv_recv_wr** refused) {
    const std::lock_guard guard(traffic);
    std::size_t room = fails("post_srq_recv") ? mock->taken_before_failure : ~std::size_t{0};
    if (room == 0) {
        *refused = wr;
        return errno;
    }
    std::vector<std::uint64_t>& ids = mock->shared_receives.emplace_back();
    for (; wr != nullptr && room-- != 0; wr = wr->next) {
        ids.push_back(wr->wr_id);
        static_cast<MockSrq*>(queue)->receives.push_back(
            {.wr_id = wr->wr_id, .room = *wr->sg_list});
    }
    for (MockPair* const pair : pairs) {
        run(*pair);
    }
    *refused = wr;
    return wr != nullptr ? mock->error : 0;
}

ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* init) {
    const std::lock_guard guard(traffic);
    const bool is_too_much = init->cap.max_inline_data > mock->max_inline;
    const bool is_full = pairs.size() >= mock->most_pairs;
    if (fails("create_qp")) {
        return nullptr;
    }
    if (is_too_much || is_full || mock->create_qp_error != 0) {
        errno = is_too_much ? EINVAL : is_full ? ENOMEM : mock->create_qp_error;
        return nullptr;
    }
    auto* const made = new MockPair{};
    ++mock->live;
    ibv_qp& base = made->qp_base;
    base.context = pd->context;
    base.qp_context = init->qp_context;
    base.qp_type = init->qp_type;
    base.send_cq = init->send_cq;
    base.recv_cq = init->recv_cq;
    base.srq = init->srq;
    made->signals_all = init->sq_sig_all != 0;
    for (base.qp_num = 77; pair_of(base.qp_num) != nullptr; ++base.qp_num) {
    }
    pairs.push_back(made);
    mock->last_pair = &base;
    return &base;
}
/// Each change of state is a call of its own.
std::string_view call_of(ibv_qp_state to) {
    switch (to) {
        case IBV_QPS_INIT: return "modify_qp to INIT";
        case IBV_QPS_RTR: return "modify_qp to RTR";
        case IBV_QPS_RTS: return "modify_qp to RTS";
        case IBV_QPS_ERR: return "modify_qp to ERR";
        default: return "modify_qp";
    }
}
/// That nobody has read.
void forget_completions(const ibv_qp& pair) {
    for (ibv_cq* const queue : {pair.send_cq, pair.recv_cq}) {
        std::erase_if(MockCq::of(queue).entries,
                      [&](const ibv_wc& wc) { return wc.qp_num == pair.qp_num; });
    }
}
int modify_qp(ibv_qp* which, ibv_qp_attr* attr, int mask) {
    const std::lock_guard guard(traffic);
    if (fails(call_of(attr->qp_state))) {
        return errno;
    }
    mock->modified.push_back(*attr);
    mock->masks.push_back(mask);
    auto& pair = MockPair::of(which);
    if ((mask & IBV_QP_DEST_QPN) != 0) {
        pair.peer = attr->dest_qp_num;
    }
    if ((mask & IBV_QP_STATE) != 0 && attr->qp_state == IBV_QPS_ERR) {
        end_pair(pair);
    } else if ((mask & IBV_QP_STATE) != 0) {
        pair.now = attr->qp_state;
    }
    if ((mask & IBV_QP_STATE) != 0 && attr->qp_state == IBV_QPS_RESET) {
        forget_completions(*which);
        pair.peer = 0;
    }
    return 0;
}
/// What the queues hold of it goes with it, and a receive that it has taken.
int destroy_qp(ibv_qp* which) {
    std::unique_lock guard(traffic);
    forget_completions(*which);
    std::erase_if(mock->events,
                  [&](const ibv_async_event& event) { return event.element.qp == which; });
    std::erase(pairs, &MockPair::of(which));
    std::erase(late_pairs, &MockPair::of(which));
    const int destroyed = destroy(&MockPair::of(which));
    guard.unlock();
    if (const auto told = std::exchange(mock->when_pair_is_gone, nullptr)) {
        told();
    }
    return destroyed;
}
int post_send(ibv_qp* which, ibv_send_wr* wr, ibv_send_wr**) {
    using Clock = std::chrono::steady_clock;
    for (const auto began = Clock::now(); Clock::now() - began < mock->send_takes;) {
    }
    const std::lock_guard guard(traffic);
    auto& pair = MockPair::of(which);
    if (fails("post_send")) {
        return errno;
    }
    if (pair.peer == 0) {
        if (mock->sends.size() >= mock->most_sends) {
            return ENOMEM;
        }
        pair.sends.push_back(wr->wr_id);
        mock->sends.push_back(*wr);
        mock->lists.emplace_back(wr->sg_list, wr->sg_list + wr->num_sge);
        return 0;
    }
    Frame frame{.wr_id = wr->wr_id,
                .is_signaled = pair.signals_all || (wr->send_flags & IBV_SEND_SIGNALED) != 0,
                .bytes = {}};
    for (int i = 0; i < wr->num_sge; ++i) {
        // NOLINTNEXTLINE(performance-no-int-to-ptr): the address that was posted
        const char* const from = reinterpret_cast<const char*>(wr->sg_list[i].addr);
        frame.bytes.insert(frame.bytes.end(), from, from + wr->sg_list[i].length);
    }
    if (wr->opcode == IBV_WR_RDMA_READ) {
        frame.bytes.clear();
        frame.is_read = true;
        frame.to = wr->sg_list[0];
    }
    if (wr->opcode == IBV_WR_RDMA_READ || wr->opcode == IBV_WR_RDMA_WRITE) {
        frame.is_write = !frame.is_read;
        frame.address = wr->wr.rdma.remote_addr;
        frame.key = wr->wr.rdma.rkey;
    }
    if (pair.now == IBV_QPS_ERR) {
        complete(pair, frame.wr_id, IBV_WC_WR_FLUSH_ERR, false);
        return 0;
    }
    pair.waiting.push_back(std::move(frame));
    run(pair);
    return 0;
}
int post_recv(ibv_qp* which, ibv_recv_wr* wr, ibv_recv_wr**) {
    const std::lock_guard guard(traffic);
    if (!mock->takes_receives) {
        return ENOMEM;
    }
    if (fails("post_recv")) {
        return errno;
    }
    MockPair::of(which).receives.push_back(wr->wr_id);
    mock->receives.emplace_back(wr->wr_id,
                                std::vector<ibv_sge>(wr->sg_list, wr->sg_list + wr->num_sge));
    return 0;
}
ibv_ah* create_ah(ibv_pd* pd, ibv_ah_attr*) {
    return fails("create_ah") ? nullptr
                              : make<ibv_ah>({.context = pd->context, .pd = pd, .handle = 0});
}
int attach_mcast(ibv_qp*, const ibv_gid*, std::uint16_t) {
    if (fails("attach_mcast")) {
        return errno;
    }
    ++mock->groups;
    return 0;
}
int detach_mcast(ibv_qp*, const ibv_gid*, std::uint16_t) {
    --mock->groups;
    return 0;
}
int get_async_event(ibv_context*, ibv_async_event* event) {
    const std::lock_guard guard(traffic);
    if (mock->events.empty()) {
        errno = mock->has_no_more_events ? EIO : EAGAIN;
        return -1;
    }
    *event = mock->events.front();
    mock->events.pop_front();
    return 0;
}
void ack_async_event(ibv_async_event*) {
    ++mock->acknowledged;
}
const char* event_type_str(ibv_event_type) {
    return "an event";
}

}  // namespace

MockNic::MockNic() {
    mock = this;
    pairs.clear();
    shared_queues.clear();
    std::strncpy(device.name, "mock0", sizeof device.name - 1);
    attr.vendor_id = 0x15b3;
    attr.phys_port_cnt = 2;
    attr.max_qp = 1000;
    attr.max_cqe = 4096;
    attr.max_qp_wr = 2048;
    attr.max_sge = 16;
    attr.max_srq = 4;
    attr.max_srq_wr = 2048;
    attr.max_qp_rd_atom = 8;
    attr.max_qp_init_rd_atom = 4;
    attr.atomic_cap = IBV_ATOMIC_HCA;
    port.active_mtu = IBV_MTU_4096;
    port.max_msg_sz = 1u << 30;

    context_.context.ops.poll_cq = poll_cq;
    context_.context.ops.post_send = post_send;
    context_.context.ops.post_recv = post_recv;
    context_.context.ops.post_srq_recv = post_srq_recv;
    context_.context.ops.req_notify_cq = req_notify_cq;

    functions_.ibv_alloc_pd = alloc_pd;
    functions_.ibv_dealloc_pd = destroy<ibv_pd>;
    functions_.ibv_create_ah = create_ah;
    functions_.ibv_destroy_ah = destroy<ibv_ah>;
    functions_.ibv_attach_mcast = attach_mcast;
    functions_.ibv_detach_mcast = detach_mcast;
    functions_.ibv_create_comp_channel = create_channel;
    functions_.ibv_destroy_comp_channel = destroy_channel;
    functions_.ibv_create_cq = create_cq;
    functions_.ibv_destroy_cq = destroy_cq;
    functions_.ibv_get_cq_event = get_cq_event;
    functions_.ibv_ack_cq_events = ack_cq_events;
    functions_.ibv_create_srq = create_srq;
    functions_.ibv_destroy_srq = destroy_srq;
    functions_.ibv_create_qp = create_qp;
    functions_.ibv_modify_qp = modify_qp;
    functions_.ibv_destroy_qp = destroy_qp;
    functions_.ibv_get_async_event = get_async_event;
    functions_.ibv_ack_async_event = ack_async_event;
    functions_.ibv_event_type_str = event_type_str;
    add_device(context_, functions_);
    add_extended_verbs(context_, functions_);
    add_memory(context_, functions_);
    add_ends(context_, functions_);
    use_library(&functions_);
}

MockNic::~MockNic() {
    use_library(nullptr);
    forget_kept();
    mock = nullptr;
}

// ---- what happens to it ----

void MockNic::gone() {
    const std::lock_guard guard(traffic);
    is_gone = true;
    tell(IBV_EVENT_DEVICE_FATAL, nullptr);
}

void MockNic::fail_pair(std::uint32_t qpn) {
    const std::lock_guard guard(traffic);
    MockPair& pair = *pair_of(qpn);
    end_pair(pair);
    tell(IBV_EVENT_QP_FATAL, &pair.qp_base);
}

void MockNic::finish(std::uint32_t qpn, bool is_receive, ibv_wc_status status) {
    const std::lock_guard guard(traffic);
    MockPair& pair = *pair_of(qpn);
    auto& posted = pair.posted(is_receive);
    complete(pair, posted.front(), status, is_receive, is_receive ? kFinishedBytes : 0);
    posted.erase(posted.begin());
    if (status != IBV_WC_SUCCESS) {
        end_pair(pair);
    }
}

void MockNic::pass(std::uint32_t qpn) {
    const std::lock_guard guard(traffic);
    auto& posted = pair_of(qpn)->sends;
    posted.erase(posted.begin());
}

void MockNic::fail_shared_receive(std::uint32_t qpn, ibv_wc_status status) {
    const std::lock_guard guard(traffic);
    MockPair& pair = *pair_of(qpn);
    auto& receives = static_cast<MockSrq*>(pair.qp_base.srq)->receives;
    complete(pair, receives.front().wr_id, status, true);
    receives.pop_front();
    end_pair(pair);
}

void MockNic::fail_queue() {
    const std::lock_guard guard(traffic);
    ibv_async_event event{};
    event.event_type = IBV_EVENT_CQ_ERR;
    event.element.cq = last_pair->send_cq;
    events.push_back(event);
}

void MockNic::finish_rdma() {
    const std::lock_guard guard(traffic);
    is_rdma_unfinished = false;
    for (MockPair* const pair : pairs) {
        for (const std::uint64_t id : std::exchange(pair->unfinished, {})) {
            complete(*pair, id, IBV_WC_WR_FLUSH_ERR, false);
        }
    }
}

void MockNic::begin_message_to(std::uint32_t qpn) {
    const std::lock_guard guard(traffic);
    MockPair& pair = *pair_of(qpn);
    auto& receives = static_cast<MockSrq*>(pair.qp_base.srq)->receives;
    pair.held.push_back(receives.front());
    receives.pop_front();
}

void MockNic::send_to(std::uint32_t qpn, std::span<const char> frame) {
    const std::lock_guard guard(traffic);
    deliver(*pair_of(qpn), frame);
}

std::size_t MockNic::receives_left() {
    const std::lock_guard guard(traffic);
    std::size_t left = 0;
    for (const MockSrq* const queue : shared_queues) {
        left += queue->receives.size();
    }
    return left;
}

std::size_t MockNic::pairs_left() {
    const std::lock_guard guard(traffic);
    return pairs.size();
}

std::vector<std::uint32_t> MockNic::connected_pairs() {
    const std::lock_guard guard(traffic);
    std::vector<std::uint32_t> connected;
    for (const MockPair* const pair : pairs) {
        if (pair->peer != 0 && pair->now != IBV_QPS_ERR) {
            connected.push_back(pair->number());
        }
    }
    return connected;
}

}  // namespace rvt::verbs
