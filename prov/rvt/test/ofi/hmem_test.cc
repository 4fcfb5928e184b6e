// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Memory of devices that the CPU cannot touch, over a stand-in for CUDA's library.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "hmem/copied_memory.h"
#include "hmem/opened_memory.h"
#include "ofi/device_use.h"
#include "ofi/on_device.h"
#include "ofi/pair.h"

using namespace rvt::test;

namespace {

constexpr EndOptions kDevices{
    .caps = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_HMEM | FI_MULTI_RECV,
    .mr_mode = FI_MR_HMEM,
    .tx_op_flags = FI_DELIVERY_COMPLETE};

Owned<fid_mr> reg(const End& end, const OnDevice& memory, std::uint64_t key = 1) {
    return opened<fid_mr>([&](fid_mr** mr) {
        return try_reg(end.open.domain.get(), memory.at(), kDeviceBytes, FI_HMEM_CUDA, mr, key);
    });
}

/// Two ends with memory of the device each.
struct Devices {
    explicit Devices(const EndOptions& options = kDevices) {
        fab::standin::use(fab::standin::How::kWithoutShare);
        pair.emplace(options);
        mr_a = reg(pair->a, a);
        mr_b = reg(pair->b, b);
    }
    void* desc_a() { return fi_mr_desc(mr_a.get()); }
    void* desc_b() { return fi_mr_desc(mr_b.get()); }

    OnDevice a;
    OnDevice b;
    std::optional<Pair> pair;
    Owned<fid_mr> mr_a;
    Owned<fid_mr> mr_b;
};

Opened with_device_memory() {
    const Info hints = new_hints();
    hints->caps = FI_MSG | FI_RMA | FI_HMEM;
    hints->domain_attr->mr_mode = FI_MR_HMEM;
    return Opened(ask(hints).info);
}

constexpr int kMrModeOfRemoteMemory = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;

/// The types of rvt's answers with FI_HMEM, which stand behind all others, and can be asked for, as
/// by who looks first for what there is.
std::vector<fi_ep_type> types_with_devices(const fi_info* asked, std::uint32_t version) {
    fi_info* all = nullptr;
    RVT_OK(fi_getinfo(version, nullptr, nullptr, 0, asked, &all));
    const Info owner(all);
    std::vector<fi_ep_type> types;
    for (const fi_info* each = all; each != nullptr; each = each->next) {
        if (std::strcmp(each->fabric_attr->prov_name, "rvt") != 0) continue;
        if ((each->caps & FI_HMEM) == 0) {
            RVT_EQ(types.size(), 0);
            continue;
        }
        types.push_back(each->ep_attr->type);
        const Info hints = new_hints();
        hints->caps = each->caps;
        hints->ep_attr->type = each->ep_attr->type;
        hints->domain_attr->mr_mode = FI_MR_HMEM | kMrModeOfRemoteMemory;
        RVT_EQ(ask(hints).info->domain_attr->mr_mode & FI_MR_HMEM, FI_MR_HMEM);
    }
    return types;
}

/// From the first end to the second one.
void send_first_bytes(Devices& at, const OnDevice& from, fid_mr* mr) {
    at.pair->post([&] {
        return fi_recv(at.pair->b.ep.get(), at.b.at(), 8, at.desc_b(), FI_ADDR_UNSPEC, nullptr);
    });
    at.pair->post([&] {
        return fi_send(at.pair->a.ep.get(), from.at(), 8, fi_mr_desc(mr), at.pair->a.peer, nullptr);
    });
    at.pair->b.next();
    at.pair->a.next();
}

/// Of a device that nothing is there of.
class NothingCopied final : public rvt::hmem::Copier {
  public:
    [[nodiscard]] int device_kind() const noexcept override { return -1; }
    rvt::util::Status copy_out(const rvt::hmem::Allocation& /*from*/, std::uint64_t /*offset*/,
                               std::byte* /*to*/, std::uint64_t /*bytes*/) noexcept override {
        return rvt::util::kOk;
    }
    rvt::util::Status copy_in(const rvt::hmem::Allocation& /*to*/, std::uint64_t /*offset*/,
                              const std::byte* /*from*/,
                              std::uint64_t /*bytes*/) noexcept override {
        return rvt::util::kOk;
    }
};

constexpr std::size_t kSizes[] = {0, 1, 8, 200, 4096, 40'000, 300'000, 2'500'000};

}  // namespace

Test(hmem, memory_of_a_library_that_is_not_here_is_refused) {
    fab::standin::use(fab::standin::How::kAbsent);
    const Opened open = with_device_memory();
    char host[64];
    fid_mr* mr = nullptr;
    RVT_EQ(try_reg(open.domain.get(), host, sizeof host, FI_HMEM_CUDA, &mr), -FI_ENOSYS);
    RVT_EQ(try_reg(open.domain.get(), host, sizeof host, FI_HMEM_ROCR, &mr), -FI_ENOSYS);
    RVT_EQ(try_reg(open.domain.get(), host, sizeof host, FI_HMEM_ZE, &mr), -FI_ENOSYS);
    RVT_EQ(try_reg(open.domain.get(), host, sizeof host, FI_HMEM_NEURON, &mr), -FI_ENOSYS);
}

Test(hmem, memory_of_a_library_that_does_not_start_is_refused) {
    fab::standin::use(fab::standin::How::kBroken);
    const Opened open = with_device_memory();
    char host[64];
    fid_mr* mr = nullptr;
    RVT_EQ(try_reg(open.domain.get(), host, sizeof host, FI_HMEM_CUDA, &mr), -FI_ENOSYS);
    RVT_OK(try_reg(open.domain.get(), host, sizeof host, FI_HMEM_SYSTEM, &mr));
    RVT_OK(fi_close(&mr->fid));
}

Test(hmem, a_kind_can_be_switched_off) {
    fab::standin::use(fab::standin::How::kWithoutShare);
    setenv("FI_RVT_HMEM_CUDA", "0", 1);
    const Opened open = with_device_memory();
    const OnDevice memory;
    fid_mr* mr = nullptr;
    RVT_EQ(try_reg(open.domain.get(), memory.at(), kDeviceBytes, FI_HMEM_CUDA, &mr), -FI_ENOSYS);
}

Test(hmem, addresses_that_nobody_owns_are_refused) {
    fab::standin::use(fab::standin::How::kWithoutShare);
    const Opened open = with_device_memory();
    const OnDevice memory(8192);
    char host[64];
    fid_mr* mr = nullptr;
    RVT_EQ(try_reg(open.domain.get(), host, sizeof host, FI_HMEM_CUDA, &mr), -FI_EFAULT);
    RVT_EQ(try_reg(open.domain.get(), memory.at(1), 8192, FI_HMEM_CUDA, &mr), -FI_EFAULT);
    RVT_EQ(try_reg(open.domain.get(), memory.at(), 0, FI_HMEM_CUDA, &mr), -FI_EINVAL);
}

Test(hmem, who_asks_for_nothing_is_told_of_devices_last) {
    fab::standin::use(fab::standin::How::kWithoutShare);
    const std::vector<fi_ep_type> all{FI_EP_RDM, FI_EP_MSG, FI_EP_DGRAM};
    cr_assert(types_with_devices(nullptr, FI_VERSION(0, 0)) == all);
    cr_assert(types_with_devices(nullptr, kVersion) == all);
    const Info hints = new_hints();
    hints->domain_attr->mr_mode = FI_MR_HMEM | kMrModeOfRemoteMemory;
    cr_assert(types_with_devices(hints.get(), kVersion) == all);
    hints->domain_attr->mr_mode = kMrModeOfRemoteMemory;
    cr_assert(types_with_devices(hints.get(), kVersion).empty());
}

Test(hmem, who_asks_for_nothing_is_told_of_no_devices_where_no_library_is) {
    fab::standin::use(fab::standin::How::kAbsent);
    cr_assert(types_with_devices(nullptr, kVersion).empty());
}

Test(hmem, who_asks_for_nothing_is_told_of_no_devices_that_are_switched_off) {
    fab::standin::use(fab::standin::How::kWithoutShare);
    setenv("FI_RVT_HMEM_CUDA", "0", 1);
    cr_assert(types_with_devices(nullptr, kVersion).empty());
}

Test(hmem, who_does_not_say_whose_memory_it_is_need_not) {
    fab::standin::use(fab::standin::How::kWithoutShare);
    const Opened open = with_device_memory();
    const OnDevice memory;
    char host[64];
    for (const void* const address :
         {static_cast<const void*>(memory.at()), static_cast<const void*>(host)}) {
        const auto mr = opened<fid_mr>([&](fid_mr** made) {
            return fi_mr_reg(open.domain.get(), address, 64, kDeviceAccess, 0, 1, 0, made, nullptr);
        });
        RVT_EQ(fi_mr_desc(mr.get()) != nullptr, address != host);
    }
}

Test(hmem, memory_of_a_device_beside_other_buffers_is_refused) {
    fab::standin::use(fab::standin::How::kWithoutShare);
    const Opened open = with_device_memory();
    const OnDevice memory;
    char host[64];
    const iovec buffers[] = {{host, 64}, {memory.at(), 64}, {host, 64}};
    for (const iovec* const first : {&buffers[0], &buffers[1]}) {
        fid_mr* mr = nullptr;
        RVT_EQ(fi_mr_regv(open.domain.get(), first, 2, kDeviceAccess, 0, 1, 0, &mr, nullptr),
               -FI_EINVAL);
    }
}

Test(hmem, messages_of_any_size_go_from_device_to_device, .timeout = 60) {
    Devices at;
    int seed = 1;
    for (const std::size_t size : kSizes) {
        const auto bytes = numbered(size, ++seed);
        at.a.write(3, bytes);
        at.b.write(0, numbered(kDeviceBytes, 99));
        at.pair->post([&] {
            return fi_trecv(at.pair->b.ep.get(), at.b.at(5), size + 100, at.desc_b(),
                            FI_ADDR_UNSPEC, 7, 0, nullptr);
        });
        at.pair->post([&] {
            return fi_tsend(at.pair->a.ep.get(), at.a.at(3), size, at.desc_a(), at.pair->a.peer, 7,
                            nullptr);
        });
        RVT_EQ(at.pair->b.next().len, size);
        at.pair->a.next();
        cr_assert(at.b.read(5, size) == bytes, "%zu bytes", size);
        const auto beside = numbered(kDeviceBytes, 99);
        cr_assert(at.b.read(5 + size, 100) ==
                      std::vector<char>(beside.begin() + 5 + static_cast<std::ptrdiff_t>(size),
                                        beside.begin() + 105 + static_cast<std::ptrdiff_t>(size)),
                  "what lies behind a message of %zu bytes has changed", size);
    }
}

Test(hmem, what_the_application_has_copied_there_just_now_is_what_is_sent) {
    Devices at;
    const OnDevice from;
    from.write_late(0, numbered(8, 2));  // on its way when the memory is registered
    const Owned<fid_mr> mr = reg(at.pair->a, from, 3);
    send_first_bytes(at, from, mr.get());
    cr_assert(at.b.read(0, 8) == numbered(8, 2));
    from.write_late(0, numbered(8, 3));
    send_first_bytes(at, from, mr.get());
    cr_assert(at.b.read(0, 8) == numbered(8, 3));
}

Test(hmem, registration_waits_for_copies_that_the_library_does_not_make_at_once) {
    Devices at;
    fab::standin::refuse_sync();
    const OnDevice from;
    from.write_late(0, numbered(8, 2));
    const Owned<fid_mr> mr = reg(at.pair->a, from, 3);
    send_first_bytes(at, from, mr.get());
    cr_assert(at.b.read(0, 8) == numbered(8, 2));
}

Test(hmem, messages_that_come_before_their_receive_arrive, .timeout = 60) {
    Devices at;
    for (const std::size_t size : {std::size_t{8}, std::size_t{5000}, std::size_t{500'000}}) {
        const auto bytes = numbered(size, 3);
        at.a.write(0, bytes);
        at.pair->post([&] {
            return fi_tsend(at.pair->a.ep.get(), at.a.at(), size, at.desc_a(), at.pair->a.peer, 7,
                            nullptr);
        });
        at.pair->drive();
        at.pair->post([&] {
            return fi_trecv(at.pair->b.ep.get(), at.b.at(), kDeviceBytes, at.desc_b(),
                            FI_ADDR_UNSPEC, 7, 0, nullptr);
        });
        RVT_EQ(at.pair->b.next().len, size);
        at.pair->a.next();
        cr_assert(at.b.read(0, size) == bytes);
    }
}

Test(hmem, a_message_that_is_cut_fills_its_buffer_and_no_more) {
    Devices at;
    for (const std::size_t size : {std::size_t{100}, std::size_t{100'000}}) {
        const auto bytes = numbered(size, 3);
        at.a.write(0, bytes);
        at.b.write(0, std::vector<char>(200'000, 'x'));
        at.pair->post([&] {
            return fi_trecv(at.pair->b.ep.get(), at.b.at(), size / 2, at.desc_b(), FI_ADDR_UNSPEC,
                            7, 0, nullptr);
        });
        at.pair->post([&] {
            return fi_tsend(at.pair->a.ep.get(), at.a.at(), size, at.desc_a(), at.pair->a.peer, 7,
                            nullptr);
        });
        const fi_cq_err_entry error = at.pair->b.next_error();
        RVT_EQ(error.err, FI_ETRUNC);
        RVT_EQ(error.olen, size - size / 2);
        at.pair->a.next();
        cr_assert(at.b.read(0, size / 2) ==
                  std::vector<char>(bytes.begin(),
                                    bytes.begin() + static_cast<std::ptrdiff_t>(size / 2)));
        RVT_EQ(at.b.read(size / 2, 1)[0], 'x');
    }
}

Test(hmem, parts_of_a_multi_receive_buffer_are_where_the_completion_says) {
    Devices at;
    const iovec all{at.b.at(), 4096};
    void* desc = at.desc_b();
    fi_msg msg{};
    msg.msg_iov = &all;
    msg.desc = &desc;
    msg.iov_count = 1;
    msg.addr = FI_ADDR_UNSPEC;
    RVT_OK(fi_recvmsg(at.pair->b.ep.get(), &msg, FI_MULTI_RECV));
    for (int i = 0; i < 3; ++i) {
        const auto bytes = numbered(1000, i);
        at.a.write(0, bytes);
        at.pair->post([&] {
            return fi_send(at.pair->a.ep.get(), at.a.at(), 1000, at.desc_a(), at.pair->a.peer,
                           nullptr);
        });
        const fi_cq_tagged_entry entry = at.pair->b.next();
        at.pair->a.next();
        cr_assert(entry.buf == at.b.at(1000 * static_cast<std::size_t>(i)));
        cr_assert(at.b.read(1000 * static_cast<std::size_t>(i), 1000) == bytes);
    }
}

/// Where more than all copies may be is there: what is left of one goes when nobody accesses it.
Test(hmem, a_message_that_ends_leaves_another_one_in_its_multi_receive_buffer) {
    constexpr std::uint64_t kLength = 272u << 20;
    auto made = rvt::hmem::CopiedMemory::make(std::make_unique<NothingCopied>(),
                                              {.address = 0, .bytes = kLength});
    const std::shared_ptr<rvt::hmem::DeviceRegion> memory = made.take();
    rvt::ofi::DeviceUses all;
    auto* const use = new rvt::ofi::DeviceUse(all);
    RVT_OK(use->add(memory, rvt::core::CpuAccess::kWrite));
    RVT_OK(memory->refresh(0, kLength));
    std::memset(memory->data() + 100, 'x', 100);  // of a message that is under way
    use->part_done();
    RVT_EQ(static_cast<char>(memory->data()[100]), 'x');
    use->release();
}

Test(hmem, peers_write_and_read_memory_of_a_device, .timeout = 60) {
    Devices at;
    int seed = 1;
    for (const std::size_t size : kSizes) {
        const auto bytes = numbered(size, ++seed);
        at.a.write(16, bytes);
        at.pair->post([&] {
            return fi_write(at.pair->a.ep.get(), at.a.at(16), size, at.desc_a(), at.pair->a.peer, 5,
                            fi_mr_key(at.mr_b.get()), nullptr);
        });
        at.pair->a.next();
        cr_assert(at.b.read(5, size) == bytes, "write of %zu bytes", size);
        at.a.write(16, std::vector<char>(size, 0));
        at.pair->post([&] {
            return fi_read(at.pair->a.ep.get(), at.a.at(32), size, at.desc_a(), at.pair->a.peer, 5,
                           fi_mr_key(at.mr_b.get()), nullptr);
        });
        at.pair->a.next();
        cr_assert(at.a.read(32, size) == bytes, "read of %zu bytes", size);
    }
}

Test(hmem, peers_change_memory_of_a_device_by_atomics) {
    Devices at;
    at.b.write(0, std::vector<char>(64, 1));
    at.a.write(0, std::vector<char>(64, 2));
    at.pair->post([&] {
        return fi_fetch_atomic(at.pair->a.ep.get(), at.a.at(), 8, at.desc_a(), at.a.at(128),
                               at.desc_a(), at.pair->a.peer, 0, fi_mr_key(at.mr_b.get()), FI_UINT64,
                               FI_SUM, nullptr);
    });
    at.pair->a.next();
    cr_assert(at.a.read(128, 64) == std::vector<char>(64, 1));
    cr_assert(at.b.read(0, 64) == std::vector<char>(64, 3));
}

/// A message on its way into memory of which a third end asks for all again and again, and to which
/// it adds nothing.
Test(hmem, accesses_of_peers_do_not_undo_a_message_that_is_under_way, .timeout = 60) {
    constexpr std::size_t kLength = 1 << 20;
    setenv("FI_HMEM_DISABLE_P2P", "1", 1);
    for (const bool is_atomic : {false, true}) {
        Devices at;
        End third(kDevices);
        third.peer = Pair::introduce(third, at.pair->b);
        third.other = &at.pair->b;
        std::vector<char> seen(kLength);
        const auto access = [&] {
            const std::uint64_t key = fi_mr_key(at.mr_b.get());
            return is_atomic ? fi_atomic(third.ep.get(), seen.data(), 64, nullptr, third.peer, 0,
                                         key, FI_UINT64, FI_SUM, nullptr)
                             : fi_read(third.ep.get(), seen.data(), kLength, nullptr, third.peer, 0,
                                       key, nullptr);
        };
        const auto bytes = numbered(kLength, 4);
        at.a.write(0, bytes);
        at.pair->post([&] {
            return fi_recv(at.pair->b.ep.get(), at.b.at(), kLength, at.desc_b(), FI_ADDR_UNSPEC,
                           nullptr);
        });
        at.pair->post([&] {
            return fi_send(at.pair->a.ep.get(), at.a.at(), kLength, at.desc_a(), at.pair->a.peer,
                           nullptr);
        });
        for (int turn = 0; turn < 8; ++turn) {
            std::fill(seen.begin(), seen.end(), '\0');
            at.pair->post(access);
            third.next();
            at.pair->drive();
        }
        RVT_EQ(at.pair->b.next().len, kLength);
        at.pair->a.next();
        cr_assert(at.b.read(0, kLength) == bytes, "atomic: %d", is_atomic);
    }
}

/// A thread sends from where another one sees to it that a peer's writes are executed.
Test(hmem, what_a_peer_writes_stays_where_it_is_sent_from_just_then, .timeout = 60) {
    setenv("FI_HMEM_DISABLE_P2P", "1", 1);
    EndOptions options = kDevices;
    options.threading = FI_THREAD_SAFE;
    Devices at(options);
    std::atomic<bool> is_over{false};
    std::jthread sender([&] {
        while (!is_over.load(std::memory_order_relaxed)) {  // relaxed: only the time to leave
            at.pair->post([&] {
                return fi_write(at.pair->b.ep.get(), at.b.at(), 64, at.desc_b(), at.pair->b.peer,
                                4096, fi_mr_key(at.mr_a.get()), nullptr);
            });
            at.pair->b.next();
        }
    });
    for (int turn = 0; turn < 5'000; ++turn) {
        auto bytes = numbered(64, turn);
        at.pair->post([&] {
            return fi_write(at.pair->a.ep.get(), bytes.data(), 64, nullptr, at.pair->a.peer, 0,
                            fi_mr_key(at.mr_b.get()), nullptr);
        });
        at.pair->a.next();
        cr_assert(at.b.read(0, 64) == bytes, "turn %d", turn);
    }
    is_over.store(true, std::memory_order_relaxed);  // relaxed: as above
}

Test(hmem, a_copy_that_fails_is_the_callers_to_know) {
    Devices at;
    fab::standin::fail_copies(0);
    RVT_EQ(fi_tsend(at.pair->a.ep.get(), at.a.at(), 64, at.desc_a(), at.pair->a.peer, 7, nullptr),
           -FI_EIO);
    fab::standin::fail_copies(-1);
    cr_assert(at.pair->a.is_quiet());
}

/// Sends a message between devices, of whose copies the nth and all after it fail.
void fail_message(Devices& at, std::size_t size, int nth, int receiver_error, int sender_error) {
    at.pair->post([&] {
        return fi_trecv(at.pair->b.ep.get(), at.b.at(), size, at.desc_b(), FI_ADDR_UNSPEC, 7, 0,
                        nullptr);
    });
    fab::standin::fail_copies(nth);  // from the first on, of which the host may make some
    at.pair->post([&] {
        return fi_tsend(at.pair->a.ep.get(), at.a.at(), size, at.desc_a(), at.pair->a.peer, 7,
                        nullptr);
    });
    RVT_EQ(at.pair->b.next_error().err, receiver_error);
    RVT_EQ(at.pair->a.next_error().err, sender_error);
    fab::standin::fail_copies(-1);
}

Test(hmem, a_copy_that_fails_ends_the_receive_with_an_error) {
    Devices at;
    // What is small is copied at the sender before it is sent.
    fail_message(at, 64, 1, FI_EIO, FI_EREMOTEIO);
    fail_message(at, 200'000, 1, FI_EIO, FI_EREMOTEIO);
}

Test(hmem, a_message_that_cannot_be_copied_from_its_device_ends_both_sides_with_errors) {
    Devices at;
    fail_message(at, 200'000, 0, FI_EREMOTEIO, FI_EIO);
}

/// Each side copies four parts of 512 KiB: the last copy of all is the receiver's.
Test(hmem, a_long_message_is_copied_part_by_part) {
    Devices at;
    fail_message(at, 2 << 20, 7, FI_EIO, FI_EREMOTEIO);
    fail_message(at, 2 << 20, 0, FI_EREMOTEIO, FI_EIO);
}

Test(hmem, memory_that_long_messages_go_through_is_pinned_until_its_region_closes, .timeout = 60) {
    // Across an end of what is pinned at once, wherever the copy begins.
    constexpr std::size_t kLength = 6 << 20;
    fab::standin::use(fab::standin::How::kWithoutShare);
    Pair pair(kDevices);
    for (const bool may_pin : {true, false}) {
        const OnDevice memory(2 * kLength);
        auto mr = opened<fid_mr>([&](fid_mr** made) {
            return try_reg(pair.a.open.domain.get(), memory.at(), 2 * kLength, FI_HMEM_CUDA, made);
        });
        std::vector<char> arrived(kLength);
        for (const int seed : {4, 5, 6}) {
            const auto bytes = numbered(kLength, seed);
            memory.write(3, bytes);
            pair.post([&] {
                return fi_recv(pair.b.ep.get(), arrived.data(), kLength, nullptr, FI_ADDR_UNSPEC,
                               nullptr);
            });
            pair.post([&] {
                return fi_send(pair.a.ep.get(), memory.at(3), kLength, fi_mr_desc(mr.get()),
                               pair.a.peer, nullptr);
            });
            RVT_EQ(pair.b.next().len, kLength);
            pair.a.next();
            cr_assert(arrived == bytes);
        }
        RVT_EQ(fab::standin::counts().pinned != 0, may_pin);
        mr.reset();
        RVT_EQ(fab::standin::counts().pinned, 0);
        fab::standin::refuse_pins();
    }
}

/// A copy that has been begun fails when it is waited for.
Test(hmem, a_long_message_of_pinned_memory_ends_with_an_error_where_a_copy_fails) {
    constexpr std::size_t kLength = 2 << 20;
    Devices at;
    const auto bytes = numbered(kLength, 3);
    at.a.write(0, bytes);
    const auto send_one = [&] {
        at.pair->post([&] {
            return fi_trecv(at.pair->b.ep.get(), at.b.at(), kLength, at.desc_b(), FI_ADDR_UNSPEC, 7,
                            0, nullptr);
        });
        at.pair->post([&] {
            return fi_tsend(at.pair->a.ep.get(), at.a.at(), kLength, at.desc_a(), at.pair->a.peer,
                            7, nullptr);
        });
    };
    for (int i = 0; i < 3; ++i) {
        send_one();
        RVT_EQ(at.pair->b.next().len, kLength);
        at.pair->a.next();
    }
    RVT_EQ(fab::standin::counts().pinned, 2);
    for (int nth = 0; nth < 8; ++nth) {
        fab::standin::fail_copies(nth);  // as in fail_message()
        send_one();
        at.pair->b.next_error();
        at.pair->a.next_error();
        fab::standin::fail_copies(-1);
    }
    send_one();
    RVT_EQ(at.pair->b.next().len, kLength);
    at.pair->a.next();
    cr_assert(at.b.read(0, kLength) == bytes);
}

/// More than the pages of all copies may be: they are given back when the message has gone, and
/// nothing stays pinned. The next one finds its bytes all the same.
Test(hmem, pages_that_are_given_back_are_not_pinned, .timeout = 60) {
    constexpr std::size_t kLength = 272u << 20;
    fab::standin::use(fab::standin::How::kWithoutShare);
    Pair pair(kDevices);
    const OnDevice memory(kLength);
    const auto mr = opened<fid_mr>([&](fid_mr** made) {
        return try_reg(pair.a.open.domain.get(), memory.at(), kLength, FI_HMEM_CUDA, made);
    });
    std::vector<char> arrived(kLength);
    for (const int seed : {1, 2}) {
        const auto bytes = numbered(4096, seed);
        memory.write(0, bytes);
        memory.write(kLength - bytes.size(), bytes);
        pair.post([&] {
            return fi_recv(pair.b.ep.get(), arrived.data(), kLength, nullptr, FI_ADDR_UNSPEC,
                           nullptr);
        });
        pair.post([&] {
            return fi_send(pair.a.ep.get(), memory.at(), kLength, fi_mr_desc(mr.get()), pair.a.peer,
                           nullptr);
        });
        RVT_EQ(pair.b.next().len, kLength);
        pair.a.next();
        cr_assert(std::equal(bytes.begin(), bytes.end(), arrived.begin()));
        cr_assert(std::equal(bytes.rbegin(), bytes.rend(), arrived.rbegin()));
        RVT_EQ(fab::standin::counts().pinned, 0);
    }
}

Test(hmem, memory_that_short_messages_go_through_is_not_pinned) {
    Devices at;
    for (int i = 0; i < 1000; ++i) {
        at.pair->post([&] {
            return fi_trecv(at.pair->b.ep.get(), at.b.at(), 4096, at.desc_b(), FI_ADDR_UNSPEC, 7, 0,
                            nullptr);
        });
        at.pair->post([&] {
            return fi_tsend(at.pair->a.ep.get(), at.a.at(), 4096, at.desc_a(), at.pair->a.peer, 7,
                            nullptr);
        });
        at.pair->b.next();
        at.pair->a.next();
    }
    RVT_EQ(fab::standin::counts().pinned, 0);
}

Test(hmem, a_message_that_cannot_leave_its_device_ends_with_an_error) {
    Devices at;
    fab::standin::fail_copies(0);
    for (const bool is_write : {false, true}) {
        at.pair->post([&] {
            return is_write ? fi_write(at.pair->a.ep.get(), at.a.at(), 5000, at.desc_a(),
                                       at.pair->a.peer, 0, fi_mr_key(at.mr_b.get()), nullptr)
                            : fi_tsend(at.pair->a.ep.get(), at.a.at(), 5000, at.desc_a(),
                                       at.pair->a.peer, 7, nullptr);
        });
        RVT_EQ(at.pair->a.next_error().err, FI_EIO);
    }
    fab::standin::fail_copies(-1);
    cr_assert(at.pair->b.is_quiet());
}

Test(hmem, a_copy_that_fails_at_the_target_ends_the_access_with_an_error) {
    Devices at;
    for (const std::size_t size : {std::size_t{64}, std::size_t{200'000}}) {
        std::vector<char> host(size);
        fab::standin::fail_copies(0);
        at.pair->post([&] {
            return fi_write(at.pair->a.ep.get(), host.data(), size, nullptr, at.pair->a.peer, 0,
                            fi_mr_key(at.mr_b.get()), nullptr);
        });
        RVT_EQ(at.pair->a.next_error().err, FI_EREMOTEIO);
        at.pair->post([&] {
            return fi_read(at.pair->a.ep.get(), host.data(), size, nullptr, at.pair->a.peer, 0,
                           fi_mr_key(at.mr_b.get()), nullptr);
        });
        RVT_EQ(at.pair->a.next_error().err, FI_EREMOTEIO);
        fab::standin::fail_copies(-1);
    }
}

/// A handle is what a peer says: of no kind that there is, or of one that nobody uses here.
Test(hmem, a_handle_that_this_process_has_no_use_for_opens_nothing) {
    rvt::core::DeviceOpener& opener = rvt::hmem::opener();
    RVT_ASSERT(!opener.is_ready());
    for (const std::uint32_t kind : {0U, 1U, 2U, 3U, ~0U}) {
        RVT_EQ(opener.open({.kind = kind}).error(), EOPNOTSUPP);
    }
}

Test(hmem, host_memory_beside_it_is_not_copied) {
    Devices at;
    const unsigned long long before = fab::standin::counts().copied;
    std::vector<char> from(100'000, 'a');
    std::vector<char> to(100'000);
    at.pair->post([&] {
        return fi_trecv(at.pair->b.ep.get(), to.data(), to.size(), nullptr, FI_ADDR_UNSPEC, 7, 0,
                        nullptr);
    });
    at.pair->post([&] {
        return fi_tsend(at.pair->a.ep.get(), from.data(), from.size(), nullptr, at.pair->a.peer, 7,
                        nullptr);
    });
    at.pair->b.next();
    cr_assert(to == from);
    RVT_EQ(fab::standin::counts().copied, before);
}

Test(hmem, options_say_what_is_true) {
    Devices at;
    fid* const ep = &at.pair->a.ep->fid;
    int p2p = -1;
    std::size_t bytes = sizeof p2p;
    RVT_OK(fi_getopt(ep, FI_OPT_ENDPOINT, FI_OPT_FI_HMEM_P2P, &p2p, &bytes));
    RVT_EQ(p2p, static_cast<int>(FI_HMEM_P2P_ENABLED));
    p2p = FI_HMEM_P2P_REQUIRED;
    RVT_EQ(fi_setopt(ep, FI_OPT_ENDPOINT, FI_OPT_FI_HMEM_P2P, &p2p, sizeof p2p), -FI_EOPNOTSUPP);
    p2p = FI_HMEM_P2P_PREFERRED;
    RVT_OK(fi_setopt(ep, FI_OPT_ENDPOINT, FI_OPT_FI_HMEM_P2P, &p2p, sizeof p2p));
    // What peers have been told holds by now.
    p2p = FI_HMEM_P2P_DISABLED;
    RVT_EQ(fi_setopt(ep, FI_OPT_ENDPOINT, FI_OPT_FI_HMEM_P2P, &p2p, sizeof p2p), -FI_EOPBADSTATE);
    RVT_OK(fi_getopt(ep, FI_OPT_ENDPOINT, FI_OPT_FI_HMEM_P2P, &p2p, &bytes));
    RVT_EQ(p2p, static_cast<int>(FI_HMEM_P2P_PREFERRED));
    constexpr int kCudaApiPermitted = 10;
    bool is_permitted = false;
    RVT_EQ(fi_setopt(ep, FI_OPT_ENDPOINT, kCudaApiPermitted, &is_permitted, sizeof is_permitted),
           -FI_EOPNOTSUPP);
    is_permitted = true;
    RVT_OK(fi_setopt(ep, FI_OPT_ENDPOINT, kCudaApiPermitted, &is_permitted, sizeof is_permitted));
    RVT_EQ(fi_getopt(ep, FI_OPT_ENDPOINT, FI_OPT_XPU_TRIGGER, &p2p, &bytes), -FI_EOPNOTSUPP);
}

Test(hmem, regions_are_not_refreshed) {
    Devices at;
    RVT_EQ(fi_mr_refresh(at.mr_b.get(), nullptr, 0, 0), -FI_EOPNOTSUPP);
    send_first_bytes(at, at.a, at.mr_a.get());
}
