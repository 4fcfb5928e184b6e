// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Domains that have the name of a network interface: which address their endpoints get, and what is
// refused. On a host with two interfaces, of which wire0 has the default route.
#include <arpa/inet.h>
#include <netinet/in.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "common/own_network.h"
#include "ofi/fixture.h"

using namespace rvt::test;

namespace {

constexpr const char* kSecond = "198.51.100.1";  // of wire1

/// Tests begin with this.
void have_two_interfaces() {
    cr_assert(enter_own_network(), "this user cannot have a network of its own");
    RVT_EQ(std::system("ip addr add 198.51.100.1/24 dev wire1"), 0);
    RVT_EQ(std::system("ip route add default via 192.0.2.254"), 0);
}

Info hints_of(const char* domain, fi_ep_type type = FI_EP_RDM) {
    Info hints = new_hints();
    hints->ep_attr->type = type;
    hints->domain_attr->name = domain != nullptr ? strdup(domain) : nullptr;
    return hints;
}

std::string text_of(const void* address) {
    std::array<char, INET_ADDRSTRLEN> text{};
    return inet_ntop(AF_INET, &static_cast<const sockaddr_in*>(address)->sin_addr, text.data(),
                     text.size());
}

std::string source_of(const Answer& answer) {
    RVT_OK(answer.error);
    return text_of(answer.info->src_addr);
}

void expect(const std::string& got, const char* wanted) {
    cr_assert(got == wanted, "it is %s, not %s", got.c_str(), wanted);
}

}  // namespace

Test(info_interface, endpoints_of_its_domain_have_its_address, .timeout = 30) {
    have_two_interfaces();
    for (const fi_ep_type type : {FI_EP_RDM, FI_EP_MSG, FI_EP_DGRAM}) {
        const Answer answer = ask(hints_of("wire1", type));
        expect(source_of(answer), kSecond);
        expect(answer.info->domain_attr->name, "wire1");
        expect(source_of(ask(hints_of("wire0", type))), "192.0.2.1");
        expect(source_of(ask(hints_of("shm", type))), "192.0.2.1");
        expect(source_of(ask(hints_of(nullptr, type))), "192.0.2.1");
    }
}

Test(info_interface, its_domain_is_named_wherever_the_peer_is, .timeout = 30) {
    have_two_interfaces();
    const Answer answer = ask(hints_of("wire1"), "192.0.2.77", "4242");
    expect(source_of(answer), kSecond);
    expect(text_of(answer.info->dest_addr), "192.0.2.77");
    expect(source_of(ask(hints_of(nullptr), "192.0.2.77", "4242")), "192.0.2.1");
    expect(source_of(ask(hints_of("wire1"), kSecond, "4242", FI_SOURCE)), kSecond);
    const Answer port = ask(hints_of("wire1"), nullptr, "4242", FI_SOURCE);
    expect(source_of(port), kSecond);
    RVT_EQ(ntohs(static_cast<const sockaddr_in*>(port.info->src_addr)->sin_port), 4242);
}

Test(info_interface, who_names_none_or_asks_for_the_address_of_another_is_refused, .timeout = 30) {
    have_two_interfaces();
    for (const char* name : {"wire2", "lo", "wire", "wire11", ""}) {
        RVT_EQ(ask(hints_of(name)).error, -FI_ENODATA);
    }
    RVT_EQ(ask(hints_of("wire1"), "192.0.2.1", nullptr, FI_SOURCE).error, -FI_ENODATA);
    RVT_EQ(ask(hints_of("wire1"), "127.0.0.1", nullptr, FI_SOURCE).error, -FI_ENODATA);
    RVT_EQ(ask(hints_of("wire1"), "fd99::1", nullptr, FI_SOURCE).error, -FI_ENODATA);
    const Info six = hints_of("wire1");
    six->addr_format = FI_SOCKADDR_IN6;  // which wire1 does not have
    RVT_EQ(ask(six).error, -FI_ENODATA);
}

Test(info_interface, without_the_wire_none_has_a_domain, .timeout = 30) {
    setenv("FI_RVT_ROCE", "0", 1);
    have_two_interfaces();
    RVT_EQ(ask(hints_of("wire1")).error, -FI_ENODATA);
    RVT_OK(ask(hints_of("shm")).error);
}

Test(info_interface, an_endpoint_without_an_address_gets_that_of_its_domain, .timeout = 30) {
    have_two_interfaces();
    Info info = ask(hints_of("wire1")).info;
    free(info->src_addr);
    info->src_addr = nullptr;
    info->src_addrlen = 0;
    const Opened opens(std::move(info));
    const auto cq = opens.cq();
    const auto av = opens.av();
    const auto ep = opened<fid_ep>([&](fid_ep** made) {
        return fi_endpoint(opens.domain.get(), opens.info.get(), made, nullptr);
    });
    RVT_OK(fi_ep_bind(ep.get(), &cq->fid, FI_TRANSMIT | FI_RECV));
    RVT_OK(fi_ep_bind(ep.get(), &av->fid, 0));
    RVT_OK(fi_enable(ep.get()));
    sockaddr_in address{};
    std::size_t bytes = sizeof address;
    RVT_OK(fi_getname(&ep->fid, &address, &bytes));
    expect(text_of(&address), kSecond);
}

/// The name that an endpoint of the domain, or a passive one, has with the wildcard for an address.
template <class Object>
std::string name_with_wildcard(Object* object) {
    sockaddr_in name{};
    name.sin_family = AF_INET;
    std::size_t bytes = sizeof name;
    RVT_OK(fi_setname(&object->fid, &name, bytes));
    RVT_OK(fi_getname(&object->fid, &name, &bytes));
    RVT_NE(std::uint16_t(name.sin_port), std::uint16_t(0));
    return text_of(&name);
}

constexpr struct {
    const char* domain;
    const char* address;
} kPlaces[] = {{nullptr, "192.0.2.1"}, {"wire1", kSecond}};

Test(info_interface, a_name_with_the_wildcard_is_at_the_address_of_its_domain, .timeout = 30) {
    have_two_interfaces();
    for (const auto& place : kPlaces) {
        for (const fi_ep_type type : {FI_EP_RDM, FI_EP_MSG, FI_EP_DGRAM}) {
            const Opened opens(ask(hints_of(place.domain, type)).info);
            const auto ep = opened<fid_ep>([&](fid_ep** made) {
                return fi_endpoint(opens.domain.get(), opens.info.get(), made, nullptr);
            });
            expect(name_with_wildcard(ep.get()), place.address);
        }
        const Opened opens(ask(hints_of(place.domain, FI_EP_MSG)).info);
        const auto pep = opened<fid_pep>([&](fid_pep** made) {
            return fi_passive_ep(opens.fabric.get(), opens.info.get(), made, nullptr);
        });
        expect(name_with_wildcard(pep.get()), place.address);
    }
}

Test(info_interface, an_info_with_the_wildcard_is_at_the_address_of_its_domain, .timeout = 30) {
    have_two_interfaces();
    const auto name = [](fid* object) {
        sockaddr_in address{};
        std::size_t bytes = sizeof address;
        RVT_OK(fi_getname(object, &address, &bytes));
        return text_of(&address);
    };
    for (const auto& place : kPlaces) {
        for (const fi_ep_type type : {FI_EP_RDM, FI_EP_MSG, FI_EP_DGRAM}) {
            const Opened opens(ask(hints_of(place.domain, type)).info);
            static_cast<sockaddr_in*>(opens.info->src_addr)->sin_addr.s_addr = INADDR_ANY;
            const auto ep = opened<fid_ep>([&](fid_ep** made) {
                return fi_endpoint(opens.domain.get(), opens.info.get(), made, nullptr);
            });
            expect(name(&ep->fid), place.address);
        }
        const Opened opens(ask(hints_of(place.domain, FI_EP_MSG)).info);
        static_cast<sockaddr_in*>(opens.info->src_addr)->sin_addr.s_addr = INADDR_ANY;
        const auto pep = opened<fid_pep>([&](fid_pep** made) {
            return fi_passive_ep(opens.fabric.get(), opens.info.get(), made, nullptr);
        });
        expect(name(&pep->fid), place.address);
    }
}

Test(info_interface, where_its_address_is_gone_no_endpoint_gets_that_of_another, .timeout = 30) {
    have_two_interfaces();
    std::vector<Opened> all;
    for (const fi_ep_type type : {FI_EP_RDM, FI_EP_MSG, FI_EP_DGRAM}) {
        all.emplace_back(ask(hints_of("wire1", type)).info);
    }
    RVT_EQ(std::system("ip addr del 198.51.100.1/24 dev wire1"), 0);
    for (const Opened& opens : all) {
        free(opens.info->src_addr);
        opens.info->src_addr = nullptr;
        opens.info->src_addrlen = 0;
        fid_ep* ep = nullptr;
        RVT_EQ(fi_endpoint(opens.domain.get(), opens.info.get(), &ep, nullptr), -FI_EADDRNOTAVAIL);
    }
}

Test(info_interface, an_endpoint_for_which_the_parameter_leaves_no_address_says_so, .timeout = 30) {
    setenv("FI_RVT_ROCE_INTERFACE", "nowhere0", 1);
    keep_log();
    have_two_interfaces();
    for (const fi_ep_type type : {FI_EP_RDM, FI_EP_MSG, FI_EP_DGRAM}) {
        const Opened opens(ask(hints_of(nullptr, type), "192.0.2.77", "4242").info);
        free(opens.info->src_addr);
        opens.info->src_addr = nullptr;
        opens.info->src_addrlen = 0;
        logged_warnings.clear();
        fid_ep* ep = nullptr;
        RVT_EQ(fi_endpoint(opens.domain.get(), opens.info.get(), &ep, nullptr), -FI_EADDRNOTAVAIL);
        cr_assert(logged_warnings ==
                      "an endpoint gets no address: FI_RVT_ROCE_INTERFACE: nowhere0 asked, "
                      "wire0, wire1 offered\n",
                  "%s", logged_warnings.c_str());
    }
}

Test(info_interface, an_open_domain_is_known_by_its_name, .timeout = 30) {
    have_two_interfaces();
    const Opened opens(ask(hints_of("wire1")).info);
    const Info again = hints_of("wire1");
    again->domain_attr->domain = opens.domain.get();
    expect(source_of(ask(again)), kSecond);
    const Info unnamed = hints_of(nullptr);
    unnamed->domain_attr->domain = opens.domain.get();
    const Answer answer = ask(unnamed);
    expect(source_of(answer), kSecond);
    expect(answer.info->domain_attr->name, "wire1");
    const Info other = hints_of("wire0");
    other->domain_attr->domain = opens.domain.get();
    RVT_EQ(ask(other).error, -FI_ENODATA);
}

Test(info_interface, who_is_called_there_is_told_its_domain, .timeout = 30) {
    have_two_interfaces();
    const Opened here(ask(hints_of("wire1", FI_EP_MSG)).info);
    const auto eq = here.eq(with<fi_eq_attr>([](auto& attr) { attr.wait_obj = FI_WAIT_UNSPEC; }));
    const auto pep = opened<fid_pep>([&](fid_pep** made) {
        return fi_passive_ep(here.fabric.get(), here.info.get(), made, nullptr);
    });
    RVT_OK(fi_pep_bind(pep.get(), &eq->fid, 0));
    RVT_OK(fi_listen(pep.get()));
    sockaddr_in address{};
    std::size_t bytes = sizeof address;
    RVT_OK(fi_getname(&pep->fid, &address, &bytes));
    expect(text_of(&address), kSecond);

    const Opened there(ask(hints_of("wire0", FI_EP_MSG)).info);
    const auto cq = there.cq();
    const auto there_eq = there.eq();
    const auto ep = opened<fid_ep>([&](fid_ep** made) {
        return fi_endpoint(there.domain.get(), there.info.get(), made, nullptr);
    });
    RVT_OK(fi_ep_bind(ep.get(), &there_eq->fid, 0));
    RVT_OK(fi_ep_bind(ep.get(), &cq->fid, FI_TRANSMIT | FI_RECV));
    RVT_OK(fi_enable(ep.get()));
    RVT_OK(fi_connect(ep.get(), &address, nullptr, 0));
    std::uint32_t event = 0;
    fi_eq_cm_entry entry{};
    RVT_EQ(fi_eq_sread(eq.get(), &event, &entry, sizeof entry, 20'000, 0), sizeof entry);
    RVT_EQ(event, FI_CONNREQ);
    const Info request(entry.info);
    expect(request->domain_attr->name, "wire1");
    RVT_OK(fi_reject(pep.get(), request->handle, nullptr, 0));
}

// ---- FI_RVT_ROCE_INTERFACE as an address ----

namespace {

/// wire1 has further addresses, which none of its name leads to.
void have_further_addresses() {
    have_two_interfaces();
    RVT_EQ(std::system("ip addr add 198.51.100.7/24 dev wire1"), 0);
    RVT_EQ(std::system("ip addr add 2001:db8::7/64 dev wire1 nodad"), 0);
}

std::string source6_of(const Answer& answer) {
    RVT_OK(answer.error);
    RVT_EQ(answer.info->addr_format, FI_SOCKADDR_IN6);
    std::array<char, INET6_ADDRSTRLEN> text{};
    return inet_ntop(AF_INET6, &static_cast<const sockaddr_in6*>(answer.info->src_addr)->sin6_addr,
                     text.data(), text.size());
}

}  // namespace

Test(info_interface, the_parameter_names_one_of_several_addresses, .timeout = 30) {
    setenv("FI_RVT_ROCE_INTERFACE", "198.51.100.7", 1);
    have_further_addresses();
    for (const fi_ep_type type : {FI_EP_RDM, FI_EP_MSG, FI_EP_DGRAM}) {
        expect(source_of(ask(hints_of(nullptr, type))), "198.51.100.7");
        const Opened opens(ask(hints_of(nullptr, type)).info);
        const auto ep = opened<fid_ep>([&](fid_ep** made) {
            return fi_endpoint(opens.domain.get(), opens.info.get(), made, nullptr);
        });
        expect(name_with_wildcard(ep.get()), "198.51.100.7");
    }
    expect(source_of(ask(hints_of("wire0"))), "192.0.2.1");
    expect(source_of(ask(hints_of(nullptr), "192.0.2.77", "4242")), "192.0.2.1");
}

Test(info_interface, an_ipv6_address_goes_before_ipv4_ones, .timeout = 30) {
    setenv("FI_RVT_ROCE_INTERFACE", "2001:db8::7", 1);
    have_further_addresses();
    expect(source6_of(ask(hints_of(nullptr))), "2001:db8::7");
    const Info six = hints_of(nullptr);
    six->addr_format = FI_SOCKADDR_IN6;
    expect(source6_of(ask(six)), "2001:db8::7");
}

Test(info_interface, an_address_that_no_interface_has_is_refused, .timeout = 30) {
    keep_log();
    setenv("FI_RVT_ROCE_INTERFACE", "198.51.100.8", 1);
    have_further_addresses();
    RVT_EQ(ask(hints_of(nullptr)).error, -FI_ENODATA);
    cr_assert(logged_warnings.find("FI_RVT_ROCE_INTERFACE: 198.51.100.8 asked, addresses of wire0, "
                                   "wire1 offered") != std::string::npos,
              "%s", logged_warnings.c_str());
}

Test(info_interface, an_address_of_the_other_family_is_refused, .timeout = 30) {
    setenv("FI_RVT_ROCE_INTERFACE", "198.51.100.7", 1);
    have_further_addresses();
    const Info six = hints_of(nullptr);
    six->addr_format = FI_SOCKADDR_IN6;
    RVT_EQ(ask(six).error, -FI_ENODATA);
}
