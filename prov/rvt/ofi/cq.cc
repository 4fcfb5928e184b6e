// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Completion queues: everything but the reading itself, which is in cq_read.inl. fi_cq(3).
#include "ofi/cq.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "ofi/cq_read.inl"
#include "ofi/errors.h"
#include "ofi/wait_set.h"
#include "util/log.h"

namespace rvt::ofi {
namespace {

constexpr std::size_t kDefaultSize = 1024;
constexpr std::uint64_t kOpenFlags = FI_AFFINITY;  // a hint for interrupts, of which there are none

using ReadFrom = ssize_t (*)(fid_cq*, void*, std::size_t, fi_addr_t*) noexcept;

std::size_t entry_bytes(fi_cq_format format) noexcept {
    switch (format) {
        case FI_CQ_FORMAT_MSG: return sizeof(fi_cq_msg_entry);
        case FI_CQ_FORMAT_DATA: return sizeof(fi_cq_data_entry);
        case FI_CQ_FORMAT_TAGGED: return sizeof(fi_cq_tagged_entry);
        default: return sizeof(fi_cq_entry);
    }
}

/// The last one to wake up does so; the others are still asleep on the same descriptor.
void disarm_locked(Cq& cq) noexcept {
    if (!cq.progressors.sleepers().may_others_sleep()) {
        cq.queue->disarm();
    }
}

/// Arms the queue, and its endpoints by `arm`. False: there is something to read, or an endpoint
/// has work.
bool arm_locked(Cq& cq, bool (Progressors::*arm)() noexcept) noexcept {
    // relaxed: the flag is set before the descriptor is written, which orders it.
    if (!cq.queue->is_empty() || cq.is_signalled.load(std::memory_order_relaxed)) {
        return false;
    }
    // What others are still to wake up for is not there any more, unless it is a source.
    if (cq.onlookers.have_seen(cq.sources_added)) {
        cq.queue->clear_wake_fd();
    }
    if (!cq.queue->arm().is_ok()) {
        return false;
    }
    if (!cq.domain->may_sleep_locked() || !(cq.progressors.*arm)()) {
        disarm_locked(cq);
        return false;
    }
    return true;
}

void wake_up(Cq& cq, unsigned look) noexcept {
    const util::Guard<DomainLock> guard(cq.domain->lock);
    cq.onlookers.wake_up(look);
    cq.progressors.wake_up_locked();
    disarm_locked(cq);
}

/// Returns: what to hand back to wake_up(); nothing where there is something to do.
std::optional<unsigned> fall_asleep(Cq& cq) noexcept {
    const util::Guard<DomainLock> guard(cq.domain->lock);
    return arm_locked(cq, &Progressors::fall_asleep_locked)
               ? std::optional(cq.onlookers.fall_asleep(cq.sources_added))
               : std::nullopt;
}

/// Who leaves with an entry may have taken the wake-up of a sleeper that another entry was for.
void pass_on(Cq& cq) noexcept {
    const util::Guard<DomainLock> guard(cq.domain->lock);
    if (cq.progressors.sleepers().are_counted() && !cq.queue->is_empty()) {
        cq.queue->wake();
    }
}

/// One blocking wait for at least one more entry. Reads go through the queue's own table, whatever
/// its lock.
class SleepingRead {
  public:
    SleepingRead(Cq& cq, void* buffer, std::size_t count, fi_addr_t* sources) noexcept
        : cq_(cq),
          wait_(cq.wait.busy_poll),
          buffer_(static_cast<std::byte*>(buffer)),
          count_(count),
          sources_(sources) {}

    ssize_t run(std::size_t wanted, int timeout_ms) noexcept {
        const TimeLimit limit(timeout_ms);
        // fi_cq(3): a signal of the system ends a wait, as one of fi_cq_signal() does.
        bool is_interrupted = false;
        for (;;) {
            const ssize_t got = read_more();
            if (got == -FI_EAVAIL) {
                return done_ != 0 ? static_cast<ssize_t>(done_) : got;
            }
            // acq_rel: takes the signal once; pairs with the release in cq_signal().
            const bool is_signalled =
                cq_.is_signalled.exchange(false, std::memory_order_acq_rel) || is_interrupted;
            if (done_ >= wanted) {
                wait_.succeed();
            }
            if (done_ >= wanted || is_signalled || limit.is_over()) {
                return done_ != 0 ? static_cast<ssize_t>(done_) : -FI_EAGAIN;
            }
            if (cq_.wait.kind() == FI_WAIT_YIELD) {
                cq_.wait.sleep(limit);
            } else if (!wait_.goes_on()) {
                is_interrupted = !sleep(limit);
            }
        }
    }

  private:
    ssize_t read_more() noexcept {
        const std::size_t size = entry_bytes(cq_.format);
        fi_addr_t* const sources = sources_ != nullptr ? sources_ + done_ : nullptr;
        const ssize_t got =
            cq_.handle.ops->readfrom(&cq_.handle, buffer_ + done_ * size, count_ - done_, sources);
        if (got > 0) {
            done_ += static_cast<std::size_t>(got);
        }
        return got;
    }

    /// Returns: false where a signal has ended it.
    bool sleep(const TimeLimit& limit) noexcept {
        const std::optional<unsigned> look = fall_asleep(cq_);
        if (!look) {
            return true;
        }
        const bool has_slept = cq_.wait.sleep(limit);
        wake_up(cq_, *look);
        return has_slept;
    }

    Cq& cq_;
    util::BusyPoll::Wait wait_;
    std::byte* buffer_;
    std::size_t count_;
    fi_addr_t* sources_;
    std::size_t done_ = 0;
};

ssize_t cq_sreadfrom(fid_cq* self, void* buffer, std::size_t count, fi_addr_t* sources,
                     const void* condition, int timeout_ms) noexcept {
    Cq& cq = Cq::from(self);
    if (!cq.wait.can_sleep()) {
        return -FI_EINVAL;
    }
    std::size_t wanted = 1;
    if (cq.has_threshold && condition != nullptr) {
        // fi_cq(3): the condition is the number of entries, not a pointer to it.
        wanted = reinterpret_cast<std::uintptr_t>(condition);
    }
    const ssize_t got =
        SleepingRead(cq, buffer, count, sources).run(std::min(wanted, count), timeout_ms);
    if (got > 0) {
        pass_on(cq);
    }
    return got;
}

ssize_t cq_sread(fid_cq* self, void* buffer, std::size_t count, const void* condition,
                 int timeout_ms) noexcept {
    return cq_sreadfrom(self, buffer, count, nullptr, condition, timeout_ms);
}

void fill_error(const core::Cqe& from, fi_cq_err_entry& to) noexcept {
    to.op_context = from.op_context;
    to.flags = from.flags;
    to.len = from.len;
    to.buf = from.buf;
    to.data = from.data;
    to.tag = from.tag;
    to.olen = from.extra;
    to.err = to_fi_errno(from.status);
    to.prov_errno = static_cast<int>(from.status);
}

/// No error of ours carries data; a buffer that the application gave stays its own. Before version
/// 1.5 there is none, nor a size behind it.
void fill_error_data(std::uint32_t version, fi_cq_err_entry& to) noexcept {
    constexpr std::uint32_t kVersionErrDataSize = FI_VERSION(1, 5);
    if (version < kVersionErrDataSize) {
        to.err_data = nullptr;
        return;
    }
    to.err_data = to.err_data_size != 0 ? to.err_data : nullptr;
    to.err_data_size = 0;
}

/// fi_cq(3) names no flags. Programs hand in all sorts of them, as libfabric's own providers do not
/// look: an error that they could not read would stay for ever.
ssize_t cq_readerr(fid_cq* self, fi_cq_err_entry* error, std::uint64_t flags) noexcept {
    Cq& cq = Cq::from(self);
    if (error == nullptr) {
        return -FI_EINVAL;
    }
    const util::Guard<DomainLock> guard(cq.domain->lock);
    if (cq.queue->is_empty()) {
        cq.progressors.run_locked();
    }
    const core::Cqe* entry = cq.queue->front();
    if (entry == nullptr || entry->status == core::WcStatus::kSuccess) {
        return -FI_EAGAIN;
    }
    fill_error(*entry, *error);
    fill_error_data(cq.domain->version(), *error);
    if ((flags & FI_PEEK) == 0) {
        cq.queue->pop();
    }
    return 1;
}

int cq_signal(fid_cq* self) noexcept {
    Cq& cq = Cq::from(self);
    if (!cq.wait.can_sleep()) {
        return -FI_EINVAL;
    }
    // release: pairs with the exchange in SleepingRead::run().
    cq.is_signalled.store(true, std::memory_order_release);
    const util::Guard<DomainLock> guard(cq.domain->lock);
    cq.queue->wake();
    return 0;
}

const char* cq_strerror(fid_cq* /*self*/, int prov_errno, const void* /*err_data*/, char* buffer,
                        std::size_t bytes) noexcept {
    return copy_text(completion_text(prov_errno), buffer, bytes);
}

int cq_close(fid* self) noexcept {
    Cq& cq = Cq::from(self);
    if (cq.users.is_any()) {
        return -FI_EBUSY;
    }
    if (cq.wait_set != nullptr) {
        cq.wait_set->remove_member(self);
    }
    cq.domain->users.drop();
    delete &cq;
    return 0;
}

int cq_control(fid* self, int command, void* argument) noexcept {
    return entry([&] { return Cq::from(self).wait.control(command, argument); });
}

fi_ops cq_fid_ops = fid_ops(cq_close, no_bind, cq_control);

template <class Lock, class Entry>
constexpr fi_ops_cq make_ops() noexcept {
    return {
        .size = sizeof(fi_ops_cq),
        .read = cq_read<Lock, Entry>,
        .readfrom = cq_readfrom<Lock, Entry>,
        .readerr = cq_readerr,
        .sread = cq_sread,
        .sreadfrom = cq_sreadfrom,
        .signal = cq_signal,
        .strerror = cq_strerror,
    };
}

// One row for each lock policy, one column for each format after FI_CQ_FORMAT_UNSPEC.
template <class Lock>
constexpr std::array<fi_ops_cq, 4> make_row() noexcept {
    return {make_ops<Lock, fi_cq_entry>(), make_ops<Lock, fi_cq_msg_entry>(),
            make_ops<Lock, fi_cq_data_entry>(), make_ops<Lock, fi_cq_tagged_entry>()};
}
constinit std::array<std::array<fi_ops_cq, 4>, kLockPolicies> cq_ops = {make_row<util::OwnerLock>(),
                                                                        make_row<util::SpinLock>()};
static_assert(FI_CQ_FORMAT_CONTEXT == 1 && FI_CQ_FORMAT_MSG == 2 && FI_CQ_FORMAT_DATA == 3 &&
              FI_CQ_FORMAT_TAGGED == 4);
static_assert(static_cast<int>(LockPolicy::kOwner) == 0 &&
              static_cast<int>(LockPolicy::kSpin) == 1);

fi_ops_cq* ops_of(LockPolicy policy, fi_cq_format format) noexcept {
    return &cq_ops[static_cast<std::size_t>(policy)][static_cast<std::size_t>(format) - 1];
}

int check(const fi_cq_attr& attr) noexcept {
    if ((attr.flags & ~kOpenFlags) != 0) {
        RVT_WARN(kCq, "cannot open cq: flags 0x%llx asked, FI_AFFINITY offered",
                 static_cast<unsigned long long>(attr.flags));
        return -FI_EBADFLAGS;
    }
    if (attr.format > FI_CQ_FORMAT_TAGGED) {
        RVT_WARN(kCq, "cannot open cq: format %d is not known", static_cast<int>(attr.format));
        return -FI_ENOSYS;
    }
    if (attr.wait_obj == FI_WAIT_NONE || attr.wait_cond == FI_CQ_COND_NONE ||
        attr.wait_cond == FI_CQ_COND_THRESHOLD) {
        return 0;
    }
    RVT_WARN(kCq, "cannot open cq: wait_cond %d is not known", static_cast<int>(attr.wait_cond));
    return -FI_EINVAL;
}

int open_waiting(Cq& cq, const fi_cq_attr& attr) {
    util::Status opened = cq.wait.open(attr.wait_obj, attr.wait_set);
    if (opened.is_ok() && cq.wait.can_sleep()) {
        opened = cq.queue->open_wake_fd();
    }
    if (opened.is_ok()) {
        opened = cq.wait.add_source(cq.queue->wake_fd());
    }
    if (!opened.is_ok()) {
        RVT_WARN(kCq, "cannot open cq: wait_obj %d: %s", static_cast<int>(attr.wait_obj),
                 strerrordesc_np(opened.error()));
        return to_fi(opened);
    }
    if (attr.wait_obj == FI_WAIT_SET) {
        cq.wait_set = &WaitSet::from(attr.wait_set);
        cq.wait_set->add_member(&cq.handle.fid);
    }
    return 0;
}

int open(Domain& domain, const fi_cq_attr& attr, fid_cq** cq, void* context) {
    const int refused = check(attr);
    if (refused != 0) {
        return refused;
    }
    util::Result<std::unique_ptr<core::Cq>> queue =
        core::Cq::create(attr.size != 0 ? attr.size : kDefaultSize);
    if (!queue.is_ok()) {
        RVT_WARN(kCq, "cannot open cq: %zu entries asked: %s; lower fi_cq_attr.size", attr.size,
                 strerrordesc_np(queue.error()));
        return to_fi(queue.status());
    }
    auto made = std::make_unique<Cq>();
    made->domain = &domain;
    made->owned_queue = queue.take();
    made->queue = made->owned_queue.get();
    made->format = attr.format != FI_CQ_FORMAT_UNSPEC ? attr.format : FI_CQ_FORMAT_CONTEXT;
    made->has_threshold = attr.wait_cond == FI_CQ_COND_THRESHOLD;
    made->handle.fid = {FI_CLASS_CQ, context, &cq_fid_ops};
    made->handle.ops = ops_of(domain.lock.policy(), made->format);
    const int waiting = open_waiting(*made, attr);
    if (waiting != 0) {
        return waiting;
    }
    domain.users.add();
    *cq = &made.release()->handle;
    return 0;
}

}  // namespace

util::Status Cq::add_source(core::ProgressSource& source) {
    // Its last user may be leaving: either both have the source afterwards, or neither.
    const util::Guard<DomainLock> guard(domain->lock);
    const util::Status added = wait.add_source(source.wake_fd());
    if (added.is_ok()) {
        progressors.add(source);
        ++sources_added;
        // Who sleeps already has not armed this source: let it look again.
        if (queue->is_armed()) {
            queue->wake();
        }
    }
    return added;
}

void Cq::remove_source(const core::ProgressSource& source) noexcept {
    const util::Guard<DomainLock> guard(domain->lock);
    if (progressors.remove(source)) {
        wait.remove_source(source.wake_fd());
    }
}

int Cq::try_wait() noexcept {
    // Completions that progress can produce now, or soon, are found before the application sleeps.
    util::BusyPoll::Wait wait_first(wait.busy_poll);
    do {
        const util::Guard<DomainLock> guard(domain->lock);
        progressors.run_locked();
        // acq_rel: takes the signal once, which ends one wait; pairs with cq_signal().
        if (is_signalled.exchange(false, std::memory_order_acq_rel) || !queue->is_empty()) {
            wait_first.succeed();
            return -FI_EAGAIN;
        }
    } while (wait_first.goes_on());
    const util::Guard<DomainLock> guard(domain->lock);
    if (!arm_locked(*this, &Progressors::arm_for_waiter_locked)) {
        return -FI_EAGAIN;
    }
    wait.about_to_wait();
    return 0;
}

int cq_open(fid_domain* domain, fi_cq_attr* attr, fid_cq** cq, void* context) noexcept {
    return entry([&] {
        return attr != nullptr ? open(Domain::from(domain), *attr, cq, context) : -FI_EINVAL;
    });
}

}  // namespace rvt::ofi
