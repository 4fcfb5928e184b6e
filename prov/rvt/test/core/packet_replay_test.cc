// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What a responder over packets answers once more: IBTA vol. 1, C9-105 and what follows it.
#include "conform/fixture.h"
#include "protocol/headers.h"

#include <algorithm>
#include <optional>
#include <vector>

#include <sys/mman.h>

using namespace rvt;
using namespace rvt::conform;
using namespace rvt::protocol;

namespace {

constexpr std::uint32_t kMtu = 256;

/// Side B, asked by the test instead of by side A's pair.
struct Asked {
    Pair<Packets> pair{{.dest_rd_atomic = 16}};
    std::uint32_t psn = pair.b().qp->query().rq_psn;
    std::optional<std::uint64_t> answer{};  // the last result of an atomic that has left
    std::vector<Psn> data{};                // the numbers of what has left of READs

    Asked() {
        pair.backend().wire().spares = [this](std::span<const std::byte> packet) {
            const auto header = decode(packet);
            if (header.is_ok() && header.value().header.opcode == Opcode::kRcAtomicAck) {
                answer = header.value().header.original;
            }
            if (header.is_ok() && header.value().header.info().kind == Kind::kReadResponse) {
                data.push_back(header.value().header.psn);
            }
            return false;
        };
    }

    void ask(PacketHeader header) {
        header.dest_qpn = pair.b().qp->qpn();
        std::vector<std::byte> bytes(kMaxHeaderBytes);
        bytes.resize(encode(header, bytes.data()));
        deliver_packet(*pair.b().device, pair.a().device->address(), pair.b().device->address(),
                       bytes);
    }
    /// Adds 1 to the first word of B's memory. Returns: what it says was there.
    std::uint64_t add(std::uint32_t at) {
        answer.reset();
        ask({.opcode = Opcode::kRcFetchAdd,
             .psn = Psn(at),
             .remote_addr = pair.b().at(0),
             .rkey = pair.b().mr->rkey(),
             .swap_add = 1});
        for (int i = 0; i < 100 && !answer; ++i) {
            pair.pass_us(1);
        }
        return answer.value();
    }
    /// Reads so many packets of B's memory, from one of them on.
    void read(Psn at, std::uint32_t first, std::uint32_t packets) {
        ask({.opcode = Opcode::kRcReadRequest,
             .psn = at,
             .remote_addr = pair.b().at(std::size_t{first} * kMtu),
             .rkey = pair.b().mr->rkey(),
             .dma_bytes = packets * kMtu});
    }
    /// Takes in so many numbers, as requests of whose memory nothing is left when it is answered.
    void use_up(std::uint32_t numbers) {
        constexpr std::uint32_t kMost = 1u << 23;  // as many packets as a message has
        constexpr std::size_t kBytes = std::size_t{kMost} * kMtu;
        void* const memory =
            mmap(nullptr, kBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        RVT_ASSERT(memory != MAP_FAILED);
        const iovec all{.iov_base = memory, .iov_len = kBytes};
        Mr* mr =
            reg_mr(*pair.b().pd, {.segments = {&all, 1}, .access = Access::kRemoteRead}).value();
        while (numbers != 0) {
            const std::uint32_t some = std::min(numbers, kMost);
            ask({.opcode = Opcode::kRcReadRequest,
                 .psn = Psn(psn),
                 .remote_addr = reinterpret_cast<std::uint64_t>(memory),
                 .rkey = mr->rkey(),
                 .dma_bytes = some * kMtu});
            psn = (Psn(psn) + some).value();
            numbers -= some;
        }
        RVT_OK(dereg_mr(mr));
        munmap(memory, kBytes);
        pair.pass_us(1);
    }
};

}  // namespace

Test(packet_replay, an_atomic_is_not_taken_for_one_a_round_of_numbers_before) {
    Asked asked;
    asked.pair.b().set_word(0, 100);
    const std::uint32_t at = asked.psn++;
    RVT_EQ(asked.add(at), 100);
    RVT_EQ(asked.add(at), 100);
    asked.use_up((1u << 24) - 1);
    RVT_EQ(asked.psn, at);
    asked.psn = (Psn(at) + 1).value();
    RVT_EQ(asked.add(at), 101);
    RVT_EQ(asked.add(at), 101);
    RVT_EQ(asked.pair.b().word(0), 102);
}

Test(packet_replay, a_read_that_is_asked_for_again_from_its_middle_goes_on_from_there) {
    constexpr std::uint32_t kPackets = kMemoryBytes / kMtu;
    Asked asked;
    const Psn at(asked.psn);
    asked.read(at, 0, kPackets);
    asked.pair.b().device->progress();
    asked.pair.a().device->progress();
    const std::size_t before = asked.data.size();
    RVT_ASSERT(before > 100 && before < kPackets);  // the wire had no more room
    asked.read(at + 100, 100, kPackets - 100);
    for (int i = 0; i < 20; ++i) {
        asked.pair.pass_us(1);
    }
    RVT_EQ(asked.data[before].value(), (at + 100).value());
    RVT_EQ(asked.data.size(), before + kPackets - 100);
}
