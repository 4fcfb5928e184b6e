// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What strangers and peers that lie may send to queue pair 1: connections of others stay as they
// are, memory stays bounded, and nothing crashes.
#include "core/cm_peers.h"

#include <string>
#include <utility>
#include <vector>

#include "common/seeds.h"

using namespace rvt;
using namespace rvt::core;
using namespace rvt::protocol;
using namespace rvt::test;

namespace {

/// Answers what comes at random, and forgets nothing that is open.
class RashUser {
  public:
    RashUser(CmNode& node, CmWorld& world) : node_(node), world_(world) {}

    void answer_all() {
        while (const auto event = node_.agent().poll_event()) {
            handles_.push_back(event->handle);
            switch (event->type) {
                case CmEventType::kRequest: answer_request(event->handle); break;
                case CmEventType::kReply: (void)node_.establish(event->handle).is_ok(); break;
                case CmEventType::kSidrRequest:
                    (void)node_.agent()
                        .answer_sidr(event->handle, {.qpn = 5}, world_.now_us)
                        .is_ok();
                    break;
                case CmEventType::kEstablished:
                case CmEventType::kRejected:
                case CmEventType::kUnreachable:
                case CmEventType::kDisconnected:
                case CmEventType::kSidrReply: break;
            }
        }
    }
    void drop_all() {
        for (const CmHandle handle : handles_) {
            (void)node_.disconnect(handle).is_ok();
        }
    }
    void add(CmHandle handle) { handles_.push_back(handle); }

  private:
    void answer_request(CmHandle handle) {
        const auto qpn = static_cast<std::uint32_t>(0x200 + world_.pick(7));
        if (world_.happens(20)) {
            (void)node_.reject(handle).is_ok();
        } else if (world_.happens(90)) {
            (void)node_.accept(handle, CmPeers::answer(qpn)).is_ok();
        }
    }

    CmNode& node_;
    CmWorld& world_;
    std::vector<CmHandle> handles_;
};

/// Messages that were sent, with some bits changed behind the MAD header, or none.
MadBytes nearly_right(CmWorld& world) {
    MadBytes mad = world.log[world.pick(world.log.size() - 1)].mad;
    for (std::uint64_t flips = world.pick(4); flips > 0; --flips) {
        const std::size_t at = 24 + world.pick(world.happens(80) ? 40 : mad.size() - 25);
        mad[at] ^= static_cast<std::byte>(1u << world.pick(7));
    }
    if (world.happens(5)) {
        mad[world.pick(23)] ^= static_cast<std::byte>(1u << world.pick(7));
    }
    return mad;
}

MadBytes noise(CmWorld& world) {
    MadBytes mad;
    for (std::byte& byte : mad) {
        byte = static_cast<std::byte>(world.random());
    }
    if (world.happens(90)) {  // as far as the attribute it is right
        encode_cm({.transaction_id = 1, .message = CmRtu()}, std::span(mad));
        for (std::size_t at = 24; at < mad.size(); ++at) {
            mad[at] = static_cast<std::byte>(world.random());
        }
        mad[17] = static_cast<std::byte>(0x10 + world.pick(8));
    }
    return mad;
}

/// Two devices that make and end connections while somebody in the name of either, or of a third,
/// sends what comes to mind.
void attack(std::uint64_t seed) {
    CmPeers pair({.max_connections = 256, .max_half_open = 16});
    CmWorld& world = pair.world;
    world.random.seed(seed);
    RVT_OK(pair.a.agent().listen_any(1));
    RVT_OK(pair.b.agent().listen_any(1));
    RashUser users[] = {{pair.a, world}, {pair.b, world}};
    CmNode* const nodes[] = {&pair.a, &pair.b};
    for (int i = 0; i < 300; ++i) {
        const std::size_t to = world.pick(1);
        if (world.happens(10) || world.log.empty()) {
            if (const auto handle =
                    pair.a.connect(pair.request(static_cast<std::uint32_t>(0x100 + world.pick(7))));
                handle.is_ok()) {
                users[0].add(handle.value());
            }
        }
        const MadBytes mad = world.happens(80) ? nearly_right(world) : noise(world);
        nodes[to]->take(address_of(static_cast<std::uint8_t>(1 + world.pick(2))), mad);
        if (world.happens(50)) {
            world.pass_us(world.pick(50'000));
        }
        users[0].answer_all();
        users[1].answer_all();
        if (world.happens(5)) {
            users[world.pick(1)].drop_all();
        }
    }
    for (int i = 0; i < 10; ++i) {
        users[0].answer_all();
        users[1].answer_all();
        users[0].drop_all();
        users[1].drop_all();
        world.settle();
    }
    for (CmNode* node : nodes) {
        const bool is_clean = node->agent().open_count() == 0 && node->agent().record_count() == 0;
        if (!is_clean) {
            cr_fatal("seed %llu: something is left", static_cast<unsigned long long>(seed));
        }
    }
}

/// Every message that could change a connection, with both ends' ids as they are.
std::vector<CmMessage> exact_messages(std::uint32_t to_id, std::uint32_t from_id,
                                      std::uint32_t to_qpn) {
    return {CmMra{.local_comm_id = from_id,
                  .remote_comm_id = to_id,
                  .subject = CmSubject::kReq,
                  .service_timeout = 20},
            CmMra{.local_comm_id = from_id,
                  .remote_comm_id = to_id,
                  .subject = CmSubject::kRep,
                  .service_timeout = 20},
            CmRej{.local_comm_id = from_id, .remote_comm_id = to_id, .subject = CmSubject::kReq},
            CmRej{.local_comm_id = from_id, .remote_comm_id = to_id, .subject = CmSubject::kOther},
            CmRep{.local_comm_id = from_id, .remote_comm_id = to_id, .qpn = 0x666},
            CmRtu{.local_comm_id = from_id, .remote_comm_id = to_id},
            CmDreq{.local_comm_id = from_id, .remote_comm_id = to_id, .remote_qpn = to_qpn},
            CmDrep{.local_comm_id = from_id, .remote_comm_id = to_id},
            CmSidrRep{.request_id = to_id, .qpn = 0x666}};
}

}  // namespace

Test(cm_agent, strangers_change_no_connection) {
    CmPeers pair;
    const Address stranger = address_of(3);
    const Address same_host = address_of(2, 5000);
    const auto forge = [&](std::uint32_t a_id, std::uint32_t b_id) {
        const CmRej withdrawal{.local_comm_id = a_id, .reason = CmRejectReason::kTimeout};
        pair.deliver(pair.b, stranger, withdrawal);
        for (const Address& from : {stranger, same_host}) {
            for (const CmMessage& message : exact_messages(a_id, b_id, 0x100)) {
                pair.deliver(pair.a, from, message);
            }
        }
        for (const CmMessage& message : exact_messages(b_id, a_id, 0x200)) {
            pair.deliver(pair.b, stranger, message);
        }
        pair.a.expect_silence();
        pair.b.expect_silence();
    };
    const CmHandle asked = pair.connect();
    const CmHandle got = pair.offered();
    const std::uint32_t a_id = pair.last<CmReq>().local_comm_id;
    forge(a_id, 0);
    RVT_OK(pair.b.accept(got, CmPeers::answer()));
    const std::uint32_t b_id = pair.last<CmRep>().local_comm_id;
    pair.world.pass_us(1000);
    pair.a.next(CmEventType::kReply);
    forge(a_id, b_id);
    RVT_OK(pair.a.establish(asked));
    pair.world.pass_us(1000);
    pair.b.next(CmEventType::kEstablished);
    forge(a_id, b_id);
    RVT_OK(pair.a.disconnect(asked));
    pair.world.pass_us(1000);
    pair.a.next(CmEventType::kDisconnected);
    pair.b.next(CmEventType::kDisconnected);
}

Test(cm_agent, who_does_not_know_the_ids_changes_no_connection) {
    CmPeers pair;
    const auto guess = [&](CmNode& node, const Address& from, std::uint32_t id, std::uint32_t qpn,
                           std::uint32_t from_id) {
        for (int i = 0; i < 50; ++i) {
            const auto wrong = static_cast<std::uint32_t>(pair.world.random());
            for (const auto& [to, by] : {std::pair(wrong, from_id), std::pair(id, wrong)}) {
                for (const CmMessage& message : exact_messages(to, by, qpn)) {
                    CmPeers::take(node, from, message);
                }
            }
        }
        node.expect_silence();
    };
    const CmHandle asked = pair.connect();
    RVT_OK(pair.b.accept(pair.offered(), CmPeers::answer()));
    const auto rep = pair.last<CmRep>();
    const std::uint32_t a_id = rep.remote_comm_id;
    const std::uint32_t b_id = rep.local_comm_id;
    pair.world.pass_us(1000);
    pair.a.next(CmEventType::kReply);
    guess(pair.b, address_of(1), b_id, 0x200, a_id);  // RTU awaited
    RVT_OK(pair.a.establish(asked));
    pair.world.pass_us(1000);
    guess(pair.a, address_of(2), a_id, 0x100, b_id);  // in use
    pair.b.next(CmEventType::kEstablished);
    pair.lose<CmDreq>();
    RVT_OK(pair.a.disconnect(asked));
    guess(pair.a, address_of(2), a_id, 0x100, b_id);  // DREP awaited
    RVT_EQ(pair.a.agent().open_count(), 1);
    RVT_EQ(pair.b.agent().open_count(), 1);
}

Test(cm_agent, peer_that_uses_an_id_twice_confuses_only_itself) {
    CmPeers pair;
    const CmHandle first = pair.connect(0x100);
    const auto first_req = pair.last<CmReq>();
    const CmHandle second = pair.connect(0x101);
    const auto second_req = pair.last<CmReq>();
    for (const auto& [req, qpn] : {std::pair(first_req, 0x300u), std::pair(second_req, 0x301u)}) {
        pair.deliver(pair.a, address_of(2),
                     CmRep{.local_comm_id = 9, .remote_comm_id = req.local_comm_id, .qpn = qpn});
        pair.a.next(CmEventType::kReply);
    }
    RVT_OK(pair.a.reject(first));
    pair.world.settle();
    CmReq req = first_req;
    std::swap(req.primary.local_gid, req.primary.remote_gid);
    req.local_comm_id = 9;
    pair.deliver(pair.a, address_of(2), req);
    RVT_EQ(pair.last<CmRej>().reason, CmRejectReason::kDuplicateCommId);
    RVT_OK(pair.a.establish(second));
}

Test(cm_agent, nonsense_is_counted_and_not_answered) {
    CmPeers pair;
    pair.b.take(address_of(1), {});
    pair.b.take(address_of(1), bytes_of("GET / HTTP/1.1"));
    const std::string zeros(kMadBytes, '\0');
    pair.b.take(address_of(1), bytes_of(zeros));
    RVT_EQ(pair.b.agent().stats().malformed, 3);
    RVT_EQ(pair.world.log.size(), 0);
}

Test(cm_agent, survives_messages_that_are_nearly_right, .timeout = 60) {
    test::for_each_seed(300, [](std::uint64_t seed) { attack(seed); });
}
