// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// An endpoint for the test of `rvt_info --peer`: prints its address, as that option takes it, and
// lives until its input ends. Like an application that computes it makes no progress.
#include <cstdio>
#include <cstring>
#include <vector>

#include <arpa/inet.h>
#include <netinet/in.h>

#include "common/endpoint.h"

int main() {
    const fab::Endpoint ep({.caps = FI_MSG | FI_RMA, .addr_format = FI_SOCKADDR_IN});
    const std::vector<char> name = ep.name();
    sockaddr_in address{};
    std::memcpy(&address, name.data(), sizeof address);
    char text[INET_ADDRSTRLEN] = "";
    inet_ntop(AF_INET, &address.sin_addr, text, sizeof text);
    std::printf("%s:%u\n", text, ntohs(address.sin_port));
    std::fflush(stdout);
    while (std::getchar() != EOF) {
    }
}
