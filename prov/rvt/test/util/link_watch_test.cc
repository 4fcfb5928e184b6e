// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What is told of interfaces that exist only here.
#include "util/link_watch.h"

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <vector>

#include <net/if.h>

#include "common/check.h"
#include "common/own_network.h"

using rvt::util::ControlThread;
using rvt::util::LinkWatch;

namespace {

constexpr std::chrono::seconds kPatience{20};

/// Hears of wire0 and wire1, a network that is this process' own.
class Heard final : public LinkWatch::Listener {
  public:
    Heard() {
        if (!rvt::test::enter_own_network()) {
            cr_skip_test("this user may make no network of its own");
        }
        thread_ = ControlThread::acquire().take();
        thread_->run([this] {
            watch_ = LinkWatch::acquire(*thread_).take();
            watch_->add(*this);
        });
    }
    ~Heard() {
        thread_->run([this] {
            watch_->remove(*this);
            watch_.reset();
        });
    }
    Heard(const Heard&) = delete;
    Heard& operator=(const Heard&) = delete;

    void links_changed(std::span<const unsigned> interfaces) override {
        const std::lock_guard guard(lock_);
        RVT_ASSERT(!interfaces.empty());
        told_.insert(told_.end(), interfaces.begin(), interfaces.end());
        news_.notify_one();
    }
    /// Whether it is told of what the command does to the interface.
    bool of(const char* interface, const char* command) {
        const unsigned number = if_nametoindex(interface);
        std::unique_lock guard(lock_);
        told_.clear();
        RVT_EQ(std::system(command), 0);
        return news_.wait_for(guard, kPatience,
                              [&] { return std::ranges::find(told_, number) != told_.end(); });
    }
    /// What it has been told of.
    std::vector<unsigned> told() {
        const std::lock_guard guard(lock_);
        return told_;
    }

  private:
    std::shared_ptr<ControlThread> thread_;
    std::shared_ptr<LinkWatch> watch_;
    std::mutex lock_;
    std::condition_variable news_;
    std::vector<unsigned> told_;
};

}  // namespace

Test(link_watch, tells_of_another_mtu_and_of_no_other_interface) {
    Heard heard;
    RVT_ASSERT(heard.of("wire0", "ip link set wire0 mtu 1400"));
    const unsigned wire0 = if_nametoindex("wire0");  // of which it may be told again
    RVT_ASSERT(std::ranges::all_of(heard.told(), [&](unsigned each) { return each == wire0; }));
}

Test(link_watch, tells_of_addresses_that_come_and_go) {
    Heard heard;
    RVT_ASSERT(heard.of("wire0", "ip address delete 192.0.2.1/24 dev wire0"));
    RVT_ASSERT(heard.of("wire0", "ip address add 192.0.2.1/24 dev wire0"));
    RVT_ASSERT(heard.of("wire0", "ip address delete fd99::1/64 dev wire0"));
}

Test(link_watch, tells_of_an_interface_that_is_removed) {
    Heard heard;
    RVT_ASSERT(heard.of("wire0", "ip link delete wire0"));
}

Test(link_watch, of_a_process_is_one) {
    const auto thread = ControlThread::acquire().take();
    thread->run([&] {
        const auto one = LinkWatch::acquire(*thread).take();
        RVT_ASSERT(one == LinkWatch::acquire(*thread).value());
    });
}
