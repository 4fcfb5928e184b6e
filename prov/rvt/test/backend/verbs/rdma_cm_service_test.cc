// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Datagram services by an rdma_cm that exists only here: what it is asked, and what becomes of what
// it reports; and its word that a NIC is taken away.
#include "backend/verbs/rdma_cm_service.h"

#include <cerrno>
#include <memory>
#include <vector>

#include "backend/verbs/mock_cm.h"
#include "backend/verbs/mock_nic.h"
#include "backend/verbs/removal.h"
#include "common/check.h"
#include "core/addresses.h"

using namespace rvt;
using namespace rvt::verbs;

namespace {

constexpr util::SockAddr kOwn{.family = AF_INET, .ip = {10, 1, 2, 3}};
constexpr core::UdPair kPair{.qpn = 0x77, .qkey = 0x01234567};

/// Remembers what it is told.
struct User final : core::SidrUser {
    struct Told {
        Address peer;
        Result<core::UdPair> pair;
    };
    void resolved(const Address& peer, const Result<core::UdPair>& pair) noexcept override {
        told.push_back({peer, pair});
    }
    void pair_gone(const Address&, std::uint32_t) noexcept override {}
    void device_gone() noexcept override { knows_of_end = true; }

    std::vector<Told> told;
    bool knows_of_end = false;
};

struct World {
    explicit World(std::uint32_t timeout_ms = 10'000) : timeout_ms(timeout_ms) {
        use_library(&functions);
        cm.nic = nic->context();
    }
    ~World() { close(); }
    World(const World&) = delete;
    World& operator=(const World&) = delete;

    Status open(std::uint16_t number = 0) {
        util::SockAddr at = kOwn;
        at.port = number;
        auto made =
            RdmaCmService::open({.nic = nic.get(), .address = at, .timeout_ms = timeout_ms});
        if (made.is_ok()) {
            service = made.take();
        }
        return made.status();
    }
    /// With the service of a pair, so that there is somebody to be told.
    void open_with_user() {
        RVT_OK(open());
        RVT_OK(service->open_service(kAnyNumber, kPair, user));
    }
    void close() {
        if (service != nullptr) {
            service->close_service(service->address().port);
            service.reset();
        }
    }
    /// Of the latest id, unless it is another's.
    void report(rdma_cm_event_type type, int status = 0, rdma_cm_id* id = nullptr) {
        cm.report(id != nullptr ? *id : *cm.ids.back(),
                  {.type = type, .status = status, .qpn = 0x99, .qkey = 0x42});
        service->take_events();
    }
    /// By a peer.
    void is_asked() {
        cm.request(RDMA_PS_UDP, kOwn);
        service->take_events();
    }

    const std::uint32_t timeout_ms;
    MockNic mock;
    core::Registry registry;
    std::shared_ptr<Nic> nic =
        Nic::open(registry, {.device = "mock0", .port = 2, .address = kOwn}).take();
    Library functions = *library();
    MockCm cm{functions};
    User user;
    std::unique_ptr<RdmaCmService> service;
};

Address peer() {
    return core::to_address({.family = AF_INET, .port = 7, .ip = {10, 1, 2, 9}});
}

}  // namespace

Test(rdma_cm_service, takes_the_number_that_is_asked_for_or_any) {
    World world;
    RVT_OK(world.open(99));
    RVT_EQ(world.service->address().port, 99);
    RVT_EQ(world.cm.ids.back()->ps, RDMA_PS_UDP);
    world.close();
    RVT_OK(world.open());
    RVT_EQ(world.service->address().port, kAnyNumber);
}

Test(rdma_cm_service, a_number_that_is_taken_is_eaddrinuse) {
    World world;
    world.cm.failing = "bind_addr";
    world.cm.error = EADDRINUSE;
    RVT_EQ(world.open(99), EADDRINUSE);
    RVT_EQ(world.cm.live(), 0);
}

Test(rdma_cm_service, an_address_of_another_interface_is_eaddrnotavail) {
    World world;
    world.cm.nic = nullptr;
    RVT_EQ(world.open(), EADDRNOTAVAIL);
    RVT_EQ(world.cm.live(), 0);
}

Test(rdma_cm_service, each_call_of_opening_that_fails_is_its_error_and_leaves_nothing) {
    for (const char* call : {"create_event_channel", "create_id", "bind_addr"}) {
        World world;
        world.cm.failing = call;
        RVT_EQ(world.open(), EMFILE);
        RVT_EQ(world.cm.live(), 0);
    }
}

Test(rdma_cm_service, the_pair_of_a_peer_is_asked_for_and_told) {
    World world;
    world.open_with_user();
    RVT_OK(world.service->ask(peer(), kAnyNumber));
    world.report(RDMA_CM_EVENT_ADDR_RESOLVED);
    world.report(RDMA_CM_EVENT_ROUTE_RESOLVED);
    RVT_ASSERT(world.cm.calls.back() == "connect");
    world.report(RDMA_CM_EVENT_ESTABLISHED);
    RVT_EQ(world.user.told.size(), 1u);
    RVT_ASSERT(world.user.told[0].peer == peer());
    RVT_ASSERT(world.user.told[0].pair.value() == (core::UdPair{.qpn = 0x99, .qkey = 0x42}));
    world.close();
    RVT_EQ(world.cm.live(), 0);
}

Test(rdma_cm_service, each_end_of_a_question_has_its_error) {
    const struct {
        rdma_cm_event_type type;
        int status;
        int error;
    } ends[] = {
        {RDMA_CM_EVENT_UNREACHABLE, 1, ECONNREFUSED},  // nobody has the service
        {RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT, ETIMEDOUT},
        {RDMA_CM_EVENT_REJECTED, 8, ECONNREFUSED},
        {RDMA_CM_EVENT_ADDR_ERROR, -EHOSTUNREACH, ETIMEDOUT},
        {RDMA_CM_EVENT_ROUTE_ERROR, -EIO, ETIMEDOUT},
        {RDMA_CM_EVENT_CONNECT_ERROR, -EINVAL, ETIMEDOUT},
        {RDMA_CM_EVENT_DEVICE_REMOVAL, 0, ETIMEDOUT},
    };
    World world;
    world.open_with_user();
    for (const auto& end : ends) {
        RVT_OK(world.service->ask(peer(), kAnyNumber));
        world.report(end.type, end.status);
        RVT_EQ(world.user.told.back().pair.status(), end.error);
        RVT_EQ(world.cm.ids.size(), 1u);  // that of the number
    }
    RVT_EQ(world.user.told.size(), std::size(ends));
}

Test(rdma_cm_service, each_call_of_a_question_that_fails_ends_it) {
    for (const char* call : {"create_id", "resolve_addr", "resolve_route", "connect"}) {
        World world;
        world.open_with_user();
        world.cm.failing = call;
        const Status asked = world.service->ask(peer(), kAnyNumber);
        if (asked.is_ok()) {
            world.report(RDMA_CM_EVENT_ADDR_RESOLVED);
            if (world.user.told.empty()) {
                world.report(RDMA_CM_EVENT_ROUTE_RESOLVED);
            }
            RVT_EQ(world.user.told.at(0).pair.status(), EMFILE);
        } else {
            RVT_EQ(asked, EMFILE);
        }
        RVT_EQ(world.cm.ids.size(), 1u);
    }
}

Test(rdma_cm_service, a_question_that_is_not_answered_in_time_ends) {
    World world(0);
    world.open_with_user();
    RVT_OK(world.service->ask(peer(), kAnyNumber));
    world.service->check_deadlines();
    RVT_EQ(world.user.told.at(0).pair.status(), ETIMEDOUT);
    RVT_EQ(world.cm.ids.size(), 1u);
}

Test(rdma_cm_service, who_has_the_service_is_told_that_the_nic_is_gone) {
    World world;
    world.open_with_user();
    world.service->check_deadlines();
    RVT_EQ(world.user.knows_of_end, false);
    world.nic->device().begin_removal();
    world.service->check_deadlines();
    RVT_EQ(world.user.knows_of_end, true);
}

Test(rdma_cm_service, a_question_in_time_goes_on) {
    World world;
    world.open_with_user();
    RVT_OK(world.service->ask(peer(), kAnyNumber));
    world.service->check_deadlines();
    RVT_ASSERT(world.user.told.empty());
    RVT_EQ(world.cm.ids.size(), 2u);
}

Test(rdma_cm_service, a_way_that_does_not_begin_at_the_nic_is_not_gone) {
    World world;
    world.open_with_user();
    world.cm.nic = nullptr;
    RVT_OK(world.service->ask(peer(), kAnyNumber));
    world.report(RDMA_CM_EVENT_ADDR_RESOLVED);
    RVT_EQ(world.user.told.at(0).pair.status(), ETIMEDOUT);
    RVT_ASSERT(world.cm.calls.back() == "resolve_addr");
}

Test(rdma_cm_service, peers_that_ask_are_told_the_pair) {
    World world;
    world.open_with_user();
    world.is_asked();
    RVT_EQ(world.cm.accepted.qp_num, kPair.qpn);
    RVT_EQ(world.cm.ids.size(), 1u);
}

Test(rdma_cm_service, peers_that_ask_too_early_or_too_late_are_refused) {
    World world;
    RVT_OK(world.open());
    world.is_asked();
    RVT_ASSERT(world.cm.calls.back() == "reject");
    RVT_OK(world.service->open_service(kAnyNumber, kPair, world.user));
    world.service->close_service(kAnyNumber);
    world.is_asked();
    RVT_ASSERT(world.cm.calls.back() == "reject");
    RVT_EQ(world.cm.accepted.qp_num, 0u);
}

Test(rdma_cm_service, there_is_one_service_and_it_has_the_number) {
    World world;
    RVT_OK(world.open());
    RVT_EQ(world.service->open_service(7, kPair, world.user), EADDRINUSE);
    world.cm.failing = "listen";
    RVT_EQ(world.service->open_service(kAnyNumber, kPair, world.user), EMFILE);
    world.cm.failing = {};
    RVT_OK(world.service->open_service(kAnyNumber, kPair, world.user));
    RVT_EQ(world.service->open_service(kAnyNumber, kPair, world.user), EADDRINUSE);
}

Test(rdma_cm_service, closing_ends_questions_without_a_word) {
    World world;
    world.open_with_user();
    RVT_OK(world.service->ask(peer(), kAnyNumber));
    RVT_OK(world.service->ask(peer(), kAnyNumber));
    world.close();
    RVT_ASSERT(world.user.told.empty());
    RVT_EQ(world.cm.live(), 0);
}

Test(rdma_cm_service, news_of_a_question_that_has_ended_is_no_news) {
    World world(0);
    world.open_with_user();
    RVT_OK(world.service->ask(peer(), kAnyNumber));
    rdma_cm_id late{};
    late.context = world.cm.ids.back()->context;
    world.service->check_deadlines();
    world.report(RDMA_CM_EVENT_ESTABLISHED, 0, &late);
    RVT_EQ(world.user.told.size(), 1u);
}

// ---- the end of a NIC ----

namespace {

void says(World& world, Removal& removal, rdma_cm_event_type type) {
    world.cm.report(*world.cm.ids.back(), {.type = type});
    removal.take_events();
}

}  // namespace

Test(rdma_cm_removal, a_nic_that_is_taken_away_is_going) {
    World world;
    const auto removal = Removal::open(*world.nic).take();
    says(world, *removal, RDMA_CM_EVENT_ADDR_CHANGE);
    RVT_EQ(world.nic->device().is_going(), false);
    says(world, *removal, RDMA_CM_EVENT_DEVICE_REMOVAL);
    RVT_ASSERT(world.nic->device().is_going());
    RVT_ASSERT(world.cm.ids.empty());  // for which the kernel waits
}

Test(rdma_cm_removal, each_call_that_fails_is_its_error_and_leaves_nothing) {
    for (const char* call : {"create_event_channel", "create_id", "bind_addr"}) {
        World world;
        world.cm.failing = call;
        RVT_EQ(Removal::open(*world.nic).status(), EMFILE);
        RVT_EQ(world.cm.live(), 0);
    }
}
