// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What the record of an operation keeps of the application's buffers.
#include "core/rd_records.h"

#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>

#include "common/check.h"

using namespace rvt::core;  // NOLINT(google-build-using-namespace)

namespace {

/// Bytes in two buffers, of which the second one is longer by what cannot be halved.
struct TwoBuffers {
    TwoBuffers(std::size_t bytes, char value)
        : data(bytes, value),
          parts{iovec{data.data(), bytes / 2}, iovec{data.data() + bytes / 2, bytes - bytes / 2}} {}

    RdBuffers all() const { return {parts.data(), parts.size()}; }

    std::string data;
    std::array<iovec, 2> parts;
};

std::string text_of(const iovec& part) {
    return {static_cast<const char*>(part.iov_base), part.iov_len};
}

bool is_within(const RdTxOp& op, const iovec& part) {
    const auto* const bytes = reinterpret_cast<const std::byte*>(&op);
    const auto* const at = static_cast<const std::byte*>(part.iov_base);
    return at >= bytes && at + part.iov_len <= bytes + sizeof op;
}

std::unique_ptr<RdTxOp> injected() {
    auto op = std::make_unique<RdTxOp>();
    op->flags = RdFlags::kInject;
    return op;
}

}  // namespace

Test(rd_records, what_is_injected_is_kept_without_an_allocation_if_it_is_small) {
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{8}, std::size_t{64}}) {
        const auto op = injected();
        TwoBuffers sent(bytes, 's');
        RVT_OK(op->take_buffers(sent.all()));
        sent.data.assign(bytes, '-');
        RVT_ASSERT(op->copy == nullptr);
        RVT_EQ(op->iov_count, 1);
        RVT_ASSERT(is_within(*op, op->iov[0]));
        RVT_ASSERT(text_of(op->iov[0]) == std::string(bytes, 's'));
    }
}

Test(rd_records, so_is_what_an_injected_atomic_compares_with) {
    const auto op = injected();
    TwoBuffers sent(32, 's');
    TwoBuffers compared(32, 'c');
    RVT_OK(op->take_buffers(sent.all(), compared.all()));
    sent.data.assign(32, '-');
    compared.data.assign(32, '-');
    RVT_ASSERT(op->copy == nullptr);
    RVT_EQ(op->compare_count, 1);
    RVT_ASSERT(is_within(*op, op->compare[0]));
    RVT_ASSERT(text_of(op->iov[0]) == std::string(32, 's'));
    RVT_ASSERT(text_of(op->compare[0]) == std::string(32, 'c'));
}

Test(rd_records, what_is_longer_lies_elsewhere) {
    const auto op = injected();
    TwoBuffers sent(32, 's');
    TwoBuffers compared(33, 'c');
    RVT_OK(op->take_buffers(sent.all(), compared.all()));
    sent.data.assign(32, '-');
    compared.data.assign(33, '-');
    RVT_ASSERT(!is_within(*op, op->iov[0]));
    RVT_ASSERT(!is_within(*op, op->compare[0]));
    RVT_ASSERT(text_of(op->iov[0]) == std::string(32, 's'));
    RVT_ASSERT(text_of(op->compare[0]) == std::string(33, 'c'));
}

Test(rd_records, what_is_not_injected_stays_where_it_is) {
    RdTxOp op;
    TwoBuffers sent(8, 's');
    RVT_OK(op.take_buffers(sent.all()));
    RVT_ASSERT(!op.has_copies());
    RVT_EQ(op.iov_count, 2);
    RVT_ASSERT(op.iov[0].iov_base == sent.data.data());
    RVT_ASSERT(op.iov[1].iov_base == sent.data.data() + 4);
}
