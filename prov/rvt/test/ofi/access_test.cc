// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// fi_rma(3) and fi_atomic(3) between two endpoints, in every way that memory can be named.
#include <sys/mman.h>

#include <numeric>
#include <span>
#include <vector>

#include "ofi/pair.h"

using namespace rvt::test;

namespace {

constexpr std::uint64_t kAll = FI_REMOTE_READ | FI_REMOTE_WRITE;
constexpr int kModes[] = {0, FI_MR_VIRT_ADDR, FI_MR_PROV_KEY, FI_MR_VIRT_ADDR | FI_MR_PROV_KEY, 1,
                          2};

constexpr std::size_t kPage = 4096;

/// Pages of their own, registered by the second end.
struct Pages {
    explicit Pages(Pair& pair, std::size_t count = 4)
        : bytes(count * kPage), mr(pair.b.reg(memory(), bytes, kAll, 1)) {}
    ~Pages() { munmap(memory_, bytes); }
    Pages(const Pages&) = delete;
    Pages& operator=(const Pages&) = delete;

    char* memory() {
        if (memory_ == nullptr) {
            memory_ =
                mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        }
        return static_cast<char*>(memory_);
    }

    /// As if unmapped, but nothing else comes to lie there.
    void remove() {
        memory_ = mmap(memory_, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    }

    void* memory_ = nullptr;
    const std::size_t bytes;
    const Owned<fid_mr> mr;
};

/// An operation on them ends in the error of a key that does not allow it.
template <class Post>
void expect_no_access(Pair& pair, Post post) {
    pair.post(post);
    RVT_EQ(pair.a.next_error().err, FI_EACCES);
}

ssize_t add_to(Pair& pair, std::uint64_t& operand, std::uint64_t at = 0) {
    return fi_atomic(pair.a.ep.get(), &operand, 1, nullptr, pair.a.peer, at, 1, FI_UINT64, FI_SUM,
                     nullptr);
}

constexpr std::size_t kLarge = std::size_t{16} << 20;  // more than there is room for in a ring

/// A write from one buffer to several pieces, or a read into it.
template <class Access>
ssize_t access_pieces(Access access, Pair& pair, std::span<const fi_rma_iov> pieces,
                      std::uint64_t flags = 0, std::uint64_t data = 0) {
    static std::vector<char> own(kLarge + kPage, 'x');
    const iovec local{own.data(), std::accumulate(pieces.begin(), pieces.end(), std::size_t{0},
                                                  [](std::size_t sum, const fi_rma_iov& piece) {
                                                      return sum + piece.len;
                                                  })};
    const fi_msg_rma msg{&local,        nullptr,       1,          pair.a.peer,
                         pieces.data(), pieces.size(), own.data(), data};
    return access(pair.a.ep.get(), &msg, flags);
}
ssize_t write_pieces(Pair& pair, std::span<const fi_rma_iov> pieces, std::uint64_t flags = 0,
                     std::uint64_t data = 0) {
    return access_pieces(fi_writemsg, pair, pieces, flags, data);
}
ssize_t read_pieces(Pair& pair, std::span<const fi_rma_iov> pieces) {
    return access_pieces(fi_readmsg, pair, pieces);
}

/// Small, of some packets, and large ones.
constexpr std::size_t kSizes[] = {8, 3000, 4 * kPage};

}  // namespace

Test(access, memory_is_written_and_read_in_every_mode) {
    for (const int mode : kModes) {
        EndOptions options;
        options.mr_mode = mode;
        Pair pair(options);
        char target[32] = "................";
        const auto mr = pair.b.reg(target, sizeof target, kAll, 0x123456789abcdef0);
        const std::uint64_t key = fi_mr_key(mr.get());
        const std::uint64_t addr = pair.b.address_of(target);
        pair.post([&] {
            return fi_write(pair.a.ep.get(), "written", 8, nullptr, pair.a.peer, addr + 4, key,
                            &pair);
        });
        pair.until([&] { return fi_cntr_read(pair.a.cntrs[3].get()) == 1; });
        const fi_cq_tagged_entry written = pair.a.next();
        RVT_EQ(written.flags, FI_RMA | FI_WRITE);
        char in[16] = "";
        pair.post(
            [&] { return fi_read(pair.a.ep.get(), in, 12, nullptr, pair.a.peer, addr, key, in); });
        pair.until([&] { return fi_cntr_read(pair.a.cntrs[2].get()) == 1; });
        RVT_EQ(pair.a.next().flags, FI_RMA | FI_READ);
        cr_assert(memcmp(in, "....written", 12) == 0, "mode %d", mode);
    }
}

Test(access, several_buffers_meet_several_remote_pieces) {
    Pair pair;
    char one[16] = "";
    char two[16] = "";
    const auto mr_one = pair.b.reg(one, sizeof one, kAll, 1);
    const auto mr_two = pair.b.reg(two, sizeof two, kAll, 2);
    const iovec parts[] = {{const_cast<char*>("abc"), 3}, {const_cast<char*>("defgh"), 6}};
    const fi_rma_iov remote[] = {{0, 5, 1}, {2, 4, 2}};
    const fi_msg_rma msg{parts, nullptr, 2, pair.a.peer, remote, 2, &pair, 0};
    pair.post([&] { return fi_writemsg(pair.a.ep.get(), &msg, FI_DELIVERY_COMPLETE); });
    pair.until([&] { return fi_cntr_read(pair.a.cntrs[3].get()) == 1; });
    RVT_ASSERT(memcmp(one, "abcde", 5) == 0);
    RVT_ASSERT(memcmp(two + 2, "fgh", 4) == 0);
}

Test(access, a_region_of_several_buffers_is_one_range) {
    Pair pair;
    char first[8] = "";
    char gap[64];
    char second[8] = "";
    memset(gap, 1, sizeof gap);
    const iovec buffers[] = {{second, 4}, {first, 4}};
    const auto mr = opened<fid_mr>([&](fid_mr** made) {
        return fi_mr_regv(pair.b.open.domain.get(), buffers, 2, kAll, 0, 9, 0, made, nullptr);
    });
    pair.post([&] {
        return fi_write(pair.a.ep.get(), "01234567", 8, nullptr, pair.a.peer, 0, 9, nullptr);
    });
    pair.until([&] { return fi_cntr_read(pair.a.cntrs[3].get()) == 1; });
    pair.until([&] { return memcmp(first, "4567", 4) == 0 && memcmp(second, "0123", 4) == 0; });
}

Test(access, data_comes_with_a_write) {
    Pair pair;
    char target[8] = "";
    const auto mr = pair.b.reg(target, sizeof target, kAll, 1);
    pair.post([&] {
        return fi_writedata(pair.a.ep.get(), "abc", 4, nullptr, 0x77, pair.a.peer, 0, 1, nullptr);
    });
    const fi_cq_tagged_entry entry = pair.b.next();
    RVT_EQ(entry.flags & (FI_REMOTE_CQ_DATA | FI_REMOTE_WRITE | FI_RMA),
           FI_REMOTE_CQ_DATA | FI_REMOTE_WRITE | FI_RMA);
    RVT_EQ(entry.data, 0x77);
    RVT_ASSERT(strcmp(target, "abc") == 0);
}

/// Small ones come by the ring; large ones the writer copies by itself, and says so afterwards.
Test(access, data_of_a_write_comes_with_its_source) {
    EndOptions options;
    options.caps = FI_RMA | FI_MSG | FI_SOURCE;
    Pair pair(options);
    constexpr std::size_t kLarge = std::size_t{4} << 20;
    std::vector<char> out(kLarge, 'x');
    std::vector<char> target(kLarge);
    const auto mr = pair.b.reg(target.data(), target.size(), kAll, 1);
    for (const std::size_t bytes : {std::size_t{4}, std::size_t{3000}, kLarge, kLarge}) {
        pair.post([&] {
            return fi_writedata(pair.a.ep.get(), out.data(), bytes, nullptr, 7, pair.a.peer, 0, 1,
                                nullptr);
        });
        fi_cq_tagged_entry entry{};
        fi_addr_t source = FI_ADDR_NOTAVAIL;
        pair.until([&] {
            return entry.len != 0 || fi_cq_readfrom(pair.b.cq.get(), &entry, 1, &source) == 1;
        });
        RVT_EQ(entry.len, bytes);
        RVT_EQ(source, pair.b.peer);
        pair.a.next();
    }
}

Test(access, what_is_not_granted_ends_in_an_error) {
    Pair pair;
    char target[16] = "";
    const auto mr = pair.b.reg(target, sizeof target, FI_REMOTE_READ, 1);
    char in[32];
    pair.post([&] { return fi_write(pair.a.ep.get(), in, 8, nullptr, pair.a.peer, 0, 1, in); });
    RVT_EQ(pair.a.next_error().err, FI_EACCES);
    pair.post([&] { return fi_read(pair.a.ep.get(), in, 8, nullptr, pair.a.peer, 12, 1, in); });
    RVT_EQ(pair.a.next_error().err, FI_EACCES);
    pair.post([&] { return fi_read(pair.a.ep.get(), in, 8, nullptr, pair.a.peer, 0, 99, in); });
    RVT_EQ(pair.a.next_error().err, FI_EACCES);
    RVT_ASSERT(strcmp(target, "") == 0);
}

Test(access, the_key_of_a_closed_region_opens_nothing) {
    Pair pair;
    char target[16] = "";
    auto mr = pair.b.reg(target, sizeof target, kAll, 1);
    pair.post(
        [&] { return fi_write(pair.a.ep.get(), "a", 2, nullptr, pair.a.peer, 0, 1, nullptr); });
    pair.until([&] { return fi_cntr_read(pair.a.cntrs[3].get()) == 1; });
    pair.a.next();
    mr.reset();
    pair.post(
        [&] { return fi_write(pair.a.ep.get(), "b", 2, nullptr, pair.a.peer, 0, 1, nullptr); });
    RVT_EQ(pair.a.next_error().err, FI_EACCES);
}

Test(access, the_target_counts_what_peers_do_when_it_asked_for_it) {
    EndOptions options;
    options.caps = FI_RMA | FI_RMA_EVENT | FI_ATOMIC | FI_MSG;
    Pair pair(options);
    std::uint64_t target[2] = {};
    const auto cntr = pair.b.open.cntr();
    auto mr = pair.b.reg(target, sizeof target, kAll, 1);
    RVT_OK(fi_mr_bind(mr.get(), &cntr->fid, FI_REMOTE_WRITE));
    std::uint64_t out = 5;
    pair.post(
        [&] { return fi_write(pair.a.ep.get(), &out, 8, nullptr, pair.a.peer, 0, 1, nullptr); });
    pair.until([&] { return fi_cntr_read(pair.b.cntrs[5].get()) == 1; });
    RVT_EQ(fi_cntr_read(cntr.get()), 1);
    pair.post(
        [&] { return fi_read(pair.a.ep.get(), &out, 8, nullptr, pair.a.peer, 0, 1, nullptr); });
    pair.until([&] { return fi_cntr_read(pair.b.cntrs[4].get()) == 1; });
    mr.reset();
}

/// By the ring, and by the writer itself, which knows the keys by then.
Test(access, each_region_that_a_write_changes_counts_it_once) {
    EndOptions options;
    options.caps = FI_RMA | FI_RMA_EVENT;
    Pair pair(options);
    char memory[2][8] = {};
    std::vector<Owned<fid_cntr>> cntrs;
    std::vector<Owned<fid_mr>> mrs;
    for (const std::uint64_t i : {0, 1}) {
        cntrs.push_back(pair.b.open.cntr());
        mrs.push_back(pair.b.reg(memory[i], sizeof memory[i], kAll, i));
        RVT_OK(fi_mr_bind(mrs[i].get(), &cntrs[i]->fid, FI_REMOTE_WRITE));
    }
    const fi_rma_iov pieces[] = {{0, 4, 0}, {0, 4, 1}, {4, 4, 1}};
    for (std::uint64_t times = 1; times <= 2; ++times) {
        pair.post([&] { return write_pieces(pair, pieces); });
        pair.a.next();
        pair.until([&] { return fi_cntr_read(pair.b.cntrs[5].get()) == times; });
        RVT_EQ(fi_cntr_read(cntrs[0].get()), times);
        RVT_EQ(fi_cntr_read(cntrs[1].get()), times);
    }
}

Test(access, a_write_of_which_a_piece_is_refused_brings_no_data) {
    EndOptions options;
    options.caps = FI_RMA | FI_RMA_EVENT;
    Pair pair(options);
    char target[8] = "";
    const auto mr = pair.b.reg(target, sizeof target, kAll, 2);
    const fi_rma_iov pieces[] = {{0, 4, 1}, {0, 4, 2}};
    pair.post([&] { return write_pieces(pair, pieces, FI_REMOTE_CQ_DATA, 7); });
    RVT_EQ(pair.a.next_error().err, FI_EACCES);
    pair.post([&] { return write_pieces(pair, {pieces + 1, 1}, FI_REMOTE_CQ_DATA, 8); });
    RVT_EQ(pair.b.next().data, 8);
    RVT_EQ(fi_cntr_read(pair.b.cntrs[5].get()), 1);
}

/// The read is over when its data has left, which is while the write behind it arrives.
Test(access, a_write_of_which_a_piece_is_refused_brings_no_data_though_a_read_ends_meanwhile) {
    EndOptions options;
    options.caps = FI_RMA | FI_RMA_EVENT;
    Pair pair(options);
    std::vector<char> source(kLarge / 4);
    std::vector<char> target(kLarge);
    const auto from = pair.b.reg(source.data(), source.size(), kAll, 2);
    const auto to = pair.b.reg(target.data(), target.size(), kAll, 3);
    std::vector<char> in(source.size());
    pair.post([&] {
        return fi_read(pair.a.ep.get(), in.data(), in.size(), nullptr, pair.a.peer, 0, 2, nullptr);
    });
    const fi_rma_iov pieces[] = {{0, 4, 1}, {0, kLarge, 3}};
    pair.post([&] { return write_pieces(pair, pieces, FI_REMOTE_CQ_DATA, 7); });
    pair.until([&] {
        return fi_cntr_read(pair.a.cntrs[2].get()) == 1 &&
               fi_cntr_readerr(pair.a.cntrs[3].get()) == 1;
    });
    for (int i = 0; i < 2; ++i) {  // in any order
        fi_cq_tagged_entry entry{};
        if (fi_cq_read(pair.a.cq.get(), &entry, 1) == 1) {
            RVT_EQ(entry.flags, FI_RMA | FI_READ);
        } else {
            RVT_EQ(pair.a.next_error().err, FI_EACCES);
        }
    }
    RVT_ASSERT(pair.b.is_quiet());
    RVT_EQ(fi_cntr_read(pair.b.cntrs[4].get()), 1);
    RVT_EQ(fi_cntr_read(pair.b.cntrs[5].get()), 0);
}

/// The write is executed while the data of the other piece waits for room.
Test(access, a_read_of_which_a_piece_is_refused_is_not_counted_though_a_write_ends_meanwhile) {
    EndOptions options;
    options.caps = FI_RMA | FI_RMA_EVENT;
    Pair pair(options);
    std::vector<char> source(kLarge);
    const auto mr = pair.b.reg(source.data(), source.size(), kAll, 2);
    const fi_rma_iov pieces[] = {{0, 4, 1}, {0, kLarge, 2}};
    pair.post([&] { return read_pieces(pair, pieces); });
    pair.post(
        [&] { return fi_write(pair.a.ep.get(), "w", 2, nullptr, pair.a.peer, 0, 2, nullptr); });
    pair.until([&] { return fi_cntr_read(pair.b.cntrs[5].get()) == 1; });
    RVT_EQ(pair.a.next().flags, FI_RMA | FI_WRITE);
    RVT_EQ(pair.a.next_error().err, FI_EACCES);
    RVT_EQ(fi_cntr_read(pair.b.cntrs[4].get()), 0);
}

/// The region of its first piece is closed when the second one has been asked for.
Test(access, a_read_of_which_a_piece_fails_late_is_not_counted) {
    EndOptions options;
    options.caps = FI_RMA | FI_RMA_EVENT;
    Pair pair(options);
    std::vector<char> source(kLarge);
    char other[8] = "";
    auto mr = pair.b.reg(source.data(), source.size(), kAll, 1);
    const auto rest = pair.b.reg(other, sizeof other, kAll, 2);
    const fi_rma_iov pieces[] = {{0, kLarge, 1}, {0, sizeof other, 2}};
    pair.post([&] { return read_pieces(pair, pieces); });
    pair.a.drive_other();
    mr.reset();
    RVT_EQ(pair.a.next_error().err, FI_EACCES);
    RVT_EQ(fi_cntr_read(pair.b.cntrs[4].get()), 0);
    const fi_rma_iov both[] = {pieces[1], pieces[1]};
    pair.post([&] { return read_pieces(pair, both); });
    pair.a.next();
    RVT_EQ(fi_cntr_read(pair.b.cntrs[4].get()), 1);
}

Test(access, atomics_of_each_kind_do_what_they_say) {
    Pair pair;
    std::uint64_t target[2] = {10, 20};
    const auto mr = pair.b.reg(target, sizeof target, kAll, 1);
    fid_ep* const a = pair.a.ep.get();
    std::uint64_t operand[2] = {1, 2};
    std::uint64_t compare[2] = {11, 0};
    std::uint64_t result[2] = {};
    pair.post([&] {
        return fi_atomic(a, operand, 2, nullptr, pair.a.peer, 0, 1, FI_UINT64, FI_SUM, nullptr);
    });
    pair.post([&] {
        return fi_fetch_atomic(a, operand, 2, nullptr, result, nullptr, pair.a.peer, 0, 1,
                               FI_UINT64, FI_PROD, result);
    });
    pair.until([&] {
        return fi_cntr_read(pair.a.cntrs[3].get()) == 1 && fi_cntr_read(pair.a.cntrs[2].get()) == 1;
    });
    RVT_EQ(result[0], 11);
    RVT_EQ(result[1], 22);
    pair.post([&] {
        return fi_compare_atomic(a, operand, 2, nullptr, compare, nullptr, result, nullptr,
                                 pair.a.peer, 0, 1, FI_UINT64, FI_CSWAP, result);
    });
    pair.until([&] { return fi_cntr_read(pair.a.cntrs[2].get()) == 2; });
    RVT_EQ(result[0], 11);
    RVT_EQ(result[1], 44);
    RVT_EQ(target[0], 1);
    RVT_EQ(target[1], 44);
    // A read brings no operand.
    pair.post([&] {
        return fi_fetch_atomic(a, nullptr, 2, nullptr, result, nullptr, pair.a.peer, 0, 1,
                               FI_UINT64, FI_ATOMIC_READ, result);
    });
    pair.until([&] { return fi_cntr_read(pair.a.cntrs[2].get()) == 3; });
    RVT_EQ(result[0], 1);
    RVT_EQ(pair.a.next().flags, FI_ATOMIC | FI_WRITE);
}

Test(access, atomics_reach_what_lies_in_one_of_several_buffers) {
    Pair pair;
    std::array<std::uint64_t, 8> first{};
    std::array<std::uint64_t, 8> second{};
    const iovec buffers[] = {{second.data(), 60}, {first.data(), 64}};
    const auto mr = opened<fid_mr>([&](fid_mr** made) {
        return fi_mr_regv(pair.b.open.domain.get(), buffers, 2, kAll, 0, 1, 0, made, nullptr);
    });
    std::uint64_t one = 1;
    for (const std::uint64_t at : {8, 60, 116}) {
        pair.post([&] { return add_to(pair, one, at); });
        pair.a.next();
    }
    RVT_EQ(second[1], 1);
    RVT_EQ(first[0], 1);
    RVT_EQ(first[7], 1);
    expect_no_access(pair, [&] { return add_to(pair, one, 56); });  // in both
}

Test(access, an_atomic_goes_from_one_buffer_of_a_region_into_the_next) {
    Pair pair;
    std::array<std::uint64_t, 20> memory{};
    std::uint64_t* const first = &memory[0];
    std::uint64_t* const second = &memory[10];
    const iovec buffers[] = {{second, 64}, {first, 64}};
    const auto mr = opened<fid_mr>([&](fid_mr** made) {
        return fi_mr_regv(pair.b.open.domain.get(), buffers, 2, kAll, 0, 1, 0, made, nullptr);
    });
    fid_ep* const a = pair.a.ep.get();
    const std::uint64_t operand[] = {1, 2};
    const std::uint64_t compare[] = {1, 2};
    const std::uint64_t swap[] = {5, 6};
    std::uint64_t result[2] = {};
    pair.post([&] {
        return fi_atomic(a, operand, 2, nullptr, pair.a.peer, 56, 1, FI_UINT64, FI_SUM, nullptr);
    });
    pair.a.next();
    RVT_EQ(second[7], 1);
    RVT_EQ(first[0], 2);
    pair.post([&] {
        return fi_compare_atomic(a, swap, 2, nullptr, compare, nullptr, result, nullptr,
                                 pair.a.peer, 56, 1, FI_UINT64, FI_CSWAP, nullptr);
    });
    pair.a.next();
    RVT_EQ(result[1], 2);
    RVT_EQ(second[7], 5);
    RVT_EQ(first[0], 6);
    pair.post([&] {
        return fi_fetch_atomic(a, nullptr, 2, nullptr, result, nullptr, pair.a.peer, 56, 1,
                               FI_UINT64, FI_ATOMIC_READ, nullptr);
    });
    pair.a.next();
    RVT_EQ(result[0], 5);
    RVT_EQ(result[1], 6);
}

Test(access, what_brings_something_back_counts_as_a_remote_read) {
    EndOptions options;
    options.caps = FI_RMA | FI_ATOMIC | FI_RMA_EVENT;
    Pair pair(options);
    std::uint64_t target = 1;
    const auto written = pair.b.open.cntr();
    const auto mr = pair.b.reg(&target, sizeof target, kAll, 1);
    RVT_OK(fi_mr_bind(mr.get(), &written->fid, FI_REMOTE_WRITE));
    std::uint64_t operand = 2;
    std::uint64_t before = 0;
    std::uint64_t reads = 0;
    std::uint64_t writes = 0;
    std::uint64_t changes = 0;
    const auto expect_counts = [&] {
        pair.until([&] {
            return fi_cntr_read(pair.b.cntrs[4].get()) == reads &&
                   fi_cntr_read(pair.b.cntrs[5].get()) == writes &&
                   fi_cntr_read(written.get()) == changes;
        });
    };
    pair.post([&] { return add_to(pair, operand); });
    pair.a.next();
    ++writes, ++changes;
    expect_counts();
    pair.post([&] {
        return fi_fetch_atomic(pair.a.ep.get(), &operand, 1, nullptr, &before, nullptr, pair.a.peer,
                               0, 1, FI_UINT64, FI_SUM, nullptr);
    });
    pair.a.next();
    ++reads, ++changes;
    expect_counts();
    pair.post([&] {
        return fi_compare_atomic(pair.a.ep.get(), &operand, 1, nullptr, &target, nullptr, &before,
                                 nullptr, pair.a.peer, 0, 1, FI_UINT64, FI_CSWAP, nullptr);
    });
    pair.a.next();
    ++reads, ++changes;
    expect_counts();
    pair.post([&] {
        return fi_fetch_atomic(pair.a.ep.get(), nullptr, 1, nullptr, &before, nullptr, pair.a.peer,
                               0, 1, FI_UINT64, FI_ATOMIC_READ, nullptr);
    });
    pair.a.next();
    ++reads;
    expect_counts();
}

Test(access, who_reads_a_regions_counter_makes_progress) {
    EndOptions options;
    options.caps = FI_RMA | FI_RMA_EVENT;
    // Two domains: nothing but the counter's own reads drives the target.
    Pair pair(options);
    pair.a.other = nullptr;
    std::uint64_t target = 0;
    const auto written = pair.b.open.cntr();
    const auto foreign = pair.a.open.cntr();
    const auto mr = pair.b.reg(&target, sizeof target, kAll, 1);
    RVT_EQ(fi_mr_bind(mr.get(), &foreign->fid, FI_REMOTE_WRITE), -FI_EDOMAIN);
    RVT_OK(fi_mr_bind(mr.get(), &written->fid, FI_REMOTE_WRITE));
    const std::uint64_t value = 7;
    pair.post([&] {
        return fi_write(pair.a.ep.get(), &value, sizeof value, nullptr, pair.a.peer, 0, 1, nullptr);
    });
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (fi_cntr_read(written.get()) == 0 && std::chrono::steady_clock::now() < end) {
        fi_cntr_read(pair.a.cntrs[3].get());
    }
    RVT_EQ(fi_cntr_read(written.get()), 1);
    RVT_EQ(target, 7);
    // An endpoint that is closed before the counter leaves it.
    pair.b.ep.reset();
    RVT_EQ(fi_cntr_read(written.get()), 1);
}

Test(access, an_alias_does_atomics_too) {
    Pair pair;
    std::uint64_t word = 5;
    const auto mr = pair.b.reg(&word, sizeof word, kAll, 1);
    fid_ep* made = nullptr;
    RVT_OK(fi_ep_alias(pair.a.ep.get(), &made, FI_TRANSMIT | FI_COMPLETION));
    const Owned<fid_ep> alias(made);
    const std::uint64_t two = 2;
    const std::uint64_t ten = 10;
    std::uint64_t before = 0;
    pair.post([&] {
        return fi_atomic(alias.get(), &two, 1, nullptr, pair.a.peer, 0, 1, FI_UINT64, FI_SUM,
                         &pair);
    });
    pair.until([&] { return fi_cntr_read(pair.a.cntrs[3].get()) == 1; });
    pair.post([&] {
        return fi_fetch_atomic(alias.get(), &two, 1, nullptr, &before, nullptr, pair.a.peer, 0, 1,
                               FI_UINT64, FI_SUM, &pair);
    });
    pair.until([&] { return fi_cntr_read(pair.a.cntrs[2].get()) == 1; });
    RVT_EQ(before, 7);
    const std::uint64_t nine = 9;
    pair.post([&] {
        return fi_compare_atomic(alias.get(), &ten, 1, nullptr, &nine, nullptr, &before, nullptr,
                                 pair.a.peer, 0, 1, FI_UINT64, FI_CSWAP, &pair);
    });
    pair.until([&] { return fi_cntr_read(pair.a.cntrs[2].get()) == 2; });
    RVT_EQ(before, 9);
    RVT_EQ(word, 10);
    pair.post([&] {
        return fi_fetch_atomic(alias.get(), nullptr, 1, nullptr, &before, nullptr, pair.a.peer, 0,
                               1, FI_UINT64, FI_ATOMIC_READ, &pair);
    });
    pair.until([&] { return fi_cntr_read(pair.a.cntrs[2].get()) == 3; });
    RVT_EQ(before, 10);
    std::size_t count = 0;
    RVT_OK(fi_atomicvalid(alias.get(), FI_UINT64, FI_SUM, &count));
}

Test(access, atomics_that_do_not_exist_are_refused) {
    Pair pair;
    std::uint64_t operand = 0;
    std::size_t count = 0;
    fid_ep* const a = pair.a.ep.get();
    RVT_EQ(fi_atomic(a, &operand, 1, nullptr, pair.a.peer, 0, 1, FI_UINT64, FI_CSWAP, nullptr),
           -FI_EOPNOTSUPP);
    RVT_EQ(fi_atomicvalid(a, FI_DOUBLE, FI_BXOR, &count), -FI_EOPNOTSUPP);
    RVT_OK(fi_compare_atomicvalid(a, FI_INT16, FI_MSWAP, &count));
    RVT_EQ(count, 2048);
    RVT_OK(fi_fetch_atomicvalid(a, FI_LONG_DOUBLE_COMPLEX, FI_SUM, &count));
    const std::vector<std::uint64_t> many(1024);
    RVT_ASSERT(fi_atomic(a, many.data(), many.size(), nullptr, pair.a.peer, 0, 1, FI_UINT64, FI_SUM,
                         nullptr) < 0);
}

// ---- memory that is not what it was when it was registered ----

Test(access, memory_that_is_gone_is_out_of_reach_and_nobody_dies) {
    Pair pair;
    Pages pages(pair);
    char other[16] = "";
    const auto mr = pair.b.reg(other, sizeof other, kAll, 2);
    pages.remove();
    std::vector<char> local(pages.bytes);
    for (const std::size_t bytes : kSizes) {
        expect_no_access(pair, [&] {
            return fi_write(pair.a.ep.get(), local.data(), bytes, nullptr, pair.a.peer, 0, 1,
                            nullptr);
        });
        expect_no_access(pair, [&] {
            return fi_read(pair.a.ep.get(), local.data(), bytes, nullptr, pair.a.peer, 0, 1,
                           nullptr);
        });
    }
    std::uint64_t one = 1;
    expect_no_access(pair, [&] { return add_to(pair, one); });
    pair.post([&] {
        return fi_write(pair.a.ep.get(), "as ever", 8, nullptr, pair.a.peer, 0, 2, nullptr);
    });
    pair.a.next();
    pair.until([&] { return strcmp(other, "as ever") == 0; });
}

Test(access, a_read_of_memory_that_is_gone_is_not_counted) {
    Pair pair;
    Pages pages(pair);
    pages.remove();
    std::vector<char> local(pages.bytes);
    for (const std::size_t bytes : kSizes) {
        expect_no_access(pair, [&] {
            return fi_read(pair.a.ep.get(), local.data(), bytes, nullptr, pair.a.peer, 0, 1,
                           nullptr);
        });
    }
    RVT_EQ(fi_cntr_read(pair.b.cntrs[4].get()), 0);
}

Test(access, memory_that_may_not_be_written_is_read) {
    Pair pair;
    Pages pages(pair);
    memset(pages.memory(), 'x', pages.bytes);
    RVT_OK(mprotect(pages.memory(), pages.bytes, PROT_READ));
    std::vector<char> local(pages.bytes);
    for (const std::size_t bytes : kSizes) {
        pair.post([&] {
            return fi_read(pair.a.ep.get(), local.data(), bytes, nullptr, pair.a.peer, 0, 1,
                           nullptr);
        });
        pair.a.next();
        RVT_ASSERT(memcmp(local.data(), pages.memory(), bytes) == 0);
        expect_no_access(pair, [&] {
            return fi_write(pair.a.ep.get(), local.data(), bytes, nullptr, pair.a.peer, 0, 1,
                            nullptr);
        });
    }
    std::uint64_t one = 1;
    expect_no_access(pair, [&] { return add_to(pair, one); });
}

Test(access, huge_pages_are_memory_as_any_other) {
    constexpr std::size_t kHuge = std::size_t{2} << 20;
    Pair pair;
    void* memory = mmap(nullptr, 2 * kHuge, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
    if (memory == MAP_FAILED) {  // none are set aside: those that the kernel makes by itself
        memory =
            mmap(nullptr, 2 * kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        madvise(memory, 2 * kHuge, MADV_HUGEPAGE);
    }
    const auto mr = pair.b.reg(memory, 2 * kHuge, kAll, 1);
    std::vector<char> out(kHuge);
    for (std::size_t i = 0; i < out.size(); ++i) {
        out[i] = static_cast<char>(i * 11 + i / 4093);
    }
    const std::size_t at = kHuge - 12345;  // into both
    pair.post([&] {
        return fi_write(pair.a.ep.get(), out.data(), out.size(), nullptr, pair.a.peer, at, 1,
                        nullptr);
    });
    pair.a.next();
    std::vector<char> in(kHuge);
    pair.post([&] {
        return fi_read(pair.a.ep.get(), in.data(), in.size(), nullptr, pair.a.peer, at, 1, nullptr);
    });
    pair.a.next();
    RVT_ASSERT(in == out);
    RVT_ASSERT(memcmp(static_cast<char*>(memory) + at, out.data(), out.size()) == 0);
}

Test(access, a_region_of_as_many_buffers_as_are_offered_is_one_range) {
    Pair pair;
    const std::size_t count = pair.b.open.info->domain_attr->mr_iov_limit;
    RVT_ASSERT(count >= 128);
    std::vector<char> memory(count * 100);
    std::vector<iovec> buffers;
    for (std::size_t i = count; i-- > 0;) {
        buffers.push_back({memory.data() + i * 100, 61});
    }
    const auto mr = opened<fid_mr>([&](fid_mr** made) {
        return fi_mr_regv(pair.b.open.domain.get(), buffers.data(), count, kAll, 0, 9, 0, made,
                          nullptr);
    });
    std::vector<char> out(count * 61);
    for (std::size_t i = 0; i < out.size(); ++i) {
        out[i] = static_cast<char>(i % 251);
    }
    pair.post([&] {
        return fi_write(pair.a.ep.get(), out.data(), out.size(), nullptr, pair.a.peer, 0, 9,
                        nullptr);
    });
    pair.a.next();
    std::vector<char> in(out.size());
    pair.post([&] {
        return fi_read(pair.a.ep.get(), in.data(), in.size(), nullptr, pair.a.peer, 0, 9, nullptr);
    });
    pair.a.next();
    RVT_ASSERT(in == out);
    for (std::size_t i = 0; i < count; ++i) {
        RVT_ASSERT(memcmp(buffers[i].iov_base, out.data() + i * 61, 61) == 0);
    }
}
