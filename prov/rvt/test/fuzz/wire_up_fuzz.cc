// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// An endpoint and a peer of the same host who says what he likes: wire-up messages with other bytes
// and other descriptors, lines that no endpoint sends, and shared files that change while they are
// in use. Whatever he does, the next peer is answered, and no memory but what was granted changes.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "backend/shm/peer_memory.h"
#include "backend/shm/region.h"
#include "backend/shm/ring.h"
#include "backend/shm/wire_up.h"
#include "core/rd_engine.h"
#include "fuzz/input.h"
#include "rdm_station.h"
#include "util/control_thread.h"
#include "util/lock.h"
#include "util/udp_port.h"

using namespace rvt;       // NOLINT(google-build-using-namespace)
using namespace rvt::shm;  // NOLINT(google-build-using-namespace)
using core::RdOp;

namespace {

constexpr std::size_t kGranted = 4096;
constexpr std::size_t kGuard = 4096;
constexpr std::size_t kLarge = 1 << 20;
constexpr std::size_t kMessageBytes = 64;

util::SockAddr loopback() {
    return {.family = AF_INET, .port = 0, .ip = {127, 0, 0, 1}};
}

/// The thread that answers peers; it outlives the worlds.
util::ControlThread& control() {
    static const std::shared_ptr<util::ControlThread> kThread =
        util::ControlThread::acquire().take();
    return *kThread;
}

/// Lets the control thread take in what it has been sent.
void settle() {
    for (int turn = 0; turn < 3; ++turn) {
        control().run([] {});
    }
}

/// An endpoint with a region that peers may access, and receives posted.
class Node {
  public:
    Node() {
        static std::vector<std::byte> large(kLarge);
        large_ = large.data();
        engine_->bind({.tx_cq = cq_.get(), .rx_cq = cq_.get()}, &av_);
        fuzz::must(engine_->enable().is_ok());
        const auto address = reinterpret_cast<std::uint64_t>(memory_.data() + kGuard);
        key = keys_
                  ->add({.addr = address,
                         .length = kGranted,
                         .iova = address,
                         .access =
                             Access::kRemoteRead | Access::kRemoteWrite | Access::kRemoteAtomic})
                  .take();
        base = address;
        for (std::size_t i = 0; i < inbox_.size(); ++i) {
            receive(i);
        }
    }
    [[nodiscard]] util::SockAddr address() const { return engine_->address(); }
    void introduce(const util::SockAddr& peer) { peer_ = av_.insert(peer).take(); }

    void poll() {
        progress();
        while (const auto place = take()) {
            if (*place != 0) {
                receive(*place - 1);
            }
        }
    }
    /// Something for the peer to answer.
    void ask(std::uint8_t what, std::size_t bytes) {
        const iovec local{large_, std::min(bytes, kLarge)};
        const core::RdRemote remote{.addr = 8, .len = local.iov_len, .key = 1};
        const core::RdRemote word{.addr = 8, .len = 8, .key = 1};
        const iovec operand{large_, 8};
        util::Status asked;
        switch (what % 4) {
            case 0:
                asked = engine_->send({.iov = &local, .iov_count = 1, .dest = peer_, .tag = 1});
                break;
            case 1:
            case 2:
                asked = engine_->rma({.is_write = what % 4 == 1,
                                      .iov = &local,
                                      .iov_count = 1,
                                      .remote = &remote,
                                      .remote_count = 1,
                                      .dest = peer_});
                break;
            default:
                asked = engine_->atomic({.kind = core::RdAtomic::Kind::kFetch,
                                         .datatype = 7,
                                         .op = 2,
                                         .operand = &operand,
                                         .operand_count = 1,
                                         .result = &operand,
                                         .result_count = 1,
                                         .remote = &word,
                                         .remote_count = 1,
                                         .dest = peer_});
        }
        refused_ += asked.is_ok() ? 0 : 1;
    }
    [[nodiscard]] bool is_guard_whole() const {
        const auto is_zero = [](std::byte byte) { return byte == std::byte{0}; };
        return std::all_of(memory_.begin(), memory_.begin() + kGuard, is_zero) &&
               std::all_of(memory_.end() - kGuard, memory_.end(), is_zero);
    }

    std::uint32_t key = 0;
    std::uint64_t base = 0;

  private:
    using Engine = core::RdEngine<util::SpinLock, RdmHost>;

    void progress() {
        const util::Guard guard(lock_);
        engine_->progress(engine_.get());
    }
    /// Takes the oldest completion. Returns: the number of its receive from 1, 0: of none.
    std::optional<std::size_t> take() {
        const util::Guard guard(lock_);
        const core::Cqe* const entry = cq_->front();
        if (entry == nullptr) {
            return std::nullopt;
        }
        const auto place = reinterpret_cast<std::uintptr_t>(entry->op_context);
        cq_->pop();
        return place;
    }
    void receive(std::size_t place) {
        const iovec buffer{inbox_[place].data(), kMessageBytes};
        const util::Status posted = engine_->recv(
            {.iov = &buffer,
             .iov_count = 1,
             .ignore = ~std::uint64_t{0},
             .context = reinterpret_cast<void*>(place + 1),
             .flags = place % 2 == 0 ? core::RdFlags::kTagged : core::RdFlags::kNone});
        refused_ += posted.is_ok() ? 0 : 1;
    }

    util::SpinLock lock_;
    util::Mapping key_file_ = util::Mapping::create("keys", core::KeyTable::block_bytes(60),
                                                    core::KeyTable::block_bytes(60))
                                  .take();
    std::unique_ptr<core::KeyTable> keys_ =
        core::KeyTable::create(key_file_.at<void>(0), key_file_.length()).take();
    std::unique_ptr<core::Cq> cq_ = core::Cq::create(64).take();
    core::AddressVector av_;
    std::unique_ptr<Engine> engine_ =
        std::make_unique<Engine>(lock_, core::RdAttr{.bind = loopback()}, core::RdTuning{},
                                 core::RdKeys{.table = keys_.get(), .memory = &key_file_});
    std::vector<std::byte> memory_ = std::vector<std::byte>(kGuard + kGranted + kGuard);
    std::array<std::array<std::byte, kMessageBytes>, 8> inbox_{};
    std::byte* large_ = nullptr;
    std::uint64_t peer_ = 0;
    unsigned refused_ = 0;
};

util::UniqueFd memory_file(unsigned flags, std::size_t bytes, int seals) {
    util::UniqueFd fd(memfd_create("peer", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags));
    if (fd.is_open() && ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0) {
        fcntl(fd.get(), F_ADD_SEALS, seals);
    }
    return fd;
}

class Peer {
  public:
    Peer() {
        EndpointPage& page = *page_.at<EndpointPage>(0);
        page.magic = kMagic;
        page.version = kLayoutVersion;
        page.incarnation = 4711;
        listener_.reset(new_socket());
        const SocketName name = socket_name(address());
        fuzz::must(bind(listener_.get(), reinterpret_cast<const sockaddr*>(&name.address),
                        name.length) == 0 &&
                   listen(listener_.get(), 16) == 0);
        open_rings(kSmallLinesOffset, kSmallLines, kSmallBytesOffset, kSmallBytes);
    }
    [[nodiscard]] const util::SockAddr& address() const { return port_.address; }

    // ---- messages ----

    void dial(const util::SockAddr& to) {
        socket_.reset(new_socket());
        const SocketName name = socket_name(to);
        if (connect(socket_.get(), reinterpret_cast<const sockaddr*>(&name.address), name.length) !=
            0) {
            socket_.reset();
        }
    }
    void accept() {
        util::UniqueFd taken(
            accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (taken.is_open()) {
            socket_ = std::move(taken);
        }
    }
    void hang_up() { socket_.reset(); }
    void say_ready() { say(MessageHeader{.type = MessageType::kReady}); }
    void say_hello() { say(hello(), {page_.fd(), outbox_.fd(), wake_fd_.get(), keys_.fd()}, 4); }
    /// A greeting, changed in some bytes, with descriptors that may be others.
    void say_hello(fuzz::Input& input) {
        Hello changed = hello();
        auto* const bytes = reinterpret_cast<std::byte*>(&changed);
        for (unsigned left = input.u8() % 4; left != 0; --left) {
            const std::size_t at = input.u8() % sizeof changed;
            bytes[at] = std::byte{input.u8()};
        }
        disclaim_access(bytes, sizeof changed);
        const auto [fds, count] = pick_fds(input, 4);
        say(changed, fds, count);
    }
    /// Any message, of the length that its type has or another.
    void say_any(fuzz::Input& input) {
        std::array<std::byte, sizeof(MessageHeader) + 256> bytes{};
        const auto taken = input.take(input.u8());
        std::copy(taken.begin(), taken.end(), bytes.begin() + sizeof(MessageHeader));
        static constexpr std::uint32_t kLengths[] = {0, sizeof(Hello), 16, 16, 16, 24, 56};
        const std::uint8_t type = input.u8();
        const bool is_known = type % 8 < std::size(kLengths);
        const std::uint32_t length = is_known ? kLengths[type % 8] : input.u8();
        const MessageHeader header{
            .type = static_cast<MessageType>(type % 8), .length = length, .error = input.u8()};
        std::memcpy(bytes.data(), &header, sizeof header);
        disclaim_access(bytes.data(), length);
        const auto [fds, count] = pick_fds(input, input.u8() % 5);
        refused_ += send_message(socket_.get(), bytes.data(), length, fds.data(), count).is_ok();
    }
    /// Whether an answer comes in time, and is a greeting.
    bool hears_hello() {
        pollfd entry{.fd = socket_.get(), .events = POLLIN, .revents = 0};
        int ready = 0;
        do {
            ready = ::poll(&entry, 1, 8000);
        } while (ready < 0 && errno == EINTR);  // by libFuzzer's clock
        const auto message = receive_message(socket_.get());
        return message.is_ok() && message.value().header.type == MessageType::kHello;
    }
    void hear() {
        while (socket_.is_open() && receive_message(socket_.get()).is_ok()) {
        }
    }

    // ---- memory ----

    /// Changes what the other side reads, mostly where it decides something.
    void scribble(fuzz::Input& input) {
        util::Mapping* const files[] = {&page_, &outbox_, &keys_};
        util::Mapping& file = *files[input.u8() % 3];
        const std::size_t place = input.u16();
        const std::size_t at = (place & 0x8000) != 0 ? (place & 0x7fff) * 32 : place & 0xff;
        const auto bytes = input.take(input.u8() % 64);
        const std::size_t start = at % file.length();
        std::memcpy(file.at<std::byte>(start), bytes.data(),
                    std::min(bytes.size(), file.length() - start));
    }
    /// Puts a line into the ring, of the length that its kind may have or another.
    void put_line(fuzz::Input& input, const Node& node) {
        const std::uint8_t op = input.u8() % 32;
        const std::uint8_t flags = input.u8();
        const std::uint8_t shape = input.u8();
        const std::uint32_t lengths[] = {0,  8,   24,  32,  40,     64,
                                         96, 208, 209, 512, 20'000, LineMeta::kMaxLength};
        Line& line = lines_.line();
        line.tag = word(input, node);
        line.data = word(input, node);
        for (std::size_t at = 0; at < Line::kPayloadBytes; at += sizeof(std::uint64_t)) {
            const std::uint64_t value = word(input, node);
            std::memcpy(line.payload + at, &value, sizeof value);
        }
        lines_.publish(LineMeta::pack(op, flags, lengths[shape % std::size(lengths)]));
        lines_.advance(1);
        if (static_cast<RdOp>(op) == RdOp::kGrow) {
            open_rings(kLargeLinesOffset, kLargeLines, kLargeBytesOffset, kLargeBytes);
        }
    }
    /// What somebody would ask of the key table, or of a file that is said to have a region.
    void look(fuzz::Input& input, const Node& node) {
        const auto view = core::KeyView::attach(keys_.at<void>(0), keys_.length());
        if (view.is_ok()) {
            const auto key = static_cast<std::uint32_t>(word(input, node));
            found_ +=
                view.value().lookup({.key = key, .addr = word(input, node), .length = 8}).is_ok()
                    ? 1
                    : 0;
            found_ += view.value().region(key, 0, Access::kRemoteRead).is_ok() ? 1 : 0;
        }
        const int fd = pick_fd(input.u8());
        const RegionPlace place{
            .offset = input.u16(), .length = input.u16(), .skip = input.u8(), .bytes = input.u16()};
        const auto region = map_region(util::UniqueFd(fcntl(fd, F_DUPFD_CLOEXEC, 0)), place, false);
        if (region.is_ok()) {
            found_ += fuzz::touch({region.value().data(), region.value().length});
        }
    }

  private:
    static int new_socket() {
        return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    }
    /// This process is its own peer, whose memory must not be taken for that of another: it would
    /// be written to where the peer's tables say.
    static void disclaim_access(std::byte* message, std::size_t length) {
        if (length >= sizeof(Hello)) {
            std::memset(message + offsetof(Hello, probe_address), 0, sizeof(std::uint64_t));
            std::memset(message + offsetof(Hello, process_token), 0, sizeof(std::uint64_t));
        }
    }
    [[nodiscard]] Hello hello() const {
        Hello hello;
        hello.address = to_wire(address());
        hello.incarnation = 4711;
        hello.page_bytes = kPageBytes;
        hello.outbox_bytes = kOutboxBytes;
        hello.keys_bytes = keys_.length();
        hello.flags = kHasKeys;
        return hello;
    }
    template <class T>
    void say(const T& message, std::array<int, kMaxMessageFds> fds = {}, std::size_t count = 0) {
        refused_ += send_message(socket_.get(), &message, sizeof message, fds.data(), count).is_ok()
                        ? 0
                        : 1;
    }
    int pick_fd(std::uint8_t which) const {
        const int fds[] = {page_.fd(),      outbox_.fd(),    wake_fd_.get(), keys_.fd(),
                           unsealed_.get(), short_.get(),    huge_.get(),    null_.get(),
                           listener_.get(), blocking_.get(), region_.get()};
        const int fd = fds[which % std::size(fds)];
        return fd >= 0 ? fd : null_.get();
    }
    /// The right ones, or any.
    std::pair<std::array<int, kMaxMessageFds>, std::size_t> pick_fds(fuzz::Input& input,
                                                                     std::size_t count) const {
        std::array<int, kMaxMessageFds> fds{page_.fd(), outbox_.fd(), wake_fd_.get(), keys_.fd()};
        const std::uint8_t changes = input.u8();
        for (std::size_t i = 0; i < fds.size(); ++i) {
            fds[i] = (changes >> i & 1) != 0 ? pick_fd(input.u8()) : fds[i];
        }
        return {fds, (changes & 16) != 0 ? input.u8() % 5 : count};
    }
    static std::uint64_t word(fuzz::Input& input, const Node& node) {
        const std::uint8_t kind = input.u8();
        switch (kind % 8) {
            case 0: return node.key;
            case 1: return node.base + input.u16();
            case 2: return node.base - 8;
            case 3: return input.u8();
            case 4: return (std::uint64_t{input.u8()} << 32) | input.u8();
            case 5: return ~std::uint64_t{0};
            case 6: return std::uint64_t{input.u16()} << 8;
            default: return 0x100000a00 | (kind >> 3);
        }
    }
    void open_rings(std::size_t lines, std::size_t line_count, std::size_t bytes,
                    std::size_t byte_count) {
        lines_.open(outbox_.at<Line>(lines), line_count);
        for (std::size_t at = 0; at < byte_count; at += kPageBytes) {
            outbox_.at<std::uint8_t>(bytes)[at] = static_cast<std::uint8_t>(at >> 12);
        }
    }

    util::UdpPort port_ = util::bind_udp_port(loopback()).take();
    util::Mapping page_ = util::Mapping::create("page", kPageBytes, kPageBytes).take();
    util::Mapping outbox_ = make_outbox().take();
    util::Mapping keys_ = util::Mapping::create("keys", kPageBytes, kPageBytes).take();
    std::unique_ptr<core::KeyTable> table_ =
        core::KeyTable::create(keys_.at<void>(0), keys_.length()).take();
    util::UniqueFd wake_fd_{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    util::UniqueFd blocking_{eventfd(0, EFD_CLOEXEC)};
    util::UniqueFd unsealed_ = memory_file(0, kOutboxBytes, 0);
    util::UniqueFd short_ = memory_file(0, 100, F_SEAL_SHRINK);
    util::UniqueFd huge_ = memory_file(MFD_HUGETLB, 2 << 20, F_SEAL_SHRINK);
    util::UniqueFd region_ = memory_file(0, 1 << 16, F_SEAL_SHRINK);
    util::UniqueFd null_{open("/dev/null", O_RDWR | O_CLOEXEC)};
    util::UniqueFd listener_;
    util::UniqueFd socket_;
    LineProducer lines_;
    unsigned refused_ = 0;
    unsigned found_ = 0;
};

class World {
  public:
    World() { node_.introduce(peer_.address()); }
    ~World() {
        node_.poll();
        fuzz::must(node_.is_guard_whole());
        Peer next;
        next.dial(node_.address());
        next.say_hello();
        fuzz::must(next.hears_hello());
    }
    World(const World&) = delete;
    World& operator=(const World&) = delete;

    void step(fuzz::Input& input) {
        switch (const std::uint8_t what = input.u8(); what % 12) {
            case 0: peer_.dial(node_.address()); break;
            case 1: peer_.say_hello(); break;
            case 2: peer_.say_hello(input); break;
            case 3: peer_.say_ready(); break;
            case 4: peer_.say_any(input); break;
            case 5: peer_.scribble(input); break;
            case 6:
            case 7: peer_.put_line(input, node_); break;
            case 8: node_.ask(input.u8(), std::size_t{input.u16()} * 16); break;
            case 9: peer_.look(input, node_); break;
            case 10: what % 8 < 4 ? peer_.accept() : peer_.hear(); break;
            default: what % 8 == 3 ? peer_.hang_up() : settle(); node_.poll();
        }
    }

  private:
    Node node_;
    Peer peer_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    return fuzz::explore<World>(data, size);
}
