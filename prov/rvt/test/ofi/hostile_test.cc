// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A peer that connects properly and then writes into its ring whatever it likes: an endpoint drops
// it, writes nothing outside what was granted, and serves others as before.
#include <random>
#include <vector>

#include "backend/shm/raw_peer.h"
#include "backend/shm/ring.h"
#include "core/rd_wire.h"
#include "ofi/pair.h"

using rvt::core::RdOp;
using rvt::shm::kOutboxBytes;
using rvt::shm::Line;
using rvt::shm::LineMeta;
using rvt::shm::LineProducer;
using rvt::shm::MessageType;
using rvt::shm::OutboxHeader;
using rvt::shm::test::RawPeer;
using rvt::test::EndOptions;
using rvt::test::kPatience;
using rvt::util::SockAddr;

namespace {

constexpr std::size_t kGranted = 4096;
constexpr std::size_t kGuard = 4096;

EndOptions everything() {
    return {.caps = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC,
            .mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY};
}

SockAddr address_of(rvt::test::End& end) {
    sockaddr_storage name{};
    std::size_t bytes = sizeof name;
    RVT_OK(fi_getname(&end.ep->fid, &name, &bytes));
    return SockAddr::from(reinterpret_cast<const sockaddr*>(&name), bytes).value();
}

/// The other end of a connection to an endpoint, with the rings in its hands.
class Writer {
  public:
    explicit Writer(const SockAddr& target) {
        RVT_ASSERT(raw_.dial(target));
        RVT_ASSERT(raw_.say_hello());
        rvt::shm::Message answer = raw_.hear().take();
        RVT_ASSERT(answer.header.type == MessageType::kHello);
        inbox_ = rvt::util::Mapping::view(std::move(answer.fds[1]), kOutboxBytes).take();
        RVT_ASSERT(raw_.say({.type = MessageType::kReady}));
        lines_.open(raw_.outbox().at<Line>(rvt::shm::kSmallLinesOffset), rvt::shm::kSmallLines);
    }
    RawPeer& raw() { return raw_; }
    std::byte* bytes() { return raw_.outbox().at<std::byte>(rvt::shm::kSmallBytesOffset); }
    Line& line() { return lines_.line(); }
    void publish(std::uint8_t op, std::uint8_t flags, std::uint32_t length) {
        lines_.publish(LineMeta::pack(op, flags, length));
        lines_.advance(1);
        ++published_;
    }
    /// Whether the other side has read all that was published.
    bool is_read() const {
        // acquire: pairs with the release of the credits.
        return inbox_.at<OutboxHeader>(0)->consumed_lines.load(std::memory_order_acquire) >=
               published_;
    }
    /// Whether the other side has closed the connection.
    bool is_dropped() {
        char byte = 0;
        return recv(raw_.socket(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
    }

  private:
    RawPeer raw_;
    rvt::util::Mapping inbox_;
    LineProducer lines_;
    std::uint64_t published_ = 0;
};

/// Two honest ends, memory of the first one that its peers may access, and a hostile peer.
struct Scene {
    rvt::test::Pair honest;
    std::vector<std::byte> memory = std::vector<std::byte>(kGuard + kGranted + kGuard);
    rvt::test::Owned<fid_mr> mr =
        honest.a.reg(memory.data() + kGuard, kGranted, FI_REMOTE_READ | FI_REMOTE_WRITE, 0);
    std::array<char, 4096> inbox{};
    std::array<fi_context2, 64> contexts{};

    explicit Scene(const EndOptions& options = everything()) : honest(options) {
        for (std::size_t i = 0; i < contexts.size(); ++i) {
            RVT_OK(fi_trecv(honest.a.ep.get(), inbox.data() + i * 8, 8, nullptr, FI_ADDR_UNSPEC, 0,
                            i % 2 == 0 ? 0 : ~std::uint64_t{0}, &contexts[i]));
        }
    }
    fi_addr_t introduce(Writer& writer) {
        sockaddr_storage name{};
        writer.raw().local.address.to(&name);
        fi_addr_t number = FI_ADDR_UNSPEC;
        RVT_EQ(fi_av_insert(honest.a.av.get(), &name, 1, &number, 0, nullptr), 1);
        return number;
    }
    void progress() {
        fi_cq_tagged_entry entry{};
        fi_cq_err_entry error{};
        const ssize_t got = fi_cq_read(honest.a.cq.get(), &entry, 1);
        if (got == -FI_EAVAIL) {
            fi_cq_readerr(honest.a.cq.get(), &error, 0);
        }
    }
    bool is_guard_whole() const {
        for (std::size_t i = 0; i < kGuard; ++i) {
            if (memory[i] != std::byte{0} || memory[kGuard + kGranted + i] != std::byte{0}) {
                return false;
            }
        }
        return true;
    }
    /// The honest peer still reaches this one, and nobody has reached what was not granted.
    void check_alive() {
        RVT_ASSERT(is_guard_whole());
        const char word = 'x';
        std::byte& target = memory[kGuard];
        target = std::byte{0};
        honest.post([&] {
            return fi_inject_write(honest.b.ep.get(), &word, 1, honest.b.peer,
                                   reinterpret_cast<std::uint64_t>(&target), fi_mr_key(mr.get()));
        });
        honest.until([&] {
            progress();
            return target == std::byte{'x'};
        });
    }
};

/// Writes lines one by one, until the connection is dropped or as many have been read.
/// Returns: how many were read.
template <class Fill>
std::uint64_t write_lines(Scene& scene, Writer& writer, int count, Fill fill) {
    int written = 0;
    for (; written < count && !writer.is_dropped(); ++written) {
        fill(writer);
        scene.honest.until([&] {
            scene.progress();
            return writer.is_read() || writer.is_dropped();
        });
    }
    return static_cast<std::uint64_t>(written);
}

void write_random_line(Writer& to, std::mt19937_64& random) {
    Line& line = to.line();
    line.tag = random();
    line.data = random();
    for (std::byte& byte : line.payload) {
        byte = static_cast<std::byte>(random());
    }
    to.publish(static_cast<std::uint8_t>(random()), static_cast<std::uint8_t>(random()),
               static_cast<std::uint32_t>(random()) & LineMeta::kMaxLength);
}

/// A line as an honest peer could write it, but for one thing now and then.
void write_plausible_line(Scene& scene, Writer& to, std::mt19937_64& random, unsigned seed) {
    const auto pick = [&](auto... choices) {
        const std::uint64_t all[] = {static_cast<std::uint64_t>(choices)...};
        return all[random() % std::size(all)];
    };
    constexpr std::uint64_t kNever = ~std::uint64_t{0};
    constexpr struct {
        RdOp op;
        std::uint32_t length;
    } kShapes[] = {
        {RdOp::kEager, 8},         {RdOp::kEager, 200},
        {RdOp::kEagerFirst, 64},   {RdOp::kEagerMore, 64},
        {RdOp::kRendezvous, 24},   {RdOp::kPull, 32},
        {RdOp::kPullData, 64},     {RdOp::kPullDone, 8},
        {RdOp::kFinish, 8},        {RdOp::kAck, 8},
        {RdOp::kWrite, 64},        {RdOp::kWriteLine, 40},
        {RdOp::kWriteMore, 64},    {RdOp::kRead, 32},
        {RdOp::kReadData, 64},     {RdOp::kReadLine, 40},
        {RdOp::kAtomic, 64},       {RdOp::kAtomicInline, 40},
        {RdOp::kAtomicResult, 64}, {RdOp::kAtomicAnswer, 8},
        {RdOp::kAccessDone, 8},    {RdOp::kRmaEvent, 32},
        {RdOp::kShare, 40},        {RdOp::kAskNicKey, 32},
        {RdOp::kNicKey, 40},       {RdOp::kKeyEnds, 0},
        {RdOp::kRendezvous, 32},   {RdOp::kRendezvous, sizeof(rvt::core::RdRendezvous)},
    };
    // Those that need nothing before them come more often, or no line would be the hundredth.
    constexpr std::size_t kFree[] = {0, 1, 4, 11, 13, 17, 21, 22, 23, 24, 25, 26, 27};
    const std::size_t place =
        random() % 8 != 0 ? kFree[random() % std::size(kFree)] : random() % std::size(kShapes);
    const auto& shape = kShapes[place];
    const auto base = reinterpret_cast<std::uint64_t>(scene.memory.data());
    // Records have an odd generation while they are in use, and one of them serves each seed.
    const std::uint64_t name = (pick(2 * seed + 1, 2 * seed + 1, 1) << 32) | pick(0, 0, 1, 2);
    // Key, address, length, operation; or total, operation; or operation, address, begin, end.
    std::uint64_t words[5] = {
        pick(fi_mr_key(scene.mr.get()), fi_mr_key(scene.mr.get()), 64, 1 << 20, kNever),
        pick(base + kGuard, base + kGuard + kGranted - 8, base, base + kGuard - 8, kNever, name),
        pick(8, 64, kGranted, kGranted + 1, 0, 0, kNever), pick(8, 64, 1 << 20, name), random()};
    if (shape.op == RdOp::kWriteLine) {
        words[2] = 8;  // what is left of its length
        words[3] = pick(0, words[3]);
    }
    Line& line = to.line();
    line.tag = shape.op == RdOp::kAtomic || shape.op == RdOp::kAtomicInline
                   ? pick(0x100000a00, 0x100000a01, 0x100000a02, 0x800000a00, 0x400000700)
                   : random();
    // 0: of a write that nobody waits for. Of such an answer none is due here, so it comes seldom.
    line.data = random() % 64 != 0 ? name : 0;
    std::memcpy(line.payload, words, sizeof words);
    const bool is_wrong = random() % 64 == 0;
    auto flags = static_cast<unsigned>(random());
    if (shape.op == RdOp::kRendezvous && random() % 4 != 0) {  // how long it is depends on them
        flags = shape.length == sizeof(rvt::core::RdHeader)
                    ? flags & ~unsigned{rvt::core::wire::kReadable}
                    : flags | rvt::core::wire::kReadable | rvt::core::wire::kContiguous;
        flags &= ~unsigned{rvt::core::wire::kHead};  // which cannot follow
    }
    to.publish(
        static_cast<std::uint8_t>(shape.op), static_cast<std::uint8_t>(flags),
        is_wrong ? static_cast<std::uint32_t>(pick(0, 7, 208, 209, 16'384, 20'000)) : shape.length);
}

void write_what_looks_right(Scene& scene) {
    const SockAddr target = address_of(scene.honest.a);
    std::vector<char> large(1 << 20);
    std::array<fi_context2, 4> contexts{};
    std::uint64_t lines = 0;
    for (unsigned seed = 0; seed < 1000; ++seed) {
        std::mt19937_64 random(seed);
        Writer writer(target);
        // Operations to this peer, for its answers to name.
        const fi_addr_t peer = scene.introduce(writer);
        fid_ep* const ep = scene.honest.a.ep.get();
        fi_tsend(ep, large.data(), large.size(), nullptr, peer, 1, &contexts[0]);
        fi_write(ep, large.data(), 100'000, nullptr, peer, 0, 1, &contexts[1]);
        fi_read(ep, large.data(), 100'000, nullptr, peer, 0, 1, &contexts[2]);
        fi_fetch_atomic(ep, large.data(), 1, nullptr, large.data() + 8, nullptr, peer, 0, 1,
                        FI_UINT64, FI_SUM, &contexts[3]);
        lines += write_lines(scene, writer, 100,
                             [&](Writer& to) { write_plausible_line(scene, to, random, seed); });
        cr_assert(scene.is_guard_whole(), "seed %u", seed);
        RVT_OK(fi_av_remove(scene.honest.a.av.get(), &const_cast<fi_addr_t&>(peer), 1, 0));
    }
    cr_assert(lines > 4000, "only %llu lines were taken", static_cast<unsigned long long>(lines));
    scene.check_alive();
}

}  // namespace

Test(hostile, lines_of_random_bytes_end_the_connection_and_nothing_else, .timeout = 60) {
    Scene scene;
    const SockAddr target = address_of(scene.honest.a);
    for (unsigned seed = 0; seed < 30; ++seed) {
        std::mt19937_64 random(seed);
        Writer writer(target);
        write_lines(scene, writer, 100, [&](Writer& to) { write_random_line(to, random); });
        cr_assert(scene.is_guard_whole(), "seed %u", seed);
    }
    scene.check_alive();
}

/// Behind a header that says so comes the head of the message, and nothing else of messages.
Test(hostile, only_a_head_follows_where_one_was_announced, .timeout = 60) {
    constexpr struct {
        RdOp op;
        std::uint32_t length;
    } kOthers[] = {{RdOp::kEagerMore, 64},
                   {RdOp::kEagerFirst, 64},
                   {RdOp::kRendezvous, sizeof(rvt::core::RdHeader)}};
    Scene scene;
    const SockAddr target = address_of(scene.honest.a);
    for (const auto& other : kOthers) {
        Writer writer(target);
        const auto write = [&](RdOp op, unsigned flags, std::uint32_t length) {
            const rvt::core::RdHeader header{.total = 100'000, .operation = 0, .address = 0};
            std::memcpy(writer.line().payload, &header, sizeof header);
            writer.line().tag = 0;
            writer.publish(static_cast<std::uint8_t>(op), static_cast<std::uint8_t>(flags), length);
            scene.honest.until([&] {
                scene.progress();
                return writer.is_read() || writer.is_dropped();
            });
        };
        write(RdOp::kRendezvous, rvt::core::wire::kTagged | rvt::core::wire::kHead,
              sizeof(rvt::core::RdHeader));
        RVT_ASSERT(!writer.is_dropped());
        write(other.op, rvt::core::wire::kTagged, other.length);
        RVT_ASSERT(writer.is_dropped());
    }
    scene.check_alive();
}

/// While many receives wait, lines are looked at before it is their turn.
Test(hostile, lines_behind_honest_ones_may_be_anything, .timeout = 60) {
    constexpr int kLines = 16;  // of either kind: several looks ahead
    std::array<fi_context2, 256> contexts{};
    std::array<char, 8> unwritten{};
    Scene scene;
    const SockAddr target = address_of(scene.honest.a);
    for (std::size_t i = 0; i < contexts.size(); ++i) {
        RVT_OK(fi_trecv(scene.honest.a.ep.get(), unwritten.data(), unwritten.size(), nullptr,
                        FI_ADDR_UNSPEC, i + 1, 0, &contexts[i]));
    }
    for (unsigned seed = 0; seed < 100; ++seed) {
        std::mt19937_64 random(seed);
        Writer writer(target);
        for (int i = 0; i < kLines; ++i) {
            writer.line().tag = random();
            writer.publish(static_cast<std::uint8_t>(RdOp::kEager), rvt::core::wire::kTagged, 8);
        }
        for (int i = 0; i < kLines; ++i) {
            write_random_line(writer, random);
        }
        scene.honest.until([&] {
            scene.progress();
            return writer.is_dropped();
        });
        cr_assert(scene.is_guard_whole(), "seed %u", seed);
    }
    RVT_ASSERT(unwritten == (std::array<char, 8>{}));
    scene.check_alive();
}

Test(hostile, requests_and_answers_that_look_right_change_nothing, .timeout = 60) {
    Scene scene;
    write_what_looks_right(scene);
}

Test(hostile, neither_do_they_where_there_may_be_memory_of_devices, .timeout = 60) {
    EndOptions options = everything();
    options.caps |= FI_HMEM;
    options.mr_mode |= FI_MR_HMEM;
    Scene scene(options);
    write_what_looks_right(scene);
}

Test(hostile, credits_that_cannot_be_true_do_not_lead_beyond_the_ring, .timeout = 60) {
    Scene scene;
    const SockAddr target = address_of(scene.honest.a);
    Writer writer(target);
    OutboxHeader& header = *writer.raw().outbox().at<OutboxHeader>(0);
    const fi_addr_t peer = scene.introduce(writer);
    std::mt19937_64 random(1);
    const char message[64] = {};
    for (int i = 0; i < 5000; ++i) {
        header.consumed_lines.store(random(), std::memory_order_relaxed);  // relaxed: one thread
        header.consumed_bytes.store(random(), std::memory_order_relaxed);  // relaxed: one thread
        const ssize_t sent = fi_tinject(scene.honest.a.ep.get(), message, sizeof message, peer, 1);
        RVT_ASSERT(sent == 0 || sent == -FI_EAGAIN);
        scene.progress();
    }
    scene.check_alive();
}

Test(hostile, a_peer_that_answers_nothing_is_let_go_when_it_closes, .timeout = 60) {
    Scene scene;
    const SockAddr target = address_of(scene.honest.a);
    std::vector<char> large(1 << 20);
    std::array<fi_context2, 3> contexts{};
    {
        Writer writer(target);
        const fi_addr_t peer = scene.introduce(writer);
        fid_ep* const ep = scene.honest.a.ep.get();
        const auto post = [&](auto operation) { scene.honest.post([&] { return operation(); }); };
        post([&] {
            return fi_tsend(ep, large.data(), large.size(), nullptr, peer, 1, &contexts[0]);
        });
        post([&] { return fi_write(ep, large.data(), 64, nullptr, peer, 0, 1, &contexts[1]); });
        post([&] { return fi_read(ep, large.data(), 64, nullptr, peer, 0, 1, &contexts[2]); });
        scene.progress();
        RVT_ASSERT(not(writer.is_dropped()));
    }
    int errors = 0;
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (errors < 3 && std::chrono::steady_clock::now() < end) {
        fi_cq_tagged_entry entry{};
        fi_cq_err_entry error{};
        if (fi_cq_read(scene.honest.a.cq.get(), &entry, 1) == -FI_EAVAIL &&
            fi_cq_readerr(scene.honest.a.cq.get(), &error, 0) == 1) {
            RVT_EQ(error.err, FI_ECONNRESET);
            ++errors;
        }
    }
    RVT_EQ(errors, 3);
    scene.check_alive();
}
