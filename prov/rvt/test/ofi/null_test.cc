// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Null pointers: defaults where the interface allows them, EINVAL where it does not.
#include <array>

#include "ofi/pair.h"

using namespace rvt::test;  // NOLINT(google-build-using-namespace)

namespace {

/// Opens with null attributes: `open(&object)` may use defaults or refuse, and leaves nothing.
template <class Fid, class Open>
void opens_or_refuses(Open open) {
    Fid* object = nullptr;
    const int error = open(&object);
    if (error == 0) {
        RVT_ASSERT(object != nullptr);
        RVT_OK(fi_close(&object->fid));
    } else {
        RVT_EQ(error, -FI_EINVAL);
    }
}

EndOptions everything() {
    return {.caps = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC};
}

}  // namespace

Test(null, attributes_mean_defaults_or_are_refused) {
    const Opened open;
    opens_or_refuses<fid_cq>(
        [&](fid_cq** cq) { return fi_cq_open(open.domain.get(), nullptr, cq, nullptr); });
    opens_or_refuses<fid_av>(
        [&](fid_av** av) { return fi_av_open(open.domain.get(), nullptr, av, nullptr); });
    opens_or_refuses<fid_eq>(
        [&](fid_eq** eq) { return fi_eq_open(open.fabric.get(), nullptr, eq, nullptr); });
    opens_or_refuses<fid_cntr>(
        [&](fid_cntr** cntr) { return fi_cntr_open(open.domain.get(), nullptr, cntr, nullptr); });
    opens_or_refuses<fid_poll>(
        [&](fid_poll** poll) { return fi_poll_open(open.domain.get(), nullptr, poll); });
    opens_or_refuses<fid_wait>(
        [&](fid_wait** wait) { return fi_wait_open(open.fabric.get(), nullptr, wait); });
    opens_or_refuses<fid_ep>(
        [&](fid_ep** ep) { return fi_endpoint(open.domain.get(), nullptr, ep, nullptr); });
    opens_or_refuses<fid_domain>([&](fid_domain** domain) {
        return fi_domain(open.fabric.get(), nullptr, domain, nullptr);
    });
}

Test(null, memory_is_not_registered) {
    const Opened open;
    fid_mr* mr = nullptr;
    RVT_EQ(fi_mr_reg(open.domain.get(), nullptr, 64, FI_REMOTE_READ, 0, 1, 0, &mr, nullptr),
           -FI_EINVAL);
    RVT_EQ(fi_mr_regv(open.domain.get(), nullptr, 1, FI_REMOTE_READ, 0, 1, 0, &mr, nullptr),
           -FI_EINVAL);
    RVT_EQ(fi_mr_regattr(open.domain.get(), nullptr, 0, &mr), -FI_EINVAL);
    RVT_OK(fi_mr_reg(open.domain.get(), nullptr, 0, FI_REMOTE_READ, 0, 1, 0, &mr, nullptr));
    RVT_EQ(fi_mr_bind(mr, nullptr, 0), -FI_EINVAL);
    RVT_OK(fi_close(&mr->fid));
}

Test(null, addresses_are_refused) {
    End end(everything());
    std::array<char, 64> name{};
    std::size_t bytes = name.size();
    RVT_EQ(fi_av_insert(end.av.get(), nullptr, 1, nullptr, 0, nullptr), -FI_EINVAL);
    RVT_EQ(fi_av_insertsvc(end.av.get(), nullptr, nullptr, nullptr, 0, nullptr), -FI_EINVAL);
    RVT_EQ(fi_av_remove(end.av.get(), nullptr, 1, 0), -FI_EINVAL);
    RVT_EQ(fi_getname(&end.ep->fid, name.data(), nullptr), -FI_EINVAL);
    bytes = 0;
    RVT_EQ(fi_getname(&end.ep->fid, nullptr, &bytes), -FI_ETOOSMALL);
    RVT_ASSERT(bytes > 0);
    RVT_EQ(fi_av_lookup(end.av.get(), 0, name.data(), nullptr), -FI_EINVAL);
}

Test(null, objects_are_not_bound) {
    const Opened open;
    const Owned<fid_ep> ep = opened<fid_ep>([&](fid_ep** made) {
        return fi_endpoint(open.domain.get(), open.info.get(), made, nullptr);
    });
    RVT_EQ(fi_ep_bind(ep.get(), nullptr, 0), -FI_EINVAL);
}

Test(null, numbers_of_addresses_are_not_asked_for) {
    Pair pair(everything());
    std::array<char, 64> name{};
    std::size_t bytes = name.size();
    RVT_OK(fi_getname(&pair.b.ep->fid, name.data(), &bytes));
    RVT_EQ(fi_av_insert(pair.a.av.get(), name.data(), 1, nullptr, 0, nullptr), 1);
}

Test(null, attributes_of_atomics_need_not_be_asked_for) {
    const Opened open;
    RVT_OK(fi_query_atomic(open.domain.get(), FI_UINT64, FI_SUM, nullptr, 0));
    RVT_EQ(fi_query_atomic(open.domain.get(), FI_FLOAT, FI_BOR, nullptr, 0), -FI_EOPNOTSUPP);
}

Test(null, messages_and_lists_are_refused) {
    Pair pair(everything());
    fid_ep* const ep = pair.a.ep.get();
    RVT_EQ(fi_sendmsg(ep, nullptr, 0), -FI_EINVAL);
    RVT_EQ(fi_recvmsg(ep, nullptr, 0), -FI_EINVAL);
    RVT_EQ(fi_tsendmsg(ep, nullptr, 0), -FI_EINVAL);
    RVT_EQ(fi_trecvmsg(ep, nullptr, 0), -FI_EINVAL);
    RVT_EQ(fi_readmsg(ep, nullptr, 0), -FI_EINVAL);
    RVT_EQ(fi_writemsg(ep, nullptr, 0), -FI_EINVAL);
    RVT_EQ(fi_atomicmsg(ep, nullptr, 0), -FI_EINVAL);
    RVT_EQ(fi_sendv(ep, nullptr, nullptr, 1, pair.a.peer, nullptr), -FI_EINVAL);
    RVT_EQ(fi_recvv(ep, nullptr, nullptr, 1, FI_ADDR_UNSPEC, nullptr), -FI_EINVAL);
    RVT_EQ(fi_tsendv(ep, nullptr, nullptr, 1, pair.a.peer, 0, nullptr), -FI_EINVAL);
    RVT_EQ(fi_trecvv(ep, nullptr, nullptr, 1, FI_ADDR_UNSPEC, 0, 0, nullptr), -FI_EINVAL);
    RVT_EQ(fi_writev(ep, nullptr, nullptr, 1, pair.a.peer, 0, 0, nullptr), -FI_EINVAL);
    RVT_EQ(fi_readv(ep, nullptr, nullptr, 1, pair.a.peer, 0, 0, nullptr), -FI_EINVAL);
}

Test(null, buffers_serve_messages_of_no_bytes) {
    Pair pair(everything());
    const iovec nothing{nullptr, 0};
    RVT_OK(fi_recv(pair.b.ep.get(), nullptr, 0, nullptr, FI_ADDR_UNSPEC, nullptr));
    RVT_OK(fi_trecvv(pair.b.ep.get(), &nothing, nullptr, 1, FI_ADDR_UNSPEC, 1, 0, nullptr));
    pair.post([&] { return fi_send(pair.a.ep.get(), nullptr, 0, nullptr, pair.a.peer, nullptr); });
    pair.post([&] { return fi_tinject(pair.a.ep.get(), nullptr, 0, pair.a.peer, 1); });
    RVT_EQ(pair.b.next().len, 0);
    RVT_EQ(pair.b.next().len, 0);
}

Test(null, buffers_with_bytes_are_refused) {
    Pair pair(everything());
    fid_ep* const ep = pair.a.ep.get();
    const fi_addr_t to = pair.a.peer;
    std::uint64_t word = 0;
    for (const std::size_t length : {std::size_t{1}, std::size_t{8}, std::size_t{100'000}}) {
        const iovec hole{nullptr, length};
        RVT_EQ(fi_send(ep, nullptr, length, nullptr, to, nullptr), -FI_EINVAL);
        RVT_EQ(fi_tsend(ep, nullptr, length, nullptr, to, 1, nullptr), -FI_EINVAL);
        RVT_EQ(fi_tsendv(ep, &hole, nullptr, 1, to, 1, nullptr), -FI_EINVAL);
        RVT_EQ(fi_recv(ep, nullptr, length, nullptr, FI_ADDR_UNSPEC, nullptr), -FI_EINVAL);
        RVT_EQ(fi_trecv(ep, nullptr, length, nullptr, to, 1, 0, nullptr), -FI_EINVAL);
        RVT_EQ(fi_trecvv(ep, &hole, nullptr, 1, to, 1, 0, nullptr), -FI_EINVAL);
        RVT_EQ(fi_read(ep, nullptr, length, nullptr, to, 0, 1, nullptr), -FI_EINVAL);
        RVT_EQ(fi_write(ep, nullptr, length, nullptr, to, 0, 1, nullptr), -FI_EINVAL);
    }
    RVT_EQ(fi_inject(ep, nullptr, 8, to), -FI_EINVAL);
    RVT_EQ(fi_tinject(ep, nullptr, 8, to, 1), -FI_EINVAL);
    RVT_EQ(fi_inject_write(ep, nullptr, 8, to, 0, 1), -FI_EINVAL);
    RVT_EQ(fi_atomic(ep, nullptr, 1, nullptr, to, 0, 1, FI_UINT64, FI_SUM, nullptr), -FI_EINVAL);
    RVT_EQ(fi_fetch_atomic(ep, &word, 1, nullptr, nullptr, nullptr, to, 0, 1, FI_UINT64, FI_SUM,
                           nullptr),
           -FI_EINVAL);
    RVT_EQ(fi_compare_atomic(ep, &word, 1, nullptr, nullptr, nullptr, &word, nullptr, to, 0, 1,
                             FI_UINT64, FI_CSWAP, nullptr),
           -FI_EINVAL);
}

Test(null, entries_only_drive_progress) {
    Pair pair(everything());
    RVT_EQ(fi_cq_read(pair.a.cq.get(), nullptr, 0), -FI_EAGAIN);
    RVT_EQ(fi_cq_readfrom(pair.a.cq.get(), nullptr, 0, nullptr), -FI_EAGAIN);
    RVT_EQ(fi_cq_readerr(pair.a.cq.get(), nullptr, 0), -FI_EINVAL);
}

Test(limits, a_receive_without_room_reports_what_was_lost) {
    Pair pair(everything());
    const char bytes[100] = {};
    for (const std::size_t length : {std::size_t{1}, sizeof bytes}) {
        RVT_OK(fi_trecv(pair.b.ep.get(), nullptr, 0, nullptr, FI_ADDR_UNSPEC, 1, 0, nullptr));
        pair.post([&] { return fi_tinject(pair.a.ep.get(), bytes, length, pair.a.peer, 1); });
        const fi_cq_err_entry error = pair.b.next_error();
        RVT_EQ(error.err, FI_ETRUNC);
        RVT_EQ(error.len, 0);
        RVT_EQ(error.olen, length);
    }
}

Test(limits, more_pieces_than_advertised_are_refused_by_every_call) {
    Pair pair(everything());
    fid_ep* const ep = pair.a.ep.get();
    const fi_info& info = *pair.a.open.info;
    constexpr std::size_t kMost = 64;
    std::array<char, kMost> bytes{};
    std::array<iovec, kMost> iov;
    iov.fill({bytes.data(), 1});
    std::array<fi_rma_iov, kMost> remote;
    remote.fill({0, 1, 0});
    const std::size_t tx = info.tx_attr->iov_limit + 1;
    const std::size_t rx = info.rx_attr->iov_limit + 1;
    const std::size_t rma = info.tx_attr->rma_iov_limit + 1;
    RVT_ASSERT(tx <= kMost && rx <= kMost && rma <= kMost);
    fi_msg message{iov.data(), nullptr, tx, pair.a.peer, nullptr, 0};
    RVT_EQ(fi_sendmsg(ep, &message, 0), -FI_EINVAL);
    message.iov_count = rx;
    RVT_EQ(fi_recvmsg(ep, &message, 0), -FI_EINVAL);
    fi_msg_tagged tagged{iov.data(), nullptr, tx, pair.a.peer, 0, 0, nullptr, 0};
    RVT_EQ(fi_tsendmsg(ep, &tagged, 0), -FI_EINVAL);
    tagged.iov_count = rx;
    RVT_EQ(fi_trecvmsg(ep, &tagged, 0), -FI_EINVAL);
    fi_msg_rma access{iov.data(), nullptr, tx, pair.a.peer, remote.data(), tx, nullptr, 0};
    RVT_EQ(fi_writemsg(ep, &access, 0), -FI_EINVAL);
    RVT_EQ(fi_readmsg(ep, &access, 0), -FI_EINVAL);
    access.iov_count = 1;
    access.rma_iov_count = rma;
    RVT_EQ(fi_writemsg(ep, &access, 0), -FI_EINVAL);
    RVT_EQ(fi_writev(ep, iov.data(), nullptr, tx, pair.a.peer, 0, 0, nullptr), -FI_EINVAL);
    RVT_EQ(fi_readv(ep, iov.data(), nullptr, tx, pair.a.peer, 0, 0, nullptr), -FI_EINVAL);
    std::array<fi_ioc, kMost> ioc;
    ioc.fill({bytes.data(), 1});
    RVT_EQ(fi_atomicv(ep, ioc.data(), nullptr, tx, pair.a.peer, 0, 0, FI_UINT8, FI_SUM, nullptr),
           -FI_EINVAL);
}
