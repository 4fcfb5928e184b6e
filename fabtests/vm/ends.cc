// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Arguments, files and lines.
#include "ends.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <thread>
#include <vector>

#include <spawn.h>
#include <sys/stat.h>
#include <unistd.h>

namespace traffic {
namespace {

constexpr std::array<std::string_view, 6> kHows = {"lossy",    "strays",        "stream",
                                                   "computes", "peer-computes", "takes-nic"};

}  // namespace

Options read_options(int argc, char** argv) {
    const std::vector<std::string> args(argv + 1, argv + argc);
    const std::string how = args.size() == 5 ? args[4] : "";
    const bool is_right = (args.size() == 4 || std::ranges::find(kHows, how) != kHows.end()) &&
                          (args[1] == "active" || args[1] == "passive");
    if (!is_right) {
        fail(
            "usage: DIR active|passive OWN-IP PEER-IP "
            "[lossy|strays|stream|computes|peer-computes|takes-nic]");
    }
    return {.dir = args[0],
            .is_active = args[1] == "active",
            .own_ip = args[2],
            .peer_ip = args[3],
            .is_lossy = how == "lossy",
            .has_strays = how == "strays",
            .is_stream = how == "stream",
            .computes = how == "computes",
            .peer_computes = how == "peer-computes",
            .takes_nic = how == "takes-nic"};
}

// ---- the folder ----

Folder::Folder(std::string dir) : dir_(std::move(dir)) {
    mkdir(dir_.c_str(), 0777);
}

void Folder::put(const std::string& name, const std::string& text) const {
    const std::string path = dir_ + "/" + name;
    std::ofstream(path + ".new") << text;
    if (std::rename((path + ".new").c_str(), path.c_str()) != 0) {
        fail("cannot write " + path);
    }
}

bool Folder::has(const std::string& name) const {
    return access((dir_ + "/" + name).c_str(), F_OK) == 0;
}

/// A folder that another machine shares raises no events: it is looked at again and again.
std::ifstream Folder::await(const std::string& name) const {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (!has(name)) {
        if (std::chrono::steady_clock::now() > end) {
            fail("no " + dir_ + "/" + name);
        }
        std::this_thread::sleep_for(kLook);
    }
    return std::ifstream(dir_ + "/" + name);
}

// ---- words ----

void Report::line(const std::string& name, const std::string& problem) {
    ++lines_;
    std::printf("%s %d - %s%s%s\n", problem.empty() ? "ok" : "not ok", lines_, name.c_str(),
                problem.empty() ? "" : ": ", problem.c_str());
    std::fflush(stdout);
    is_bad_ = is_bad_ || !problem.empty();
}

void take_nic_away() {
    std::array<char*, 5> words{const_cast<char*>("rdma"), const_cast<char*>("link"),
                               const_cast<char*>("delete"), const_cast<char*>("rxe0"), nullptr};
    pid_t taking = -1;
    if (posix_spawnp(&taking, words[0], nullptr, nullptr, words.data(), environ) != 0) {
        fail("cannot take rxe0 away");
    }
}

void StrayCount::note(std::uint64_t number) {
    ++seen_.at(number);
    overtaken_ += number < last_ ? 1 : 0;
    last_ = number;
}

void StrayCount::put(Report& report, const std::string& name, bool may_overtake) const {
    const auto lost = static_cast<std::size_t>(std::ranges::count(seen_, 0u));
    const auto doubled = std::ranges::count_if(seen_, [](unsigned times) { return times > 1; });
    const std::string counts = std::to_string(lost) + " lost, " + std::to_string(doubled) +
                               " doubled, " + std::to_string(overtaken_) + " overtaken";
    const bool is_tried = lost > 0 && doubled > 0 && (overtaken_ > 0 || !may_overtake);
    const bool is_much = lost < seen_.size() / 2;
    report.line(name + "some of " + std::to_string(seen_.size()) + " went astray, and most arrived",
                is_tried && is_much ? "" : counts);
    std::printf("# %s\n", counts.c_str());
    std::fflush(stdout);
}

void fail(const std::string& what) {
    std::fprintf(stderr, "%s: %s\n", program_invocation_short_name, what.c_str());
    std::fflush(stdout);
    std::_Exit(1);
}

}  // namespace traffic
