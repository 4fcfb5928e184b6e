// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// The rounds of rping(1), a program of rdma-core's, on FI_EP_MSG of rvt: the client tells where a
// text lies, the server reads it, and writes it to where the client says next. The passive end is
// the server. What is told: address (64 bits), rkey (32) and length (32), in network byte order;
// the server answers with as many bytes when it has read, and when it has written.
//
//   msg_rping DIR active|passive OWN-IP PEER-IP
#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <endian.h>

#include "msg_end.h"

namespace {

using calls::Completion;
using calls::End;
using calls::Event;
using calls::News;
using traffic::fail;
using traffic::Options;

// As the command line of rping has to say.
constexpr int kRounds = 10;
constexpr std::size_t kTextBytes = 3000;
constexpr std::uint16_t kService = 7174;  // its default

struct Place {
    std::uint64_t address;
    std::uint32_t key;
    std::uint32_t bytes;
};
static_assert(sizeof(Place) == 16);

struct Memory {
    Place told;
    Place heard;
    std::array<char, kTextBytes> text;
    std::array<char, kTextBytes> echo;
};

template <class T>
std::span<std::byte> bytes_of(T& object) {
    return std::as_writable_bytes(std::span(&object, 1));
}

/// What the client of rping sends in a round: a heading, then printable characters, each round from
/// the next one on; the last one is 0.
std::array<char, kTextBytes> text_of(int round) {
    std::array<char, kTextBytes> text{};
    const std::string heading = "rdma-ping-" + std::to_string(round) + ": ";
    std::copy(heading.begin(), heading.end(), text.begin());
    char letter = static_cast<char>('A' + round);
    for (std::size_t i = heading.size(); i + 1 < text.size(); ++i) {
        text[i] = letter;
        letter = letter == 'z' ? 'A' : static_cast<char>(letter + 1);
    }
    return text;
}

class Rounds {
  public:
    Rounds(End& end, Memory& memory) : end_(end), memory_(memory) {}

    void listen_for(Place& heard) { end_.post_receive(bytes_of(heard)); }
    void tell() {
        end_.post_send(bytes_of(memory_.told));
        check(end_.complete_request(), "send");
    }
    void tell_of(std::array<char, kTextBytes>& text) {
        memory_.told = {.address = htobe64(reinterpret_cast<std::uint64_t>(text.data())),
                        .key = htobe32(static_cast<std::uint32_t>(end_.key())),
                        .bytes = htobe32(kTextBytes)};
        tell();
    }
    /// The next message, behind which one more may come.
    Place hear() {
        const Completion completion = end_.complete_receive();
        check(completion, "receive");
        if (completion.bytes != sizeof(Place)) {
            fail("a message of " + std::to_string(completion.bytes) + " bytes");
        }
        const Place heard{.address = be64toh(memory_.heard.address),
                          .key = be32toh(memory_.heard.key),
                          .bytes = be32toh(memory_.heard.bytes)};
        listen_for(memory_.heard);
        return heard;
    }
    void read(const Place& from) {
        end_.post_read(bytes_of(memory_.text), from.address, from.key);
        check(end_.complete_request(), "read");
    }
    void write(const Place& to) {
        end_.post_write(bytes_of(memory_.text), to.address, to.key);
        check(end_.complete_request(), "write");
    }

  private:
    static void check(const Completion& completion, const char* what) {
        if (!completion.problem.empty()) {
            fail(std::string(what) + ": " + completion.problem);
        }
    }

    End& end_;
    Memory& memory_;
};

std::string problem_unless(bool is_good, const std::string& problem) {
    return is_good ? "" : problem;
}

void be_server(End& end, Memory& memory, const Options& options, traffic::Report& report) {
    Rounds rounds(end, memory);
    end.listen(kService);
    traffic::Folder(options.dir).put("listening", "");
    if (const Event event = end.next_event(); event.news != News::kRequest) {
        fail("no request but " + event.text);
    }
    end.prepare();
    rounds.listen_for(memory.heard);
    end.accept("");
    if (const Event event = end.next_event(); event.news != News::kConnected) {
        fail("no connection but " + event.text);
    }
    bool is_same = true;
    for (int round = 0; round < kRounds; ++round) {
        rounds.read(rounds.hear());
        is_same = is_same && memory.text == text_of(round);
        rounds.tell();
        rounds.write(rounds.hear());
        rounds.tell();
    }
    report.line("reads from rping, and writes to it",
                problem_unless(is_same, "what was read is another text"));
    const Event event = end.next_event();
    report.line("rping ends the connection",
                problem_unless(event.news == News::kEnded, event.text));
}

/// The server of rping may be just starting, and tells nobody on another machine when it listens:
/// it is called again and again.
void call(End& end) {
    const auto until = std::chrono::steady_clock::now() + traffic::kPatience;
    while (true) {
        end.call(kService, "");
        const Event event = end.next_event();
        if (event.news == News::kConnected) {
            return;
        }
        if (event.news != News::kRefused || std::chrono::steady_clock::now() > until) {
            fail("no connection but " + event.text);
        }
        end.forget();
        std::this_thread::sleep_for(traffic::kLook);
    }
}

void be_client(End& end, Memory& memory, traffic::Report& report) {
    Rounds rounds(end, memory);
    call(end);
    rounds.listen_for(memory.heard);
    bool is_same = true;
    for (int round = 0; round < kRounds; ++round) {
        memory.text = text_of(round);
        memory.echo = {};
        rounds.tell_of(memory.text);
        rounds.hear();
        rounds.tell_of(memory.echo);
        rounds.hear();
        is_same = is_same && memory.echo == memory.text;
    }
    report.line("rping reads and writes",
                problem_unless(is_same, "what was written is another text"));
    end.hang_up();
}

}  // namespace

int main(int argc, char** argv) {
    const Options options = traffic::read_options(argc, argv);
    const auto memory = std::make_unique<Memory>();
    const std::unique_ptr<End> end = calls::make_msg_end(options, bytes_of(*memory));
    traffic::Report report;
    if (options.is_active) {
        be_client(*end, *memory, report);
    } else {
        be_server(*end, *memory, options, report);
    }
    return report.status();
}
