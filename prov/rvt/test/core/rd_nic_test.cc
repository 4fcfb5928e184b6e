// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Flows over a NIC: two endpoints of this process, which find each other over the wire of
// backend/fake, and a NIC of this host between them. Without one, the tests skip themselves.
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <poll.h>

#include "backend/verbs/nic.h"
#include "core/flow_node.h"

using namespace rvt;
using namespace rvt::core;
using test::FlowNode;

namespace {

struct NicEnds {
    /// @param a_has_one, b_has_one  Whether the ends have the NIC.
    explicit NicEnds(bool a_has_one = true, bool b_has_one = true) {
        const auto nics = verbs::find_nics();
        if (nics.empty()) {
            cr_skip_test("this host has no NIC");
        }
        nic = verbs::Nic::open(registry, nics.front()).take();
        Address address = nic->device().address();
        address.port = 5001;
        a = std::make_unique<FlowNode>(wire, address, a_has_one ? &nic->device() : nullptr);
        address.port = 5002;
        b = std::make_unique<FlowNode>(wire, address, b_has_one ? &nic->device() : nullptr);
    }
    /// One end, or the other, has a NIC that takes no pair to any peer.
    void break_nic(bool at_a) {
        BackendOps ops = verbs::verb_ops();
        ops.modify_qp = [](Qp& qp, const QpAttr& attr, QpMask mask) -> Status {
            return attr.state == QpState::kRtr ? Status(EHOSTUNREACH)
                                               : verbs::verb_ops().modify_qp(qp, attr, mask);
        };
        replace_nic(at_a, ops);
    }
    /// What the first end sends by the NIC is counted.
    void count_sends() {
        sends = signaled = 0;
        BackendOps ops = verbs::verb_ops();
        ops.post_send = [](Qp& qp, const SendWr& wr) -> Status {
            ++sends;
            signaled += has_any(wr.flags, SendFlags::kSignaled) ? 1 : 0;
            return verbs::verb_ops().post_send(qp, wr);
        };
        replace_nic(true, ops);
    }
    void replace_nic(bool at_a, const BackendOps& ops) {
        const Device& whole = nic->device();
        other = registry
                    .add_device({.name = "other",
                                 .grade = Grade::kVerb,
                                 .address = whole.address(),
                                 .limits = whole.limits(),
                                 .payload_bytes = whole.payload_bytes()},
                                ops, nic.get())
                    .value();
        std::unique_ptr<FlowNode>& node = at_a ? a : b;
        const Address address = node->address();
        node.reset();
        node = std::make_unique<FlowNode>(wire, address, other);
    }
    ~NicEnds() {
        a.reset();
        b.reset();
        if (other != nullptr) {
            RVT_OK(registry.remove_device(other));
        }
    }
    NicEnds(const NicEnds&) = delete;
    NicEnds& operator=(const NicEnds&) = delete;

    void poll() {
        for (const auto& node : {a.get(), b.get()}) {
            if (node != nullptr) {
                node->poll();
            }
        }
        std::this_thread::yield();  // the kernel may emulate the NIC
    }
    /// Polls until it is so; fails the test when it does not come to that.
    template <class Is>
    void until(Is is) {
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
        bool is_so = is();
        while (!is_so && std::chrono::steady_clock::now() < end) {
            poll();
            is_so = is();
        }
        RVT_ASSERT(is_so);
    }
    void connect() {
        a->flows->connect(b->address());
        until([&] { return a->flow != nullptr && b->flow != nullptr; });
    }

    Registry registry;
    std::shared_ptr<verbs::Nic> nic;
    Device* other = nullptr;  // the NIC in another guise
    static inline int sends = 0;
    static inline int signaled = 0;
    fake::Wire wire;
    std::unique_ptr<FlowNode> a;
    std::unique_ptr<FlowNode> b;
};

}  // namespace

Test(rd_nic, a_flow_goes_over_the_nics_of_both_ends) {
    NicEnds net;
    net.connect();
    RVT_ASSERT(net.a->flow->is_over_nic());
    RVT_ASSERT(net.b->flow->is_over_nic());
    RVT_ASSERT(net.a->say("there"));
    RVT_ASSERT(net.b->say("and back"));
    net.until([&] { return net.a->heard.size() == 1 && net.b->heard.size() == 1; });
    RVT_ASSERT(net.b->heard[0] == "there");
    RVT_ASSERT(net.a->heard[0] == "and back");
}

Test(rd_nic, messages_of_all_sizes_arrive_whole_and_in_order) {
    NicEnds net;
    net.connect();
    constexpr std::size_t kMessages = 400;
    std::vector<std::string> said;
    for (std::size_t i = 0; i < kMessages; ++i) {
        const std::size_t bytes = i % 7 == 0 ? net.a->flow->max_run() - i : i % 29;
        said.emplace_back(bytes, static_cast<char>('a' + i % 26));
    }
    for (const std::string& text : said) {
        net.until([&] { return net.a->say(text); });
    }
    net.until([&] { return net.b->heard.size() == kMessages; });
    RVT_ASSERT(net.b->heard == said);
    net.until([&] { return net.a->flow->is_drained(); });
    RVT_ASSERT(!net.b->is_malformed);
}

Test(rd_nic, where_the_other_end_has_none_packets_do) {
    NicEnds net(true, false);
    net.connect();
    RVT_ASSERT(!net.a->flow->is_over_nic());
    RVT_ASSERT(net.a->say("there"));
    net.until([&] { return net.b->heard.size() == 1; });
}

Test(rd_nic, who_has_none_calls_by_packets) {
    NicEnds net(false, true);
    net.connect();
    RVT_ASSERT(!net.b->flow->is_over_nic());
    RVT_ASSERT(net.b->say("back"));
    net.until([&] { return net.a->heard.size() == 1; });
}

Test(rd_nic, connects_that_cross_end_in_one_flow) {
    for (const bool b_has_one : {true, false}) {
        NicEnds net(true, b_has_one);
        net.a->flows->connect(net.b->address());
        net.b->flows->connect(net.a->address());
        net.until([&] { return net.a->flow != nullptr && net.b->flow != nullptr; });
        RVT_EQ(net.a->flow->is_over_nic(), net.b->flow->is_over_nic());
        RVT_ASSERT(net.a->say("there"));
        RVT_ASSERT(net.b->say("and back"));
        net.until([&] { return net.a->heard.size() == 1 && net.b->heard.size() == 1; });
        RVT_EQ(net.a->failure, 0);
        RVT_EQ(net.b->failure, 0);
    }
}

Test(rd_nic, a_nic_that_takes_no_pair_to_the_peer_leaves_it_to_packets) {
    for (const bool at_a : {true, false}) {
        NicEnds net;
        net.break_nic(at_a);
        net.a->flows->connect(net.b->address());
        net.until([&] {
            return net.a->flow != nullptr && net.b->flow != nullptr &&
                   !net.a->flow->is_over_nic() && !net.b->flow->is_over_nic();
        });
        RVT_ASSERT(net.a->say("there"));
        net.until([&] { return net.b->heard.size() == 1; });
        RVT_EQ(net.a->failure, 0);
    }
}

Test(rd_nic, what_comes_while_nobody_polls_is_there_later) {
    NicEnds net;
    net.connect();
    std::size_t said = 0;
    while (net.a->say(std::to_string(said))) {
        ++said;
        net.a->poll();
    }
    net.until([&] { return net.b->heard.size() == said; });
    RVT_ASSERT(net.b->heard.back() == std::to_string(said - 1));
}

Test(rd_nic, the_end_of_an_endpoint_is_told) {
    NicEnds net;
    net.connect();
    RVT_ASSERT(net.a->say("last"));
    net.a.reset();
    net.until([&] { return net.b->ends == 1; });
    RVT_ASSERT(net.b->heard == std::vector<std::string>{"last"});
}

Test(rd_nic, who_sleeps_is_woken_by_a_message) {
    NicEnds net;
    net.connect();
    net.until([&] { return net.b->flows->arm_nic().is_ok(); });
    pollfd readable{.fd = net.b->flows->nic_wake_fd(), .events = POLLIN, .revents = 0};
    RVT_ASSERT(net.a->say("wake up"));
    RVT_EQ(poll(&readable, 1, 10'000), 1);
    net.until([&] { return net.b->heard.size() == 1; });
}

Test(rd_nic, of_several_frames_one_completion_is_asked_for) {
    constexpr std::size_t kMessages = 160;
    NicEnds net;
    net.count_sends();
    net.connect();
    for (std::size_t i = 1; i <= kMessages; ++i) {
        RVT_ASSERT(net.a->say("one more"));
        net.until([&] { return net.b->heard.size() == i; });
    }
    RVT_ASSERT(net.sends >= static_cast<int>(kMessages));
    RVT_ASSERT(net.signaled <= net.sends / 16);
}

Test(rd_nic, who_asks_whether_the_peer_has_all_is_told) {
    NicEnds net;
    net.count_sends();
    net.connect();
    net.until([&] { return net.a->flow->is_drained(); });
    const int before = net.signaled;
    RVT_ASSERT(net.a->say("all"));
    net.until([&] { return net.b->heard.size() == 1; });
    RVT_EQ(net.signaled, before);
    net.until([&] { return net.a->flow->is_drained(); });
    RVT_EQ(net.signaled, before + 1);
    RVT_EQ(net.b->heard.size(), 1u);
    RVT_ASSERT(!net.b->is_malformed);
}

Test(rd_nic, a_quiet_socket_is_left_to_others_while_the_nic_is_polled) {
    NicEnds net;
    net.connect();
    net.a->is_watched = false;
    net.until([&] { return net.a->flows->take_quiet(); });
    RVT_ASSERT(net.a->is_hot());
    RVT_ASSERT(net.b->say("there"));
    net.until([&] { return net.a->heard.size() == 1; });
    RVT_ASSERT(!net.a->flows->take_quiet());
}

Test(rd_nic, packets_are_taken_again_when_somebody_has_seen_some) {
    NicEnds net;
    net.connect();
    net.b->is_watched = false;
    net.until([&] { return net.b->flows->take_quiet(); });
    net.a.reset();  // says so by packets
    net.b->flows->note_packets();
    net.until([&] { return net.b->ends == 1; });
}

Test(rd_nic, who_polls_for_the_owner_leaves_the_nic_as_well) {
    NicEnds net;
    net.connect();
    net.until([&] {
        net.b->flows->poll_for_owner();
        return !net.b->is_hot();
    });
    RVT_ASSERT(net.b->flows->take_quiet());
    RVT_OK(net.b->flows->arm_nic());
    pollfd readable{.fd = net.b->flows->nic_wake_fd(), .events = POLLIN, .revents = 0};
    RVT_ASSERT(net.a->say("wake up"));
    RVT_EQ(poll(&readable, 1, 10'000), 1);
    net.b->flows->note_packets();
    net.until([&] { return net.b->heard.size() == 1; });
}

Test(rd_nic, an_end_does_not_wait_for_a_peer_that_has_said_it_is_going) {
    NicEnds net;
    net.connect();
    RVT_ASSERT(net.a->say("there"));
    RVT_ASSERT(net.b->say("and back"));
    net.until([&] { return net.a->heard.size() == 1 && net.b->heard.size() == 1; });
    net.a.reset();
    // Who waited for what is lost would do so for 1.9 s.
    const auto began = std::chrono::steady_clock::now();
    net.b.reset();
    RVT_ASSERT(std::chrono::steady_clock::now() - began < std::chrono::milliseconds(1500));
}
