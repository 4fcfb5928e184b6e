// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The list, and where each operation has its place in the memory of both ends.
#include "operations.h"

#include <cstring>
#include <span>

namespace traffic {
namespace {

constexpr std::byte kUntouched{0xee};

constexpr const char* kServiceNames[] = {"RC", "UC", "UD"};
constexpr const char* kVerbNames[] = {
    "SEND", "SEND with immediate", "SEND with invalidate", "WRITE",        "WRITE with immediate",
    "READ", "FETCH_ADD",           "COMPARE_SWAP",         "ATOMIC_WRITE", "FLUSH"};

// ---- the list ----

void add_rc(std::vector<Operation>& list) {
    for (const Verb verb : {Verb::kSend, Verb::kWrite, Verb::kRead}) {
        for (const std::uint32_t bytes :
             {0u, 1u, kMtuBytes - 1, kMtuBytes, kMtuBytes + 1, 3002u, 64u << 10, 1u << 20}) {
            list.push_back({Pair::kRc, verb, bytes});
        }
    }
    for (const Verb verb : {Verb::kSendImm, Verb::kWriteImm}) {
        for (const std::uint32_t bytes : {0u, 64u, 1500u}) {
            list.push_back({Pair::kRc, verb, bytes});
        }
    }
    list.push_back({.pair = Pair::kRc, .verb = Verb::kFetchAdd});
    list.push_back({.pair = Pair::kRc, .verb = Verb::kCompareSwap});
    list.push_back({.pair = Pair::kRc,
                    .verb = Verb::kCompareSwap,
                    .note = ", another value",
                    .compare_error = 1});
    list.push_back({Pair::kRc, Verb::kSend, 16, 1000});
    list.push_back({Pair::kRc, Verb::kWrite, 16, 1000});
    list.push_back({Pair::kRc, Verb::kRead, 2000, 100});
    list.push_back({Pair::kRc, Verb::kFetchAdd, 8, 200});
    list.push_back({.pair = Pair::kRc, .verb = Verb::kAtomicWrite});
    list.push_back({Pair::kRc, Verb::kAtomicWrite, 8, 200});
    list.push_back({Pair::kLate, Verb::kSend, kMtuBytes + 1, 1, ", receive posted late"});
    list.push_back({Pair::kWindow, Verb::kWrite, 600, 1, ", by a window's key", Key::kWindow});
    list.push_back({Pair::kWindow, Verb::kSendInv, 64, 1, "", Key::kWindow});
}

/// The SEND behind the WRITEs tells by its arrival that they have come.
void add_uc_and_ud(std::vector<Operation>& list) {
    for (const Verb verb : {Verb::kWrite, Verb::kSend}) {
        for (const std::uint32_t bytes :
             {0u, 1u, kMtuBytes - 1, kMtuBytes, kMtuBytes + 1, 16u << 10}) {
            list.push_back({Pair::kUc, verb, bytes});
        }
    }
    list.push_back({Pair::kUc, Verb::kWriteImm, 1100});
    list.push_back({Pair::kUc, Verb::kSendImm, 100});
    for (const std::uint32_t bytes : {0u, 1u, kMtuBytes - 1, kMtuBytes}) {
        list.push_back({Pair::kUd, Verb::kSend, bytes});
    }
    list.push_back({Pair::kUd, Verb::kSendImm, 100});
    list.push_back(
        {.pair = Pair::kGroup, .verb = Verb::kSend, .bytes = 99, .note = ", to a group"});
}

/// Between rvt devices: see VerbsEnd::answers().
void add_flush(std::vector<Operation>& list) {
    for (const std::uint32_t bytes : {0u, 1u, 3002u, 1u << 20}) {
        list.push_back({Pair::kRc, Verb::kFlush, bytes});
    }
    list.push_back(
        {.pair = Pair::kRc, .verb = Verb::kFlush, .note = ", of the region", .of_region = true});
    list.push_back({Pair::kRc, Verb::kFlush, 64, 200});
}

void add_refused(std::vector<Operation>& list) {
    list.push_back({Pair::kWindow, Verb::kWrite, 8, 1, ", by the invalidated key: refused",
                    Key::kWindow, Outcome::kRemoteAccessError});
    list.push_back({Pair::kRefused, Verb::kWrite, 8, 1, ", by a wrong key: refused", Key::kWrong,
                    Outcome::kRemoteAccessError});
}

// ---- the memory ----

/// No two neighbours alike: bytes of a message, its packets, messages.
std::byte pattern(std::size_t slot, std::size_t at) {
    return static_cast<std::byte>(slot / kGuardBytes * 59 + (slot >> 13) * 17 + at * 31 +
                                  (at >> 8) * 7 + (at >> 16) * 13 + 1);
}

/// Writes each message of an operation, `lead` bytes into its slot.
void put_messages(std::span<std::byte> image, const Operation& op, std::size_t lead) {
    for (std::size_t slot = op.offset; slot < op.offset + op.size(); slot += op.stride()) {
        for (std::size_t at = 0; at < op.bytes; ++at) {
            image[slot + lead + at] = pattern(slot, at);
        }
    }
}

void put_word(std::span<std::byte> image, std::size_t at, std::uint64_t word) {
    std::memcpy(&image[at], &word, sizeof word);
}

std::uint64_t word_after(const Operation& op) {
    return op.verb == Verb::kFetchAdd ? kWordBefore + op.count * kAdd
           : op.compare_error == 0    ? kSwap
                                      : kWordBefore;
}

}  // namespace

std::vector<Operation> operations(bool is_lossy) {
    std::vector<Operation> list;
    add_rc(list);
    if (!is_lossy) {
        add_flush(list);
        add_uc_and_ud(list);
        add_refused(list);
    }
    std::size_t offset = 0;
    for (Operation& op : list) {
        op.offset = offset;
        offset += op.size();
    }
    return list;
}

std::string name_of(const Operation& op) {
    std::string name = kServiceNames[static_cast<std::size_t>(service_of(op.pair))];
    name = name + " " + kVerbNames[static_cast<std::size_t>(op.verb)];
    if (!op.is_atomic()) {
        name += ", " + std::to_string(op.bytes) + (op.bytes == 1 ? " byte" : " bytes");
    }
    if (op.count > 1) {
        name += ", " + std::to_string(op.count) + " times";
    }
    return name + op.note;
}

std::vector<std::byte> image_before(const std::vector<Operation>& list, bool is_active) {
    std::vector<std::byte> image(list.back().offset + list.back().size(), kUntouched);
    for (const Operation& op : list) {
        if (op.verb == Verb::kFlush) {
            continue;
        }
        if (op.is_atomic()) {
            if (!is_active) {
                put_word(image, op.offset, kWordBefore);
            }
        } else if ((op.verb != Verb::kRead) == is_active) {
            put_messages(image, op, 0);
        }
    }
    return image;
}

void put_results(std::vector<std::byte>& image, const std::vector<Operation>& list,
                 bool is_active) {
    for (const Operation& op : list) {
        if (op.outcome != Outcome::kSuccess || op.verb == Verb::kFlush) {
            continue;
        }
        if (!op.is_atomic()) {
            put_messages(image, op, is_active ? 0 : op.lead());
        } else if (is_active) {
            for (std::uint32_t i = 0; i < op.count; ++i) {
                put_word(image, op.offset + i * op.stride(), kWordBefore + i * kAdd);
            }
        } else {
            put_word(image, op.offset, word_after(op));
        }
    }
}

}  // namespace traffic
