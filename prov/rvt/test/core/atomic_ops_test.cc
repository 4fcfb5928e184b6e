// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Atomic operations: every (type, operation, form) against fi_atomic(3) written down once more, and
// with many threads.
#include "core/atomic_ops.h"

#include "common/check.h"
#include "core/small_float.h"

#include <algorithm>
#include <complex>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

using namespace rvt::core;

namespace {

using OpKind = RdAtomic::Kind;

template <class T>
struct Tag {
    using Type = T;
};

template <class Visit>
void for_each_type(Visit visit) {
    visit(AtomicType::kInt8, Tag<std::int8_t>());
    visit(AtomicType::kUint8, Tag<std::uint8_t>());
    visit(AtomicType::kInt16, Tag<std::int16_t>());
    visit(AtomicType::kUint16, Tag<std::uint16_t>());
    visit(AtomicType::kInt32, Tag<std::int32_t>());
    visit(AtomicType::kUint32, Tag<std::uint32_t>());
    visit(AtomicType::kInt64, Tag<std::int64_t>());
    visit(AtomicType::kUint64, Tag<std::uint64_t>());
    visit(AtomicType::kFloat, Tag<float>());
    visit(AtomicType::kDouble, Tag<double>());
    visit(AtomicType::kFloatComplex, Tag<std::complex<float>>());
    visit(AtomicType::kDoubleComplex, Tag<std::complex<double>>());
    visit(AtomicType::kLongDouble, Tag<long double>());
    visit(AtomicType::kLongDoubleComplex, Tag<std::complex<long double>>());
    visit(AtomicType::kInt128, Tag<__int128>());
    visit(AtomicType::kUint128, Tag<unsigned __int128>());
    visit(AtomicType::kFloat16, Tag<Float16>());
    visit(AtomicType::kBfloat16, Tag<Bfloat16>());
    visit(AtomicType::kFloat8E4m3, Tag<Float8E4m3>());
    visit(AtomicType::kFloat8E5m2, Tag<Float8E5m2>());
}

constexpr std::uint8_t number(AtomicType type) {
    return static_cast<std::uint8_t>(type);
}
constexpr std::uint8_t number(AtomicOp op) {
    return static_cast<std::uint8_t>(op);
}

template <class T>
constexpr bool kIsComplex = requires(T value) {
    value.imag();
};
template <class T>
constexpr bool kIsFloating = kIsComplex<T> || std::is_floating_point_v<T> || kIsSmallFloat<T>;

// Values that tell the operations apart: zero, one, small, negative where there are negative ones,
// and large.
template <class T>
std::vector<T> values() {
    std::vector<T> all = {T(0), T(1), T(2), T(5), T(100)};
    if constexpr (kIsComplex<T>) {
        all.push_back(T(2, 3));
        all.push_back(T(0, -4));
    } else if constexpr (kIsFloating<T>) {
        all.push_back(T(-2.5));
        all.push_back(T(1e10));
    } else {
        all.push_back(static_cast<T>(~T(0)));
        all.push_back(static_cast<T>(T(1) << (8 * sizeof(T) - 1)));
        all.push_back(static_cast<T>(~(T(1) << (8 * sizeof(T) - 1))));
    }
    return all;
}

// Signed arithmetic that wraps, done in the unsigned type of the same width.
template <class T>
auto wide(T value) {
    if constexpr (kIsFloating<T>) {
        return value;
    } else {
        return static_cast<unsigned __int128>(value);
    }
}

template <class T>
T expected_base(AtomicOp op, T target, T operand) {
    const bool t = target != T(0);
    const bool o = operand != T(0);
    switch (op) {
        case AtomicOp::kSum: return static_cast<T>(wide(target) + wide(operand));
        case AtomicOp::kDiff: return static_cast<T>(wide(target) - wide(operand));
        case AtomicOp::kProd: return static_cast<T>(wide(target) * wide(operand));
        case AtomicOp::kLor: return T(t || o ? 1 : 0);
        case AtomicOp::kLand: return T(t && o ? 1 : 0);
        case AtomicOp::kLxor: return T(t != o ? 1 : 0);
        case AtomicOp::kRead: return target;
        case AtomicOp::kWrite: return operand;
        default: break;
    }
    if constexpr (!kIsComplex<T>) {
        switch (op) {
            case AtomicOp::kMin: return std::min(target, operand);
            case AtomicOp::kMax: return std::max(target, operand);
            default: break;
        }
    }
    if constexpr (!kIsFloating<T>) {
        switch (op) {
            case AtomicOp::kBor: return static_cast<T>(target | operand);
            case AtomicOp::kBand: return static_cast<T>(target & operand);
            case AtomicOp::kBxor: return static_cast<T>(target ^ operand);
            default: break;
        }
    }
    cr_fatal("operation %d is not one of these", static_cast<int>(op));
}

template <class T>
T expected_compare(AtomicOp op, T target, T operand, T compare) {
    switch (op) {
        case AtomicOp::kCswap: return compare == target ? operand : target;
        case AtomicOp::kCswapNe: return compare != target ? operand : target;
        default: break;
    }
    if constexpr (!kIsComplex<T>) {
        switch (op) {
            case AtomicOp::kCswapLe: return compare <= target ? operand : target;
            case AtomicOp::kCswapLt: return compare < target ? operand : target;
            case AtomicOp::kCswapGe: return compare >= target ? operand : target;
            case AtomicOp::kCswapGt: return compare > target ? operand : target;
            default: break;
        }
    }
    if constexpr (!kIsFloating<T>) {
        if (op == AtomicOp::kMswap) {
            return static_cast<T>((operand & compare) | (target & ~compare));
        }
    }
    cr_fatal("operation %d is not one of these", static_cast<int>(op));
}

// One array of all pairs of values, at an offset from an aligned address.
template <class T>
struct Arrays {
    std::vector<T> targets, operands, compares;
    std::vector<std::byte> memory;
    std::byte* at;

    explicit Arrays(std::size_t offset) {
        for (const T& t : values<T>()) {
            for (const T& o : values<T>()) {
                for (const T& c : values<T>()) {
                    targets.push_back(t);
                    operands.push_back(o);
                    compares.push_back(c);
                }
            }
        }
        memory.resize(bytes() + 128);
        const std::uintptr_t past_line = reinterpret_cast<std::uintptr_t>(memory.data()) % 64;
        at = memory.data() + (64 - past_line) + offset;
        for (std::size_t i = 0; i < targets.size(); ++i) {
            std::memcpy(at + i * sizeof(T), &targets[i], sizeof(T));
        }
    }
    std::size_t bytes() const { return targets.size() * sizeof(T); }
    T target(std::size_t i) const {
        T value;
        std::memcpy(static_cast<void*>(&value), at + i * sizeof(T), sizeof value);
        return value;
    }
};

std::string words(OpKind kind, AtomicType type, AtomicOp op, std::size_t i) {
    return "form " + std::to_string(static_cast<int>(kind)) + " type " +
           std::to_string(number(type)) + " operation " + std::to_string(number(op)) + " element " +
           std::to_string(i);
}

// What is too large for a small float may be NaN there, and no NaN is equal to another.
template <class T>
bool is_same(const T& a, const T& b) {
    if constexpr (kIsSmallFloat<T>) {
        return a.bits() == b.bits();
    } else {
        return a == b;
    }
}

template <class T>
void check(OpKind kind, AtomicType type, AtomicOp op, std::size_t offset) {
    Arrays<T> a(offset);
    const std::size_t count = a.targets.size();
    std::vector<T> result(count);
    switch (kind) {
        case OpKind::kBase:
            atomic_apply(number(type), number(op), a.at, a.operands.data(), count);
            break;
        case OpKind::kFetch:
            atomic_fetch(number(type), number(op), a.at, a.operands.data(), result.data(), count);
            break;
        case OpKind::kCompare:
            atomic_compare(number(type), number(op), a.at, a.operands.data(), a.compares.data(),
                           result.data(), count);
            break;
    }
    for (std::size_t i = 0; i < count; ++i) {
        const T expected = kind == OpKind::kCompare
                               ? expected_compare(op, a.targets[i], a.operands[i], a.compares[i])
                               : expected_base(op, a.targets[i], a.operands[i]);
        cr_assert(is_same(a.target(i), expected), "target of %s", words(kind, type, op, i).c_str());
        cr_assert(kind == OpKind::kBase || is_same(result[i], a.targets[i]), "result of %s",
                  words(kind, type, op, i).c_str());
    }
}

// Returns: how many combinations there were.
int check_all(std::size_t offset) {
    int checked = 0;
    for (const OpKind kind : {OpKind::kBase, OpKind::kFetch, OpKind::kCompare}) {
        for (std::uint8_t op = 0; op < kAtomicOps; ++op) {
            for_each_type([&](AtomicType type, auto tag) {
                if (atomic_is_valid(kind, number(type), op)) {
                    check<typename decltype(tag)::Type>(kind, type, static_cast<AtomicOp>(op),
                                                        offset);
                    ++checked;
                }
            });
        }
    }
    return checked;
}

// 20 types: sum, difference, product, three logical, write; 17 real: min, max; 10 whole: three of
// bits.
constexpr int kBase = 20 * 7 + 17 * 2 + 10 * 3;
constexpr int kFetch = kBase + 20;
constexpr int kCompare = 20 * 2 + 17 * 4 + 10;

// Runs `work` in several threads at once.
void in_threads(const std::function<void(unsigned)>& work) {
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < 4; ++i) {
        threads.emplace_back(work, i);
    }
    for (std::thread& each : threads) {
        each.join();
    }
}

// Each thread adds 1 so often; products and swaps would not show a lost update, sums do. Of small
// floats, which count to 8 alone, each thread takes away what it has added.
template <class T>
void check_concurrent_sum(AtomicType type, std::size_t offset) {
    constexpr int kRounds = 2000;
    alignas(64) std::byte memory[128] = {};
    std::byte* target = memory + offset;
    const T one(1);
    in_threads([&](unsigned) {
        for (int i = 0; i < kRounds; ++i) {
            const auto op = kIsSmallFloat<T> && i % 2 != 0 ? AtomicOp::kDiff : AtomicOp::kSum;
            atomic_apply(number(type), number(op), target, &one, 1);
        }
    });
    T sum;
    std::memcpy(static_cast<void*>(&sum), target, sizeof sum);
    cr_assert(sum == static_cast<T>(kIsSmallFloat<T> ? 0 : 4 * kRounds), "type %d at offset %zu",
              number(type), offset);
}

}  // namespace

Test(atomic_ops, every_operation_does_what_the_interface_defines) {
    RVT_EQ(check_all(0), kBase + kFetch + kCompare);
}

Test(atomic_ops, every_operation_works_on_unaligned_elements) {
    RVT_EQ(check_all(1), kBase + kFetch + kCompare);
}

Test(atomic_ops, wide_types_work_at_the_alignment_of_their_halves) {
    RVT_EQ(check_all(8), kBase + kFetch + kCompare);
}

Test(atomic_ops, numbers_that_name_nothing_are_not_valid) {
    for (int kind = 0; kind < 256; ++kind) {
        for (int type = 0; type < 256; ++type) {
            for (int op = 0; op < 256; ++op) {
                const bool is_valid =
                    atomic_is_valid(static_cast<OpKind>(kind), static_cast<std::uint8_t>(type),
                                    static_cast<std::uint8_t>(op));
                const bool has_name = kind < 3 && type < 20 && op < 20;
                RVT_ASSERT(is_valid <= has_name);
            }
        }
    }
}

Test(atomic_ops, forms_do_not_mix) {
    const std::uint8_t type = number(AtomicType::kUint64);
    RVT_ASSERT(atomic_is_valid(OpKind::kFetch, type, number(AtomicOp::kRead)));
    RVT_ASSERT(not(atomic_is_valid(OpKind::kBase, type, number(AtomicOp::kRead))));
    RVT_ASSERT(atomic_is_valid(OpKind::kCompare, type, number(AtomicOp::kCswap)));
    RVT_ASSERT(not(atomic_is_valid(OpKind::kFetch, type, number(AtomicOp::kCswap))));
    RVT_ASSERT(not(atomic_is_valid(OpKind::kCompare, type, number(AtomicOp::kSum))));
}

Test(atomic_ops, types_have_the_size_of_the_language) {
    for_each_type([](AtomicType type, auto tag) {
        RVT_EQ(atomic_size(number(type)), sizeof(typename decltype(tag)::Type));
    });
    RVT_EQ(atomic_size(kAtomicTypes), 0);
    RVT_EQ(atomic_size(255), 0);
}

Test(atomic_ops, aligned_words_are_changed_by_the_processor) {
    alignas(64) std::byte memory[64];
    RVT_ASSERT(atomic_is_cpu(number(AtomicType::kInt8), memory + 3));
    RVT_ASSERT(atomic_is_cpu(number(AtomicType::kUint64), memory + 8));
    RVT_ASSERT(atomic_is_cpu(number(AtomicType::kFloatComplex), memory + 8));
    RVT_ASSERT(not(atomic_is_cpu(number(AtomicType::kUint64), memory + 4)));
    RVT_ASSERT(not(atomic_is_cpu(number(AtomicType::kDoubleComplex), memory + 8)));
    RVT_ASSERT(not(atomic_is_cpu(number(AtomicType::kLongDoubleComplex), memory)));
    RVT_ASSERT(atomic_is_cpu(number(AtomicType::kFloat8E5m2), memory + 3));
    RVT_ASSERT(not(atomic_is_cpu(kAtomicTypes, memory)));
}

Test(atomic_ops, read_works_on_memory_that_cannot_be_written) {
    static const std::uint64_t kWords[2] = {42, 43};
    std::uint64_t result[2] = {};
    atomic_fetch(number(AtomicType::kUint64), kAtomicOpRead, const_cast<std::uint64_t*>(kWords),
                 nullptr, result, 2);
    RVT_EQ(result[1], 43);
    alignas(16) static const unsigned __int128 kWide = 44;
    unsigned __int128 wide_result = 0;
    atomic_fetch(number(AtomicType::kUint128), kAtomicOpRead,
                 const_cast<unsigned __int128*>(&kWide), nullptr, &wide_result, 1);
    RVT_ASSERT(wide_result == 44);
}

Test(atomic_ops, result_may_be_the_operand) {
    std::uint32_t target[3] = {1, 2, 3};
    std::uint32_t buffer[3] = {10, 20, 30};
    atomic_fetch(number(AtomicType::kUint32), number(AtomicOp::kSum), target, buffer, buffer, 3);
    RVT_EQ(target[2], 33);
    RVT_EQ(buffer[2], 3);
}

Test(atomic_ops, padding_of_a_long_double_is_written_as_zero) {
    if (sizeof(long double) != 16) {
        return;  // no padding here
    }
    alignas(16) std::byte target[32];
    std::memset(target, 0xff, sizeof target);
    const long double value = 1.5L;
    atomic_apply(number(AtomicType::kLongDouble), number(AtomicOp::kWrite), target, &value, 1);
    for (int i = 10; i < 16; ++i) {
        RVT_EQ(target[i], 0);
    }
    RVT_EQ(target[16], 0xff);
}

Test(atomic_ops, sums_of_many_threads_lose_nothing) {
    for_each_type([](AtomicType type, auto tag) {
        using T = typename decltype(tag)::Type;
        check_concurrent_sum<T>(type, 0);
    });
}

Test(atomic_ops, unaligned_sums_of_many_threads_lose_nothing) {
    for_each_type([](AtomicType type, auto tag) {
        using T = typename decltype(tag)::Type;
        check_concurrent_sum<T>(type, 61);
    });
}

Test(atomic_ops, compare_and_swap_gives_each_value_to_one_thread) {
    alignas(16) unsigned __int128 ticket = 0;
    std::vector<int> taken(2000);  // 500 for each of four threads
    in_threads([&](unsigned) {
        for (int won = 0; won < 500;) {
            unsigned __int128 seen = 0;
            atomic_fetch(number(AtomicType::kUint128), kAtomicOpRead, &ticket, nullptr, &seen, 1);
            const unsigned __int128 next = seen + 1;
            unsigned __int128 before = 0;
            atomic_compare(number(AtomicType::kUint128), number(AtomicOp::kCswap), &ticket, &next,
                           &seen, &before, 1);
            if (before == seen) {
                ++taken[static_cast<std::size_t>(seen)];
                ++won;
            }
        }
    });
    RVT_ASSERT(ticket == taken.size());
    RVT_EQ(static_cast<std::size_t>(std::count(taken.begin(), taken.end(), 1)), taken.size());
}
