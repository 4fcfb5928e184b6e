// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// How endpoints of one host find each other: abstract Unix sockets named after address and port,
// memory files passed over them, and the socket kept open so that the kernel tells of a peer's
// death.
//
// The control thread of the process runs all of it; an endpoint asks with connect() and reads what
// became of it from its mailbox. See design notes in docs/shm-format.md, "Wire-up".
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "backend/shm/layout.h"
#include "core/peer_device.h"
#include "util/dma_buf.h"
#include "util/fork_guard.h"
#include "util/mapping.h"
#include "util/sock_addr.h"
#include "util/status.h"
#include "util/unique_fd.h"

namespace rvt::core {
class RdFlow;
}  // namespace rvt::core

namespace rvt::shm {

/// Everything that a finished handshake yields. Owned by the endpoint from then on.
struct Peering {
    util::SockAddr address;         // of the peer's endpoint
    std::uint64_t incarnation = 0;  // of the peer's endpoint
    int pid = 0;                    // in our pid namespace; 0: not visible
    bool is_same_process = false;
    bool may_read_memory = false;  // process_vm_readv/writev were tried and work
    int read_error = 0;  // else why not: the errno of the probe; ESRCH: pid is not visible
    bool peer_has_membarrier =
        false;     // both processes are registered with membarrier(2); false: sends must fence
    int cpu = -1;  // where the peer's endpoint was opened; -1: not known
    util::Mapping outbox;    // ours, written by us: what we send to this peer
    util::Mapping inbox;     // the peer's outbox for us, read-only
    util::Mapping page;      // the peer's EndpointPage, read-only
    util::Mapping keys;      // the peer's key table, read-only
    util::UniqueFd wake_fd;  // the peer's eventfd
    std::uint64_t link = 0;  // names the connection towards Connector::wake() and close()
};

/// A peer's registered memory, mapped here, or open to the library of the device that it is of.
struct MappedRegion {
    std::optional<core::DeviceHandle> handle;        // nothing else but `length` is set then
    std::unique_ptr<core::PeerDeviceMemory> device;  // what the endpoint has opened by it
    util::Mapping memory;
    std::uint64_t skip = 0;    // from the start of the mapping to that of the region
    std::uint64_t length = 0;  // of the region
    bool is_writable = false;  // as the peer's descriptor and the file's seals permit
    util::ProcessFd dma_buf;   // where the memory is a device's, for Access
    std::byte* data() const noexcept { return memory.at<std::byte>(skip); }

    /// Stands around each access: memory of a device wants to be told. Without a region it is none.
    class Access {
      public:
        Access(const MappedRegion* region, bool writes) noexcept
            : fd_(region != nullptr ? region->dma_buf.get() : -1), writes_(writes) {
            if (fd_ >= 0) {
                status_ = util::begin_dma_buf_access(fd_, writes_);
            }
        }
        ~Access() {
            if (fd_ >= 0 && status_.is_ok()) {
                util::end_dma_buf_access(fd_, writes_);
            }
        }
        Access(const Access&) = delete;
        Access& operator=(const Access&) = delete;

        [[nodiscard]] util::Status status() const noexcept { return status_; }

      private:
        const int fd_;
        const bool writes_;
        util::Status status_;
    };
};

/// Memory of ours that a peer asks to map.
struct RegionSource {
    std::uint64_t address = 0;  // in this process, if `file` is not open
    std::size_t length = 0;
    util::UniqueFd file{};                       // a dma-buf, in which the memory is
    std::uint64_t offset = 0;                    // of the memory in it
    std::optional<core::DeviceHandle> handle{};  // in place of all but `length`
};

/// Word of the control thread to an endpoint.
struct ConnectionEvent {
    enum class Kind : std::uint8_t {
        kConnected,  // peering is set; by our own connect() or by the peer's
        kFailed,     // address and error are set: nobody there, refused, time-out, resources
        kPeerGone,   // the peer's process ended, or it closed: address, link, error
        kLeft,       // as kPeerGone, of a peer on another host, with whom nothing was under way
        kRegion,     // answer to request_region(): link, key, and region, or error says why not
    };
    Kind kind = Kind::kFailed;
    util::SockAddr address;
    int error = 0;  // ECONNREFUSED, ETIMEDOUT, EACCES (another user), EPERM (a security module),
                    // EPROTO (version), ENOMEM, EMFILE, ECONNRESET, EUSERS (has_room() of the
                    // peer says no)
    std::uint64_t link = 0;
    std::unique_ptr<Peering> peering;
    core::RdFlow* flow = nullptr;  // in place of a peering: of a peer on another host
    std::uint64_t key = 0;
    std::unique_ptr<MappedRegion> region;
    ConnectionEvent* next = nullptr;
};

/// What the control thread needs of an endpoint. All members are called on the control thread.
class ConnectionUser {
  public:
    virtual ~ConnectionUser() = default;
    /// Hands over an event. Must not block; the endpoint reads it at its next progress.
    virtual void deliver(std::unique_ptr<ConnectionEvent> event) noexcept = 0;
    /// Whether another peer may connect. Who may not is refused with EUSERS, before any memory is
    /// shared; of those that are connecting at this time some may come through all the same.
    virtual bool has_room() noexcept { return true; }
    /// Makes progress in the application's stead. Returns: false when the application is inside.
    virtual bool control_progress() noexcept = 0;
    /// Does so if operations have been posted that only progress lets go.
    /// Returns: whether some are left, so that it is worth trying again.
    virtual bool control_send() noexcept { return false; }
    /// Counts progress calls of the application, to see whether it polls.
    virtual std::uint64_t poll_count() const noexcept = 0;
    /// Asks peers to wake wake_fd, because nobody polls; false when work has arrived meanwhile.
    /// The control thread never reads wake_fd, it only notices each write.
    virtual bool control_arm() noexcept = 0;
    /// Takes that back, as nobody notices the writes any more. Not what the application has asked
    /// for since.
    virtual void control_disarm() noexcept = 0;
    /// Whether threads may sleep beside one that polls. If none does, note_polling() will say when
    /// some do again.
    virtual bool has_sleepers() noexcept { return false; }
    /// What a peer's request_region() is about. It must stay registered until this returns; a peer
    /// that has mapped it looks the key up before each use.
    /// Returns: EACCES when this key is not for peers.
    virtual util::Result<RegionSource> find_region([[maybe_unused]] std::uint64_t key) noexcept {
        return EACCES;
    }
};

struct ListenAttr {
    util::SockAddr address;  // bound UDP port, not 0
    const util::Mapping* page =
        nullptr;  // our EndpointPage with its file, filled in; outlives the Connector
    const util::Mapping* keys =
        nullptr;       // our domain's key table with its file; may be nullptr; outlives it too
    int wake_fd = -1;  // an eventfd, EFD_NONBLOCK; duplicated
    bool has_auto_progress = false;
    ConnectionUser* user = nullptr;
    unsigned connect_timeout_ms = 0;  // a handshake, all attempts; 0: FI_RVT_CONNECT_TIMEOUT_MS
    unsigned refused_timeout_ms = 0;  // tries where nobody listens; 0: FI_RVT_REFUSED_TIMEOUT_MS
};

/// One endpoint's handle on the control thread.
///
/// Destroying it ends all connections and waits until the control thread has let go of the user. A
/// Connector that a forked child inherited does nothing.
///
/// Threads: any, but that the control thread does not destroy it; every call is short and does not
/// wait for a peer.
class Connector {
  public:
    /// Starts to listen at attr.address. Returns: EADDRINUSE, EMFILE, ENOMEM, EAGAIN (no thread).
    static util::Result<std::unique_ptr<Connector>> open(const ListenAttr& attr);
    virtual ~Connector() = default;

    /// Begins a handshake with the endpoint at `address`; its outcome comes as an event. A second
    /// call for the same address while one is under way does nothing.
    virtual void connect(const util::SockAddr& address) = 0;
    /// The same where somebody of this user listens now; else the outcome is ECONNREFUSED at once,
    /// and the log says nothing: nobody counts on a peer there.
    virtual void look_for(const util::SockAddr& address) = 0;
    /// Lets the peer's control thread step in: its application does not poll. Cost: a system call.
    virtual void wake_peer(std::uint64_t link) noexcept = 0;
    /// Tells that the application polls, and peers need not wake anybody: the control thread looks
    /// whether it goes on, and when it does not makes progress and calls control_arm(), for the
    /// application (has_auto_progress) or for threads of it that sleep. Cost: a system call.
    /// @param has_sleepers  Whether there are such threads.
    virtual void note_polling(bool has_sleepers) noexcept = 0;
    /// Asks for the peer's region of that key, to map it. The answer comes as kRegion, at once or
    /// never when the connection ends before. Errors: EACCES (its find_region() says no), ENXIO (it
    /// is ordinary memory), ENOENT (no descriptor leads to it), EMEDIUMTYPE (not kept in memory),
    /// EPERM (its file may shrink, and FI_RVT_MAP_UNSEALED is off), EAGAIN (try again later),
    /// ENOTSUP (it is our own), EPROTO, ENOMEM, EMFILE.
    virtual void request_region(std::uint64_t link, std::uint64_t key) noexcept = 0;
    /// Whether a peer whose connection is still being made, and has been told of by no event, has
    /// this mark (use_mark()) in its page, or where the mark has no key any of its owner's: it may
    /// be connected on its side. Cost: none while there is no handshake, else a turn of the control
    /// thread.
    virtual bool is_in_use(std::uint64_t mark) = 0;
    /// Ends one connection; the peer sees kPeerGone.
    virtual void close(std::uint64_t link) noexcept = 0;
};

}  // namespace rvt::shm
