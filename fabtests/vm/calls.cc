// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The course of the end that calls, and that of the one that is called.
#include "calls.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

namespace calls {
namespace {

// What there is room for, which zeros fill: nothing tells the length of what was meant.
constexpr std::size_t kRequestRoom = 56;
constexpr std::size_t kReplyRoom = 196;
constexpr std::size_t kRefusalRoom = 148;

// Of each end's memory.
constexpr std::size_t kArea = std::size_t{64} << 10;
constexpr std::size_t kSendAt = 0;           // what leaves by SEND
constexpr std::size_t kReceiveAt = kArea;    // what comes by it
constexpr std::size_t kWriteAt = 2 * kArea;  // what leaves by WRITE
constexpr std::size_t kTargetAt = 3 * kArea;
constexpr std::size_t kReadAt = 4 * kArea;  // what READ brings
constexpr std::size_t kCardAt = 5 * kArea;

/// So long an end computes: longer than a peer goes on that gets no answers.
constexpr std::chrono::seconds kComputing{12};
constexpr std::size_t kMeanwhile = 5000;

// Of a stream.
constexpr std::size_t kStreamWrites = 32;  // of an area each
constexpr std::size_t kUnderWay = 4;
static_assert(kUnderWay <= kMaxRequests);

constexpr std::array<std::size_t, 6> kSizes = {1, 1000, 1024, 1025, 5000, kArea};

/// Where an end's memory is.
struct Card {
    std::uint64_t base = 0;
    std::uint64_t key = 0;
};

std::string filled(std::string text, std::size_t room) {
    text.resize(room, '\0');
    return text;
}

class Course {
  public:
    Course(End& end, std::span<std::byte> memory, const traffic::Options& options)
        : end_(end),
          memory_(memory),
          is_active_(options.is_active),
          is_stream_(options.is_stream),
          computes_(options.computes),
          peer_computes_(options.peer_computes),
          folder_(options.dir) {}

    int run() {
        if (is_active_) {
            folder_.await("listening");
            is_stream_ ? stream_out() : be_active();
        } else {
            end_.listen(kService);
            folder_.put("listening", "");
            is_stream_ ? stream_in() : be_passive();
        }
        return report_.status();
    }

  private:
    void be_active() {
        end_.call(kNobody, "");
        expect("a service that nobody listens for is refused", News::kRefused, "");
        end_.forget();

        end_.call(kService, "please refuse");
        expect("the called end refuses, with data", News::kRefused,
               filled("not today", kRefusalRoom));
        end_.forget();

        end_.call(kService, "hello");
        post_receive(sizeof(Card));
        expect("the called end accepts, with data", News::kConnected,
               filled("welcome", kReplyRoom));
        exchange();
        end_.hang_up();
        expect("the end that hangs up learns of the end", News::kEnded, "");
        end_.forget();

        end_.call(kService, std::string(kRequestRoom, 'x'));
        expect("another connection", News::kConnected, filled("", kReplyRoom));
        expect("the called end hangs up", News::kEnded, "");
        end_.forget();
        // As after exchange(): the called end may not have had the answer.
        folder_.await("ended");
    }

    void be_passive() {
        expect("a request with data", News::kRequest, filled("please refuse", kRequestRoom));
        end_.refuse("not today");

        expect("another request with data", News::kRequest, filled("hello", kRequestRoom));
        end_.prepare();
        post_receive(sizeof(Card));
        end_.accept("welcome");
        expect("the connection is there", News::kConnected, "");
        exchange();
        expect("the calling end hangs up", News::kEnded, "");
        end_.forget();

        expect("a request with as much data as there is room for", News::kRequest,
               std::string(kRequestRoom, 'x'));
        end_.prepare();
        end_.accept("");
        expect("another connection is there", News::kConnected, "");
        end_.hang_up();
        expect("the end that hangs up learns of the end", News::kEnded, "");
        folder_.put("ended", "");
        end_.forget();
    }

    // ---- one long transfer ----

    void stream_out() {
        end_.call(kService, "");
        post_receive(sizeof(Card));
        expect("the called end accepts", News::kConnected, "");
        trade_cards();
        fill(kWriteAt, kArea, is_active_);
        const auto begin = std::chrono::steady_clock::now();
        const std::string problem = write_stream();
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
        report_.line("each WRITE of a stream", problem);
        const auto kib_per_s =
            static_cast<std::uint64_t>(kStreamWrites * kArea / took.count()) >> 10;
        folder_.put("rate", std::to_string(kib_per_s) + "\n");
        end_.post_send(memory_.subspan(kSendAt, 1));
        report_.line("SEND says so", end_.complete_request().problem);
        end_.hang_up();
        expect("the end that hangs up learns of the end", News::kEnded, "");
        end_.forget();
        folder_.put("ended", "");
    }

    /// Returns: what went wrong, or nothing.
    std::string write_stream() {
        std::size_t posted = 0;
        for (std::size_t done = 0; done < kStreamWrites; ++done) {
            for (; posted < kStreamWrites && posted - done < kUnderWay; ++posted) {
                end_.post_write(memory_.subspan(kWriteAt, kArea), peer_.base + kTargetAt,
                                peer_.key);
            }
            if (const Completion completion = end_.complete_request();
                !completion.problem.empty()) {
                return completion.problem;
            }
        }
        return "";
    }

    void stream_in() {
        expect("a request", News::kRequest, "");
        end_.prepare();
        post_receive(sizeof(Card));
        end_.accept("");
        expect("the connection is there", News::kConnected, "");
        trade_cards();
        report_write(end_.complete_receive().problem);  // no other is posted: the peer may be gone
        expect("the calling end hangs up", News::kEnded, "");
        end_.forget();
        folder_.await("ended");  // the calling end may not have had the answer
    }

    void expect(const std::string& name, News news, const std::string& data) {
        const Event event = end_.next_event();
        const bool is_empty = data.empty() && event.data.find_first_not_of('\0') == data.npos;
        report_.line(name, event.news != news ? "got another event: " + event.text
                           : event.data != data && !is_empty
                               ? "got " + std::to_string(event.data.size()) + " bytes of other data"
                               : "");
    }

    // ---- data ----

    /// Both ends at once do the one's part and the other's, in the same order.
    void exchange() {
        trade_cards();
        for (const std::size_t bytes : kSizes) {
            send_both_ways(bytes);
        }
        if (computes_) {
            compute();
        } else if (peer_computes_) {
            go_on_meanwhile();
        }
        if (is_active_) {
            write_and_read();
            await_write();
            // The last answer may be lost, and comes again only while this end is there.
            folder_.await("exchanged");
        } else {
            await_write();
            write_and_read();
            folder_.put("exchanged", "");
        }
    }

    /// Nothing of the library is called meanwhile.
    void compute() {
        post_receive(kArea);  // beside the one that is posted always: for both that come
        folder_.put("computes", "");
        const auto end = std::chrono::steady_clock::now() + kComputing;
        while (std::chrono::steady_clock::now() < end) {
        }
        folder_.put("computed", "");
        const Completion received = end_.complete_receive();
        report_.line("receive of what came while this end computed",
                     !received.problem.empty() ? received.problem
                     : received.bytes != kMeanwhile
                         ? std::to_string(received.bytes) + " bytes came"
                         : difference(kReceiveAt, kMeanwhile, !is_active_));
        await_write();
        std::fill_n(memory_.begin() + kTargetAt, kArea, std::byte{0});
        folder_.put("is-ready", "");  // to be written to once more
    }

    void go_on_meanwhile() {
        folder_.await("computes");
        send(kMeanwhile);
        write_and_read();
        report_.line("all of it while the other end computed",
                     folder_.has("computed") ? "it took longer" : "");
        folder_.await("is-ready");
    }

    void trade_cards() {
        const Card own{.base = reinterpret_cast<std::uint64_t>(memory_.data()), .key = end_.key()};
        std::memcpy(&memory_[kCardAt], &own, sizeof own);
        end_.post_send(memory_.subspan(kCardAt, sizeof own));
        const std::string sent = end_.complete_request().problem;
        const Completion received = end_.complete_receive();
        report_.line("SEND tells where memory is", !sent.empty()               ? sent
                                                   : !received.problem.empty() ? received.problem
                                                   : received.bytes != sizeof peer_
                                                       ? "of another length"
                                                       : "");
        std::memcpy(&peer_, &memory_[kReceiveAt], sizeof peer_);
        post_receive(kArea);
    }

    /// First the end that called sends, then the other: each posts its next receive before.
    void send_both_ways(std::size_t bytes) {
        if (is_active_) {
            send(bytes);
            receive(bytes);
        } else {
            receive(bytes);
            send(bytes);
        }
    }

    void send(std::size_t bytes) {
        fill(kSendAt, bytes, is_active_);
        end_.post_send(memory_.subspan(kSendAt, bytes));
        report_.line("SEND of " + std::to_string(bytes) + " bytes",
                     end_.complete_request().problem);
    }

    void receive(std::size_t bytes) {
        const Completion received = end_.complete_receive();
        std::string problem = received.problem;
        if (problem.empty()) {
            problem = received.bytes != bytes ? std::to_string(received.bytes) + " bytes came"
                                              : difference(kReceiveAt, bytes, !is_active_);
        }
        report_.line("receive of " + std::to_string(bytes) + " bytes", problem);
        std::fill_n(memory_.begin() + kReceiveAt, bytes, std::byte{0});
        post_receive(kArea);
    }

    void write_and_read() {
        fill(kWriteAt, kArea, is_active_);
        end_.post_write(memory_.subspan(kWriteAt, kArea), peer_.base + kTargetAt, peer_.key);
        report_.line("WRITE into the other end's memory", end_.complete_request().problem);
        end_.post_read(memory_.subspan(kReadAt, kArea), peer_.base + kTargetAt, peer_.key);
        const std::string problem = end_.complete_request().problem;
        report_.line("READ from the other end's memory",
                     problem.empty() ? difference(kReadAt, kArea, is_active_) : problem);
        end_.post_send(memory_.subspan(kSendAt, 1));
        report_.line("SEND says so", end_.complete_request().problem);
    }

    void await_write() {
        report_write(end_.complete_receive().problem);
        post_receive(kArea);
    }

    void report_write(const std::string& problem) {
        report_.line("what the other end has written",
                     problem.empty() ? difference(kTargetAt, kArea, !is_active_) : problem);
    }

    void post_receive(std::size_t bytes) { end_.post_receive(memory_.subspan(kReceiveAt, bytes)); }

    /// What an end sends differs from what the other does.
    static std::byte pattern(std::size_t i, bool is_active) {
        return static_cast<std::byte>((i * 7 + (i >> 8) + (is_active ? 1 : 101)) & 0xff);
    }
    void fill(std::size_t at, std::size_t bytes, bool is_active) {
        for (std::size_t i = 0; i < bytes; ++i) {
            memory_[at + i] = pattern(i, is_active);
        }
    }
    [[nodiscard]] std::string difference(std::size_t at, std::size_t bytes, bool is_active) const {
        for (std::size_t i = 0; i < bytes; ++i) {
            if (memory_[at + i] != pattern(i, is_active)) {
                return "byte " + std::to_string(i) + " is another";
            }
        }
        return "";
    }

    End& end_;
    const std::span<std::byte> memory_;
    const bool is_active_;
    const bool is_stream_;
    const bool computes_;
    const bool peer_computes_;
    const traffic::Folder folder_;
    traffic::Report report_;
    Card peer_;
};

}  // namespace

int run(End& end, std::span<std::byte> memory, const traffic::Options& options) {
    return Course(end, memory, options).run();
}

}  // namespace calls
