// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// READs and WRITEs of the application's memory, by the NIC that carries a flow.
#include "core/qp.h"
#include "core/rd_flow.h"
#include "core/rd_flows.h"
#include "core/rd_nic.h"

namespace rvt::core {

const Device* RdFlow::nic() const noexcept {
    return nic_ != nullptr ? &nic_->device() : nullptr;
}

std::uint16_t RdFlow::peer_lid() const noexcept {
    return nic_ != nullptr && qp_ != nullptr ? qp_->attr().ah.dlid : std::uint16_t{0};
}

bool RdFlow::can_rdma() const noexcept {
    return nic_ != nullptr && peer_.can_rdma && nic_->can_rdma();
}

RdLoan RdFlow::lend(const iovec& memory) noexcept {
    return {.nic = nic_, .region = nic_->lend(memory)};
}

RdLoan RdFlow::lend(const BufferUse::NicPlace& place) noexcept {
    return {.nic = nic_, .imported = nic_->import(place), .device_address = place.address};
}

util::Result<std::uint32_t> RdFlow::expose(std::uint32_t key, const iovec& memory, Access rights,
                                           DeviceMemory* device) noexcept {
    const Mr* const region = nic_->expose(key, memory, rights, device);
    return region != nullptr ? util::Result<std::uint32_t>(region->rkey())
                             : util::Result<std::uint32_t>(ENOMEM);
}

bool RdFlow::fetch(const iovec& to, std::uint64_t address, std::uint64_t key,
                   std::uint64_t name) noexcept {
    const auto begun = nic_->begin_rdma(to, RegCache::Nic::kWrites, *qp_, name);
    if (!begun) {
        return false;
    }
    return post_read(begun->index, begun->local, address, key);
}

bool RdFlow::fetch(const BufferUse::NicPlace& to, std::uint64_t bytes, std::uint64_t address,
                   std::uint64_t key, std::uint64_t name) noexcept {
    const auto begun = nic_->begin_rdma(to, bytes, *qp_, name);
    return begun && post_read(begun->index, begun->local, address, key);
}

/// Now, or when others have been done. Returns: false when it never will be.
bool RdFlow::post_read(std::uint32_t index, const Sge& local, std::uint64_t address,
                       std::uint64_t key) noexcept {
    const Rdma read{.opcode = WrOpcode::kRead,
                    .index = index,
                    .local = local,
                    .address = address,
                    .key = static_cast<std::uint32_t>(key)};
    const util::Guard guard(lock_);
    if (rdmas_ == RdNic::kMostRdma) {
        reads_.push_back(read);
        return true;
    }
    const bool is_posted = post_rdma_locked(read);
    if (!is_posted) {
        nic_->end_rdma(read.index);
    }
    return is_posted;
}

util::Status RdFlow::write(const iovec& from, std::uint64_t address, std::uint64_t key,
                           std::uint64_t name) noexcept {
    if (is_rdma_full()) {
        return EAGAIN;
    }
    const auto begun = nic_->begin_rdma(from, RegCache::Nic::kReads, *qp_, name);
    return begun ? post_write(begun->index, begun->local, address, key) : EOPNOTSUPP;
}

util::Status RdFlow::write(const BufferUse::NicPlace& from, std::uint64_t bytes,
                           std::uint64_t address, std::uint64_t key, std::uint64_t name) noexcept {
    if (is_rdma_full()) {
        return EAGAIN;
    }
    const auto begun = nic_->begin_rdma(from, bytes, *qp_, name);
    return begun ? post_write(begun->index, begun->local, address, key) : EOPNOTSUPP;
}

/// Whether as many are under way as can be. They become more by the owner's doing only.
bool RdFlow::is_rdma_full() noexcept {
    const util::Guard guard(lock_);
    return rdmas_ == RdNic::kMostRdma;
}

/// Nothing that is put behind it may overtake it, so that it does not wait as a READ does.
util::Status RdFlow::post_write(std::uint32_t index, const Sge& local, std::uint64_t address,
                                std::uint64_t key) noexcept {
    const util::Guard guard(lock_);
    const bool is_posted = post_rdma_locked({.opcode = WrOpcode::kWrite,
                                             .index = index,
                                             .local = local,
                                             .address = address,
                                             .key = static_cast<std::uint32_t>(key)});
    if (!is_posted) {
        nic_->end_rdma(index);
    }
    return is_posted ? kOk : util::Status(EOPNOTSUPP);
}

bool RdFlow::post_rdma_locked(const Rdma& rdma) noexcept {
    note_use();
    flows_.note_traffic();
    const bool is_posted = qp_->post_send({.wr_id = RdNic::kIsRdma | rdma.index,
                                           .opcode = rdma.opcode,
                                           .flags = SendFlags::kSignaled,
                                           .sg_list = {&rdma.local, 1},
                                           .remote_addr = rdma.address,
                                           .rkey = rdma.key})
                               .is_ok();
    rdmas_ += is_posted ? 1 : 0;
    return is_posted;
}

bool RdFlow::note_rdma_done(std::uint64_t name) noexcept {
    bool goes_on = true;
    {
        const util::Guard guard(lock_);
        --rdmas_;
        if (!reads_.empty()) {
            const Rdma next = reads_.front();
            reads_.pop_front();
            goes_on = post_rdma_locked(next);
            if (!goes_on) {
                nic_->lose_rdma(next.index);
            }
        }
    }
    note_use();
    if (flows_.is_owner_polling() && parts_.empty()) [[likely]] {
        hand_over_rdma(name);
    } else {
        parts_.push_back(
            {.bytes = {}, .starts = false, .ends = false, .is_rdma_done = true, .rdma = name});
        flows_.note_waiting(*this, 0);
    }
    return goes_on;
}

void RdFlow::hand_over_rdma(std::uint64_t name) noexcept {
    if (is_closed_ || is_broken_) {
        nic_->note_lost(name);
        return;
    }
    flows_.taker().take_message(user_peer_, {.op = RdOp::kRdmaDone, .data = name});
}

void RdFlow::drop_reads() noexcept {
    for (const Part& part : parts_) {
        if (part.is_rdma_done) {
            nic_->note_lost(part.rdma);
        }
    }
    const util::Guard guard(lock_);
    for (const Rdma& read : reads_) {
        nic_->lose_rdma(read.index);
    }
    reads_.clear();
}

}  // namespace rvt::core
