// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// All MSG endpoints of an address at one UDP port, told apart by service numbers.
#include <cstdlib>
#include <string>

#include <unistd.h>

#include "ofi/msg_pair.h"
#include "util/unique_fd.h"

using namespace rvt::test;  // NOLINT(google-build-using-namespace)

namespace {

constexpr std::uint16_t kRocePort = 4791;

sockaddr_in at(const std::string& node, std::uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    inet_pton(AF_INET, node.c_str(), &address.sin_addr);
    return address;
}

/// Takes the UDP port for the life of the result. Returns: none when somebody has it.
rvt::util::UniqueFd take_udp_port(const std::string& node) {
    rvt::util::UniqueFd taken(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    const sockaddr_in address = at(node, kRocePort);
    if (bind(taken.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
        taken.reset();
    }
    return taken;
}

/// A passive endpoint that can take a number.
struct Numbered : MsgFabric {
    Owned<fid_pep> pep;

    Numbered() : MsgFabric(ask_msg().info) {
        pep = opened<fid_pep>(
            [this](fid_pep** p) { return fi_passive_ep(fabric.get(), info.get(), p, nullptr); });
    }
    int take(std::uint16_t number) const {
        sockaddr_in name = at(own_node, number);
        return fi_setname(&pep->fid, &name, sizeof name);
    }
};

}  // namespace

Test(msg_shared_port, is_one_for_all_endpoints_of_an_address) {
    share_roce_port();
    {
        const MsgListener one;
        const MsgListener other;
        const MsgClient client;
        RVT_NE(name_of(&one.pep->fid).sin_port, name_of(&other.pep->fid).sin_port);
        RVT_EQ(take_udp_port(own_node).is_open(), false);
    }
    RVT_ASSERT(take_udp_port(own_node).is_open());
}

Test(msg_shared_port, listeners_are_told_apart_by_their_numbers) {
    share_roce_port();
    const MsgListener one;
    const MsgListener other;
    MsgClient client;
    client.connect(other, "other");
    RVT_ASSERT(expect_event(other.eq.get(), FI_CONNREQ).data ==
               private_data("other", kRequestRoom));
    std::uint32_t event = 0;
    std::array<char, 128> room{};
    RVT_EQ(fi_eq_read(one.eq.get(), &event, room.data(), room.size(), 0), -FI_EAGAIN);
}

Test(msg_shared_port, a_number_is_taken_once) {
    share_roce_port();
    const Numbered one;
    RVT_OK(one.take(18515));
    RVT_EQ(name_of(&one.pep->fid).sin_port, htons(18515));
    const Numbered other;
    RVT_EQ(other.take(18515), -FI_EADDRINUSE);
    RVT_OK(other.take(18516));
}

Test(msg_shared_port, a_number_is_free_again_once_its_endpoint_is_closed) {
    share_roce_port();
    const Numbered keeps_the_device;
    RVT_OK(keeps_the_device.take(1));
    {
        const Numbered one;
        RVT_OK(one.take(18515));
    }
    const Numbered other;
    RVT_OK(other.take(18515));
}

Test(msg_shared_port, a_number_need_not_be_a_free_udp_port) {
    share_roce_port();
    const Numbered one;
    RVT_OK(one.take(kRocePort));
}

Test(msg_shared_port, who_comes_second_is_refused) {
    share_roce_port();
    const rvt::util::UniqueFd taken = take_udp_port(own_node);
    const Numbered late;
    RVT_EQ(late.take(18515), -FI_EADDRINUSE);
    const Opened open(ask_msg().info);
    fid_ep* ep = nullptr;
    RVT_EQ(fi_endpoint(open.domain.get(), open.info.get(), &ep, nullptr), -FI_EADDRINUSE);
}

Test(msg_shared_port, who_comes_second_is_told_who_has_it) {
    keep_log();
    share_roce_port();
    const rvt::util::UniqueFd taken = take_udp_port(own_node);
    const Numbered late;
    RVT_EQ(late.take(18515), -FI_EADDRINUSE);
    const std::string wanted = "cannot bind udp port " + own_node + ":" +
                               std::to_string(kRocePort) + ": Address already in use; process " +
                               std::to_string(getpid()) + " (";
    const std::size_t found = logged_warnings.find(wanted);
    cr_assert(found != std::string::npos &&
                  logged_warnings.find(") owns this port, another address of this host may be free",
                                       found) != std::string::npos,
              "%s", logged_warnings.c_str());
}

Test(msg_shared_port, is_another_one_for_each_address) {
    share_roce_port();
    RVT_OK(std::system("ip addr add 192.0.2.2/24 dev wire0"));  // NOLINT(concurrency-mt-unsafe)
    const MsgListener listener;
    own_node = "192.0.2.2";
    MsgClient client;
    client.connect(listener);
    const CmEvent request = expect_event(listener.eq.get(), FI_CONNREQ);
    const MsgEnd server(listener.fabric.get(), listener.eq.get(), request.info.get());
    RVT_OK(fi_accept(server.ep.get(), nullptr, 0));
    expect_event(client.eq.get(), FI_CONNECTED);
    sockaddr_in peer{};
    std::size_t bytes = sizeof peer;
    expect_event(listener.eq.get(), FI_CONNECTED);
    RVT_OK(fi_getpeer(server.ep.get(), &peer, &bytes));
    const sockaddr_in name = name_of(&client.end.ep->fid);
    RVT_EQ(peer.sin_addr.s_addr, at("192.0.2.2", 0).sin_addr.s_addr);
    RVT_EQ(peer.sin_port, name.sin_port);
}

Test(msg_shared_port, an_address_where_nobody_has_it_refuses) {
    share_roce_port();
    RVT_OK(std::system("ip addr add 192.0.2.2/24 dev wire0"));  // NOLINT(concurrency-mt-unsafe)
    MsgClient client;
    const sockaddr_in to = at("192.0.2.2", 18515);
    RVT_OK(fi_connect(client.end.ep.get(), &to, nullptr, 0));
    RVT_EQ(next_event(client.eq.get()).error, FI_ECONNREFUSED);
}

Test(msg_shared_port, endpoints_of_this_host_alone_have_none) {
    share_roce_port();
    own_node = "127.0.0.1";
    const MsgListener listener;
    RVT_ASSERT(take_udp_port("127.0.0.1").is_open());
    std::size_t room = 0;
    std::size_t bytes = sizeof room;
    RVT_OK(fi_getopt(&listener.pep->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &room, &bytes));
    RVT_EQ(room, 55);
}
