// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A frame's first packet: each record lies within it, and says the same when it is written again.
#include <vector>

#include "core/rd_record.h"
#include "fuzz/input.h"

using namespace rvt;        // NOLINT(google-build-using-namespace)
using namespace rvt::core;  // NOLINT(google-build-using-namespace)

namespace {

void check_again(const RdMessage& message, std::uint32_t run_bytes) {
    std::vector<std::byte> bytes(record_bytes(message));
    encode_record(message, run_bytes, bytes.data());
    if (message.run != nullptr && has_run(message.op)) {
        bytes.insert(bytes.end(), message.run, message.run + message.length);
    }
    const auto again = decode_record(bytes);
    fuzz::must(again && again->message.op == message.op && again->message.tag == message.tag &&
               again->message.data == message.data && again->run_bytes == run_bytes &&
               again->message.length == message.length);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    std::span<const std::byte> left(reinterpret_cast<const std::byte*>(data), size);
    while (const auto record = decode_record(left)) {
        const RdMessage& message = record->message;
        fuzz::must(record->bytes != 0 && record->bytes <= left.size());
        fuzz::touch({message.payload, message.payload_bytes});
        if (has_run(message.op)) {
            fuzz::touch({message.run, message.length});
        }
        check_again(message, record->run_bytes);
        DecodedEager eager;
        fuzz::must(decode_eager(left, eager) == (message.op == RdOp::kEager));
        fuzz::must(message.op != RdOp::kEager ||
                   (eager.tag == message.tag && eager.data == message.data &&
                    eager.payload == message.payload && eager.end == left.data() + record->bytes));
        left = left.subspan(record->bytes);
    }
    return 0;
}
