// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Address vectors: fi_av(3).
#include <cstring>
#include <string>

#include <arpa/inet.h>
#include <netinet/in.h>

#include "functional/case.h"

namespace fab {
namespace {

/// A table numbers its entries from 0 and fills the slots of removed ones.
void table(Rank& self) {
    Party party(self, {.caps = FI_MSG, .av_type = FI_AV_TABLE});
    for (int r = 0; r < self.size; ++r) FAB_EQUAL(party.at(r), r);
}

/// A map works as well.
void map(Rank& self) {
    Party party(self, {.caps = FI_MSG, .av_type = FI_AV_MAP});
    Buffer buffer(party.ep, 64);
    Contexts contexts(2);
    party.recv(buffer, 64, contexts.at(0));
    party.send(buffer, 8, contexts.at(1));
    party.ep.wait_rx();
    party.ep.wait_tx();
}

/// What was inserted is found again.
void lookup(Rank& self) {
    Party party(self, {.caps = FI_MSG});
    const std::vector<char> mine = party.ep.name();
    std::vector<char> found(256);
    std::size_t length = found.size();
    FAB_OK(fi_av_lookup(party.ep.av, party.at(self.rank), found.data(), &length));
    FAB_CHECK(length >= mine.size());
    FAB_EQUAL(std::memcmp(found.data(), mine.data(), mine.size()), 0);
    std::size_t little = 1;  // too little room: as much as fits, and the length needed
    const int rc = fi_av_lookup(party.ep.av, party.at(self.rank), found.data(), &little);
    FAB_CHECK(rc == 0 || rc == -FI_ETOOSMALL);
    FAB_CHECK(little >= mine.size());
}

/// An address reads as text.
void straddr(Rank& self) {
    Party party(self, {.caps = FI_MSG});
    const std::vector<char> mine = party.ep.name();
    char text[256] = {};
    std::size_t length = sizeof text;
    FAB_CHECK(fi_av_straddr(party.ep.av, mine.data(), text, &length) == text);
    FAB_CHECK(std::strlen(text) > 3);
    FAB_CHECK(std::strlen(text) < length + 1);
}

/// After a removal and a new insertion messages flow again.
void remove_and_insert(Rank& self) {
    Party party(self, {.caps = FI_MSG});
    Buffer buffer(party.ep, 64);
    Contexts contexts(2);
    const std::vector<char> mine = party.ep.name();
    self.send_string(self.other(), std::string(mine.begin(), mine.end()));
    const std::string theirs = self.receive_string(self.other());
    for (int turn = 0; turn < 5; ++turn) {
        party.recv(buffer, 64, contexts.at(0));
        party.send(buffer, 8, contexts.at(1));
        party.ep.wait_rx();
        party.ep.wait_tx();
        party.barrier();
        fi_addr_t old = party.peer();
        FAB_OK(fi_av_remove(party.ep.av, &old, 1, 0));
        party.ep.peers[static_cast<std::size_t>(self.other())] =
            party.ep.insert({theirs.begin(), theirs.end()});
        party.barrier();
    }
}

/// A handle that is not in use is neither removed nor looked up.
void unused_handle(Rank& self) {
    const Party party(self, {.caps = FI_MSG});
    std::vector<char> found(256);
    std::size_t length = found.size();
    fi_addr_t unused = 12345;
    FAB_EQUAL(fi_av_remove(party.ep.av, &unused, 1, 0), -FI_EINVAL);
    FAB_EQUAL(fi_av_lookup(party.ep.av, unused, found.data(), &length), -FI_EINVAL);
}

/// The same address inserted twice: both handles send.
void duplicates(Rank& self) {
    Party party(self, {.caps = FI_MSG});
    Buffer buffer(party.ep, 64);
    Contexts contexts(2);
    const std::vector<char> mine = party.ep.name();
    self.send_string(self.other(), std::string(mine.begin(), mine.end()));
    const std::string theirs = self.receive_string(self.other());
    const fi_addr_t again = party.ep.insert({theirs.begin(), theirs.end()});
    for (const fi_addr_t to : {party.peer(), again}) {
        party.recv(buffer, 64, contexts.at(0));
        party.ep.post([&] {
            return fi_send(party.ep.ep, buffer.as(), 8, buffer.desc(), to, contexts.at(1));
        });
        party.ep.wait_rx();
        party.ep.wait_tx();
    }
}

sockaddr_in loopback_address(unsigned number) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(0x7f000001);
    address.sin_port = htons(static_cast<std::uint16_t>(1024 + number % 60000));
    address.sin_addr.s_addr = htonl(0x7f000001 + number / 60000);
    return address;
}

/// Skips where addresses are not IPv4, before anything is opened.
EpSpec over_ip(EpSpec spec) {
    fi_info* info = find_info(spec);
    const bool is_ip = info != nullptr && info->addr_format == FI_SOCKADDR_IN;
    fi_freeinfo(info);
    if (!is_ip) skip("addresses are not FI_SOCKADDR_IN");
    return spec;
}

/// 100,000 addresses in one call, and each is found; peers that exist still work.
void many(Rank& self) {
    constexpr std::size_t kCount = 100'000;
    Party party(self, over_ip({.caps = FI_MSG, .av_type = FI_AV_TABLE, .av_count = kCount}));
    std::vector<sockaddr_in> addresses(kCount);
    for (unsigned i = 0; i < kCount; ++i) addresses[i] = loopback_address(i);
    std::vector<fi_addr_t> places(kCount);
    FAB_EQUAL(fi_av_insert(party.ep.av, addresses.data(), kCount, places.data(), 0, nullptr),
              kCount);
    for (std::size_t i = 0; i < kCount; i += 997) {
        sockaddr_in found{};
        std::size_t length = sizeof found;
        FAB_OK(fi_av_lookup(party.ep.av, places[i], &found, &length));
        FAB_EQUAL(found.sin_port, addresses[i].sin_port);
        FAB_EQUAL(found.sin_addr.s_addr, addresses[i].sin_addr.s_addr);
    }
    Buffer buffer(party.ep, 64);
    Contexts contexts(2);
    party.recv(buffer, 64, contexts.at(0));
    party.send(buffer, 8, contexts.at(1));
    party.ep.wait_rx();
    party.ep.wait_tx();
}

/// An address that cannot be one is not inserted: FI_ADDR_NOTAVAIL in its place, the others are.
void bad_address(Rank& self) {
    Party party(self, over_ip({.caps = FI_MSG}));
    sockaddr_in addresses[3] = {loopback_address(1), loopback_address(2), loopback_address(3)};
    addresses[1].sin_family = AF_UNIX;
    fi_addr_t places[3] = {};
    FAB_EQUAL(fi_av_insert(party.ep.av, addresses, 3, places, 0, nullptr), 2);
    FAB_CHECK(places[0] != FI_ADDR_NOTAVAIL);
    FAB_CHECK(places[1] == FI_ADDR_NOTAVAIL);
    FAB_CHECK(places[2] != FI_ADDR_NOTAVAIL);
    int errors[3] = {-1, -1, -1};
    FAB_EQUAL(fi_av_insert(party.ep.av, addresses, 3, places, FI_SYNC_ERR, errors), 2);
    FAB_EQUAL(errors[0], 0);
    FAB_CHECK(errors[1] > 0);
    FAB_EQUAL(errors[2], 0);
}

/// fi_av_insertsvc and fi_av_insertsym resolve names.
void by_name(Rank& self) {
    Party party(self, over_ip({.caps = FI_MSG}));
    fi_addr_t places[4] = {};
    FAB_EQUAL(fi_av_insertsvc(party.ep.av, "127.0.0.1", "7471", places, 0, nullptr), 1);
    sockaddr_in found{};
    std::size_t length = sizeof found;
    FAB_OK(fi_av_lookup(party.ep.av, places[0], &found, &length));
    FAB_EQUAL(ntohs(found.sin_port), 7471);
    FAB_EQUAL(fi_av_insertsym(party.ep.av, "127.0.0.1", 2, "7480", 2, places, 0, nullptr), 4);
}

/// Sending to an address where nobody listens is an error in bounded time, not a hang.
void nobody_there(Rank& self) {
    setenv("FI_RVT_REFUSED_TIMEOUT_MS", "300", 1);
    Party party(self, over_ip({.caps = FI_MSG}));
    Buffer buffer(party.ep, 64);
    Contexts contexts(1);
    if (self.rank == 1) return;
    const sockaddr_in nobody = loopback_address(7);
    fi_addr_t place = FI_ADDR_NOTAVAIL;
    FAB_EQUAL(fi_av_insert(party.ep.av, &nobody, 1, &place, 0, nullptr), 1);
    const double deadline = now_s() + 60;
    long rc = 0;
    while ((rc = static_cast<long>(fi_send(party.ep.ep, buffer.as(), 8, buffer.desc(), place,
                                           contexts.at(0)))) == -FI_EAGAIN) {
        party.ep.progress();
        if (now_s() > deadline) FAB_FAIL("a send to nobody is refused for a minute");
    }
    if (rc < 0) return;
    Completion done;
    while (!party.ep.poll(party.ep.tx_cq, done)) {
        if (now_s() > deadline) FAB_FAIL("a send to nobody never completes");
    }
    FAB_CHECK(done.err != 0);
}

constexpr Case kAvTable[] = {
    {"av_table", table},
    {"av_map", map},
    {"av_lookup", lookup},
    {"av_straddr", straddr},
    {"av_remove_and_insert", remove_and_insert},
    {"av_unused_handle", unused_handle},
    {"av_duplicates", duplicates},
    {"av_100000_entries", many},
    {"av_bad_address", bad_address},
    {"av_by_name", by_name},
    {"av_nobody_there", nobody_there, 2, 70},
};

}  // namespace

const std::span<const Case> kAvCases = kAvTable;

}  // namespace fab
