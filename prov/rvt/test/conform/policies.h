// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// The backend policies of the conformance suite.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#include "backend/fake/wire.h"
#include "backend/roce/packet_device.h"
#include "backend/shm/segments.h"
#ifdef RVT_HAVE_RDMACM
#include "backend/verbs/nic.h"
#endif
#include "conform/test_segments.h"
#include "core/device.h"
#include "core/registry.h"

namespace rvt::conform {

/// The clock of all devices in the suite: stands still unless a test moves it.
inline std::atomic<std::uint64_t> fake_now_us{1000};
std::uint64_t fake_now() noexcept;

/// Both sides on one device: the core's own loopback.
class Loopback {
  public:
    Loopback();
    core::Device& side(int) { return *device_; }
    void settle() { device_->progress(); }

  private:
    core::Registry registry_;
    TestPort port_;
    core::Device* device_;
};

/// Two devices, joined by the trivial segment backend of conform/test_segments.h.
class Segments {
  public:
    Segments();
    core::Device& side(int i) { return *devices_[i]; }
    void settle() {
        devices_[0]->progress();
        devices_[1]->progress();
    }
    void break_channels();
    TestPort& port(int i) { return ports_[i]; }

  private:
    core::Registry registry_;
    TestNet net_;
    TestPort ports_[2];
    core::Device* devices_[2];
};

/// Two devices on the wire of backend/fake, which loses nothing.
class Packets {
  public:
    Packets();
    ~Packets();
    Packets(const Packets&) = delete;
    Packets& operator=(const Packets&) = delete;
    core::Device& side(int i) { return *ports_[i].device; }
    void settle() {
        side(0).progress();
        side(1).progress();
    }
    fake::Wire& wire() { return wire_; }

  private:
    core::Registry registry_;
    fake::Wire wire_;
    fake::Port ports_[2];
};

/// The same on a wire that loses, duplicates, reorders, corrupts and delays packets, as the seed in
/// play says (common/seeds.h): one in fifty each, or mostly one of these; but not the answer that
/// ends a pair.
class LossyPackets : public Packets {
  public:
    LossyPackets();
};

/// Two devices of the RoCEv2 backend on the loopback interface.
class Roce {
  public:
    /// @param attr  The address, which may be left out, the faults and the capture count.
    explicit Roce(const roce::PacketDeviceAttr& attr = {});
    ~Roce();
    Roce(const Roce&) = delete;
    Roce& operator=(const Roce&) = delete;
    core::Device& side(int i) { return devices_[i]->device(); }
    void settle() {
        side(0).progress();
        side(1).progress();
        // The kernel may have left the delivery of packets to a thread of its own.
        std::this_thread::yield();
    }
    roce::PacketDevice& packet_device(int i) { return *devices_[i]; }

  private:
    core::Registry registry_;
    std::unique_ptr<roce::PacketDevice> devices_[2];
};

/// The same with the address, the faults and the capture that the test has put into `attr`.
class RoceAs : public Roce {
  public:
    RoceAs() : Roce(attr) {}
    static inline roce::PacketDeviceAttr attr{};
};

/// Two devices of the shm backend, joined by a connection and its rings as two processes would be.
class Shm {
  public:
    Shm();
    ~Shm();
    Shm(const Shm&) = delete;
    Shm& operator=(const Shm&) = delete;
    core::Device& side(int i) { return devices_[i]->device(); }
    void settle() {
        side(0).progress();
        side(1).progress();
    }

  private:
    void await_connection();

    core::Registry registry_;
    std::unique_ptr<shm::SegmentDevice> devices_[2];
    Channel* channels_[2];
};

#ifdef RVT_HAVE_RDMACM
/// Both sides on the first NIC of this host.
class Nic {
  public:
    Nic();
    core::Device& side(int) { return nic_->device(); }
    /// What is under way is the hardware's, which takes its time.
    void settle();

  private:
    core::Registry registry_;
    std::shared_ptr<verbs::Nic> nic_;
};
#endif

/// The backend that a test chose when it began.
class AnyBackend {
  public:
    AnyBackend() : backend_(make()) {}

    core::Device& side(int i) { return backend_->side(i); }
    void settle() { backend_->settle(); }

    template <class Policy>
    static void use() {
        make = [] { return std::unique_ptr<Base>(std::make_unique<Holder<Policy>>()); };
    }

  private:
    struct Base {
        virtual ~Base() = default;
        virtual core::Device& side(int i) = 0;
        virtual void settle() = 0;
    };
    template <class Policy>
    struct Holder final : Base {
        Policy policy;
        core::Device& side(int i) override { return policy.side(i); }
        void settle() override { policy.settle(); }
    };

    static inline std::unique_ptr<Base> (*make)() = nullptr;
    std::unique_ptr<Base> backend_;
};

}  // namespace rvt::conform
