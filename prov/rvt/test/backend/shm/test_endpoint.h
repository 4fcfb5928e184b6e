// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// An endpoint reduced to what a Connector sees of it: a page, a mailbox, counters of its callbacks.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include <sys/eventfd.h>
#include <sys/random.h>

#include "backend/shm/connection.h"
#include "util/control_thread.h"
#include "util/udp_port.h"

namespace rvt::shm::test {

using Kind = ConnectionEvent::Kind;

inline util::SockAddr loopback(std::uint16_t port = 0) {
    return {.family = AF_INET, .port = port, .ip = {127, 0, 0, 1}};
}

/// A port at which nobody listens, kept from all others: tests run beside each other.
inline util::UdpPort quiet_port() {
    return util::bind_udp_port(loopback()).take();
}

/// Waits until the control thread has done what it is at. What it tells it puts into a mailbox
/// first; then it looks whether somebody sleeps.
inline void await_control_thread() {
    util::ControlThread::acquire().take()->run([] {});
}

struct EndpointOptions {
    std::uint16_t port = 0;
    bool has_auto_progress = false;
    bool has_keys = true;
    unsigned connect_timeout_ms = 0;
    unsigned refused_timeout_ms = 0;
};

class TestEndpoint final : public ConnectionUser {
  public:
    using Options = EndpointOptions;

    explicit TestEndpoint(Options options = {}) { status_ = open(options); }
    ~TestEndpoint() override { connector_.reset(); }
    TestEndpoint(const TestEndpoint&) = delete;
    TestEndpoint& operator=(const TestEndpoint&) = delete;

    util::Status status() const { return status_; }
    const util::SockAddr& address() const { return port_.address; }
    Connector& connector() { return *connector_; }
    EndpointPage& page() { return *page_.at<EndpointPage>(0); }
    const util::Mapping& keys() const { return keys_; }
    int wake_fd() const { return wake_fd_.get(); }
    void close() { connector_.reset(); }

    /// The next event; nullptr when none comes in time, which is long after it should.
    std::unique_ptr<ConnectionEvent> next(
        std::chrono::milliseconds patience = std::chrono::seconds(20)) {
        std::unique_lock guard(lock_);
        if (!arrived_.wait_for(guard, patience, [this] { return !mail_.empty(); })) {
            return nullptr;
        }
        std::unique_ptr<ConnectionEvent> event = std::move(mail_.front());
        mail_.pop_front();
        return event;
    }
    /// The next event, which must be a connection.
    std::unique_ptr<Peering> next_peering() {
        std::unique_ptr<ConnectionEvent> event = next();
        return event != nullptr ? std::move(event->peering) : nullptr;
    }
    std::size_t waiting_events() {
        const std::lock_guard guard(lock_);
        return mail_.size();
    }
    /// Waits until the callbacks have brought something about; false when they do not in time.
    template <class Condition>
    bool wait_until(Condition condition,
                    std::chrono::milliseconds patience = std::chrono::seconds(20)) {
        std::unique_lock guard(lock_);
        return arrived_.wait_for(guard, patience, condition);
    }

    void deliver(std::unique_ptr<ConnectionEvent> event) noexcept override {
        const std::lock_guard guard(lock_);
        if (polls_until_event) {
            polls_all_the_time = false;
            polls_until_event = false;
            polls.fetch_add(1, std::memory_order_relaxed);  // relaxed: as in poll_count()
        }
        mail_.push_back(std::move(event));
        arrived_.notify_all();
    }
    bool has_sleepers() noexcept override { return polls_until_event; }
    bool control_send() noexcept override {
        const std::lock_guard guard(lock_);
        ++send_calls;
        arrived_.notify_all();
        return false;
    }
    bool control_progress() noexcept override {
        const std::lock_guard guard(lock_);
        ++progress_calls;
        arrived_.notify_all();
        return !is_inside;
    }
    // relaxed: the test only looks whether it moves.
    std::uint64_t poll_count() const noexcept override {
        return polls.fetch_add(polls_all_the_time ? 1 : 0, std::memory_order_relaxed);
    }
    void control_disarm() noexcept override {
        const std::lock_guard guard(lock_);
        ++disarm_calls;
        arrived_.notify_all();
    }
    bool control_arm() noexcept override {
        const std::lock_guard guard(lock_);
        ++arm_calls;
        eventfd_t ignored = 0;
        eventfd_read(wake_fd_.get(), &ignored);  // as Station::arm()
        arrived_.notify_all();
        return !has_endless_work;
    }

    util::Result<RegionSource> find_region(std::uint64_t key) noexcept override {
        const std::lock_guard guard(lock_);
        const auto found = regions_.find(key);
        if (found == regions_.end()) {
            return EACCES;
        }
        const auto [base, length] = found->second;
        if (handle_) {
            return RegionSource{.length = length, .handle = handle_};
        }
        return RegionSource{.address = reinterpret_cast<std::uint64_t>(base), .length = length};
    }
    void register_region(std::uint64_t key, iovec region) {
        const std::lock_guard guard(lock_);
        regions_[key] = region;
    }
    /// Regions are memory of a device from now on.
    void set_handle(const core::DeviceHandle& handle) {
        const std::lock_guard guard(lock_);
        handle_ = handle;
    }
    void deregister_region(std::uint64_t key) {
        const std::lock_guard guard(lock_);
        regions_.erase(key);
    }

    mutable std::atomic<std::uint64_t> polls{0};
    std::atomic<bool> polls_all_the_time{false};  // each look finds that there has been a poll
    std::atomic<bool> polls_until_event{false};   // beside a thread that sleeps, the same
    // Read in wait_until().
    int progress_calls = 0;
    int send_calls = 0;
    int arm_calls = 0;
    int disarm_calls = 0;
    bool is_inside = false;
    bool has_endless_work = false;

  private:
    util::Status open(const Options& options) {
        util::Result<util::UdpPort> port = util::bind_udp_port(loopback(options.port));
        if (!port.is_ok()) {
            return port.status();
        }
        port_ = port.take();
        util::Result<util::Mapping> page =
            util::Mapping::create("test-page", kPageBytes, kPageBytes);
        util::Result<util::Mapping> keys =
            util::Mapping::create("test-keys", 4 * kPageBytes, kPageBytes);
        if (!page.is_ok() || !keys.is_ok()) {
            return page.is_ok() ? keys.status() : page.status();
        }
        page_ = page.take();
        keys_ = keys.take();
        fill_page();
        wake_fd_.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
        ListenAttr attr;
        attr.address = port_.address;
        attr.page = &page_;
        attr.keys = options.has_keys ? &keys_ : nullptr;
        attr.wake_fd = wake_fd_.get();
        attr.has_auto_progress = options.has_auto_progress;
        attr.user = this;
        attr.connect_timeout_ms = options.connect_timeout_ms;
        attr.refused_timeout_ms = options.refused_timeout_ms;
        util::Result<std::unique_ptr<Connector>> connector = Connector::open(attr);
        if (connector.is_ok()) {
            connector_ = connector.take();
        }
        return connector.status();
    }
    void fill_page() {
        EndpointPage& page = *page_.at<EndpointPage>(0);
        page.magic = kMagic;
        page.version = kLayoutVersion;
        std::uint64_t random[2] = {};
        [[maybe_unused]] const ssize_t got = getrandom(random, sizeof random, 0);
        page.incarnation = random[0];
        page.probe = random[1];
        page.control_may_enter = 1;
    }

    util::UdpPort port_;
    util::Mapping page_;
    util::Mapping keys_;
    util::UniqueFd wake_fd_;
    std::mutex lock_;
    std::condition_variable arrived_;
    std::deque<std::unique_ptr<ConnectionEvent>> mail_;
    std::map<std::uint64_t, iovec> regions_;
    std::optional<core::DeviceHandle> handle_;
    util::Status status_;
    std::unique_ptr<Connector> connector_;
};

}  // namespace rvt::shm::test
