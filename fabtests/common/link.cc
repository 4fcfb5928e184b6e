// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "common/link.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "common/endpoint.h"
#include "common/fail.h"

namespace fab {
namespace {

constexpr const char* kElsewhere = "10.99.0.99/24";

/// What the command prints first; a failure ends the test.
std::string run(const std::string& command) {
    FILE* out = popen(command.c_str(), "re");
    if (out == nullptr) FAB_FAIL("cannot run %s", command.c_str());
    char word[128] = "";
    if (std::fscanf(out, "%127s", word) < 0) word[0] = '\0';
    if (pclose(out) != 0) FAB_FAIL("%s fails", command.c_str());
    return word;
}

}  // namespace

Link::Link() {
    if (!settings.has_hosts) skip("ranks have no network interfaces of their own");
    address_ = run("ip -4 -o address show dev eth0 | sed 's/.* inet //'");
    FAB_CHECK(!address_.empty());
    route_ = run("ip -4 route show dev eth0 scope link | cut -d ' ' -f 1") + " dev eth0 src " +
             address_.substr(0, address_.find('/'));
}

Link::~Link() {
    if (!is_there_) return;
    set("mtu 1500");
    set("up");
}

void Link::set(const std::string& what) const {
    run("ip link set dev eth0 " + what);
}

void Link::narrow_way(int mtu_bytes) const {
    run("ip route replace " + route_ + " mtu " + std::to_string(mtu_bytes));
}

void Link::move_away() const {
    run("ip address delete " + address_ + " dev eth0 && ip address add " + kElsewhere +
        " dev eth0");
}

void Link::move_back() const {
    run("ip address delete " + std::string(kElsewhere) + " dev eth0 && ip address add " + address_ +
        " dev eth0");
}

void Link::remove() {
    run("ip link delete dev eth0");
    is_there_ = false;
}

void expect_port_error(const Endpoint& ep, int error) {
    constexpr int kNoticeMs = 5000;
    std::uint32_t type = 0;
    fi_eq_entry entry{};
    FAB_EQUAL(fi_eq_sread(ep.eq, &type, &entry, sizeof entry, kNoticeMs, 0), -FI_EAVAIL);
    fi_eq_err_entry failed{};
    FAB_CHECK(fi_eq_readerr(ep.eq, &failed, 0) > 0);
    FAB_EQUAL(failed.err, error);
    FAB_CHECK(failed.fid == &ep.ep->fid);
}

}  // namespace fab
