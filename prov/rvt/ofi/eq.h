// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Event queues, fi_eq(3): events of the control path. Any thread may write and read.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "ofi/compat.h"
#include "ofi/fabric.h"
#include "ofi/fid.h"
#include "ofi/info.h"
#include "ofi/wait.h"
#include "util/fork_guard.h"

namespace rvt::ofi {

class WaitSet;

class Eq {
  public:
    static Eq& from(fid_eq* self) noexcept { return *reinterpret_cast<Eq*>(self); }
    static Eq& from(fid* self) noexcept { return *reinterpret_cast<Eq*>(self); }

    /// Appends an event. Throws bad_alloc.
    /// @param owner  Whose end the event does not outlive, see forget(); nullptr: it stays.
    void push(std::uint32_t event, const void* bytes, std::size_t length,
              const fid* owner = nullptr);
    /// @param data  What readers find behind err_data.
    void push_error(const fi_eq_err_entry& error, std::span<const std::byte> data = {});
    /// Appends an event of connection management. Readers with less room get less of `data`.
    /// @param info  Taken over: the reader's, or released with the event.
    void push_cm(std::uint32_t event, fid* object, fi_info* info, std::span<const std::byte> data);
    /// Drops the events that an object has left unread: those of connection management, and those
    /// it was given as their owner.
    void forget(const fid* object) noexcept;

    ssize_t read(std::uint32_t* event, void* buffer, std::size_t length, std::uint64_t flags);
    ssize_t sread(std::uint32_t* event, void* buffer, std::size_t length, int timeout_ms,
                  std::uint64_t flags);
    ssize_t read_error(fi_eq_err_entry* entry, std::uint64_t flags);
    /// Beyond what fi_eq(3) promises, a queue without a wait object, or an unspecified one, can be
    /// waited for and has a descriptor.
    int control(int command, void* argument);
    int try_wait() noexcept;

    struct Event {
        std::uint32_t event = 0;
        std::vector<std::byte> bytes;
        std::vector<std::byte> error_data;
        bool is_error = false;
        bool is_cm = false;  // readers may have less room than it has bytes
        const fid* owner = nullptr;
        std::unique_ptr<fi_info, InfoDeleter> info;
        unsigned generation = util::fork_generation();  // of the process that has counted it
    };

    fid_eq handle{};
    Fabric* fabric = nullptr;
    WaitSet* wait_set = nullptr;
    bool is_writable = false;
    fi_wait_obj wait_obj = FI_WAIT_NONE;  // as asked for
    Users users;
    WaitObject wait;
    util::UniqueFd wake_fd;  // readable while there are events
    std::mutex lock;         // order: innermost
    std::deque<Event> events;
    std::vector<std::byte> read_error_data;  // of the last error; until the next

  private:
    void append(Event event);
    void take_locked() noexcept;
    void count_down_locked(const Event& gone) noexcept;
};

/// fi_ops_fabric.eq_open.
int eq_open(fid_fabric* fabric, fi_eq_attr* attr, fid_eq** eq, void* context) noexcept;

}  // namespace rvt::ofi
