// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// An address as librdmacm takes it.
#pragma once

#include <cstdint>
#include <string>

#include <netdb.h>

#include "ends.h"

namespace traffic {

/// An IP address and the number of a service, or 0.
class Name {
  public:
    Name(const std::string& ip, std::uint16_t service) {
        addrinfo hints{};
        hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
        if (getaddrinfo(ip.c_str(), std::to_string(service).c_str(), &hints, &found_) != 0) {
            fail("no address: " + ip);
        }
    }
    ~Name() { freeaddrinfo(found_); }
    Name(const Name&) = delete;
    Name& operator=(const Name&) = delete;

    [[nodiscard]] sockaddr* get() const { return found_->ai_addr; }

  private:
    addrinfo* found_ = nullptr;
};

}  // namespace traffic
