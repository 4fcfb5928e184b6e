// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "common/guard.h"

#include <rdma/fi_atomic.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

#include <map>
#include <memory>
#include <type_traits>
#include <utility>

#include <dlfcn.h>

#include "common/device_memory.h"

namespace fab {
namespace {

void (*close_memory)(int) = nullptr;

bool is_wanted() {
    close_memory = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "standin_close"));
    return close_memory != nullptr && is_standin();
}

struct Closed {
    Closed() { close_memory(1); }
    ~Closed() { close_memory(0); }
    Closed(const Closed&) = delete;
    Closed& operator=(const Closed&) = delete;
};

/// What the table of one object was, and what it is now.
template <class Ops>
struct Tables {
    const Ops* original;
    std::unique_ptr<Ops> guarded;
};

/// The tables of all objects. An object that is closed leaves its own behind for who gets its
/// address, or for the end of the process: a call may still be under way in it.
template <auto kTable, class Ops>
auto& tables() {
    static auto* const kMade = new std::map<const void*, Tables<Ops>>;
    return *kMade;
}

/// A call of one slot of the table that `kTable` is of its object.
template <auto kTable, auto kSlot>
struct Call;
template <class Fid, class Ops, Ops* Fid::*kTable, class R, class... A,
          R (*Ops::*kSlot)(Fid*, A...)>
struct Call<kTable, kSlot> {
    static R call(Fid* self, A... arguments) {
        const Ops* const ops = tables<kTable, Ops>()[self].original;
        const Closed closed;
        return (ops->*kSlot)(self, arguments...);
    }
};

template <auto kTable, auto... kSlots, class Fid>
void guard(Fid* object) {
    auto*& table = object->*kTable;
    using Ops = std::remove_pointer_t<std::remove_reference_t<decltype(table)>>;
    auto guarded = std::make_unique<Ops>(*table);
    ((guarded.get()->*kSlots = Call<kTable, kSlots>::call), ...);
    Tables<Ops>& kept = tables<kTable, Ops>()[object];
    kept = {table, std::move(guarded)};
    table = kept.guarded.get();
}

}  // namespace

void guard_calls_of(fid_ep* ep) {
    if (!is_wanted()) return;
    using Msg = fi_ops_msg;
    guard<&fid_ep::msg, &Msg::recv, &Msg::recvv, &Msg::recvmsg, &Msg::send, &Msg::sendv,
          &Msg::sendmsg, &Msg::senddata>(ep);
    using Tagged = fi_ops_tagged;
    guard<&fid_ep::tagged, &Tagged::recv, &Tagged::recvv, &Tagged::recvmsg, &Tagged::send,
          &Tagged::sendv, &Tagged::sendmsg, &Tagged::senddata>(ep);
    using Rma = fi_ops_rma;
    guard<&fid_ep::rma, &Rma::read, &Rma::readv, &Rma::readmsg, &Rma::write, &Rma::writev,
          &Rma::writemsg, &Rma::writedata>(ep);
    using Atomic = fi_ops_atomic;
    guard<&fid_ep::atomic, &Atomic::write, &Atomic::writev, &Atomic::writemsg, &Atomic::readwrite,
          &Atomic::readwritev, &Atomic::readwritemsg, &Atomic::compwrite, &Atomic::compwritev,
          &Atomic::compwritemsg>(ep);
}

void guard_calls_of(fid_cq* cq) {
    if (!is_wanted()) return;
    using Ops = fi_ops_cq;
    guard<&fid_cq::ops, &Ops::read, &Ops::readfrom, &Ops::readerr, &Ops::sread, &Ops::sreadfrom>(
        cq);
}

void guard_calls_of(fid_cntr* cntr) {
    if (!is_wanted()) return;
    using Ops = fi_ops_cntr;
    guard<&fid_cntr::ops, &Ops::read, &Ops::wait>(cntr);
}

}  // namespace fab
