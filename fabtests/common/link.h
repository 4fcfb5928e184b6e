// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The network interface of a rank that has a network namespace of its own, for tests in which it
// fails.
#pragma once

#include <string>

namespace fab {

class Endpoint;

/// Sleeps until the event queue of the endpoint tells that its port has failed.
void expect_port_error(const Endpoint& ep, int error);

/// The interface eth0, changed by ip(8); as it was again at the end, if it is still there.
class Link {
  public:
    /// Skips the test where ranks are not spread over namespaces.
    Link();
    ~Link();
    Link(const Link&) = delete;
    Link& operator=(const Link&) = delete;

    void pull() const { set("down"); }
    void plug() const { set("up"); }
    void set_mtu(int bytes) const { set("mtu " + std::to_string(bytes)); }
    /// Routes to the others take packets of so many bytes; the interface takes what it took.
    void narrow_way(int mtu_bytes) const;
    /// The interface has another address of its network.
    void move_away() const;
    void move_back() const;
    void remove();

  private:
    void set(const std::string& what) const;

    std::string address_;  // with the length of its prefix
    std::string route_;    // to its network
    bool is_there_ = true;
};

}  // namespace fab
