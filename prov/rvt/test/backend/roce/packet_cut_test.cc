// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Finding the packets of a message that the kernel has joined, by their ICRCs.
#include "backend/roce/packet_cut.h"

#include "common/check.h"
#include "protocol/headers.h"

#include <algorithm>
#include <array>
#include <vector>

using namespace rvt::protocol;
using rvt::roce::PacketCut;

namespace {

constexpr std::size_t kFullPayload = 1408;
constexpr std::size_t kOverhead = kBthBytes + kIcrcBytes;
constexpr std::size_t kFull = kFullPayload + kOverhead;

using Message = std::vector<std::byte>;

IpPath path() {
    IpPath path{.source_port = 50001, .dest_port = 50002};
    path.source = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 2, 3};
    path.dest = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 2, 200};
    return path;
}

/// Packets with payload of these sizes as one message.
/// @param identification  Of the first one.
Message joined(const std::vector<std::size_t>& payloads, std::uint16_t identification = 0) {
    Message message;
    for (const std::size_t bytes : payloads) {
        std::array<std::byte, kMaxHeaderBytes> headers;
        const std::size_t header_bytes =
            encode({.dest_qpn = 0x123, .psn = Psn(identification)}, headers.data());
        Message payload(bytes, std::byte{0x5a});
        const iovec piece{.iov_base = payload.data(), .iov_len = payload.size()};
        const std::size_t before = message.size();
        message.resize(before + header_bytes + bytes + kIcrcBytes);
        write_packet(message.data() + before, path(),
                     {.headers = {headers.data(), header_bytes}, .payload = {&piece, 1}},
                     identification++);
    }
    return message;
}

}  // namespace

Test(roce_cut, a_packet_alone_is_one) {
    PacketCut cut;
    for (const std::size_t bytes : {0u, 8u, 256u, 1408u, 8u, 4096u}) {
        RVT_EQ(cut.first_packet(path(), joined({bytes})), bytes + kOverhead);
    }
}

Test(roce_cut, packets_of_one_size_are_found_whatever_came_before) {
    PacketCut cut;
    const std::vector<std::vector<std::size_t>> messages = {
        {kFullPayload, kFullPayload, kFullPayload},
        {kFullPayload, 4},
        {24, 0},
        {kFullPayload, 800},
        {8},
        {kFullPayload, kFullPayload},
        {256, 256, 256, 256},
        {1000},
    };
    for (int turn = 0; turn < 3; ++turn) {
        for (const auto& payloads : messages) {
            RVT_EQ(cut.first_packet(path(), joined(payloads)), payloads[0] + kOverhead);
        }
    }
}

Test(roce_cut, as_many_packets_are_found_as_the_kernel_joins) {
    PacketCut cut;
    RVT_EQ(cut.first_packet(path(), joined(std::vector<std::size_t>(64, 0))), kOverhead);
}

Test(roce_cut, what_has_no_whole_packet_at_its_beginning_has_none) {
    PacketCut cut;
    Message message = joined({kFullPayload, kFullPayload, 100});
    message[kFull / 2] ^= std::byte{1};
    RVT_EQ(cut.first_packet(path(), message), 0u);
    RVT_EQ(cut.first_packet(path(), Message(kOverhead - 1)), 0u);
    RVT_EQ(cut.first_packet(path(), {}), 0u);
}

// What its sender has joined the network may have cut, and the kernel of the receiver joined in
// parts.
Test(roce_cut, a_part_of_what_was_joined_is_found) {
    PacketCut cut;
    const std::vector<std::size_t> payloads = {kFullPayload, kFullPayload, kFullPayload, 100};
    for (const std::uint16_t first : std::array<std::uint16_t, 3>{20, 1, 60}) {
        RVT_EQ(cut.first_packet(path(), joined(payloads, first)), kFull);
        RVT_EQ(cut.first_packet(path(), joined({kFullPayload, 100}, first)), kFull);
        RVT_EQ(cut.first_packet(path(), joined({8, 0}, first)), 8 + kOverhead);
    }
    RVT_EQ(cut.first_packet(path(), joined(payloads, 63)), 0u);  // no device sends as many
}

// A socket cannot tell it from a packet that is not whole: who has it asks the kernel next time.
Test(roce_cut, a_packet_that_was_not_the_first_is_none) {
    const Message message = joined({8, 8});
    PacketCut cut;
    RVT_EQ(cut.first_packet(path(), std::span(message).subspan(8 + kOverhead)), 0u);
}

// Each place looks like the beginning of a packet.
Test(roce_cut, a_message_made_to_be_searched_for_long_is_given_up) {
    const Message first = joined({0});
    Message message;
    while (message.size() < 60'000) {
        message.insert(message.end(), first.begin(), first.begin() + 4);
    }
    PacketCut cut;
    RVT_EQ(cut.first_packet(path(), message), 0u);
}
