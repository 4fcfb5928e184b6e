// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Event queues. A semaphore eventfd counts the events, so that "readable" means "not empty" without
// arming.
#include "ofi/eq.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "ofi/errors.h"
#include "ofi/wait_set.h"
#include "util/log.h"

namespace rvt::ofi {
namespace {

int eq_close(fid* self) noexcept {
    Eq& eq = Eq::from(self);
    if (eq.users.is_any()) {
        return -FI_EBUSY;
    }
    if (eq.wait_set != nullptr) {
        eq.wait_set->remove_member(self);
    }
    eq.fabric->users.drop();
    delete &eq;
    return 0;
}

int eq_control(fid* self, int command, void* argument) noexcept {
    return entry([&] { return Eq::from(self).control(command, argument); });
}

ssize_t eq_read(fid_eq* self, std::uint32_t* event, void* buffer, std::size_t length,
                std::uint64_t flags) noexcept {
    return entry([&] { return Eq::from(self).read(event, buffer, length, flags); });
}

ssize_t eq_readerr(fid_eq* self, fi_eq_err_entry* error, std::uint64_t flags) noexcept {
    return entry([&] { return Eq::from(self).read_error(error, flags); });
}

ssize_t eq_write(fid_eq* self, std::uint32_t event, const void* buffer, std::size_t length,
                 std::uint64_t flags) noexcept {
    if (flags != 0) {
        return -FI_EBADFLAGS;
    }
    return entry([&]() -> ssize_t {
        if (!Eq::from(self).is_writable) {
            return -FI_EINVAL;
        }
        Eq::from(self).push(event, buffer, length);
        return static_cast<ssize_t>(length);
    });
}

ssize_t eq_sread(fid_eq* self, std::uint32_t* event, void* buffer, std::size_t length,
                 int timeout_ms, std::uint64_t flags) noexcept {
    return entry([&] { return Eq::from(self).sread(event, buffer, length, timeout_ms, flags); });
}

const char* eq_strerror(fid_eq* /*self*/, int prov_errno, const void* /*err_data*/, char* buffer,
                        std::size_t bytes) noexcept {
    return copy_text(fi_strerror(prov_errno), buffer, bytes);
}

fi_ops eq_fid_ops = fid_ops(eq_close, no_bind, eq_control);

fi_ops_eq eq_ops = {
    .size = sizeof(fi_ops_eq),
    .read = eq_read,
    .readerr = eq_readerr,
    .write = eq_write,
    .sread = eq_sread,
    .strerror = eq_strerror,
};

util::Status open_waiting(Eq& eq, const fi_eq_attr& attr) {
    eq.wake_fd.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE));
    if (!eq.wake_fd.is_open()) {
        return errno;
    }
    // The descriptor is there in any case: who has asked for none can sleep on it all the same.
    eq.wait_obj = attr.wait_obj;
    const util::Status opened =
        eq.wait.open(attr.wait_obj == FI_WAIT_NONE ? FI_WAIT_UNSPEC : attr.wait_obj, attr.wait_set);
    if (!opened.is_ok()) {
        return opened;
    }
    return eq.wait.add_source(eq.wake_fd.get());
}

}  // namespace

void Eq::append(Event event) {
    const std::lock_guard guard(lock);
    events.push_back(std::move(event));
    [[maybe_unused]] const int ignored = eventfd_write(wake_fd.get(), 1);
}

void Eq::push(std::uint32_t event, const void* bytes, std::size_t length, const fid* owner) {
    const auto* first = static_cast<const std::byte*>(bytes);
    append({.event = event, .bytes = {first, first + length}, .owner = owner});
}

void Eq::push_error(const fi_eq_err_entry& error, std::span<const std::byte> data) {
    const auto* first = reinterpret_cast<const std::byte*>(&error);
    append({.bytes = {first, first + sizeof error},
            .error_data = {data.begin(), data.end()},
            .is_error = true,
            .owner = error.fid});
}

void Eq::push_cm(std::uint32_t event, fid* object, fi_info* info, std::span<const std::byte> data) {
    std::unique_ptr<fi_info, InfoDeleter> owned(info);
    const fi_eq_cm_entry entry{.fid = object, .info = info};
    std::vector<std::byte> bytes(sizeof entry + data.size());
    std::memcpy(bytes.data(), &entry, sizeof entry);
    std::ranges::copy(data, bytes.begin() + sizeof entry);
    append({.event = event,
            .bytes = std::move(bytes),
            .is_cm = true,
            .owner = object,
            .info = std::move(owned)});
}

void Eq::forget(const fid* object) noexcept {
    const std::lock_guard guard(lock);
    std::erase_if(events, [&](const Event& event) {
        const bool is_gone = event.owner == object;
        if (is_gone) {
            count_down_locked(event);
        }
        return is_gone;
    });
}

/// A forked child shares the descriptor with its parent, who still has what he has counted.
void Eq::count_down_locked(const Event& gone) noexcept {
    if (gone.generation == util::fork_generation()) {
        eventfd_t value = 0;
        eventfd_read(wake_fd.get(), &value);
    }
}

/// The oldest event has been read; what it refers to is the reader's.
void Eq::take_locked() noexcept {
    static_cast<void>(events.front().info.release());
    count_down_locked(events.front());
    events.pop_front();
}

ssize_t Eq::read(std::uint32_t* event, void* buffer, std::size_t length, std::uint64_t flags) {
    if ((flags & ~std::uint64_t{FI_PEEK}) != 0) {
        return -FI_EBADFLAGS;
    }
    const std::lock_guard guard(lock);
    if (events.empty()) {
        return -FI_EAGAIN;
    }
    const Event& front = events.front();
    if (front.is_error) {
        return -FI_EAVAIL;
    }
    const std::size_t least = front.is_cm ? sizeof(fi_eq_cm_entry) : front.bytes.size();
    if (length < least) {
        return -FI_ETOOSMALL;
    }
    const std::size_t size = std::min(length, front.bytes.size());
    *event = front.event;
    std::memcpy(buffer, front.bytes.data(), size);
    if ((flags & FI_PEEK) == 0) {
        take_locked();
    }
    return static_cast<ssize_t>(size);
}

ssize_t Eq::sread(std::uint32_t* event, void* buffer, std::size_t length, int timeout_ms,
                  std::uint64_t flags) {
    const TimeLimit limit(timeout_ms);
    // fi_eq(3): who is signalled is told that there is nothing.
    bool is_interrupted = false;
    for (;;) {
        const ssize_t got = read(event, buffer, length, flags);
        if (got != -FI_EAGAIN || limit.is_over() || is_interrupted) {
            return got;
        }
        is_interrupted = !wait.sleep(limit);
    }
}

/// As of completions, of whatever flags FI_PEEK alone is looked at.
ssize_t Eq::read_error(fi_eq_err_entry* error, std::uint64_t flags) {
    const std::lock_guard guard(lock);
    if (events.empty() || !events.front().is_error) {
        return -FI_EAGAIN;
    }
    // fi_eq(3): a caller that brings room has the data copied there, another one is lent it until
    // its next read, as is everyone of before version 1.5.
    constexpr std::uint32_t kVersionErrData = FI_VERSION(1, 5);
    const bool brings_room = fabric->handle.api_version >= kVersionErrData;
    void* const room = brings_room ? error->err_data : nullptr;
    const std::size_t room_bytes = error->err_data_size;
    std::memcpy(error, events.front().bytes.data(), sizeof *error);
    read_error_data = events.front().error_data;
    error->err_data = read_error_data.empty() ? nullptr : read_error_data.data();
    error->err_data_size = read_error_data.size();
    if (room != nullptr && room_bytes != 0) {
        error->err_data = room;
        error->err_data_size = std::min(room_bytes, read_error_data.size());
        std::memcpy(room, read_error_data.data(), error->err_data_size);
    }
    if ((flags & FI_PEEK) == 0) {
        take_locked();
    }
    return sizeof *error;
}

int Eq::control(int command, void* argument) {
    if (argument != nullptr && command == FI_GETWAITOBJ) {
        *static_cast<fi_wait_obj*>(argument) = wait_obj;
        return 0;
    }
    if (argument != nullptr && command == FI_GETWAIT && wait.kind() == FI_WAIT_UNSPEC) {
        const util::Status opened = wait.open_descriptor();
        *static_cast<int*>(argument) = wait.epoll_fd();
        return to_fi(opened);
    }
    return wait.control(command, argument);
}

int Eq::try_wait() noexcept {
    const std::lock_guard guard(lock);
    if (!events.empty()) {
        return -FI_EAGAIN;
    }
    wait.about_to_wait();
    return 0;
}

int eq_open(fid_fabric* fabric, fi_eq_attr* attr, fid_eq** eq, void* context) noexcept {
    return entry([&]() -> int {
        const fi_eq_attr asked = attr != nullptr ? *attr : fi_eq_attr{};
        if ((asked.flags & ~std::uint64_t{FI_WRITE | FI_AFFINITY}) != 0) {
            return -FI_EBADFLAGS;
        }
        auto made = std::make_unique<Eq>();
        const util::Status opened = open_waiting(*made, asked);
        if (!opened.is_ok()) {
            RVT_WARN(kEq, "cannot open eq: wait_obj %d: %s", static_cast<int>(asked.wait_obj),
                     strerrordesc_np(opened.error()));
            return to_fi(opened);
        }
        made->is_writable = (asked.flags & FI_WRITE) != 0;
        made->fabric = &Fabric::from(fabric);
        made->handle.fid = {FI_CLASS_EQ, context, &eq_fid_ops};
        made->handle.ops = &eq_ops;
        if (asked.wait_obj == FI_WAIT_SET) {
            made->wait_set = &WaitSet::from(asked.wait_set);
            made->wait_set->add_member(&made->handle.fid);
        }
        made->fabric->users.add();
        *eq = &made.release()->handle;
        return 0;
    });
}

}  // namespace rvt::ofi
