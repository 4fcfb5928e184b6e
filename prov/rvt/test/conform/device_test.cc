// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Conformance: memory of a device is touched between the begin and the end of an access only. The
// pages are closed at other times, so that who touches them crashes.
#include "conform/fixture.h"
#include "core/atomic_ops.h"
#include "core/device_memory.h"
#include "core/extended_atomic.h"

#include <atomic>
#include <mutex>

#include <sys/mman.h>

using namespace rvt;
using namespace rvt::conform;

namespace {

constexpr std::size_t kBytes = 64 * 1024;

class GuardedDevice final : public DeviceMemory {
  public:
    GuardedDevice()
        : memory_(static_cast<std::byte*>(
              mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
        RVT_ASSERT(memory_ != MAP_FAILED);
    }
    ~GuardedDevice() {
        RVT_EQ(open_, 0);
        munmap(memory_, kBytes);
    }
    Status begin_cpu_access(CpuAccess /*access*/) noexcept override {
        const std::lock_guard guard(lock_);
        if (refuses) {
            return EIO;
        }
        ++begun;
        if (++open_ == 1) {
            mprotect(memory_, kBytes, PROT_READ | PROT_WRITE);
        }
        return kOk;
    }
    void end_cpu_access(CpuAccess /*access*/) noexcept override {
        const std::lock_guard guard(lock_);
        if (--open_ == 0) {
            mprotect(memory_, kBytes, PROT_NONE);
        }
    }
    File file() const noexcept override { return {}; }
    std::byte* memory() const noexcept { return memory_; }

    std::atomic<bool> refuses{false};
    std::atomic<int> begun{0};

  private:
    std::byte* const memory_;
    std::mutex lock_;
    int open_ = 0;
};

/// A region of one side in memory of a device. Peers and requests name its bytes from 0 on.
class DeviceRegion {
  public:
    explicit DeviceRegion(Side& side) {
        const iovec all{.iov_base = device.memory(), .iov_len = kBytes};
        mr_ = reg_mr(*side.pd, {.segments = {&all, 1},
                                .access = kAllAccess | Access::kZeroBased,
                                .device = &device})
                  .value();
    }
    ~DeviceRegion() { RVT_OK(dereg_mr(mr_)); }
    DeviceRegion(const DeviceRegion&) = delete;
    DeviceRegion& operator=(const DeviceRegion&) = delete;

    Sge sge(std::size_t offset, std::size_t bytes) const {
        return {.addr = offset, .length = static_cast<std::uint32_t>(bytes), .lkey = key()};
    }
    std::uint32_t key() const { return mr_->rkey(); }
    void put(const Side& from, std::size_t offset, std::size_t bytes) {
        const CpuAccessScope access(&device, CpuAccess::kWrite);
        std::memcpy(device.memory() + offset, from.memory.data(), bytes);
    }
    bool holds(const Side& as, std::size_t offset, std::size_t bytes) {
        const CpuAccessScope access(&device, CpuAccess::kRead);
        return std::memcmp(device.memory() + offset, as.memory.data(), bytes) == 0;
    }
    std::uint64_t word(std::size_t offset) {
        const CpuAccessScope access(&device, CpuAccess::kRead);
        std::uint64_t value = 0;
        std::memcpy(&value, device.memory() + offset, sizeof value);
        return value;
    }

    GuardedDevice device;

  private:
    Mr* mr_ = nullptr;
};

constexpr std::size_t kMany = 20'000;  // of several packets

template <class Backend>
void messages_go_from_device_to_device() {
    Pair<Backend> pair;
    DeviceRegion from(pair.a());
    DeviceRegion to(pair.b());
    pair.a().fill(0, kMany, 3);
    from.put(pair.a(), 8, kMany);
    const Sge room = to.sge(100, kMany);
    RVT_OK(pair.b().qp->post_recv({.wr_id = 1, .sg_list = {&room, 1}}));
    const Sge message = from.sge(8, kMany);
    RVT_OK(pair.a().qp->post_send({.opcode = WrOpcode::kSend, .sg_list = {&message, 1}}));
    RVT_EQ(pair.sent().status, WcStatus::kSuccess);
    RVT_EQ(pair.received().byte_len, kMany);
    RVT_ASSERT(to.holds(pair.a(), 100, kMany));
}
RVT_CONFORM_RC(messages_go_from_device_to_device)

template <class Backend>
void a_device_is_written_and_read() {
    Pair<Backend> pair;
    DeviceRegion own(pair.a());
    DeviceRegion target(pair.b());
    pair.a().fill(0, kMany, 5);
    own.put(pair.a(), 0, kMany);
    const Sge out = own.sge(0, kMany);
    RVT_OK(pair.a().qp->post_send({.opcode = WrOpcode::kWrite,
                                   .sg_list = {&out, 1},
                                   .remote_addr = 64,
                                   .rkey = target.key()}));
    RVT_EQ(pair.sent().status, WcStatus::kSuccess);
    RVT_ASSERT(target.holds(pair.a(), 64, kMany));
    const Sge in = own.sge(30'000, kMany);
    RVT_OK(pair.a().qp->post_send(
        {.opcode = WrOpcode::kRead, .sg_list = {&in, 1}, .remote_addr = 64, .rkey = target.key()}));
    RVT_EQ(pair.sent().status, WcStatus::kSuccess);
    RVT_ASSERT(own.holds(pair.a(), 30'000, kMany));
}
RVT_CONFORM_RC(a_device_is_written_and_read)

template <class Backend>
void words_of_a_device_are_added_to_and_swapped() {
    Pair<Backend> pair;
    DeviceRegion own(pair.a());
    DeviceRegion target(pair.b());
    pair.a().set_word(0, 5);
    target.put(pair.a(), 16, sizeof(std::uint64_t));
    const Sge result = own.sge(8, sizeof(std::uint64_t));
    RVT_OK(pair.a().qp->post_send({.opcode = WrOpcode::kFetchAdd,
                                   .sg_list = {&result, 1},
                                   .remote_addr = 16,
                                   .rkey = target.key(),
                                   .compare_add = 7}));
    RVT_EQ(pair.sent().status, WcStatus::kSuccess);
    RVT_EQ(own.word(8), 5);
    RVT_EQ(target.word(16), 12);
    RVT_OK(pair.a().qp->post_send({.opcode = WrOpcode::kCas,
                                   .sg_list = {&result, 1},
                                   .remote_addr = 16,
                                   .rkey = target.key(),
                                   .compare_add = 12,
                                   .swap = 99}));
    RVT_EQ(pair.sent().status, WcStatus::kSuccess);
    RVT_EQ(own.word(8), 12);
    RVT_EQ(target.word(16), 99);
}
RVT_CONFORM_RC(words_of_a_device_are_added_to_and_swapped)

template <class Backend>
void elements_of_a_device_are_added_to() {
    Pair<Backend> pair({.extended_atomics = true});
    DeviceRegion target(pair.b());
    pair.a().set_word(0, 4);
    target.put(pair.a(), 32, sizeof(std::uint64_t));
    pair.a().set_word(0, 38);
    const Sge operand_and_result = pair.a().sge(0, 2 * sizeof(std::uint64_t));
    RVT_OK(pair.a().qp->post_send(
        {.opcode = WrOpcode::kExtendedAtomic,
         .sg_list = {&operand_and_result, 1},
         .remote_addr = 32,
         .rkey = target.key(),
         .atomic = {.form = AtomicForm::kFetch,
                    .datatype = static_cast<std::uint8_t>(AtomicType::kUint64),
                    .op = static_cast<std::uint8_t>(AtomicOp::kSum)}}));
    RVT_EQ(pair.sent().status, WcStatus::kSuccess);
    RVT_EQ(pair.a().word(8), 4);
    RVT_EQ(target.word(32), 42);
}
RVT_CONFORM_RC(elements_of_a_device_are_added_to)

template <class Backend>
void a_device_that_refuses_ends_the_access_in_error() {
    Pair<Backend> pair;
    DeviceRegion target(pair.b());
    target.device.refuses = true;
    const Sge out = pair.a().sge(0, 64);
    RVT_OK(pair.a().qp->post_send({.opcode = WrOpcode::kWrite,
                                   .sg_list = {&out, 1},
                                   .remote_addr = 0,
                                   .rkey = target.key()}));
    RVT_EQ(pair.sent().status, WcStatus::kRemAccessErr);
    RVT_EQ(target.device.begun, 0);
}
RVT_CONFORM_RC(a_device_that_refuses_ends_the_access_in_error)

template <class Backend>
void a_device_that_refuses_ends_its_own_sides_request_in_error() {
    Pair<Backend> pair;
    DeviceRegion own(pair.a());
    own.device.refuses = true;
    const Sge out = own.sge(0, 64);
    RVT_OK(pair.a().qp->post_send({.opcode = WrOpcode::kWrite,
                                   .sg_list = {&out, 1},
                                   .remote_addr = pair.b().at(0),
                                   .rkey = pair.b().mr->rkey()}));
    RVT_EQ(pair.sent().status, WcStatus::kLocProtErr);
    RVT_EQ(own.device.begun, 0);
}
RVT_CONFORM_RC(a_device_that_refuses_ends_its_own_sides_request_in_error)

}  // namespace
