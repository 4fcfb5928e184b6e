// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// RDM endpoints of two machines, of which the passive one stops itself: while it only does not
// poll, its control thread answers. Who sees that it has stopped puts `deaf` into the folder; it is
// killed when that has `kill`. The active one has a large message, a read and a receive under way
// then.
//
//   rdm_killed DIR active|passive OWN-IP PEER-IP
#include "ends.h"

#include <array>
#include <csignal>
#include <cstdio>
#include <string>
#include <vector>

#include "common/endpoint.h"

namespace {

constexpr std::size_t kMost = 1 << 20;
constexpr std::uint64_t kTag = 7;
constexpr double kSilenceS = 3;  // in which a process that is only stopped loses nothing
constexpr double kLimitS = 30;   // until a killed one is noticed: emulated processors are slow

const fab::EpSpec kSpec{.caps = FI_TAGGED | FI_RMA, .addr_format = FI_SOCKADDR_IN};

/// What the active end has under way.
class Pending {
  public:
    Pending(fab::Endpoint& ep, fi_addr_t peer, const fab::RemoteRegion& remote)
        : ep_(ep), sent_(ep, kMost), read_(ep, kMost), received_(ep, kMost) {
        ep_.post([&] {
            return fi_tsend(ep_.ep, sent_.as(), kMost, sent_.desc(), peer, kTag, &contexts_[0]);
        });
        ep_.post([&] {
            return fi_read(ep_.ep, read_.as(), kMost, read_.desc(), peer, remote.base, remote.key,
                           &contexts_[1]);
        });
        ep_.post([&] {
            return fi_trecv(ep_.ep, received_.as(), kMost, received_.desc(), peer, kTag, 0,
                            &contexts_[2]);
        });
    }

    /// Polls until both that the peer owes have ended. Returns: whether that is so.
    bool poll_for(double seconds) {
        const double end = fab::now_s() + seconds;
        fab::Completion one;
        while (ended < 2 && fab::now_s() < end) {
            if (ep_.poll(ep_.tx_cq, one)) {
                ++ended;
                failed += one.err != 0 ? 1 : 0;
            }
            received += ep_.poll(ep_.rx_cq, one) ? 1 : 0;
        }
        return ended == 2;
    }
    /// Returns: what is wrong.
    std::string cancel_receive() {
        if (received != 0 || fi_cancel(&ep_.ep->fid, &contexts_[2]) != 0) {
            return "it is not there any more";
        }
        const int error = ep_.wait_any(ep_.rx_cq).err;
        return error == FI_ECANCELED ? std::string() : std::string("it is: ") + fi_strerror(error);
    }

    int ended = 0;
    int failed = 0;
    int received = 0;

  private:
    fab::Endpoint& ep_;
    fab::Buffer sent_;
    fab::Buffer read_;
    fab::Buffer received_;
    std::array<fab::Context, 3> contexts_{};
};

int active(const traffic::Folder& folder) {
    traffic::Report report;
    fab::Endpoint ep(kSpec);
    const fab::Buffer word(ep, 1);
    fab::RemoteRegion remote;
    folder.await("region") >> remote.base >> remote.key;
    std::ifstream file = folder.await("name");
    const fi_addr_t peer = ep.insert({std::istreambuf_iterator<char>(file), {}});
    fab::Context context;
    ep.post([&] { return fi_tsend(ep.ep, word.as(), 1, word.desc(), peer, kTag, &context); });
    ep.wait_tx();
    folder.await("deaf");

    Pending pending(ep, peer, remote);
    pending.poll_for(kSilenceS);
    report.line("what a process owes that is only stopped is waited for",
                pending.ended == 0 ? "" : "something has ended");
    folder.put("kill", "");
    folder.await("killed");
    const double began = fab::now_s();
    const bool is_noticed = pending.poll_for(kLimitS);
    std::fprintf(stderr, "after %.1f s: %d ended, %d with errors\n", fab::now_s() - began,
                 pending.ended, pending.failed);
    report.line("when it is killed, that ends with errors",
                is_noticed && pending.failed == 2 ? "" : "it does not");
    report.line("and a receive from it can be cancelled", pending.cancel_receive());
    return report.status();
}

[[noreturn]] void passive(const traffic::Folder& folder) {
    fab::Endpoint ep(kSpec);
    const fab::Buffer buffer(ep, kMost);
    const fab::RemoteRegion region = buffer.remote();
    folder.put("region", std::to_string(region.base) + " " + std::to_string(region.key));
    fab::Context context;
    ep.post([&] {
        return fi_trecv(ep.ep, buffer.as(), 1, buffer.desc(), FI_ADDR_UNSPEC, kTag, 0, &context);
    });
    const std::vector<char> name = ep.name();
    folder.put("name", std::string(name.begin(), name.end()));
    fab::Completion one;
    while (!ep.poll(ep.rx_cq, one)) {
    }
    for (;;) {
        raise(SIGSTOP);
    }
}

}  // namespace

int main(int argc, char** argv) {
    const traffic::Options options = traffic::read_options(argc, argv);
    fab::settings.node = options.own_ip;
    const traffic::Folder folder(options.dir);
    if (!options.is_active) {
        passive(folder);
    }
    return active(folder);
}
