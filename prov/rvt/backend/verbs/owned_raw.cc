// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Ends of objects of libibverbs.
#include "backend/verbs/owned_raw.h"

#include <cerrno>
#include <cstring>

#include "backend/verbs/translate.h"
#include "util/log.h"

namespace rvt::verbs {

void log_kept(const char* device, const char* what, Status why) noexcept {
    RVT_WARN(kFabric, "NIC %s keeps %s that was to end: %s", device, what,
             strerrordesc_np(why.error()));
}

/// Of what others still use (EBUSY), the log has told why they did not end; with a device that has
/// been taken away (EIO) all ends. What a forked child inherits is not its own to end.
void EndRaw::note(const char* device, const char* what, Status ended) const noexcept {
    const bool is_moot = ended.is_ok() || ended == Status(EBUSY) || ended == Status(EIO);
    if (!is_moot && generation_ == util::fork_generation()) {
        log_kept(device, what, ended);
    }
}

/// Which says -1 of a failure, unlike the others: ibv_open_device(3).
void EndRaw::operator()(ibv_context* context) const noexcept {
    const char* const device = lib().ibv_get_device_name(context->device);
    errno = 0;
    const bool has_ended = lib().ibv_close_device(context) == 0;
    note(device, "a context", has_ended ? kOk : Status(errno != 0 ? errno : EINVAL));
}
void EndRaw::operator()(ibv_comp_channel* channel) const noexcept {
    const char* const device = lib().ibv_get_device_name(channel->context->device);
    note(device, "a completion channel", from_ibv(lib().ibv_destroy_comp_channel(channel)));
}
void EndRaw::operator()(ibv_pd* pd) const noexcept {
    const char* const device = lib().ibv_get_device_name(pd->context->device);
    note(device, "a protection domain", from_ibv(lib().ibv_dealloc_pd(pd)));
}
void EndRaw::operator()(ibv_cq* queue) const noexcept {
    const char* const device = lib().ibv_get_device_name(queue->context->device);
    note(device, "a completion queue", from_ibv(lib().ibv_destroy_cq(queue)));
}
void EndRaw::operator()(ibv_qp* pair) const noexcept {
    const char* const device = lib().ibv_get_device_name(pair->context->device);
    note(device, "a queue pair", from_ibv(lib().ibv_destroy_qp(pair)));
}

}  // namespace rvt::verbs
