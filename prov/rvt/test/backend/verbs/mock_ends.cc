// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Calls of the mock that end something, or look for completions, as they fail: in front of those
// that do it. What has not ended stays, and is counted, until the mock itself ends.
#include <cerrno>
#include <cstdint>
#include <functional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/verbs/mock_objects.h"

namespace rvt::verbs {
namespace {

Library plain;
decltype(ibv_context_ops::poll_cq) plain_poll_cq = nullptr;
std::vector<std::function<void()>> kept;  // to be freed
std::set<ibv_mr*> kept_regions;           // which may be asked to end again

/// One that is gone ends what it has, so that tests find what has been forgotten.
bool does_keep(std::string_view call) {
    return mock->failing == call || mock->failing == MockNic::kEveryEnd;
}

template <class Raw, class Free>
int end_or_keep(std::string_view call, int (*ends)(Raw*), Raw* object, Free free) {
    if (!does_keep(call)) {
        return ends(object);
    }
    kept.push_back([=] { free(object); });
    return mock->error;
}

int end_device(ibv_context* context) {
    const int answer = plain.ibv_close_device(context);  // its descriptors, in any case
    if (!does_keep("close_device")) {
        return answer;
    }
    ++mock->live;
    errno = mock->error;
    return -1;
}
int end_domain(ibv_pd* pd) {
    return end_or_keep("dealloc_pd", plain.ibv_dealloc_pd, pd, [](ibv_pd* it) { delete it; });
}
int end_memory(ibv_mr* region) {
    if (mock->failing == "dereg_mr") {
        kept_regions.insert(region);
        return mock->error;
    }
    kept_regions.erase(region);
    return plain.ibv_dereg_mr(region);
}
int end_channel(ibv_comp_channel* channel) {
    return end_or_keep("destroy_comp_channel", plain.ibv_destroy_comp_channel, channel,
                       [](ibv_comp_channel* it) { plain.ibv_destroy_comp_channel(it); });
}
int end_queue(ibv_cq* queue) {
    return end_or_keep("destroy_cq", plain.ibv_destroy_cq, queue,
                       [](ibv_cq* it) { delete &MockCq::of(it); });
}
int end_pair_of(ibv_qp* pair) {
    return end_or_keep("destroy_qp", plain.ibv_destroy_qp, pair,
                       [](ibv_qp* it) { delete &MockPair::of(it); });
}
int end_shared(ibv_srq* queue) {
    return end_or_keep("destroy_srq", plain.ibv_destroy_srq, queue,
                       [](ibv_srq* it) { plain.ibv_destroy_srq(it); });
}
int end_handle(ibv_ah* handle) {
    return end_or_keep("destroy_ah", plain.ibv_destroy_ah, handle, [](ibv_ah* it) { delete it; });
}
int end_membership(ibv_qp* pair, const ibv_gid* group, std::uint16_t lid) {
    return does_keep("detach_mcast") ? mock->error : plain.ibv_detach_mcast(pair, group, lid);
}
int look_into(ibv_cq* queue, int most, ibv_wc* to) {
    return mock->failing == "poll_cq" ? -1 : plain_poll_cq(queue, most, to);
}

}  // namespace

void forget_kept() {
    for (const auto& free : std::exchange(kept, {})) {
        free();
    }
    for (ibv_mr* const region : std::exchange(kept_regions, {})) {
        plain.ibv_dereg_mr(region);
    }
}

void add_ends(verbs_context& context, Library& functions) {
    plain = functions;
    plain_poll_cq = std::exchange(context.context.ops.poll_cq, look_into);
    functions.ibv_close_device = end_device;
    functions.ibv_dealloc_pd = end_domain;
    functions.ibv_dereg_mr = end_memory;
    functions.ibv_destroy_comp_channel = end_channel;
    functions.ibv_destroy_cq = end_queue;
    functions.ibv_destroy_qp = end_pair_of;
    functions.ibv_destroy_srq = end_shared;
    functions.ibv_destroy_ah = end_handle;
    functions.ibv_detach_mcast = end_membership;
}

}  // namespace rvt::verbs
