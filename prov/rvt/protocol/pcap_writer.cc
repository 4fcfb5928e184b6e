// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Blocks of pcapng, and the file.
#include "protocol/pcap_writer.h"

#include "protocol/pcap_frame.h"
#include "util/log.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

namespace rvt::protocol {
namespace {

constexpr std::uint32_t kSectionHeader = 0x0a0d0d0a;
constexpr std::uint32_t kInterface = 1;
constexpr std::uint32_t kEnhancedPacket = 6;
constexpr std::uint32_t kByteOrder = 0x1a2b3c4d;
constexpr std::uint16_t kVersion = 1;
constexpr std::uint16_t kRawIp = 101;  // LINKTYPE_RAW: a frame begins with its IP header

// Options. The numbers below 2 mean the same in every block.
constexpr std::uint16_t kEnd = 0;
constexpr std::uint16_t kComment = 1;
constexpr std::uint16_t kProgram = 4;   // of the section
constexpr std::uint16_t kName = 2;      // of an interface
constexpr std::uint16_t kTimeUnit = 9;  // of an interface
constexpr std::uint16_t kFlags = 2;     // of a packet
constexpr std::byte kNanoseconds{9};    // 10 to the power -9 seconds
constexpr std::uint32_t kCrcError = 1u << 24;
constexpr std::string_view kWrongIcrc = "wrong ICRC";

// Of a block, beside the frame and the longest text.
constexpr std::size_t kMaxBlockBytes = 128;
constexpr std::size_t kMaxNameBytes = 256;
constexpr std::size_t kMaxFrameBytes = 64u << 10;  // IP has no longer ones

/// One block as it is built. Precondition of each call: there is room.
class Block {
  public:
    Block(std::byte* to, std::uint32_t type) noexcept : begin_(to), at_(to) {
        put(type);
        put(std::uint32_t{0});  // length, see finish()
    }

    /// In the host's byte order, which the section header tells.
    template <class T>
    void put(T value) noexcept {
        std::memcpy(at_, &value, sizeof value);
        at_ += sizeof value;
    }
    void put_bytes(std::span<const std::byte> bytes) noexcept {
        at_ = std::copy(bytes.begin(), bytes.end(), at_);
    }
    void pad() noexcept {
        while ((at_ - begin_) % 4 != 0) {
            *at_++ = std::byte{0};
        }
    }
    void option(std::uint16_t code, std::span<const std::byte> value) noexcept {
        put(code);
        put(static_cast<std::uint16_t>(value.size()));
        put_bytes(value);
        pad();
    }
    void option(std::uint16_t code, std::string_view text) noexcept {
        option(code, std::as_bytes(std::span(text)));
    }
    /// Returns: the block's length.
    std::size_t finish() noexcept {
        option(kEnd, std::string_view());
        const auto bytes = static_cast<std::uint32_t>(at_ - begin_ + sizeof(std::uint32_t));
        put(bytes);
        std::memcpy(begin_ + sizeof(std::uint32_t), &bytes, sizeof bytes);
        return bytes;
    }

  private:
    std::byte* const begin_;
    std::byte* at_;
};

std::string host_name() {
    std::array<char, 256> name{};
    return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "localhost";
}

/// A pipe would make who sends wait for who reads it, or end the process.
Status check_kind(int fd, bool& is_regular) noexcept {
    struct stat about {};
    if (fstat(fd, &about) != 0) {
        return errno;
    }
    is_regular = S_ISREG(about.st_mode);
    return is_regular || S_ISCHR(about.st_mode) ? kOk : Status(EINVAL);
}

/// What writing beyond it does is to end the process (SIGXFSZ).
bool is_beyond_limit(std::uint64_t file_bytes) noexcept {
    rlimit limit{};
    return getrlimit(RLIMIT_FSIZE, &limit) == 0 && file_bytes > limit.rlim_cur;
}

}  // namespace

Result<std::shared_ptr<PcapWriter>> PcapWriter::open(std::string_view name) {
    std::string file = expand(name);
    const auto refuse = [&file](int error, const char* advice) {
        RVT_WARN(kDomain, "cannot write a capture to %s: %s%s", file.c_str(),
                 strerrordesc_np(error), advice);
        return Status(error);
    };
    // Captures hold what users send: nobody else's.
    util::ProcessFd fd(
        util::UniqueFd(::open(file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0600)));
    if (!fd.is_open()) {
        return refuse(errno, "");
    }
    bool is_regular = false;
    if (const Status kind = check_kind(fd.get(), is_regular); !kind.is_ok()) {
        return refuse(kind.error(), "; name a file");
    }
    // Kept by the open file, and gone with the process. Not every file system has locks.
    if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        return refuse(EBUSY, "; put %p into its name where several processes write");
    }
    if (is_regular && ftruncate(fd.get(), 0) != 0) {
        return refuse(errno, "");
    }
    return std::shared_ptr<PcapWriter>(new PcapWriter(std::move(file), std::move(fd), is_regular));
}

std::string PcapWriter::expand(std::string_view name) {
    std::string file;
    for (std::size_t i = 0; i < name.size(); ++i) {
        const std::string_view two = name.substr(i, 2);
        if (two == "%p") {
            file += std::to_string(getpid());
        } else if (two == "%h") {
            file += host_name();
        } else {
            file += name[i];
            continue;
        }
        ++i;
    }
    return file;
}

PcapWriter::PcapWriter(std::string file, util::ProcessFd fd, bool is_regular)
    : file_(std::move(file)),
      fd_(std::move(fd)),
      is_regular_(is_regular),
      buffer_(new std::byte[kBufferBytes]) {
    const util::Guard guard(lock_);
    Block block(room_locked(kMaxBlockBytes), kSectionHeader);
    block.put(kByteOrder);
    block.put(kVersion);
    block.put(std::uint16_t{0});
    block.put(std::int64_t{-1});  // the section's length: to the end
    block.option(kProgram, "rvt");
    take_locked(block.finish());
}

bool PcapWriter::is_on() const noexcept {
    // relaxed: who sees it late writes into a buffer that goes nowhere.
    return !has_failed_.load(std::memory_order_relaxed) && generation_ == util::fork_generation();
}

std::uint64_t PcapWriter::now_ns() noexcept {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

std::uint32_t PcapWriter::add_interface(std::string_view name) noexcept {
    if (!is_on()) {
        return 0;
    }
    const util::Guard guard(lock_);
    Block block(room_locked(kMaxBlockBytes + kMaxNameBytes), kInterface);
    block.put(kRawIp);
    block.put(std::uint16_t{0});
    block.put(std::uint32_t{0});  // packets are never cut short
    block.option(kName, name.substr(0, kMaxNameBytes));
    block.option(kTimeUnit, std::span(&kNanoseconds, 1));
    take_locked(block.finish());
    return interfaces_++;
}

void PcapWriter::append(const Record& record) noexcept {
    if (!is_on()) {
        return;
    }
    std::array<std::byte, kMaxFrameHeaderBytes> headers;
    const std::size_t header_bytes = write_frame_headers(record.packet, headers.data());
    const auto frame_bytes = static_cast<std::uint32_t>(header_bytes + record.packet.bytes.size());
    const std::uint32_t flags =
        static_cast<std::uint32_t>(record.direction) | (record.has_right_icrc ? 0 : kCrcError);
    const util::Guard guard(lock_);
    Block block(room_locked(kMaxBlockBytes + frame_bytes), kEnhancedPacket);
    block.put(record.interface);
    block.put(static_cast<std::uint32_t>(record.at_ns >> 32));
    block.put(static_cast<std::uint32_t>(record.at_ns));
    block.put(frame_bytes);  // captured
    block.put(frame_bytes);  // on the wire
    block.put_bytes(std::span(headers).first(header_bytes));
    block.put_bytes(record.packet.bytes);
    block.pad();
    block.option(kFlags, std::as_bytes(std::span(&flags, 1)));
    if (!record.has_right_icrc) {
        block.option(kComment, kWrongIcrc);
    }
    take_locked(block.finish());
}

// ---- the buffer and the file ----

std::byte* PcapWriter::room_locked(std::size_t bytes) noexcept {
    static_assert(kMaxBlockBytes + kMaxFrameBytes <= kBufferBytes);
    if (used_ + bytes > kBufferBytes) {
        flush_locked();
    }
    return &buffer_[used_];
}

void PcapWriter::take_locked(std::size_t bytes) noexcept {
    if (used_ == 0) {
        // relaxed: a time orders nothing.
        waiting_since_ns_.store(now_ns(), std::memory_order_relaxed);
    }
    used_ += bytes;
}

void PcapWriter::flush() noexcept {
    if (is_on()) {
        const util::Guard guard(lock_);
        flush_locked();
    }
}

void PcapWriter::flush_when_idle() noexcept {
    // relaxed: who sees it late flushes the next time.
    const std::uint64_t since = waiting_since_ns_.load(std::memory_order_relaxed);
    if (since != 0 && now_ns() - since >= kIdleNs) {
        flush();
    }
}

void PcapWriter::flush_locked() noexcept {
    // relaxed: written under the lock.
    if (used_ != 0 && !has_failed_.load(std::memory_order_relaxed)) {
        const Status status = write_locked();
        if (!status.is_ok()) {
            give_up_locked(status);
        }
    }
    used_ = 0;
    waiting_since_ns_.store(0, std::memory_order_relaxed);  // relaxed: a time orders nothing
}

Status PcapWriter::write_locked() noexcept {
    if (is_regular_ && is_beyond_limit(written_ + used_)) {
        return EFBIG;
    }
    for (std::size_t done = 0; done < used_;) {
        const ssize_t wrote = ::write(fd_.get(), &buffer_[done], used_ - done);
        if (wrote > 0) {
            done += static_cast<std::size_t>(wrote);
        } else if (wrote == 0 || errno != EINTR) {
            return wrote == 0 ? EIO : errno;
        }
    }
    written_ += used_;
    return kOk;
}

/// What has been written stays, to the end of a block.
void PcapWriter::give_up_locked(Status why) noexcept {
    has_failed_.store(true, std::memory_order_relaxed);  // relaxed: see is_on()
    RVT_WARN(kDomain, "the capture %s ends after %llu bytes: %s", file_.c_str(),
             static_cast<unsigned long long>(written_), strerrordesc_np(why.error()));
    [[maybe_unused]] const bool is_cut =
        is_regular_ && ftruncate(fd_.get(), static_cast<off_t>(written_)) == 0;
}

}  // namespace rvt::protocol
