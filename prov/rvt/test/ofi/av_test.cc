// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Address vectors, fi_av(3).
#include <arpa/inet.h>
#include <netinet/in.h>

#include <string>
#include <vector>

#include "ofi/fixture.h"

using namespace rvt::test;

namespace {

sockaddr_in numbered(std::uint32_t n) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(0x0a000001u + (n >> 15));
    address.sin_port = htons(static_cast<std::uint16_t>(1 + (n & 0x7fff)));
    return address;
}

}  // namespace

Test(av, of_both_types_numbers_from_zero) {
    const Opened open;
    for (const fi_av_type type : {FI_AV_MAP, FI_AV_TABLE, FI_AV_UNSPEC}) {
        const auto av = open.av(with<fi_av_attr>([&](auto& attr) { attr.type = type; }));
        const sockaddr_in addresses[] = {numbered(1), numbered(2)};
        fi_addr_t numbers[2] = {};
        RVT_EQ(fi_av_insert(av.get(), addresses, 2, numbers, 0, nullptr), 2);
        RVT_EQ(numbers[0], 0);
        RVT_EQ(numbers[1], 1);
    }
}

Test(av, looks_up_what_was_inserted) {
    const Opened open;
    const auto av = open.av();
    const sockaddr_in address = numbered(77);
    RVT_EQ(fi_av_insert(av.get(), &address, 1, nullptr, 0, nullptr), 1);
    sockaddr_in found{};
    std::size_t length = sizeof found;
    RVT_OK(fi_av_lookup(av.get(), 0, &found, &length));
    RVT_EQ(length, sizeof found);
    RVT_EQ(found.sin_port, address.sin_port);
    RVT_EQ(fi_av_lookup(av.get(), 1, &found, &length), -FI_EINVAL);
}

Test(av, a_lookup_into_a_short_buffer_says_how_long_it_must_be) {
    const Opened open;
    const auto av = open.av();
    const sockaddr_in address = numbered(77);
    RVT_EQ(fi_av_insert(av.get(), &address, 1, nullptr, 0, nullptr), 1);
    std::uint16_t family = 0;
    std::size_t length = sizeof family;
    RVT_OK(fi_av_lookup(av.get(), 0, &family, &length));
    RVT_EQ(length, sizeof address);
    RVT_EQ(family, AF_INET);
}

Test(av, a_bad_address_among_good_ones_fails_alone) {
    const Opened open;
    const auto av = open.av();
    sockaddr_in addresses[] = {numbered(1), {}, numbered(3)};
    fi_addr_t numbers[3] = {};
    int errors[3] = {};
    RVT_EQ(fi_av_insert(av.get(), addresses, 3, numbers, FI_SYNC_ERR, errors), 2);
    RVT_EQ(numbers[0], 0);
    RVT_EQ(numbers[1], FI_ADDR_NOTAVAIL);
    RVT_EQ(numbers[2], 1);
    RVT_EQ(errors[0], 0);
    RVT_NE(errors[1], 0);
    RVT_EQ(errors[2], 0);
}

Test(av, duplicates_have_numbers_of_their_own) {
    const Opened open;
    const auto av = open.av();
    const sockaddr_in addresses[] = {numbered(1), numbered(1)};
    fi_addr_t numbers[2] = {};
    RVT_EQ(fi_av_insert(av.get(), addresses, 2, numbers, 0, nullptr), 2);
    RVT_NE(numbers[0], numbers[1]);
    RVT_OK(fi_av_remove(av.get(), &numbers[0], 1, 0));
    sockaddr_in found{};
    std::size_t length = sizeof found;
    RVT_OK(fi_av_lookup(av.get(), numbers[1], &found, &length));
}

Test(av, a_removed_number_is_used_again) {
    const Opened open;
    const auto av = open.av();
    const sockaddr_in addresses[] = {numbered(1), numbered(2), numbered(3)};
    RVT_EQ(fi_av_insert(av.get(), addresses, 3, nullptr, 0, nullptr), 3);
    fi_addr_t number = 1;
    RVT_OK(fi_av_remove(av.get(), &number, 1, 0));
    RVT_NE(fi_av_remove(av.get(), &number, 1, 0), 0);
    RVT_EQ(fi_av_insert(av.get(), addresses, 1, &number, 0, nullptr), 1);
    RVT_EQ(number, 1);
}

Test(av, a_service_and_a_symmetric_range_are_resolved) {
    const Opened open;
    const auto av = open.av();
    fi_addr_t number = 0;
    RVT_EQ(fi_av_insertsvc(av.get(), "localhost", "4711", &number, 0, nullptr), 1);
    fi_addr_t numbers[6] = {};
    RVT_EQ(fi_av_insertsym(av.get(), "127.0.0.1", 2, "4711", 3, numbers, 0, nullptr), 6);
    sockaddr_in found{};
    std::size_t length = sizeof found;
    RVT_OK(fi_av_lookup(av.get(), numbers[5], &found, &length));
    RVT_EQ(ntohl(found.sin_addr.s_addr), 0x7f000002);
    RVT_EQ(ntohs(found.sin_port), 4713);
}

Test(av, a_symmetric_range_counts_addresses) {
    const auto last_of_two = [](const Opened& open, const char* node) {
        const auto av = open.av();
        fi_addr_t numbers[2] = {};
        cr_assert(fi_av_insertsym(av.get(), node, 2, "4711", 1, numbers, 0, nullptr) == 2, "%s",
                  node);
        sockaddr_storage found{};
        std::size_t length = sizeof found;
        RVT_OK(fi_av_lookup(av.get(), numbers[1], &found, &length));
        char text[INET6_ADDRSTRLEN] = "";
        const void* ip = &reinterpret_cast<const sockaddr_in&>(found).sin_addr;
        if (found.ss_family == AF_INET6) {
            ip = &reinterpret_cast<const sockaddr_in6&>(found).sin6_addr;
        }
        RVT_ASSERT(inet_ntop(found.ss_family, ip, text, sizeof text) == text);
        return std::string(text);
    };
    RVT_ASSERT(last_of_two(Opened(), "127.0.0.255") == "127.0.1.0");
    const Info hints = new_hints();
    hints->addr_format = FI_SOCKADDR_IN6;
    const Opened open(ask(hints).info);
    RVT_ASSERT(last_of_two(open, "::9") == "::a");
    RVT_ASSERT(last_of_two(open, "2001:db8::ffff") == "2001:db8::1:0");
    RVT_ASSERT(last_of_two(open, "fe80::a%1") == "fe80::b");
}

Test(av, text_names_nodes_of_both_families) {
    const Info hints = new_hints();
    hints->addr_format = FI_ADDR_STR;
    const Opened open(ask(hints).info);
    const auto av = open.av();
    fi_addr_t numbers[2] = {};
    RVT_EQ(fi_av_insertsvc(av.get(), "::1", "4711", numbers, 0, nullptr), 1);
    RVT_EQ(fi_av_insertsvc(av.get(), "127.0.0.1", "4711", numbers, 0, nullptr), 1);
    RVT_EQ(fi_av_insertsym(av.get(), "::9", 2, "4711", 1, numbers, 0, nullptr), 2);
    char found[64];
    std::size_t length = sizeof found;
    RVT_OK(fi_av_lookup(av.get(), numbers[1], found, &length));
    RVT_ASSERT(strcmp(found, "fi_sockaddr_in6://[::a]:4711") == 0);
}

Test(av, no_service_is_beyond_the_ports) {
    const Opened open;
    const auto av = open.av();
    fi_addr_t numbers[2] = {};
    RVT_EQ(fi_av_insertsvc(av.get(), "127.0.0.1", "65537", numbers, 0, nullptr), 0);
    RVT_EQ(fi_av_insertsym(av.get(), "127.0.0.1", 1, "65535", 2, numbers, 0, nullptr), 1);
    RVT_EQ(numbers[1], FI_ADDR_NOTAVAIL);
}

Test(av, one_service_is_named_as_it_is) {
    const Opened open;
    const auto av = open.av();
    fi_addr_t numbers[2] = {};
    RVT_EQ(fi_av_insertsym(av.get(), "127.0.0.1", 1, "discard", 1, numbers, 0, nullptr), 1);
    sockaddr_in found{};
    std::size_t length = sizeof found;
    RVT_OK(fi_av_lookup(av.get(), numbers[0], &found, &length));
    RVT_EQ(ntohs(found.sin_port), 9);
    RVT_EQ(fi_av_insertsym(av.get(), "127.0.0.1", 1, "discard", 2, numbers, 0, nullptr),
           -FI_EINVAL);
}

Test(av, an_address_has_a_text) {
    const Opened open;
    const auto av = open.av();
    const sockaddr_in address = numbered(7);
    char text[64];
    std::size_t length = sizeof text;
    RVT_ASSERT(fi_av_straddr(av.get(), &address, text, &length) == text);
    cr_assert(eq(str, text, const_cast<char*>("fi_sockaddr_in://10.0.0.1:8")));
    RVT_EQ(length, strlen(text) + 1);
}

Test(av, text_is_inserted_where_text_is_the_format) {
    const Info hints = new_hints();
    hints->addr_format = FI_ADDR_STR;
    const Opened open(ask(hints).info);
    const auto av = open.av();
    const char* addresses[] = {"fi_sockaddr_in://127.0.0.1:5", "nonsense"};
    fi_addr_t numbers[2] = {};
    RVT_EQ(fi_av_insert(av.get(), addresses, 2, numbers, 0, nullptr), 1);
    RVT_EQ(numbers[1], FI_ADDR_NOTAVAIL);
    char found[64];
    std::size_t length = sizeof found;
    RVT_OK(fi_av_lookup(av.get(), numbers[0], found, &length));
    cr_assert(eq(str, found, const_cast<char*>("fi_sockaddr_in://127.0.0.1:5")));
}

// fi_getinfo(3), FI_ADDR_STR: what stands in brackets there may be missing.
Test(av, text_may_be_as_short_and_as_long_as_the_manual_says) {
    const Info hints = new_hints();
    hints->addr_format = FI_ADDR_STR;
    const Opened open(ask(hints).info);
    const auto av = open.av();
    const std::pair<const char*, const char*> cases[] = {
        {"fi_sockaddr://10.31.6.12:7471", "fi_sockaddr_in://10.31.6.12:7471"},
        {"fi_sockaddr://10.31.6.12:7471?qos=3", "fi_sockaddr_in://10.31.6.12:7471"},
        {"fi_sockaddr://[::1]:5", "fi_sockaddr_in6://[::1]:5"},
        {"fi_sockaddr_in://127.0.0.1:7000/", "fi_sockaddr_in://127.0.0.1:7000"},
    };
    for (const auto& [text, means] : cases) {
        fi_addr_t number = FI_ADDR_NOTAVAIL;
        cr_assert(fi_av_insert(av.get(), &text, 1, &number, 0, nullptr) == 1, "%s", text);
        char found[64];
        std::size_t length = sizeof found;
        RVT_OK(fi_av_lookup(av.get(), number, found, &length));
        cr_assert(strcmp(found, means) == 0, "%s is %s", text, found);
        RVT_OK(ask(hints, text).error);
    }
    // Nobody is at no port, so that these are for fi_getinfo(3) alone.
    for (const char* const text :
         {"fi_sockaddr_in://127.0.0.1", "fi_sockaddr_in6://[::1]", "fi_sockaddr://"}) {
        cr_assert(ask(hints, text).error == 0, "%s", text);
    }
    const Answer own = ask(hints, "fi_sockaddr_in://127.0.0.1", nullptr, FI_SOURCE);
    RVT_OK(own.error);
    RVT_ASSERT(
        strcmp(static_cast<const char*>(own.info->src_addr), "fi_sockaddr_in://127.0.0.1:0") == 0);
    for (const char* const text :
         {"fi_sockaddr_in://[::1]:5", "fi_sockaddr_in6://127.0.0.1:5", "fi_sockaddr://[::1",
          "fi_sockaddr://127.0.0.1:x", "fi_sockaddr://127.0.0.1:70000", "127.0.0.1", ":5"}) {
        fi_addr_t number = 0;
        cr_assert(fi_av_insert(av.get(), &text, 1, &number, 0, nullptr) == 0, "%s", text);
    }
}

Test(av, an_asynchronous_insertion_reports_to_the_event_queue) {
    const Opened open;
    const auto eq = open.eq();
    const auto av = open.av(with<fi_av_attr>([](auto& attr) { attr.flags = FI_EVENT; }));
    sockaddr_in addresses[] = {numbered(1), {}};
    fi_addr_t numbers[2] = {};
    void* const context = reinterpret_cast<void*>(0x77);
    RVT_EQ(fi_av_insert(av.get(), addresses, 2, numbers, 0, context), -FI_ENOEQ);
    RVT_OK(fi_av_bind(av.get(), &eq->fid, 0));
    RVT_EQ(fi_av_insert(av.get(), addresses, 2, numbers, 0, context), 0);

    std::uint32_t event = 0;
    fi_eq_entry entry{};
    RVT_EQ(fi_eq_read(eq.get(), &event, &entry, sizeof entry, 0), -FI_EAVAIL);
    fi_eq_err_entry error{};
    RVT_EQ(fi_eq_readerr(eq.get(), &error, 0), sizeof error);
    RVT_EQ(error.data, 1);
    RVT_NE(error.err, 0);
    RVT_EQ(fi_eq_read(eq.get(), &event, &entry, sizeof entry, 0), sizeof entry);
    RVT_EQ(event, FI_AV_COMPLETE);
    RVT_EQ(entry.data, 1);
    RVT_ASSERT(entry.context == context);
}

/// FI_FIREWALL_ADDR of newer headers says that the peer may not be reached from here.
Test(av, an_address_behind_a_firewall_is_inserted_as_any) {
    const Opened open;
    const auto av = open.av();
    const sockaddr_in address = numbered(1);
    RVT_EQ(fi_av_insert(av.get(), &address, 1, nullptr, 1ull << 42, nullptr), 1);
    RVT_EQ(fi_av_insert(av.get(), &address, 1, nullptr, 1ull << 43, nullptr), -FI_EBADFLAGS);
}

Test(av, what_is_not_supported_is_refused) {
    const Opened open;
    fid_av* av = nullptr;
    fi_av_attr attr{};
    attr.name = "shared";
    RVT_EQ(fi_av_open(open.domain.get(), &attr, &av, nullptr), -FI_ENOSYS);
    attr = {};
    attr.rx_ctx_bits = 2;
    RVT_EQ(fi_av_open(open.domain.get(), &attr, &av, nullptr), -FI_EINVAL);
    attr = {};
    attr.flags = 1ull << 33;
    RVT_EQ(fi_av_open(open.domain.get(), &attr, &av, nullptr), -FI_EBADFLAGS);
}

Test(av, a_hundred_thousand_addresses_fit) {
    constexpr std::uint32_t kCount = 100000;
    const Opened open;
    const auto av = open.av(with<fi_av_attr>([](auto& attr) { attr.count = kCount; }));
    std::vector<sockaddr_in> addresses;
    for (std::uint32_t n = 0; n < kCount; ++n) {
        addresses.push_back(numbered(n));
    }
    std::vector<fi_addr_t> numbers(kCount);
    RVT_EQ(fi_av_insert(av.get(), addresses.data(), kCount, numbers.data(), 0, nullptr), kCount);
    RVT_EQ(numbers[kCount - 1], kCount - 1);
}
