// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Tables whose every entry answers the same error.
#include "ofi/ep_tables.h"

#include "ofi/atomic_valid.h"
#include "ofi/refuse.h"

namespace rvt::ofi {
namespace {

template <int kError>
constexpr EpTables make_tables() noexcept {
    constexpr Refuse<kError> kNo{};
    return {
        .msg = {sizeof(fi_ops_msg), kNo, kNo, kNo, kNo, kNo, kNo, kNo, kNo, kNo},
        .tagged = {sizeof(fi_ops_tagged), kNo, kNo, kNo, kNo, kNo, kNo, kNo, kNo, kNo},
        .rma = {sizeof(fi_ops_rma), kNo, kNo, kNo, kNo, kNo, kNo, kNo, kNo, kNo},
        .atomic = {sizeof(fi_ops_atomic), kNo, kNo, kNo, kNo, kNo, kNo, kNo, kNo, kNo, kNo,
                   atomic_writevalid, atomic_readwritevalid, atomic_compwritevalid},
    };
}

constexpr Refuse<-FI_ENOSYS> kNone{};

}  // namespace

constinit EpTables not_enabled_tables = make_tables<-FI_EOPBADSTATE>();
constinit EpTables absent_tables = make_tables<-FI_ENOSYS>();
constinit fi_ops_collective absent_collective_ops = {
    .size = sizeof(fi_ops_collective),
    .barrier = kNone,
    .broadcast = kNone,
    .alltoall = kNone,
    .allreduce = kNone,
    .allgather = kNone,
    .reduce_scatter = kNone,
    .reduce = kNone,
    .scatter = kNone,
    .gather = kNone,
    .msg = kNone,
    .barrier2 = kNone,
};

}  // namespace rvt::ofi
