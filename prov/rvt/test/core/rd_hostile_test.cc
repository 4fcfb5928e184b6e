// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A peer that connects over packets as it should, and then says whatever it likes of memory, keys,
// operations and lengths: an endpoint writes and reads nothing that it has not granted, lets such a
// peer go, and serves others as before.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <criterion/criterion.h>

#include "common/check.h"
#include "core/flow_host.h"
#include "core/flow_node.h"
#include "core/nic_net.h"
#include "core/rd_record_rules.h"

using namespace rvt;        // NOLINT(google-build-using-namespace)
using namespace rvt::core;  // NOLINT(google-build-using-namespace)
using test::context_of;
using test::FlowNode;
using test::NicEnd;

namespace {

constexpr std::size_t kGuard = 4096;
constexpr std::size_t kGranted = 4096;
constexpr std::size_t kEagerMax = 10'000;
constexpr std::size_t kLarge = 20'000;
constexpr int kRecords = 100;  // of a peer, at most
constexpr char kSecret = 0x5a;
constexpr std::size_t kSecretBytes = 8;  // so many in a row are no chance

constexpr std::uint64_t kNever = ~std::uint64_t{0};
template <class... Values>
std::uint64_t one_of(std::mt19937_64& random, Values... values) {
    const std::array all{static_cast<std::uint64_t>(values)...};
    return all[random() % all.size()];
}

/// What the endpoint calls its operations: each was in a record to the peer.
struct Names {
    explicit Names(const FlowNode& peer) {
        for (std::size_t i = 0; i < peer.heard.size(); ++i) {
            const std::string& text = peer.heard[i];
            if (peer.heard_ops[i] == RdOp::kRendezvous) {
                message = read<RdHeader>(text).operation;
            } else if (peer.heard_ops[i] == RdOp::kRead) {
                access = read<RdAccess>(text).operation;
            } else if (peer.heard_ops[i] == RdOp::kPull) {
                pull = read<RdPull>(text).operation;
            }
        }
    }
    template <class T>
    static T read(const std::string& text) {
        T value{};
        RVT_ASSERT(text.size() >= sizeof value);
        std::memcpy(&value, text.data(), sizeof value);
        return value;
    }

    std::uint64_t message = 0;  // that waits for its receiver
    std::uint64_t access = 0;
    std::uint64_t pull = 0;  // of a message of the peer's
};

/// Two honest endpoints, of which the first grants the middle of its memory to all.
class Scene : private test::FlowNet {
  public:
    Scene() : memory_(2 * kGuard + kGranted, kSecret) {
        test::FlowStation::net = this;
        max_flows = 64;
        a_ = std::make_unique<NicEnd>(test::host_address(1), RdTuning{.wire_eager_max = kEagerMax},
                                      test::NicEndAttr{});
        b_ = std::make_unique<NicEnd>(test::host_address(2), RdTuning{}, test::NicEndAttr{});
        RVT_EQ(b_->av.insert(a_->own).value(), 0);
        std::fill_n(granted(), kGranted, 'g');
        key_ = a_->open({granted(), kGranted},
                        Access::kRemoteRead | Access::kRemoteWrite | Access::kRemoteAtomic);
        for (std::uint64_t tag = 0; tag < 16; ++tag) {
            RVT_OK(a_->recv(tag, {inbox_.data(), inbox_.size()}));
        }
    }

    /// A new peer that has a flow to the first endpoint, which has operations under way to it.
    std::unique_ptr<FlowNode> connect(std::uint16_t number) {
        Address own = test::host_address(3);
        own.port = static_cast<std::uint16_t>(10'000 + number);
        auto peer = std::make_unique<FlowNode>(wire, own, nullptr);
        peer->flows->connect(test::host_address(1));
        until([&] { return peer->flow != nullptr; }, *peer);
        dest_ = a_->av.insert(to_sock_addr(own)).value();
        const iovec large{large_.data(), large_.size()};
        const RdRemote remote{.addr = 0, .len = large_.size(), .key = 1};
        RVT_OK(a_->send(1, large, RdFlags::kNone, 1, dest_));
        for (const bool is_write : {true, false}) {
            RVT_OK(a_->engine.rma({.is_write = is_write,
                                   .iov = &large,
                                   .iov_count = 1,
                                   .remote = &remote,
                                   .remote_count = 1,
                                   .dest = dest_,
                                   .context = context_of(2)}));
        }
        until([&] { return Names(*peer).message != 0 && Names(*peer).access != 0; }, *peer);
        return peer;
    }
    void forget_peer() { RVT_OK(a_->av.remove(dest_)); }

    void poll(FlowNode& peer) {
        a_->poll();
        b_->poll();
        peer.poll();
        a_->done.clear();
    }
    template <class Is>
    void until(Is is, FlowNode& peer) {
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
        while (!is()) {
            RVT_ASSERT(std::chrono::steady_clock::now() < end);
            poll(peer);
        }
    }

    /// A key, and an address and a length for it: those of what is granted, or near them.
    RdAccess access(std::mt19937_64& random) const {
        const auto base = reinterpret_cast<std::uint64_t>(memory_.data());
        const std::uint64_t begin = base + kGuard;
        return {.key = one_of(random, key_, key_, key_, 64, 1 << 20, kNever),
                .address = one_of(random, begin, begin, begin + kGranted - 8, begin - 8,
                                  begin + kGranted, base, kNever, kNever - 7),
                .length = one_of(random, 8, 64, kGranted, kGranted + 1, 0, kLarge, kNever,
                                 kNever - begin),
                .operation = one_of(random, 0, 1, kNever)};
    }
    [[nodiscard]] bool is_guard_whole() const {
        const auto is_secret = [](char c) { return c == kSecret; };
        return std::all_of(memory_.begin(), memory_.begin() + kGuard, is_secret) &&
               std::all_of(memory_.end() - kGuard, memory_.end(), is_secret);
    }
    /// The other honest end still reaches the memory, and still has its messages taken.
    void check_alive(FlowNode& last) {
        std::string word = "word";
        granted()[0] = 'g';
        RVT_OK(b_->write(1, {word.data(), word.size()}, key_, granted()));
        until([&] { return granted()[0] == 'w' && b_->is_done(1); }, last);
        RVT_EQ(b_->status(1), WcStatus::kSuccess);
        RVT_OK(b_->send(2, {word.data(), word.size()}));
        until([&] { return b_->is_done(2); }, last);
        RVT_EQ(b_->status(2), WcStatus::kSuccess);
    }

  private:
    [[nodiscard]] char* granted() { return memory_.data() + kGuard; }

    std::vector<char> memory_;
    std::vector<char> large_ = std::vector<char>(kLarge, 'l');
    std::array<char, 64> inbox_{};
    std::uint32_t key_ = 0;
    std::uint64_t dest_ = 0;  // of the peer that has come last
    std::unique_ptr<NicEnd> a_;
    std::unique_ptr<NicEnd> b_;
};

/// A record, with its payload and its run.
struct Forged {
    template <class T>
    void set_payload(const T& value) {
        std::memcpy(payload.data(), &value, sizeof value);
    }

    RdMessage message{};
    std::array<std::byte, kMaxRecordPayload> payload{};
    std::size_t run_bytes = 0;
};

/// The payload of one that honest peers could send, and the operation that it names.
void fill(Forged& forged, const Scene& scene, const Names& names, std::mt19937_64& random) {
    RdAccess access = scene.access(random);
    if (forged.message.op == RdOp::kWriteLine && random() % 8 != 0) {
        access.length = forged.message.payload_bytes - sizeof access;
    }
    switch (forged.message.op) {
        case RdOp::kEagerFirst:
        case RdOp::kRendezvous:
            forged.set_payload(RdHeader{.total = one_of(random, 0, 1, 8, 64, 1000, kLarge, kNever),
                                        .operation = random() % 4,
                                        .address = access.address});
            break;
        case RdOp::kPull:
            forged.set_payload(RdPull{.operation = random() % 4,
                                      .address = one_of(random, 0, access.address),
                                      .begin = one_of(random, 0, 8, kLarge, kNever),
                                      .end = one_of(random, kLarge, kLarge, 8, kNever)});
            break;
        case RdOp::kFinish:
        case RdOp::kAck:
        case RdOp::kAccessDone:
        case RdOp::kPullDone:
            forged.set_payload(RdOutcome{.status = static_cast<std::uint32_t>(random() % 32),
                                         .key = static_cast<std::uint32_t>(access.key)});
            break;
        case RdOp::kAtomic:
        case RdOp::kAtomicInline:
            forged.set_payload(RdAtomicHeader{.key = access.key,
                                              .address = access.address,
                                              .operation = access.operation,
                                              .operand = random(),
                                              .compare = random()});
            break;
        default: forged.set_payload(access);
    }
    switch (forged.message.op) {
        case RdOp::kPull:
        case RdOp::kFinish:
        case RdOp::kAck: forged.message.data = names.message; break;
        case RdOp::kPullData:
        case RdOp::kPullDone: forged.message.data = names.pull; break;
        case RdOp::kReadData:
        case RdOp::kReadLine:
        case RdOp::kAtomicResult:
        case RdOp::kAtomicAnswer:
        case RdOp::kAccessDone: forged.message.data = names.access; break;
        default: break;
    }
}

/// One that an honest peer could send, but for one thing now and then.
Forged forge(const Scene& scene, const Names& names, std::mt19937_64& random) {
    Forged forged;
    RdMessage& message = forged.message;
    if (random() % 8 == 0) {
        message.op = static_cast<RdOp>(1 + random() % (static_cast<unsigned>(RdOp::kCount) - 1));
    } else {
        constexpr RdOp kRequests[] = {
            RdOp::kEager,    RdOp::kWrite, RdOp::kWriteLine, RdOp::kRead,       RdOp::kAtomicInline,
            RdOp::kRmaEvent, RdOp::kPull,  RdOp::kReadData,  RdOp::kAccessDone, RdOp::kAskNicKey};
        message.op = kRequests[random() % std::size(kRequests)];
    }
    const RecordRule& rule = record_rule(message.op);
    message.flags = static_cast<std::uint8_t>(
        one_of(random, 0, wire::kTagged, wire::kTagged | wire::kWantAck, wire::kLast, random()));
    message.tag =
        random() % 2 == 0
            ? random() % 16
            : RdAtomicKind{.kind = static_cast<std::uint8_t>(random() % 4),
                           .datatype = static_cast<std::uint8_t>(random() % 12),
                           .op = static_cast<std::uint8_t>(random() % 20),
                           .count = static_cast<std::uint32_t>(one_of(random, 0, 1, 1, 1, 1, 2))}
                  .pack();
    message.payload_bytes =
        random() % 64 == 0
            ? random() % (kMaxRecordPayload + 1)
            : rule.min_payload + random() % (rule.max_payload - rule.min_payload + 1u);
    fill(forged, scene, names, random);
    if (random() % 32 == 0) {
        message.data = random();
    }
    if (has_run(message.op)) {
        forged.run_bytes = one_of(random, 1, 8, 64, 1000, 2 * kMaxAtomicSize);
    }
    return forged;
}

/// Whether the bytes hold what was not granted.
bool tells_secrets(const std::string& heard) {
    return heard.find(std::string(kSecretBytes, kSecret)) != std::string::npos;
}

}  // namespace

Test(rd_hostile, frames_that_look_right_reach_nothing_that_was_not_granted, .timeout = 60) {
    Scene scene;
    std::vector<std::byte> run(2 * kMaxAtomicSize);
    std::uint64_t taken = 0;
    std::size_t heard = 0;
    std::unique_ptr<FlowNode> last;
    for (std::uint16_t seed = 0; seed < 1000; ++seed) {
        std::mt19937_64 random(seed);
        std::unique_ptr<FlowNode> peer = scene.connect(seed);
        const std::size_t before = peer->heard.size();
        for (int i = 0; i < kRecords && peer->flow != nullptr; ++i) {
            Forged forged = forge(scene, Names(*peer), random);
            forged.message.payload = forged.payload.data();
            const iovec lent{run.data(), forged.run_bytes};
            const auto put = [&] {
                return forged.run_bytes != 0 ? peer->flow->put_borrowed(forged.message, lent, false)
                                             : peer->flow->put(forged.message, RdFlow::Room::kAny);
            };
            scene.until([&] { return peer->flow == nullptr || put(); }, *peer);
            scene.until([&] { return peer->flow == nullptr || peer->flow->is_drained(); }, *peer);
            taken += peer->flow != nullptr ? 1 : 0;
        }
        cr_assert(scene.is_guard_whole(), "seed %u", seed);
        cr_assert(std::ranges::none_of(peer->heard, tells_secrets), "seed %u", seed);
        heard += peer->heard.size() - before;
        scene.forget_peer();
        last = std::move(peer);
    }
    cr_assert(taken > 2000, "only %llu records were taken", static_cast<unsigned long long>(taken));
    cr_assert(heard > 1000, "only %zu answers came", heard);
    scene.check_alive(*last);
}
