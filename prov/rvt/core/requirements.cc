// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// The requirement table, its checker, and the core's versions of the entries.
#include "core/requirements.h"

#include "core/ah.h"
#include "core/device.h"
#include "core/mr.h"
#include "core/qp.h"
#include "core/requester.h"
#include "core/srq.h"
#include "core/verbs_cq.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <type_traits>

namespace rvt::core {
namespace {

using Entry = void (*)();
constexpr std::size_t kEntries = sizeof(BackendOps) / sizeof(Entry);
static_assert(std::is_standard_layout_v<BackendOps> && sizeof(BackendOps) % sizeof(Entry) == 0,
              "BackendOps holds pointers to functions and nothing else");

#define RVT_ENTRY(name) offsetof(BackendOps, name), #name

struct EntryName {
    std::size_t offset;
    const char* name;
};

constexpr EntryName kNames[] = {
    {RVT_ENTRY(send_packets)},  {RVT_ENTRY(flush_packets)}, {RVT_ENTRY(open_channel)},
    {RVT_ENTRY(close_channel)}, {RVT_ENTRY(send_segment)},  {RVT_ENTRY(poll)},
    {RVT_ENTRY(read_peer)},     {RVT_ENTRY(write_peer)},    {RVT_ENTRY(wake_fd)},
    {RVT_ENTRY(arm)},           {RVT_ENTRY(reg_mr)},        {RVT_ENTRY(dereg_mr)},
    {RVT_ENTRY(create_cq)},     {RVT_ENTRY(destroy_cq)},    {RVT_ENTRY(poll_cq)},
    {RVT_ENTRY(req_notify_cq)}, {RVT_ENTRY(create_qp)},     {RVT_ENTRY(modify_qp)},
    {RVT_ENTRY(destroy_qp)},    {RVT_ENTRY(post_send)},     {RVT_ENTRY(post_recv)},
    {RVT_ENTRY(create_srq)},    {RVT_ENTRY(destroy_srq)},   {RVT_ENTRY(post_srq_recv)},
    {RVT_ENTRY(attach_mcast)},  {RVT_ENTRY(detach_mcast)},  {RVT_ENTRY(is_key_used)},
    {RVT_ENTRY(post_srq_op)},   {RVT_ENTRY(send_datagram)}, {RVT_ENTRY(alloc_pd)},
    {RVT_ENTRY(dealloc_pd)},    {RVT_ENTRY(create_ah)},     {RVT_ENTRY(destroy_ah)},
    {RVT_ENTRY(rereg_mr)},      {RVT_ENTRY(advise_mr)},     {RVT_ENTRY(send_now)},
    {RVT_ENTRY(path_payload)},  {RVT_ENTRY(ib_port)},
};
static_assert(std::size(kNames) == kEntries, "an entry has no name");

constexpr NeededWhen grade(Grade g) {
    return {.kind = NeededWhen::Kind::kGrade, .grade = g, .other = 0};
}
constexpr NeededWhen filled(std::size_t other) {
    return {.kind = NeededWhen::Kind::kFilled, .grade = Grade::kPacket, .other = other};
}

#define RVT_OP(name) offsetof(BackendOps, name)

// clang-format off
constexpr Requirement kRequirements[] = {
    {RVT_OP(send_packets),  grade(Grade::kPacket),          "putting packets on the wire"},
    {RVT_OP(poll),          grade(Grade::kPacket),          "taking packets off the wire"},
    {RVT_OP(open_channel),  grade(Grade::kSegment),         "reaching a peer (modify_qp to RTR, create_ah)"},
    {RVT_OP(close_channel), grade(Grade::kSegment),         "letting a peer go (destroy_qp, destroy_ah)"},
    {RVT_OP(send_segment),  grade(Grade::kSegment),         "carrying work requests and their answers"},
    {RVT_OP(poll),          grade(Grade::kSegment),         "taking in what peers send"},
    {RVT_OP(create_cq),     grade(Grade::kVerb),            "create_cq"},
    {RVT_OP(poll_cq),       grade(Grade::kVerb),            "poll_cq"},
    {RVT_OP(req_notify_cq), grade(Grade::kVerb),            "req_notify_cq"},
    {RVT_OP(reg_mr),        grade(Grade::kVerb),            "reg_mr"},
    {RVT_OP(create_qp),     grade(Grade::kVerb),            "create_qp"},
    {RVT_OP(modify_qp),     grade(Grade::kVerb),            "modify_qp"},
    {RVT_OP(post_send),     grade(Grade::kVerb),            "post_send"},
    {RVT_OP(post_recv),     grade(Grade::kVerb),            "post_recv"},
    {RVT_OP(dealloc_pd),    filled(RVT_OP(alloc_pd)),       "undoing alloc_pd"},
    {RVT_OP(destroy_ah),    filled(RVT_OP(create_ah)),      "undoing create_ah"},
    {RVT_OP(destroy_cq),    filled(RVT_OP(create_cq)),      "undoing create_cq"},
    {RVT_OP(dereg_mr),      filled(RVT_OP(reg_mr)),         "undoing reg_mr"},
    {RVT_OP(reg_mr),        filled(RVT_OP(rereg_mr)),       "rereg_mr of what cannot be changed in its place"},
    {RVT_OP(destroy_qp),    filled(RVT_OP(create_qp)),      "undoing create_qp"},
    {RVT_OP(destroy_srq),   filled(RVT_OP(create_srq)),     "undoing create_srq"},
    {RVT_OP(post_srq_recv), filled(RVT_OP(create_srq)),     "post_srq_recv on what create_srq made"},
    {RVT_OP(post_srq_op),   filled(RVT_OP(create_srq)),     "post_srq_ops on what create_srq made"},
    {RVT_OP(detach_mcast),  filled(RVT_OP(attach_mcast)),   "undoing attach_mcast"},
    {RVT_OP(is_key_used),   filled(RVT_OP(read_peer)),      "dereg_mr of memory that peers read by themselves"},
    {RVT_OP(is_key_used),   filled(RVT_OP(write_peer)),     "dereg_mr of memory that peers write by themselves"},
    {RVT_OP(arm),           filled(RVT_OP(wake_fd)),        "sleeping on wake_fd"},
    {RVT_OP(wake_fd),       filled(RVT_OP(arm)),            "being woken after arm"},
    {RVT_OP(poll_cq),       filled(RVT_OP(create_cq)),      "poll_cq on what create_cq made"},
    {RVT_OP(post_recv),     filled(RVT_OP(post_send)),      "post_recv beside the backend's post_send"},
};
// clang-format on

bool is_filled(const BackendOps& ops, std::size_t offset) noexcept {
    Entry entry = nullptr;
    std::memcpy(&entry, reinterpret_cast<const std::byte*>(&ops) + offset, sizeof entry);
    return entry != nullptr;
}

bool applies(const Requirement& row, const BackendOps& ops, Grade grade) noexcept {
    return row.when.kind == NeededWhen::Kind::kGrade ? row.when.grade == grade
                                                     : is_filled(ops, row.when.other);
}

// The core's versions. Where the core does all of the work itself, nothing is left for an entry.
constexpr BackendOps kDefaults = {
    .send_packets =
        [](Device&, const AhAttr&, std::span<const OutPacket> packets) {
            return static_cast<unsigned>(packets.size());  // to groups, which end here
        },
    .flush_packets = [](Device&) {},
    .send_now =
        [](Device& device, const AhAttr& dest, const OutPacket& packet) {
            const bool is_taken = device.ops().send_packets(device, dest, {&packet, 1}) == 1;
            device.ops().flush_packets(device);
            return is_taken;
        },
    .path_payload = [](Device& device, const Address&) { return device.payload_bytes(); },
    .open_channel = [](Device&, const Address&) -> Result<Channel*> { return EHOSTUNREACH; },
    .close_channel = [](Device&, Channel&) {},
    .send_segment = [](Device&, Channel&, std::span<const std::byte>,
                       std::span<const iovec>) -> Status { return ENOTCONN; },
    .send_datagram =
        [](Device& device, Channel& channel, std::span<const std::byte> header,
           std::span<const iovec> payload) {
            return device.ops().send_segment(device, channel, header, payload);
        },
    .read_peer = [](Device&, Channel&, const PeerMemory&, std::span<const iovec>) -> Status {
        return EOPNOTSUPP;
    },
    .write_peer = [](Device&, Channel&, const PeerMemory&, std::span<const iovec>) -> Status {
        return EOPNOTSUPP;
    },
    .is_key_used = [](Device&, std::uint32_t) { return false; },
    .poll = [](Device&) { return 0u; },
    .wake_fd = [](Device&) { return -1; },
    .arm = [](Device&) -> Status { return kOk; },
    .alloc_pd = [](Pd&) -> Status { return kOk; },
    .dealloc_pd = [](Pd&) {},
    .reg_mr = [](Mr&) -> Status { return kOk; },
    .dereg_mr = [](Mr&) -> Status { return kOk; },
    .rereg_mr = [](Mr&, MrChange) -> Status { return EOPNOTSUPP; },
    .advise_mr = [](Mr& mr, MrAdvice advice, std::uint64_t offset,
                    std::uint64_t bytes) { return prefetch(mr.memory(), advice, offset, bytes); },
    .ib_port = [](Device&) -> Result<IbPort> { return IbPort{}; },
    .create_ah = [](Ah&) -> Status { return kOk; },
    .destroy_ah = [](Ah&) {},
    .create_cq = [](VerbsCq&) -> Status { return kOk; },
    .destroy_cq = [](VerbsCq&) {},
    .poll_cq = [](VerbsCq& cq, std::span<Wc> to) { return cq.poll_ring(to); },
    .req_notify_cq = [](VerbsCq& cq, bool solicited) { return cq.arm_ring(solicited); },
    .create_qp = [](Qp&) -> Status { return kOk; },
    .modify_qp = [](Qp&, const QpAttr&, QpMask) -> Status { return kOk; },
    .destroy_qp = [](Qp&) {},
    .post_send = [](Qp& qp, const SendWr& wr) { return enqueue_send(qp, wr); },
    .post_recv = [](Qp& qp, const RecvWr& wr) { return qp.enqueue_recv(wr); },
    .create_srq = [](Srq&) -> Status { return kOk; },
    .destroy_srq = [](Srq&) {},
    .post_srq_recv = [](Srq& srq, std::span<const RecvWr> wrs) { return srq.enqueue_recvs(wrs); },
    .post_srq_op = [](Srq& srq, TmOp& op) { return srq.execute_op(op); },
    .attach_mcast = [](Qp&, const Address&) -> Status { return kOk; },
    .detach_mcast = [](Qp&, const Address&) {},
};

}  // namespace

std::span<const Requirement> requirements() noexcept {
    return kRequirements;
}

const char* entry_name(std::size_t offset) noexcept {
    for (const EntryName& entry : kNames) {
        if (entry.offset == offset) {
            return entry.name;
        }
    }
    return "?";
}

std::string missing_entries(const BackendOps& ops, Grade grade) {
    std::string missing;
    for (const Requirement& row : kRequirements) {
        if (!applies(row, ops, grade) || is_filled(ops, row.entry)) {
            continue;
        }
        missing += missing.empty() ? "" : ", ";
        missing += std::string(entry_name(row.entry)) + " (for " + row.why + ")";
    }
    return missing;
}

BackendOps fill_defaults(const BackendOps& ops) noexcept {
    BackendOps full = ops;
    for (std::size_t offset = 0; offset < sizeof full; offset += sizeof(Entry)) {
        if (!is_filled(ops, offset)) {
            std::memcpy(reinterpret_cast<std::byte*>(&full) + offset,
                        reinterpret_cast<const std::byte*>(&kDefaults) + offset, sizeof(Entry));
        }
    }
    return full;
}

}  // namespace rvt::core
