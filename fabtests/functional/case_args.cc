// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Bad arguments, bad states, and closing in every order: documented errors, no crash.
#include <cstring>

#include "functional/case.h"

namespace fab {
namespace {

/// No buffer is needed where the length is 0.
void null_where_allowed(Rank& self) {
    Party party(self, {.caps = FI_MSG | FI_TAGGED});
    Contexts contexts(2);
    fid_ep* ep = party.ep.ep;
    party.ep.post([&] { return fi_recv(ep, nullptr, 0, nullptr, FI_ADDR_UNSPEC, contexts.at(0)); });
    party.ep.post([&] { return fi_send(ep, nullptr, 0, nullptr, party.peer(), contexts.at(1)); });
    FAB_EQUAL(party.ep.wait_rx().len, 0);
    party.ep.wait_tx();
    party.ep.post(
        [&] { return fi_trecvv(ep, nullptr, nullptr, 0, FI_ADDR_UNSPEC, 1, 0, contexts.at(0)); });
    party.ep.post([&] { return fi_tinject(ep, nullptr, 0, party.peer(), 1); });
    FAB_EQUAL(party.ep.wait_rx().len, 0);
}

/// More than the advertised limits is refused.
void beyond_limits(Rank& self) {
    Party party(self, {.caps = FI_MSG | FI_TAGGED});
    Buffer buffer(party.ep, 1 << 20);
    Contexts contexts(1);
    fid_ep* ep = party.ep.ep;
    const std::size_t pieces = party.ep.info->tx_attr->iov_limit + 1;
    std::vector<iovec> iov(pieces, iovec{buffer.as(), 1});
    std::vector<void*> descs(pieces, buffer.desc());
    FAB_CHECK(fi_sendv(ep, iov.data(), descs.data(), pieces, party.peer(), contexts.at(0)) < 0);
    FAB_CHECK(fi_recvv(ep, iov.data(), descs.data(), party.ep.info->rx_attr->iov_limit + 1,
                       FI_ADDR_UNSPEC, contexts.at(0)) < 0);
    const std::size_t too_long = party.ep.info->tx_attr->inject_size + 1;
    if (too_long <= buffer.size()) {
        FAB_CHECK(fi_inject(ep, buffer.as(), too_long, party.peer()) < 0);
        FAB_CHECK(fi_tinject(ep, buffer.as(), too_long, party.peer(), 1) < 0);
    }
    party.barrier();
    Completion none;
    FAB_CHECK(!party.ep.poll(party.ep.rx_cq, none));
}

/// An address that was never inserted is refused, or its operation ends with an error.
void unknown_address(Rank& self) {
    Party party(self, {.caps = FI_MSG, .av_type = FI_AV_TABLE});
    Buffer buffer(party.ep, 64);
    Contexts contexts(1);
    for (const fi_addr_t to : {fi_addr_t{12345}, fi_addr_t{FI_ADDR_NOTAVAIL}}) {
        const auto rc = static_cast<long>(
            fi_send(party.ep.ep, buffer.as(), 8, buffer.desc(), to, contexts.at(0)));
        if (rc == 0) FAB_CHECK(party.ep.wait_any(party.ep.tx_cq).err != 0);
    }
}

/// Options nobody knows have their own errors.
void unknown_options(Rank& self) {
    Party party(self, {.caps = FI_MSG});
    std::size_t value = 0;
    std::size_t length = sizeof value;
    FAB_EQUAL(fi_getopt(&party.ep.ep->fid, FI_OPT_ENDPOINT, 12345, &value, &length),
              -FI_ENOPROTOOPT);
    const int rc = fi_setopt(&party.ep.ep->fid, FI_OPT_ENDPOINT, 12345, &value, sizeof value);
    FAB_CHECK(rc == -FI_ENOPROTOOPT || rc == -FI_EOPNOTSUPP);
}

/// An endpoint that lacks what it needs does not enable, and says which.
void incomplete_endpoint(Rank& self) {
    Party party(self, {.caps = FI_MSG});
    fi_info* info = dup_without_port(*party.ep.info);
    fid_ep* ep = nullptr;
    FAB_OK(fi_endpoint(party.ep.domain, info, &ep, nullptr));
    char byte = 0;
    FAB_CHECK(fi_enable(ep) < 0);
    FAB_OK(fi_ep_bind(ep, &party.ep.av->fid, 0));
    FAB_EQUAL(fi_enable(ep), -FI_ENOCQ);
    FAB_EQUAL(fi_send(ep, &byte, 1, nullptr, party.peer(), nullptr), -FI_EOPBADSTATE);
    FAB_EQUAL(fi_close(&ep->fid), 0);
    FAB_OK(fi_endpoint(party.ep.domain, info, &ep, nullptr));
    FAB_OK(fi_ep_bind(ep, &party.ep.tx_cq->fid, FI_TRANSMIT));
    FAB_OK(fi_ep_bind(ep, &party.ep.rx_cq->fid, FI_RECV));
    FAB_EQUAL(fi_enable(ep), -FI_ENOAV);
    FAB_EQUAL(fi_close(&ep->fid), 0);
    fi_freeinfo(info);
}

/// What others use cannot be closed.
void busy_objects(Rank& self) {
    Party party(self, {.caps = FI_MSG, .cntr_flags = FI_SEND});
    FAB_EQUAL(fi_close(&party.ep.av->fid), -FI_EBUSY);
    FAB_EQUAL(fi_close(&party.ep.tx_cq->fid), -FI_EBUSY);
    FAB_EQUAL(fi_close(&party.ep.send_cntr->fid), -FI_EBUSY);
    FAB_EQUAL(fi_close(&party.ep.domain->fid), -FI_EBUSY);
    FAB_EQUAL(fi_close(&party.ep.fabric->fid), -FI_EBUSY);
    Buffer buffer(party.ep, 64);
    Contexts contexts(2);
    party.recv(buffer, 64, contexts.at(0));
    party.send(buffer, 8, contexts.at(1));
    party.ep.wait_rx();
    party.ep.wait_tx();
}

/// An endpoint may be closed with receives posted and messages unread.
void close_with_pending(Rank& self) {
    Party party(self, {.caps = FI_MSG | FI_TAGGED});
    const EpSpec spec{.caps = FI_MSG | FI_TAGGED};
    for (int turn = 0; turn < 5; ++turn) {
        Buffer buffer(party.ep, 100000);  // until the endpoint is closed: the host may still send
        Contexts contexts(8);
        Endpoint second(spec, party.ep);
        second.connect(self);
        const fi_addr_t to = second.peers[static_cast<std::size_t>(self.other())];
        for (std::size_t i = 0; i < 4; ++i) {
            FAB_OK(fi_trecv(second.ep, buffer.as(), 64, buffer.desc(), FI_ADDR_UNSPEC, 99, 0,
                            contexts.at(i)));
            second.post([&] {
                return fi_tsend(second.ep, buffer.as(), i % 2 == 0 ? 8 : 100000, buffer.desc(), to,
                                i, contexts.at(4 + i));
            });
        }
        party.barrier();
    }
}

/// Opening and closing again and again leaves nothing behind that would stop it.
void open_and_close(Rank& self) {
    for (int turn = 0; turn < 20; ++turn) {
        Party party(self, {.caps = FI_TAGGED});
        Buffer buffer(party.ep, 64);
        Contexts contexts(2);
        party.trecv(buffer, 64, 1, 0, contexts.at(0));
        party.tsend(buffer, 8, 1, contexts.at(1));
        party.ep.wait_rx();
        party.ep.wait_tx();
    }
}

/// Hints that contradict what there is get -FI_ENODATA; no provider of that name gets it too.
void impossible_hints(Rank& self) {
    const auto expect_nothing = [](const EpSpec& spec) {
        int error = 0;
        fi_info* info = find_info(spec, &error);
        FAB_CHECK(info == nullptr);
        FAB_EQUAL(error, -FI_ENODATA);
    };
    expect_nothing({.caps = FI_MSG, .cq_data_size = 64});
    expect_nothing({.caps = FI_MSG | (1ULL << 62)});
    expect_nothing({.caps = FI_MSG, .rx_size = ~std::size_t{0} / 2});
    self.barrier();
}

constexpr Case kArgTable[] = {
    {"args_null_where_allowed", null_where_allowed},   {"args_beyond_limits", beyond_limits},
    {"args_unknown_address", unknown_address},         {"args_unknown_options", unknown_options},
    {"args_incomplete_endpoint", incomplete_endpoint}, {"args_busy_objects", busy_objects},
    {"args_close_with_pending", close_with_pending},   {"args_open_and_close", open_and_close},
    {"args_impossible_hints", impossible_hints},
};

}  // namespace

const std::span<const Case> kArgCases = kArgTable;

}  // namespace fab
