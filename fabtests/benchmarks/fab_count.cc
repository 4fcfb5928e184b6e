// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Messages whose instructions are counted from outside (count_instructions.py): rank 0 sends, rank
// 1 receives. Counted is only what is called by fab_count_this(). What polls cost that find
// nothing, the last part says; there are few of them.
#include "benchmarks/fab_bench.h"

#include <unistd.h>

// Their names are known to count_instructions.py.
extern "C" {
/// Parts: before the messages, the messages, polls that find nothing, the rest.
[[gnu::noipa]] void fab_count_next_part() {
    asm volatile("");  // a call that is not left out
}
[[gnu::noipa]] void fab_count_idle_poll() {
    asm volatile("");
}
[[gnu::noipa]] void fab_count_this(void (*call)(void*), void* with) {
    call(with);
    asm volatile("");  // and no jump
}
}

namespace fab {
namespace {

constexpr std::size_t kSize = 8;
constexpr std::size_t kMessages = 1024;
constexpr std::size_t kIdlePolls = 1024;
constexpr std::uint64_t kTag = 7;
// Between polls while the other rank is at work. Who does not poll for a millisecond is taken to be
// busy elsewhere.
constexpr unsigned kRestUs = 300;

template <class Call>
void count_this(Call call) {
    fab_count_this([](void* with) { (*static_cast<Call*>(with))(); }, &call);
}

class Counted {
  public:
    Counted(Rank& self, std::size_t window, bool injects)
        : bench_(self, {.caps = FI_TAGGED, .msg_order = FI_ORDER_SAS}),
          buffer_(bench_.ep, kSize * window),
          window_(window),
          injects_(injects) {
        if (self.rank == 1) post_receives();
    }

    void run() {
        for (std::size_t turn = 0; turn < kMessages / window_; ++turn) {
            bench_.self.rank == 0 ? send_window() : receive_window();
        }
    }
    void poll_idly() {
        count_this([&] {
            for (std::size_t i = 0; i < kIdlePolls; ++i) {
                bench_.poll();
                fab_count_idle_poll();
            }
        });
    }
    void finish() { bench_.finish(); }

  private:
    void send_window() {
        count_this([&] {
            for (std::size_t i = 0; i < window_; ++i) {
                bench_.post([&] { return send(i); });
            }
            bench_.poll();  // lets go what a provider has gathered
        });
        tell();
        hear();  // all has arrived
        wait_until([&] { return injects_ || bench_.sent == window_; });
        bench_.sent = 0;
    }
    ssize_t send(std::size_t i) {
        fid_ep* ep = bench_.ep.ep;
        return injects_ ? fi_tinject(ep, buffer_.as(), kSize, bench_.peer(), kTag)
                        : fi_tsend(ep, buffer_.as(), kSize, buffer_.desc(), bench_.peer(), kTag,
                                   bench_.context(i));
    }
    void receive_window() {
        hear();  // what was told after the messages is here after them
        wait_until([&] { return bench_.received == window_; });
        bench_.received = 0;
        post_receives();
        tell();
    }
    void post_receives() {
        count_this([&] {
            for (std::size_t i = 0; i < window_; ++i) {
                bench_.post([&] { return receive(i); });
            }
        });
    }
    ssize_t receive(std::size_t i) {
        return fi_trecv(bench_.ep.ep, buffer_.as() + kSize * i, kSize, buffer_.desc(),
                        bench_.peer(), kTag, 0, bench_.context(i));
    }
    template <class Done>
    void wait_until(Done is_done) {
        while (!is_done()) poll();
    }
    void poll() {
        count_this([&] {
            const std::size_t before = bench_.received + bench_.sent;
            bench_.poll();
            if (bench_.received + bench_.sent == before) fab_count_idle_poll();
        });
    }
    void tell() const {
        const char word = 1;
        bench_.self.send(bench_.self.other(), &word, 1);
    }
    void hear() {
        char word = 0;
        bench_.self.receive_polling(bench_.self.other(), &word, 1, [this] {
            poll();
            usleep(kRestUs);
        });
    }

    Bench bench_;
    Buffer buffer_;
    const std::size_t window_;
    const bool injects_;
};

/// Returns: how many messages there are between the first and the second call for the next part.
template <bool kInjects>
double count(Rank& self, std::size_t window) {
    if (window == 0 || kMessages % window != 0) skip("windows divide 1024 messages");
    Counted counted(self, window, kInjects);
    counted.run();  // makes connections
    fab_count_next_part();
    counted.run();
    fab_count_next_part();
    counted.poll_idly();
    fab_count_next_part();
    counted.finish();
    return static_cast<double>(kMessages);
}

constexpr double kLimitS = 600;  // under an emulation of the processor
constexpr Measure kMeasures[] = {
    {"count-inject", "messages", count<true>, 2, "messages in a window", kLimitS},
    {"count-send", "messages", count<false>, 2, "messages in a window", kLimitS},
};

}  // namespace

const std::span<const Measure> kCountMeasures = kMeasures;

}  // namespace fab
