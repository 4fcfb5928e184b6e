// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What each atomic operation does to each datatype, after fi_atomic(3): the expectation that the
// atomic cases compare with. Values are small whole numbers, so that every result is exact but for
// the smallest floats, which round to nearest even.
#pragma once

#include <rdma/fi_domain.h>

#include <cstddef>
#include <span>

namespace fab {

enum class AtomicForm { kBase, kFetch, kCompare };

struct AtomicType {
    fi_datatype type;
    const char* name;
    std::size_t size;
    void (*set)(void* at, int value);
    /// Applies `op` to `*target`.
    void (*apply)(fi_op op, void* target, const void* operand, const void* compare);
    bool (*equal)(const void* a, const void* b);
    /// Whether the interface defines `op` for this type.
    bool (*defines)(fi_op op);
};

std::span<const AtomicType> atomic_types();

/// The operations that come in this form.
std::span<const fi_op> atomic_ops(AtomicForm form);

}  // namespace fab
