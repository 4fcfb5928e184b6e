// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Devices that connect, refuse, delay, withdraw and disconnect at random over a wire that loses,
// doubles and reorders: in the end both sides of each connection agree, and nothing is left. A
// failure names its seed.
#include "core/cm_world.h"

#include <cstring>
#include <string>

#include "common/seeds.h"

using namespace rvt;
using namespace rvt::core;
using namespace rvt::test;

namespace {

constexpr std::uint64_t kService = 7;
constexpr std::uint32_t kTimeoutUs = 60'000;
constexpr std::uint64_t kConnectWithinUs = 1'000'000;

struct Faults {
    unsigned drop_percent = 0;
    unsigned double_percent = 0;
    std::uint64_t most_delay_us = 10;
    bool restarts = false;
};

enum class Fate : std::uint8_t { kOpen, kConnected, kOver };

struct End {
    std::size_t node;
    CmHandle handle;
    std::uint32_t own_qpn;
    std::uint32_t remote_qpn = 0;
    Fate fate = Fate::kOpen;
};

/// One connect(), and what the other side has seen of it.
struct Attempt {
    std::size_t to;
    End active;
    std::vector<End> passive{};
    bool is_cut = false;  // one of its processes has died
};

/// What all plays of a test together have seen, so that it is known to have tested something.
struct Seen {
    std::size_t connected = 0;
    std::size_t failed = 0;
    std::size_t stale = 0;
};

class Play {
  public:
    Play(std::uint64_t seed, const Faults& faults) : seed_(seed), faults_(faults), world_(seed) {
        world_.drop_percent = faults.drop_percent;
        world_.double_percent = faults.double_percent;
        world_.most_delay_us = faults.most_delay_us;
        for (std::uint8_t host = 1; host <= kNodes; ++host) {
            nodes_.push_back(&world_.add(host));
            RVT_OK(nodes_.back()->agent().listen(kService, 0));
        }
    }

    void run(Seen& seen) {
        for (std::uint32_t i = 0; i < kConnects; ++i) {
            world_.later(world_.pick(kConnectWithinUs), [this] {
                const std::size_t from = world_.pick(kNodes - 1);
                const std::size_t to = (from + 1 + world_.pick(kNodes - 2)) % kNodes;
                ask(from, to, next_qpn_++, world_.happens(5));
            });
        }
        if (faults_.restarts) {
            world_.later(world_.pick(2 * kConnectWithinUs), [this] { restart(0); });
        }
        play_until_quiet();
        for (const Attempt& attempt : attempts_) {
            check_agreement(attempt);
            if (!attempt.is_cut) {
                ++(attempt.active.fate == Fate::kConnected ? seen.connected : seen.failed);
            }
        }
        seen.stale += stale_;
        disconnect_all();
        play_until_quiet();
        check_nothing_is_left();
    }

  private:
    static constexpr std::size_t kNodes = 3;
    static constexpr std::uint32_t kConnects = 20;
    // 16 waits for an answer, each at most 5/4 of the time-out's next power of two, in four
    // sequences one after the other, and the longest pauses of users between them.
    static constexpr std::uint64_t kLongestUs = 4 * 16 * 131'072 * 5 / 4 + 10'000'000;

    void expect(bool is_so, const char* what) const {
        if (!is_so) {
            cr_fatal("seed %llu: %s", static_cast<unsigned long long>(seed_), what);
        }
    }
    [[nodiscard]] const Address& address(std::size_t node) const { return nodes_[node]->address(); }

    void play_until_quiet() {
        const std::uint64_t end = world_.now_us + kLongestUs;
        while (world_.step(end)) {
            for (std::size_t i = 0; i < kNodes; ++i) {
                while (const auto event = nodes_[i]->agent().poll_event()) {
                    take(i, *event);
                }
            }
        }
        // Whatever is still due then is beyond the limit.
        expect(!world_.step(), "it goes on for too long");
    }

    /// Of the process that a node is now.
    void later(std::size_t node, std::uint64_t delay_us, std::function<void()> act) {
        world_.later(delay_us, [this, node, then = life_[node], act = std::move(act)] {
            if (life_[node] == then) {
                act();
            }
        });
    }

    // ---- the users ----

    void ask(std::size_t from, std::size_t to, std::uint32_t qpn, bool withdraws) {
        const std::size_t number = attempts_.size();
        const auto handle =
            nodes_[from]->connect({.service_id = kService,
                                   .dest = {.dest = address(to)},
                                   .own = {.qpn = qpn},
                                   .response_timeout_us = kTimeoutUs,
                                   .max_cm_retries = 15,
                                   .context = number,
                                   .private_data = std::as_bytes(std::span(&number, 1))});
        RVT_OK(handle);
        attempts_.push_back(
            {.to = to, .active = {.node = from, .handle = handle.value(), .own_qpn = qpn}});
        if (withdraws) {
            later(from, world_.pick(100'000), [this, number] { withdraw(number); });
        }
    }

    void withdraw(std::size_t number) {
        End& end = attempts_[number].active;
        if (end.fate == Fate::kOpen) {
            RVT_OK(nodes_[end.node]->disconnect(end.handle));
            end.fate = Fate::kOver;
        }
    }

    End* end_of(std::size_t node, const CmEvent& event) {
        for (Attempt& attempt : attempts_) {
            if (attempt.active.node == node && attempt.active.handle == event.handle) {
                return &attempt.active;
            }
            for (End& end : attempt.passive) {
                if (end.node == node && end.handle == event.handle) {
                    return &end;
                }
            }
        }
        return nullptr;
    }

    void take(std::size_t node, const CmEvent& event) {
        if (event.type == CmEventType::kRequest) {
            take_request(node, event);
            return;
        }
        End* end = end_of(node, event);
        expect(end != nullptr && end->fate != Fate::kOver, "an event behind the last");
        switch (event.type) {
            case CmEventType::kReply: take_reply(*end, event); break;
            case CmEventType::kEstablished:
                expect(end->fate == Fate::kOpen, "established twice");
                end->fate = Fate::kConnected;
                break;
            case CmEventType::kRejected: take_refusal(*end, event); break;
            case CmEventType::kUnreachable:
            case CmEventType::kDisconnected: end->fate = Fate::kOver; break;
            case CmEventType::kRequest:
            case CmEventType::kSidrRequest:
            case CmEventType::kSidrReply: expect(false, "an event that nobody caused");
        }
    }

    void take_refusal(End& end, const CmEvent& event) {
        expect(end.fate == Fate::kOpen, "refused behind success");
        end.fate = Fate::kOver;
        const bool is_active = attempts_[event.context].active.handle == event.handle &&
                               attempts_[event.context].active.node == end.node;
        if (is_active && faults_.restarts && event.reason == CmRejectReason::kStaleConnection) {
            ++stale_;
            ask(end.node, node_of(event.peer), end.own_qpn, false);
        }
    }

    [[nodiscard]] std::size_t node_of(const Address& peer) const {
        return static_cast<std::size_t>(peer.gid[15] - 1);
    }

    void take_request(std::size_t node, const CmEvent& event) {
        std::size_t number = 0;
        std::memcpy(&number, event.private_data().data(), sizeof number);
        expect(number < attempts_.size(), "a request that nobody has made");
        End end{.node = node,
                .handle = event.handle,
                .own_qpn = next_qpn_++,
                .remote_qpn = event.remote.qpn};
        const CmHandle handle = event.handle;
        if (world_.happens(10)) {
            end.fate = nodes_[node]->reject(handle) == kOk ? Fate::kOver : end.fate;
        } else {
            std::uint64_t thinks_us = world_.pick(20'000);
            if (world_.happens(10)) {
                thinks_us += 300'000;  // without a word
            } else if (world_.happens(10)) {
                thinks_us += 900'000;
                (void)nodes_[node]->agent().delay(handle, 1'000'000, world_.now_us).is_ok();
            }
            const bool regrets = world_.happens(5);
            later(node, thinks_us, [this, node, handle, number, qpn = end.own_qpn, regrets] {
                accept(node, handle, number, qpn, regrets);
            });
        }
        attempts_[number].passive.push_back(end);
    }

    void accept(std::size_t node, CmHandle handle, std::size_t number, std::uint32_t qpn,
                bool regrets) {
        CmNode& n = *nodes_[node];
        const Status status = n.accept(handle, {.own = {.qpn = qpn}, .context = number});
        expect(status == kOk || status == Status(ENOENT), "accept() fails");
        if (status == kOk && regrets) {
            RVT_OK(n.disconnect(handle));
        }
    }

    void take_reply(End& end, const CmEvent& event) {
        end.remote_qpn = event.remote.qpn;
        CmNode& node = *nodes_[end.node];
        if (world_.happens(5)) {
            // Its end may be the next event.
            end.fate = node.reject(end.handle) == kOk ? Fate::kOver : end.fate;
            return;
        }
        std::uint64_t thinks_us = world_.pick(5000);
        if (world_.happens(10)) {
            thinks_us += 400'000;
            (void)node.agent().delay(end.handle, 500'000, world_.now_us).is_ok();
        }
        const std::size_t number = event.context;
        const std::size_t peer = node_of(event.peer);
        later(end.node, thinks_us, [this, number, peer] {
            End& active = attempts_[number].active;
            if (nodes_[active.node]->establish(active.handle) != kOk) {
                return;  // ended meanwhile
            }
            active.fate = Fate::kConnected;
            if (world_.happens(50)) {
                world_.later(world_.pick(1000),
                             [this, peer, qpn = active.remote_qpn] { note_traffic(peer, qpn); });
            }
        });
    }

    void note_traffic(std::size_t node, std::uint32_t qpn) {
        for (Attempt& attempt : attempts_) {
            for (End& end : attempt.passive) {
                if (end.node == node && end.own_qpn == qpn && end.fate == Fate::kOpen) {
                    RVT_OK(nodes_[node]->agent().note_traffic(end.handle, world_.now_us));
                }
            }
        }
    }

    // ---- restarts ----

    /// The process of a node dies, and its successor connects pairs of the same numbers.
    void restart(std::size_t node) {
        nodes_[node]->restart(2 + life_[node]++);
        RVT_OK(nodes_[node]->agent().listen(kService, 0));
        const std::size_t count = attempts_.size();
        for (std::size_t i = 0; i < count; ++i) {
            attempts_[i].is_cut = attempts_[i].active.node == node || attempts_[i].to == node;
            for (End& end : attempts_[i].passive) {
                kill(end, node);
            }
            if (attempts_[i].active.node == node) {
                kill(attempts_[i].active, node);
                ask(node, attempts_[i].to, attempts_[i].active.own_qpn, false);
            }
        }
    }
    static void kill(End& end, std::size_t node) {
        if (end.node == node) {
            end.fate = Fate::kOver;
            end.handle = CmHandle::kNone;
        }
    }

    // ---- what has to be true ----

    void check_agreement(const Attempt& attempt) const {
        std::size_t connected = 0;
        expect(attempt.active.fate != Fate::kOpen, "the active side is still waiting");
        for (const End& end : attempt.passive) {
            expect(end.fate != Fate::kOpen, "the passive side is still waiting");
            if (end.fate == Fate::kConnected && !attempt.is_cut) {
                ++connected;
                expect(end.remote_qpn == attempt.active.own_qpn,
                       "the passive side has another pair");
                expect(attempt.active.remote_qpn == end.own_qpn,
                       "the active side has another pair");
            }
        }
        const std::size_t wanted = attempt.active.fate == Fate::kConnected ? 1 : 0;
        expect(attempt.is_cut || connected == wanted, "the sides do not agree");
    }

    void disconnect_all() {
        for (std::size_t i = 0; i < attempts_.size(); ++i) {
            const bool by_active = world_.happens(60);
            const bool by_passive = !by_active || world_.happens(30) || faults_.restarts;
            if (by_active || faults_.restarts) {
                disconnect_later(attempts_[i].active);
            }
            for (End& end : attempts_[i].passive) {
                if (by_passive) {
                    disconnect_later(end);
                }
            }
        }
    }
    void disconnect_later(const End& end) {
        if (end.fate == Fate::kConnected) {
            later(end.node, world_.pick(100'000), [this, node = end.node, handle = end.handle] {
                const Status status = nodes_[node]->disconnect(handle);
                expect(status == kOk || status == Status(ENOENT), "disconnect() fails");
            });
        }
    }

    void check_nothing_is_left() {
        for (const Attempt& attempt : attempts_) {
            expect(attempt.active.fate == Fate::kOver, "the active side has not ended");
            for (const End& end : attempt.passive) {
                expect(end.fate == Fate::kOver, "the passive side has not ended");
            }
        }
        for (CmNode* node : nodes_) {
            expect(node->agent().open_count() == 0, "a handle is left");
            expect(node->agent().record_count() == 0, "a record is left");
            expect(!node->agent().next_due_us().has_value(), "a timer is left");
        }
    }

    const std::uint64_t seed_;
    const Faults faults_;
    CmWorld world_;
    std::vector<CmNode*> nodes_;
    std::vector<Attempt> attempts_;
    unsigned life_[kNodes] = {};  // processes that a node has been before
    std::uint32_t next_qpn_ = 0x100;
    unsigned stale_ = 0;
};

void play_with_many_seeds(const Faults& faults, std::uint64_t count) {
    Seen seen;
    const auto play = [&](std::uint64_t seed) { Play(seed, faults).run(seen); };
    if (!test::for_each_seed(count, play)) {
        return;
    }
    // Users refuse and withdraw; most attempts succeed all the same.
    RVT_EQ(seen.connected > seen.failed && seen.failed != 0, true);
    RVT_EQ(seen.stale != 0, faults.restarts);
}

}  // namespace

Test(cm_agent, agrees_over_a_clean_wire, .timeout = 60) {
    play_with_many_seeds({}, 50);
}
Test(cm_agent, agrees_in_spite_of_loss, .timeout = 60) {
    play_with_many_seeds({.drop_percent = 25}, 200);
}
Test(cm_agent, agrees_in_spite_of_duplicates_and_disorder, .timeout = 60) {
    play_with_many_seeds({.double_percent = 40, .most_delay_us = 150'000}, 200);
}
Test(cm_agent, agrees_in_spite_of_all_at_once, .timeout = 60) {
    play_with_many_seeds({.drop_percent = 20, .double_percent = 20, .most_delay_us = 50'000}, 300);
}
Test(cm_agent, survives_restarts, .timeout = 60) {
    play_with_many_seeds(
        {.drop_percent = 10, .double_percent = 10, .most_delay_us = 20'000, .restarts = true}, 200);
}
