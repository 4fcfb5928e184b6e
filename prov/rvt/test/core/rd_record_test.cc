// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Records come back as they were written, and bytes of no honest peer are refused.
#include <criterion/criterion.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "common/check.h"
#include "core/rd_record.h"

using namespace rvt::core;  // NOLINT(google-build-using-namespace)

namespace {

std::vector<std::byte> record(const RdMessage& message, std::size_t run_bytes) {
    std::vector<std::byte> bytes(record_bytes(message) + run_bytes);
    encode_record(message, static_cast<std::uint32_t>(run_bytes), bytes.data());
    return bytes;
}

}  // namespace

Test(rd_record, each_operation_comes_back) {
    std::array<std::byte, kMaxRecordPayload> payload{};
    payload.fill(std::byte{7});
    for (unsigned i = 0; i < static_cast<unsigned>(RdOp::kCount); ++i) {
        const auto op = static_cast<RdOp>(i);
        const RecordRule& rule = record_rule(op);
        const std::size_t run_bytes = has_run(op) && rule.travels ? 100 : 0;
        const auto bytes = record({.op = op,
                                   .flags = 3,
                                   .tag = 5,
                                   .data = 1ull << 60,
                                   .payload = payload.data(),
                                   .payload_bytes = rule.max_payload},
                                  run_bytes);
        const auto decoded = decode_record(bytes);
        RVT_EQ(decoded.has_value(), rule.travels);
        if (decoded) {
            RVT_EQ(decoded->message.op, op);
            RVT_EQ(decoded->message.flags, 3);
            RVT_EQ(decoded->message.tag, 5);
            RVT_EQ(decoded->message.data, 1ull << 60);
            RVT_EQ(decoded->message.length, has_run(op) ? run_bytes : rule.max_payload);
            RVT_EQ(decoded->run_bytes, run_bytes);
            RVT_EQ(decoded->bytes, bytes.size());
        }
    }
}

Test(rd_record, a_message_of_kEager_is_written_alike_by_either_way) {
    std::array<std::byte, kMaxRecordPayload> payload{};
    payload.fill(std::byte{7});
    for (const std::uint64_t tag : {std::uint64_t{0}, ~std::uint64_t{0}}) {
        for (const std::uint64_t data : {std::uint64_t{0}, std::uint64_t{1} << 63}) {
            for (std::size_t size = 0; size <= payload.size(); ++size) {
                const RdMessage message{.op = RdOp::kEager,
                                        .flags = 3,
                                        .tag = tag,
                                        .data = data,
                                        .payload = payload.data(),
                                        .payload_bytes = size};
                std::array<std::byte, kMaxEagerRecord> bytes{};
                const std::byte* const end = encode_eager(message, bytes.data());
                RVT_ASSERT(std::ranges::equal(std::span(std::as_const(bytes).data(), end),
                                              record(message, 0)));
            }
        }
    }
}

// Half of them are of kEager, and mostly make sense.
Test(rd_record, of_kEager_both_ways_to_read_it_say_the_same) {
    std::mt19937_64 random(2);
    unsigned both = 0;
    for (int i = 0; i < 200'000; ++i) {
        std::vector<std::byte> bytes(random() % 300);
        for (std::byte& each : bytes) {
            each = static_cast<std::byte>(random());
        }
        if (bytes.size() >= kRecordHeader && random() % 2 == 0) {
            bytes[0] = static_cast<std::byte>(RdOp::kEager);
            bytes[2] = static_cast<std::byte>(random() % 5);
            std::fill_n(bytes.begin() + 4, 4, std::byte{random() % 16 == 0});
        }
        DecodedEager eager;
        const bool is_eager = decode_eager(bytes, eager);
        const auto other = decode_record(bytes);
        RVT_EQ(is_eager, other && other->message.op == RdOp::kEager);
        if (is_eager) {
            ++both;
            RVT_EQ(eager.head.flags(), other->message.flags);
            RVT_EQ(eager.head.length(), other->message.payload_bytes);
            RVT_EQ(eager.tag, other->message.tag);
            RVT_EQ(eager.data, other->message.data);
            RVT_ASSERT(eager.payload == other->message.payload);
            RVT_ASSERT(eager.end == bytes.data() + other->bytes);
        }
    }
    RVT_ASSERT(both > 10'000);
}

Test(rd_record, of_a_run_that_goes_on_elsewhere_the_beginning_is_told) {
    const RdHeader header{.total = 100, .operation = 0, .address = 0};
    auto bytes = record({.op = RdOp::kEagerFirst,
                         .payload = reinterpret_cast<const std::byte*>(&header),
                         .payload_bytes = sizeof header},
                        100);
    bytes.resize(bytes.size() - 60);
    const auto decoded = decode_record(bytes);
    RVT_ASSERT(decoded.has_value());
    RVT_EQ(decoded->run_bytes, 100);
    RVT_EQ(decoded->message.length, 40);
}

Test(rd_record, a_payload_too_short_or_too_long_is_refused) {
    std::array<std::byte, 255> payload{};
    for (const std::size_t size : {std::size_t{0}, sizeof(RdPull) - 1, sizeof(RdPull) + 1}) {
        const auto bytes =
            record({.op = RdOp::kPull, .payload = payload.data(), .payload_bytes = size}, 0);
        RVT_OK(decode_record(bytes).has_value());
    }
    const auto cut =
        record({.op = RdOp::kPull, .payload = payload.data(), .payload_bytes = sizeof(RdPull)}, 0);
    for (std::size_t size = 0; size < cut.size(); ++size) {
        RVT_OK(decode_record(std::span(cut).first(size)).has_value());
    }
}

Test(rd_record, random_bytes_are_refused_or_stay_within_bounds) {
    std::mt19937_64 random(1);
    for (int i = 0; i < 200'000; ++i) {
        std::vector<std::byte> bytes(random() % 300);
        for (std::byte& each : bytes) {
            each = static_cast<std::byte>(random());
        }
        if (bytes.size() >= 4 && random() % 2 == 0) {
            bytes[0] = static_cast<std::byte>(random() % static_cast<unsigned>(RdOp::kCount));
            bytes[2] = static_cast<std::byte>(random() % 4);
        }
        if (const auto decoded = decode_record(bytes)) {
            RVT_ASSERT(decoded->bytes <= bytes.size());
            RVT_ASSERT(decoded->message.length <= bytes.size());
        }
    }
}
