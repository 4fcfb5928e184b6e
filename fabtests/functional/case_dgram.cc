// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Datagrams, FI_EP_DGRAM in fi_endpoint(3), and groups, fi_join(3). What these cases send has its
// receive posted before, and a wire that loses nothing then brings it.
#include <algorithm>
#include <cstring>
#include <vector>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <unistd.h>

#include "functional/case.h"

namespace fab {
namespace {

constexpr std::size_t kMost = 8192;
constexpr std::size_t kStream = 2000;
constexpr std::size_t kWindow = 32;

EpSpec dgram(EpSpec spec = {}) {
    spec.type = FI_EP_DGRAM;
    return spec;
}

std::size_t largest(const Party& party) {
    return std::min(party.ep.info->ep_attr->max_msg_size, kMost);
}

/// One datagram each way of each size up to the largest.
void sizes(Rank& self) {
    Party party(self, dgram());
    Buffer out(party.ep, kMost);
    Buffer in(party.ep, kMost);
    Contexts contexts(2);
    unsigned seed = 1;
    std::vector<std::size_t> all(std::begin(kSizes), std::end(kSizes));
    std::erase_if(all, [&](std::size_t size) { return size > largest(party); });
    all.push_back(largest(party));
    for (const std::size_t size : all) {
        for (int sender = 0; sender < 2; ++sender, ++seed) {
            if (self.rank != sender) party.recv(in, kMost, contexts.at(1));
            party.barrier();
            if (self.rank == sender) {
                out.fill(seed);
                party.send(out, size, contexts.at(0));
                FAB_CHECK(party.ep.wait_tx().context == contexts.at(0));
                continue;
            }
            const Completion got = party.ep.wait_rx();
            FAB_CHECK(got.context == contexts.at(1));
            FAB_EQUAL(got.len, size);
            in.expect(seed, size);
        }
    }
}

/// A larger one is refused at once.
void too_large(Rank& self) {
    Party party(self, dgram());
    Buffer buffer(party.ep, kMost);
    const std::size_t most = party.ep.info->ep_attr->max_msg_size;
    if (settings.provider == "udp") skip("udp leaves it to the kernel, which cuts it up");
    if (most >= kMost) skip("a datagram of %zu bytes is none that is too large", kMost);
    Context context;
    FAB_EQUAL(fi_send(party.ep.ep, buffer.as(), most + 1, buffer.desc(), party.peer(), &context),
              -FI_EMSGSIZE);
}

/// An injected buffer may be changed at once, and nothing completes.
void inject(Rank& self) {
    Party party(self, dgram());
    Buffer buffer(party.ep, kMost);
    Contexts contexts(1);
    const std::size_t limit = std::min(party.ep.info->tx_attr->inject_size, largest(party));
    for (std::size_t size = 1; size <= limit; size *= 2) {
        if (self.rank == 1) party.recv(buffer, kMost, contexts.at(0));
        party.barrier();
        if (self.rank == 0) {
            buffer.fill(static_cast<unsigned>(size));
            party.ep.post([&] { return fi_inject(party.ep.ep, buffer.as(), size, party.peer()); });
            std::memset(buffer.as(), 0xee, size);
        } else {
            FAB_EQUAL(party.ep.wait_rx().len, size);
            buffer.expect(static_cast<unsigned>(size), size);
        }
    }
    Completion none;
    FAB_CHECK(!party.ep.poll(party.ep.tx_cq, none));
}

void senddata(Rank& self) {
    Party party(self, dgram({.cq_data_size = 4}));
    Buffer buffer(party.ep, 64);
    Contexts contexts(1);
    if (self.rank == 1) party.recv(buffer, 64, contexts.at(0));
    party.barrier();
    if (self.rank == 0) {
        party.ep.post([&] {
            return fi_senddata(party.ep.ep, buffer.as(), 8, buffer.desc(), 0x89abcdef, party.peer(),
                               contexts.at(0));
        });
        party.ep.wait_tx();
        return;
    }
    const Completion got = party.ep.wait_rx();
    FAB_CHECK((got.flags & FI_REMOTE_CQ_DATA) != 0);
    FAB_EQUAL(got.data, 0x89abcdefU);
}

/// Each knows who sent, of several.
void source(Rank& self) {
    Party party(self, dgram({.caps = FI_MSG | FI_SOURCE}));
    Buffer out(party.ep, 64);
    Buffer in(party.ep, 64);
    Contexts contexts(2);
    for (int sender = 1; sender < self.size; ++sender) {
        if (self.rank == 0) party.recv(in, 64, contexts.at(0));
        party.barrier();
        if (self.rank == sender) {
            party.ep.post([&] {
                return fi_send(party.ep.ep, out.as(), 8, out.desc(), party.at(0), contexts.at(1));
            });
            party.ep.wait_tx();
        }
        if (self.rank == 0) FAB_EQUAL(party.ep.wait_rx().source, party.at(sender));
    }
}

/// A window of datagrams, kept full from both sides: with receives posted, none is lost.
void stream(Rank& self) {
    Party party(self, dgram());
    const std::size_t size = std::min<std::size_t>(largest(party), 512);
    Buffer out(party.ep, size);
    Buffer in(party.ep, size * kWindow * 2);
    Contexts contexts(kWindow * 2 + 1);
    const auto post = [&](std::size_t i) {
        party.ep.post([&] {
            return fi_recv(party.ep.ep, in.as() + i * size, size, in.desc(), FI_ADDR_UNSPEC,
                           contexts.at(i));
        });
    };
    for (std::size_t i = 0; i < kWindow * 2; ++i) post(i);
    party.barrier();
    for (std::size_t sent = 0; sent < turns_here(kStream); sent += kWindow) {
        for (std::size_t i = 0; i < kWindow; ++i) {
            party.send(out, size, contexts.at(kWindow * 2));
        }
        for (std::size_t i = 0; i < kWindow; ++i) {
            party.ep.wait_tx();
            const Completion got = party.ep.wait_rx();
            FAB_EQUAL(got.len, size);
            post(contexts.index_of(got.context));
        }
    }
}

/// Who sleeps is woken by a datagram.
void sleeping(Rank& self) {
    Party party(self, dgram({.cq_wait = FI_WAIT_UNSPEC}));
    Buffer buffer(party.ep, 64);
    Contexts contexts(1);
    fi_cq_tagged_entry entry{};
    for (int turn = 0; turn < 20; ++turn) {
        if (self.rank == 1) party.recv(buffer, 64, contexts.at(0));
        self.barrier();
        if (self.rank == 0) {
            party.send(buffer, 8, contexts.at(0));
            FAB_EQUAL(fi_cq_sread(party.ep.tx_cq, &entry, 1, nullptr, 10'000), 1);
        } else {
            FAB_EQUAL(fi_cq_sread(party.ep.rx_cq, &entry, 1, nullptr, 10'000), 1);
        }
    }
}

/// What is longer than its buffer is an error that says so.
void truncated(Rank& self) {
    Party party(self, dgram());
    if (settings.provider != "rvt") skip("datagrams that are cut are told apart by rvt alone");
    Buffer buffer(party.ep, 64);
    Contexts contexts(1);
    if (self.rank == 1) party.recv(buffer, 10, contexts.at(0));
    party.barrier();
    if (self.rank == 0) {
        party.send(buffer, 30, contexts.at(0));
        party.ep.wait_tx();
        return;
    }
    const Completion got = party.ep.wait_any(party.ep.rx_cq);
    FAB_EQUAL(got.err, FI_ETRUNC);
    FAB_EQUAL(got.olen, 20U);
}

// ---- groups ----

/// The same group for all ranks: its port is that of the team's first process.
struct GroupAddress {
    sockaddr_in6 v6{};
    sockaddr_in v4{};

    GroupAddress(const Rank& self, bool is_v6) : is_v6_(is_v6) {
        auto port = static_cast<std::uint16_t>(20'000 + getpid() % 40'000);
        for (int r = 1; r < self.size; ++r) {
            if (self.rank == 0) self.send(r, &port, sizeof port);
            if (self.rank == r) self.receive(0, &port, sizeof port);
        }
        v4.sin_family = AF_INET;
        v4.sin_port = htons(port);
        inet_pton(AF_INET, "239.255.7.7", &v4.sin_addr);
        v6.sin6_family = AF_INET6;
        v6.sin6_port = htons(port);
        inet_pton(AF_INET6, "ff15::7:7", &v6.sin6_addr);
    }
    [[nodiscard]] const void* get() const { return is_v6_ ? static_cast<const void*>(&v6) : &v4; }

  private:
    bool is_v6_;
};

fid_mc* join(Party& party, const void* address) {
    fid_mc* mc = nullptr;
    FAB_OK(fi_join(party.ep.ep, address, 0, &mc, nullptr));
    std::uint32_t event = 0;
    fi_eq_entry entry{};
    FAB_EQUAL(fi_eq_sread(party.ep.eq, &event, &entry, sizeof entry, 10'000, 0), sizeof entry);
    FAB_EQUAL(event, FI_JOIN_COMPLETE);
    FAB_CHECK(entry.fid == &mc->fid);
    return mc;
}

/// Each member in turn sends to the group, and all others receive it once.
void speak_in_turn(Party& party, fid_mc* mc) {
    Buffer out(party.ep, 512);
    Buffer in(party.ep, 512);
    Contexts contexts(2);
    for (int speaker = 0; speaker < party.self.size; ++speaker) {
        const auto seed = static_cast<unsigned>(speaker + 1);
        if (party.self.rank != speaker) party.recv(in, 512, contexts.at(0));
        party.barrier();
        if (party.self.rank == speaker) {
            out.fill(seed);
            const iovec one{out.as(), 300};
            void* desc = out.desc();
            const fi_msg msg{&one, &desc, 1, fi_mc_addr(mc), contexts.at(1), 0};
            party.ep.post([&] { return fi_sendmsg(party.ep.ep, &msg, FI_MULTICAST); });
            party.ep.wait_tx();
        } else {
            const Completion got = party.ep.wait_rx();
            FAB_EQUAL(got.len, 300U);
            FAB_EQUAL(got.source, party.at(speaker));
            in.expect(seed, 300);
        }
    }
    party.barrier();
    Completion none;
    FAB_CHECK(!party.ep.poll(party.ep.rx_cq, none));
}

void group(Rank& self, std::uint32_t addr_format) {
    const bool is_v6 = addr_format == FI_SOCKADDR_IN6;
    if (settings.provider == "udp")
        skip("udp joins for endpoints that are bound to the group's port");
    Party party(self, dgram({.caps = FI_MSG | FI_MULTICAST | FI_SOURCE,
                             .addr_format = addr_format,
                             .has_eq = true}));
    if (is_v6 && IN6_IS_ADDR_LOOPBACK(
                     &static_cast<const sockaddr_in6*>(party.ep.info->src_addr)->sin6_addr)) {
        skip("no network interface has an address of IPv6");
    }
    const GroupAddress address(self, is_v6);
    fid_mc* mc = join(party, address.get());
    party.barrier();
    speak_in_turn(party, mc);
    FAB_OK(fi_close(&mc->fid));
    // Joining again is joining anew.
    mc = join(party, address.get());
    party.barrier();
    speak_in_turn(party, mc);
    FAB_OK(fi_close(&mc->fid));
}

void group_v4(Rank& self) {
    group(self, FI_SOCKADDR_IN);
}
void group_v6(Rank& self) {
    group(self, FI_SOCKADDR_IN6);
}

constexpr Case kDgramTable[] = {
    {"dgram_sizes", sizes},       {"dgram_too_large", too_large},
    {"dgram_inject", inject},     {"dgram_senddata", senddata},
    {"dgram_source", source, 4},  {"dgram_stream", stream},
    {"dgram_sleeping", sleeping}, {"dgram_truncated", truncated},
    {"dgram_group", group_v4, 4}, {"dgram_group_ipv6", group_v6, 4},
};

}  // namespace

const std::span<const Case> kDgramCases = kDgramTable;

}  // namespace fab
