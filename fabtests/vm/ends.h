// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// What programs with an end on two machines have in common: arguments, files in a folder that both
// see, and lines `ok N - ...` or `not ok N - ...`.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

namespace traffic {

inline constexpr std::chrono::seconds kPatience{100};  // emulated processors are slow
inline constexpr std::chrono::milliseconds kLook{1};   // between two looks at a file

struct Options {
    std::string dir;  // seen by both ends
    bool is_active = false;
    std::string own_ip;
    std::string peer_ip;
    bool is_lossy = false;
    bool has_strays = false;  // datagrams get lost, come twice and overtake each other
    bool is_stream = false;   // one long transfer, for its rate
    bool computes = false;    // this end, for a while, without a call of the library
    bool peer_computes = false;
    bool takes_nic = false;  // this end takes its own NIC, rxe0, away
};

/// Reads `DIR active|passive OWN-IP PEER-IP
/// [lossy|strays|stream|computes|peer-computes|takes-nic]`; ends the process when it is something
/// else.
Options read_options(int argc, char** argv);

class Folder {
  public:
    explicit Folder(std::string dir);

    /// A reader sees the file whole or not at all.
    void put(const std::string& name, const std::string& text) const;
    [[nodiscard]] bool has(const std::string& name) const;
    /// Ends the program when the file does not come.
    std::ifstream await(const std::string& name) const;

  private:
    std::string dir_;
};

class Report {
  public:
    /// Prints the line of what has been tried. It is good when there is no problem.
    void line(const std::string& name, const std::string& problem);
    /// Of the program: 0 when every line was good.
    [[nodiscard]] int status() const { return is_bad_ ? 1 : 0; }

  private:
    int lines_ = 0;
    bool is_bad_ = false;
};

/// Has this guest's NIC, rxe0, taken away while the program goes on. The kernel is done only when
/// the program has ended: librdmacm keeps a NIC open that it has looked at.
void take_nic_away();

/// What a network has done to numbered messages that went astray.
class StrayCount {
  public:
    /// @param sent  Their numbers are less.
    explicit StrayCount(std::size_t sent) : seen_(sent) {}

    void note(std::uint64_t number);
    /// The line of it: good when some were lost, some came twice and, of what leaves at once, some
    /// overtook others, without which nothing has been tried, and most arrived.
    void put(Report& report, const std::string& name, bool may_overtake) const;

  private:
    std::vector<unsigned> seen_;
    std::uint64_t last_ = 0;
    std::size_t overtaken_ = 0;
};

/// Ends the program: nothing more can be tried.
[[noreturn]] void fail(const std::string& what);

}  // namespace traffic
