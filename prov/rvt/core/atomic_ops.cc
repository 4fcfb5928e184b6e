// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "core/atomic_ops.h"

#include <array>
#include <atomic>
#include <complex>
#include <cstring>
#include <limits>
#include <mutex>
#include <type_traits>
#include <utility>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

#include "core/small_float.h"
#include "util/cpu.h"

namespace rvt::core {

namespace {

using Int128 = __int128;
using Uint128 = unsigned __int128;
static_assert(sizeof(long double) == 16 || sizeof(long double) == 8);

// In the order of AtomicType.
template <class... T>
struct TypeList {
    static constexpr std::size_t kCount = sizeof...(T);
    static constexpr std::size_t kSizes[] = {sizeof(T)...};
};
using Types =
    TypeList<std::int8_t, std::uint8_t, std::int16_t, std::uint16_t, std::int32_t, std::uint32_t,
             std::int64_t, std::uint64_t, float, double, std::complex<float>, std::complex<double>,
             long double, std::complex<long double>, Int128, Uint128, Float16, Bfloat16, Float8E4m3,
             Float8E5m2>;
static_assert(Types::kCount == kAtomicTypes);

template <class T>
constexpr bool kIsWide = std::is_same_v<T, Int128> || std::is_same_v<T, Uint128>;
template <class T>
constexpr bool kIsWhole = std::is_integral_v<T> || kIsWide<T>;
template <class T>
constexpr bool kIsReal = kIsWhole<T> || std::is_floating_point_v<T> || kIsSmallFloat<T>;

// What fi_atomic(3) defines for a type: bits are for whole numbers, order is for real ones.
template <class T>
constexpr bool is_defined(AtomicOp op) {
    switch (op) {
        case AtomicOp::kBor:
        case AtomicOp::kBand:
        case AtomicOp::kBxor:
        case AtomicOp::kMswap: return kIsWhole<T>;
        case AtomicOp::kMin:
        case AtomicOp::kMax:
        case AtomicOp::kCswapLe:
        case AtomicOp::kCswapLt:
        case AtomicOp::kCswapGe:
        case AtomicOp::kCswapGt: return kIsReal<T>;
        default: return true;
    }
}

constexpr bool is_compare(AtomicOp op) {
    return op >= AtomicOp::kCswap && op <= AtomicOp::kMswap;
}

// Whole numbers wrap around, which signed types may not do by themselves.
template <class T>
constexpr T wrap_add(T a, T b) {
    if constexpr (kIsWhole<T>) {
        return static_cast<T>(static_cast<Uint128>(a) + static_cast<Uint128>(b));
    } else {
        return a + b;
    }
}
template <class T>
constexpr T wrap_subtract(T a, T b) {
    if constexpr (kIsWhole<T>) {
        return static_cast<T>(static_cast<Uint128>(a) - static_cast<Uint128>(b));
    } else {
        return a - b;
    }
}
template <class T>
constexpr T wrap_multiply(T a, T b) {
    if constexpr (kIsWhole<T>) {
        return static_cast<T>(static_cast<Uint128>(a) * static_cast<Uint128>(b));
    } else {
        return a * b;
    }
}

template <class T>
constexpr T truth(bool holds) {
    return holds ? T(1) : T(0);
}

// The value after the operation.
template <AtomicOp kOp, class T>
T combine(T target, T operand) {
    const T zero(0);
    if constexpr (kOp == AtomicOp::kMin) {
        return operand < target ? operand : target;
    } else if constexpr (kOp == AtomicOp::kMax) {
        return operand > target ? operand : target;
    } else if constexpr (kOp == AtomicOp::kSum) {
        return wrap_add(target, operand);
    } else if constexpr (kOp == AtomicOp::kDiff) {
        return wrap_subtract(target, operand);
    } else if constexpr (kOp == AtomicOp::kProd) {
        return wrap_multiply(target, operand);
    } else if constexpr (kOp == AtomicOp::kLor) {
        return truth<T>(target != zero || operand != zero);
    } else if constexpr (kOp == AtomicOp::kLand) {
        return truth<T>(target != zero && operand != zero);
    } else if constexpr (kOp == AtomicOp::kLxor) {
        return truth<T>((target != zero) != (operand != zero));
    } else if constexpr (kOp == AtomicOp::kBor) {
        return static_cast<T>(target | operand);
    } else if constexpr (kOp == AtomicOp::kBand) {
        return static_cast<T>(target & operand);
    } else if constexpr (kOp == AtomicOp::kBxor) {
        return static_cast<T>(target ^ operand);
    } else {
        static_assert(kOp == AtomicOp::kWrite);
        return operand;
    }
}

// Whether the operation changes a target of this value; the others always do.
template <AtomicOp kOp, class T>
bool takes_effect(T target, T compare) {
    if constexpr (kOp == AtomicOp::kCswap) {
        return compare == target;
    } else if constexpr (kOp == AtomicOp::kCswapNe) {
        return compare != target;
    } else if constexpr (kOp == AtomicOp::kCswapLe) {
        return compare <= target;
    } else if constexpr (kOp == AtomicOp::kCswapLt) {
        return compare < target;
    } else if constexpr (kOp == AtomicOp::kCswapGe) {
        return compare >= target;
    } else if constexpr (kOp == AtomicOp::kCswapGt) {
        return compare > target;
    } else {
        return kOp != AtomicOp::kRead;
    }
}

template <AtomicOp kOp, class T>
T next_value(T target, T operand, T compare) {
    if constexpr (kOp == AtomicOp::kMswap) {
        return static_cast<T>((operand & compare) | (target & ~compare));
    } else if constexpr (is_compare(kOp)) {
        return operand;
    } else {
        return combine<kOp>(target, operand);
    }
}

template <class T>
T load(const std::byte* at) noexcept {
    T value;
    std::memcpy(static_cast<void*>(&value), at, sizeof value);
    return value;
}

// The 80-bit format of x86 fills 10 of its 16 bytes. The others are written as zero: what happens
// to lie there on the stack is nobody else's business.
constexpr std::size_t kLongDoubleBytes =
    std::numeric_limits<long double>::digits == 64 ? 10 : sizeof(long double);

template <class T>
void store(std::byte* at, const T& value) noexcept {
    if constexpr (std::is_same_v<T, long double>) {
        std::memset(at, 0, sizeof value);
        std::memcpy(at, &value, kLongDoubleBytes);
    } else if constexpr (std::is_same_v<T, std::complex<long double>>) {
        store(at, value.real());
        store(at + sizeof(long double), value.imag());
    } else {
        std::memcpy(at, &value, sizeof value);
    }
}

// --- elements that the processor changes at once ------------------------------------------------

template <std::size_t kSize>
using BitsOf = std::conditional_t<
    kSize == 1, std::uint8_t,
    std::conditional_t<kSize == 2, std::uint16_t,
                       std::conditional_t<kSize == 4, std::uint32_t, std::uint64_t>>>;

/// One element of up to 8 bytes.
template <class T>
struct Word {
    using Bits = BitsOf<sizeof(T)>;
    std::atomic_ref<Bits> word;

    explicit Word(std::byte* at) noexcept : word(*reinterpret_cast<Bits*>(at)) {}
    // acquire: pairs with the release of whoever changed the element, here or in another process.
    Bits read() noexcept { return word.load(std::memory_order_acquire); }
    bool exchange_if(Bits& expected, Bits desired) noexcept {
        // acq_rel: pairs with itself and with read(): who sees the new value sees what went before
        // it.
        return word.compare_exchange_weak(expected, desired, std::memory_order_acq_rel,
                                          std::memory_order_acquire);
    }
};

#if defined(__x86_64__)
/// One element of 16 bytes. Precondition: has_wide_atomics().
template <class T>
struct WideWord {
    using Bits = Uint128;
    std::byte* at;

    explicit WideWord(std::byte* element) noexcept : at(element) {}
    // Processors with AVX load 16 aligned bytes at once.
    Bits read() noexcept {
        __m128i value;
        asm volatile("movdqa %1, %0"
                     : "=x"(value)
                     : "m"(*reinterpret_cast<const __m128i*>(at))
                     : "memory");
        return core::load<Bits>(reinterpret_cast<const std::byte*>(&value));
    }
    bool exchange_if(Bits& expected, Bits desired) noexcept {
        auto low = static_cast<std::uint64_t>(expected);
        auto high = static_cast<std::uint64_t>(expected >> 64);
        bool is_done = false;
        asm volatile("lock cmpxchg16b %1"
                     : "=@ccz"(is_done), "+m"(*reinterpret_cast<__m128i*>(at)), "+a"(low),
                       "+d"(high)
                     : "b"(static_cast<std::uint64_t>(desired)),
                       "c"(static_cast<std::uint64_t>(desired >> 64))
                     : "memory");
        expected = (static_cast<Bits>(high) << 64) | low;
        return is_done;
    }
};

bool has_wide_atomics() noexcept {
    static const bool kHas = [] {
        unsigned a = 0;
        unsigned b = 0;
        unsigned c = 0;
        unsigned d = 0;
        return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_CMPXCHG16B) != 0 &&
               (c & bit_AVX) != 0;
    }();
    return kHas;
}
#else
template <class T>
using WideWord = Word<std::uint64_t>;
bool has_wide_atomics() noexcept {
    return false;
}
#endif

bool is_cpu_element(std::size_t size, const void* target) noexcept {
    const bool is_aligned = (reinterpret_cast<std::uintptr_t>(target) & (size - 1)) == 0;
    return is_aligned && (size <= 8 || (size == 16 && has_wide_atomics()));
}

// Operations that are one instruction where a loop is not needed.
template <AtomicOp kOp, class T>
constexpr bool kIsNative = kIsWhole<T> && sizeof(T) <= 8 &&
                           (kOp == AtomicOp::kSum || kOp == AtomicOp::kDiff ||
                            kOp == AtomicOp::kBor || kOp == AtomicOp::kBand ||
                            kOp == AtomicOp::kBxor);

template <AtomicOp kOp, class T>
T change_native(std::byte* at, T operand) noexcept {
    using Bits = typename Word<T>::Bits;
    std::atomic_ref<Bits> word(*reinterpret_cast<Bits*>(at));
    const auto bits = static_cast<Bits>(operand);
    // acq_rel, all five: who sees the new value sees what went before it.
    if constexpr (kOp == AtomicOp::kSum) {
        return static_cast<T>(
            word.fetch_add(bits, std::memory_order_acq_rel));  // pairs with read()
    } else if constexpr (kOp == AtomicOp::kDiff) {
        return static_cast<T>(
            word.fetch_sub(bits, std::memory_order_acq_rel));  // pairs with read()
    } else if constexpr (kOp == AtomicOp::kBor) {
        return static_cast<T>(word.fetch_or(bits, std::memory_order_acq_rel));  // pairs with read()
    } else if constexpr (kOp == AtomicOp::kBand) {
        return static_cast<T>(
            word.fetch_and(bits, std::memory_order_acq_rel));  // pairs with read()
    } else {
        return static_cast<T>(
            word.fetch_xor(bits, std::memory_order_acq_rel));  // pairs with read()
    }
}

// Returns: false if the element is no longer `seen`, which then is what was found.
template <AtomicOp kOp, class T, class Element>
bool try_change(Element& element, typename Element::Bits& seen, T operand, T compare) noexcept {
    if constexpr (kOp == AtomicOp::kRead) {
        return true;
    } else {
        const T old = load<T>(reinterpret_cast<const std::byte*>(&seen));
        if (!takes_effect<kOp>(old, compare)) {
            return true;
        }
        typename Element::Bits next = 0;
        store(reinterpret_cast<std::byte*>(&next), next_value<kOp>(old, operand, compare));
        return element.exchange_if(seen, next);
    }
}

// Returns: the value before.
template <AtomicOp kOp, class T>
T change_cpu(std::byte* at, T operand, T compare) noexcept {
    if constexpr (kIsNative<kOp, T>) {
        return change_native<kOp, T>(at, operand);
    } else {
        using Element = std::conditional_t<sizeof(T) == 16, WideWord<T>, Word<T>>;
        Element element(at);
        using Bits = typename Element::Bits;
        Bits seen = element.read();
        while (!try_change<kOp>(element, seen, operand, compare)) {
        }
        return load<T>(reinterpret_cast<const std::byte*>(&seen));
    }
}

// --- elements that need a lock ------------------------------------------------------------------

struct alignas(util::kCacheLine) Stripe {
    std::mutex lock;  // order: innermost, held for one element
};
constexpr std::size_t kStripes = 64;

constinit std::array<Stripe, kStripes> stripes;

// One element has one lock, whoever names it.
Stripe& stripe_of(const std::byte* at) noexcept {
    return stripes[(reinterpret_cast<std::uintptr_t>(at) / 64) % kStripes];
}

template <AtomicOp kOp, class T>
T change_locked(std::byte* at, T operand, T compare) noexcept {
    const std::lock_guard guard(stripe_of(at).lock);
    const T old = load<T>(at);
    if constexpr (kOp != AtomicOp::kRead) {
        if (takes_effect<kOp>(old, compare)) {
            store(at, next_value<kOp>(old, operand, compare));
        }
    }
    return old;
}

// --- arrays, and the table ----------------------------------------------------------------------

struct Operands {
    std::byte* target;
    const std::byte* operand;
    const std::byte* compare;
    std::byte* result;  // nullptr: not asked for
    std::size_t count;
};

template <AtomicOp kOp, class T, class Change>
RVT_ALWAYS_INLINE void for_elements(const Operands& what, Change change) noexcept {
    for (std::size_t i = 0; i < what.count; ++i) {
        const std::size_t at = i * sizeof(T);
        T operand{};
        T compare{};
        if constexpr (kOp != AtomicOp::kRead) {
            operand = load<T>(what.operand + at);
        }
        if constexpr (is_compare(kOp)) {
            compare = load<T>(what.compare + at);
        }
        const T old = change(what.target + at, operand, compare);
        if (what.result != nullptr) {
            store(what.result + at, old);
        }
    }
}

template <AtomicOp kOp, class T>
void run(const Operands& what) noexcept {
    if constexpr (sizeof(T) <= 16) {
        if (is_cpu_element(sizeof(T), what.target)) [[likely]] {
            for_elements<kOp, T>(what, change_cpu<kOp, T>);
            return;
        }
    }
    for_elements<kOp, T>(what, change_locked<kOp, T>);
}

using Kernel = void (*)(const Operands&) noexcept;
using Row = std::array<Kernel, kAtomicOps>;

template <class T, AtomicOp kOp>
constexpr Kernel kernel_of() {
    if constexpr (is_defined<T>(kOp)) {
        return run<kOp, T>;
    } else {
        return nullptr;
    }
}
template <class T, std::size_t... kOps>
constexpr Row row_of(std::index_sequence<kOps...>) {
    return {kernel_of<T, static_cast<AtomicOp>(kOps)>()...};
}
template <class... T>
constexpr std::array<Row, sizeof...(T)> table_of(TypeList<T...>) {
    return {row_of<T>(std::make_index_sequence<kAtomicOps>())...};
}

constexpr std::array<Row, kAtomicTypes> kKernels = table_of(Types());

}  // namespace

bool atomic_is_valid(RdAtomic::Kind kind, std::uint8_t datatype, std::uint8_t op) noexcept {
    if (datatype >= kAtomicTypes || op >= kAtomicOps || kKernels[datatype][op] == nullptr) {
        return false;
    }
    switch (kind) {
        case RdAtomic::Kind::kBase:
            return !is_compare(static_cast<AtomicOp>(op)) && op != kAtomicOpRead;
        case RdAtomic::Kind::kFetch: return !is_compare(static_cast<AtomicOp>(op));
        case RdAtomic::Kind::kCompare: return is_compare(static_cast<AtomicOp>(op));
    }
    return false;  // a number from a peer that is none of these
}

std::size_t atomic_size(std::uint8_t datatype) noexcept {
    return datatype < kAtomicTypes ? Types::kSizes[datatype] : 0;
}

bool atomic_is_cpu(std::uint8_t datatype, const void* target) noexcept {
    return datatype < kAtomicTypes && is_cpu_element(atomic_size(datatype), target);
}

void atomic_apply(std::uint8_t datatype, std::uint8_t op, void* target, const void* operand,
                  std::size_t count) noexcept {
    atomic_compare(datatype, op, target, operand, nullptr, nullptr, count);
}

void atomic_fetch(std::uint8_t datatype, std::uint8_t op, void* target, const void* operand,
                  void* result, std::size_t count) noexcept {
    atomic_compare(datatype, op, target, operand, nullptr, result, count);
}

void atomic_compare(std::uint8_t datatype, std::uint8_t op, void* target, const void* operand,
                    const void* compare, void* result, std::size_t count) noexcept {
    kKernels[datatype][op]({.target = static_cast<std::byte*>(target),
                            .operand = static_cast<const std::byte*>(operand),
                            .compare = static_cast<const std::byte*>(compare),
                            .result = static_cast<std::byte*>(result),
                            .count = count});
}

}  // namespace rvt::core
