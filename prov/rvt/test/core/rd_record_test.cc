// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Records come back as they were written, and bytes of no honest peer are refused.
#include <criterion/criterion.h>

#include <array>
#include <cstring>
#include <random>
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
