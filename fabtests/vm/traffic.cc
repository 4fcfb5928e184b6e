// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The course of the active end, and that of the passive one.
#include "traffic.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <thread>

#include "strays.h"

namespace traffic {
namespace {

using Bytes = std::vector<std::byte>;

constexpr std::uint32_t kImm = 0xc0ffee42;
constexpr std::uint32_t kActivePsn = 0xfffff0;  // wraps at the 17th packet
constexpr std::uint32_t kPassivePsn = 0x123456;
constexpr std::uint32_t kUnderWay = 32;         // requests, of operations that are repeated
constexpr std::chrono::seconds kAfterwards{2};  // for what was under way when the active end ended

constexpr std::uint64_t kReceiveBit = 1ull << 63;  // of a wr_id
constexpr unsigned kOperationShift = 32;

std::string to_text(const Card& card) {
    std::string text;
    for (const std::uint32_t qpn : card.qpns) {
        text += std::to_string(qpn) + " ";
    }
    return text + std::to_string(card.psn) + " " + std::to_string(card.key) + " " +
           std::to_string(card.window_key) + " " + std::to_string(card.addr) + " " +
           std::to_string(card.asks) + " " + std::to_string(card.answers) + "\n";
}

Card read_card(std::ifstream file) {
    Card card;
    for (std::uint32_t& qpn : card.qpns) {
        file >> qpn;
    }
    if (!(file >> card.psn >> card.key >> card.window_key >> card.addr >> card.asks >>
          card.answers)) {
        fail("cannot read the peer's card");
    }
    return card;
}

// ---- the course ----

class Course {
  public:
    Course(End& end, std::span<std::byte> memory, const Options& options)
        : end_(end),
          memory_(memory),
          options_(options),
          is_active_(options.is_active),
          folder_(options.dir),
          list_(operations(options.is_lossy)),
          expected_(image_before(list_, is_active_)) {}

    int run() {
        const Cards cards = traffic::connect(end_, options_);
        own_ = cards.own;
        peer_ = cards.peer;
        leave_out_what_they_lack();
        put_results(expected_, list_, is_active_);
        if (is_active_) {
            be_active();
        } else {
            be_passive();
        }
        return report_.status();
    }

  private:
    void leave_out_what_they_lack() {
        const Verbs both = (is_active_ ? own_ : peer_).asks & (is_active_ ? peer_ : own_).answers;
        std::erase_if(list_, [&](const Operation& op) {
            const bool is_lacking = (set_of(op.verb) & ~both) != 0;
            if (is_lacking) {
                std::printf("# NOT TRIED: %s: one of the devices does not have it\n",
                            name_of(op).c_str());
            }
            return is_lacking;
        });
    }

    /// Returns: where the memory is not as expected, or nothing.
    [[nodiscard]] std::string difference(std::size_t from, std::size_t bytes) const {
        const auto begin = memory_.begin() + static_cast<std::ptrdiff_t>(from);
        const auto end = begin + static_cast<std::ptrdiff_t>(bytes);
        const auto found = std::mismatch(begin, end, &expected_[from]).first;
        return found == end ? "" : "byte " + std::to_string(found - begin) + " is another";
    }
    [[nodiscard]] std::string difference(const Operation& op) const {
        return difference(op.offset, op.size());
    }

    // ---- active ----

    void be_active() {
        folder_.await("ready");
        for (std::size_t i = 0; i < list_.size(); ++i) {
            perform(i);
        }
        report_.line("no other byte of the active end's memory", difference(0, memory_.size()));
        folder_.put("done", "");
    }

    void perform(std::size_t index) {
        const Operation& op = list_[index];
        std::string problem;
        std::uint32_t posted = 0;
        for (std::uint32_t done = 0; done < op.count; ++done) {
            for (; posted < op.count && posted - done < kUnderWay; ++posted) {
                end_.post(request(index, posted));
            }
            const Completion completion = await_completion(end_, name_of(op));
            if (completion.wr_id != wr_id(index, done)) {
                problem = "another request completed";
            } else if (completion.outcome != op.outcome && problem.empty()) {
                problem = completion.text;
            }
        }
        report_.line(name_of(op), problem.empty() ? difference(op) : problem);
    }

    static std::uint64_t wr_id(std::size_t index, std::uint32_t repeat) {
        return static_cast<std::uint64_t>(index) << kOperationShift | repeat;
    }

    [[nodiscard]] Request request(std::size_t index, std::uint32_t repeat) const {
        const Operation& op = list_[index];
        const std::size_t slot = op.offset + repeat * op.stride();
        const bool is_swap = op.verb == Verb::kCompareSwap;
        return {.pair = op.pair,
                .verb = op.verb,
                .wr_id = wr_id(index, repeat),
                .local = memory_.subspan(slot, op.bytes),
                .imm = kImm,
                .remote_addr = peer_.addr + (op.is_atomic() ? op.offset : slot),
                .key = op.key == Key::kMemory   ? peer_.key
                       : op.key == Key::kWindow ? peer_.window_key
                                                : peer_.key ^ 0xff,
                .compare_add = is_swap ? kWordBefore + op.compare_error : kAdd,
                .swap = is_swap ? kSwap : 0,
                .of_region = op.of_region};
    }

    // ---- passive ----

    struct Arrivals {
        std::uint32_t count = 0;
        std::string problem;
    };

    void be_passive() {
        arrivals_.resize(list_.size());
        std::uint32_t due = 0;
        for (std::size_t i = 0; i < list_.size(); ++i) {
            due += list_[i].receives();
            if (list_[i].pair == Pair::kLate) {
                late_ = i;
            } else {
                post_receives(i);
            }
            if (list_[i].pair == Pair::kWindow && list_[i].verb == Verb::kWrite &&
                list_[i].outcome == Outcome::kSuccess) {
                end_.bind_window(memory_.subspan(list_[i].offset, list_[i].bytes));
            }
        }
        not_ready_before_ = end_.receiver_not_ready_count();
        folder_.put("ready", "");
        take_in(due);
        while (const auto surplus = end_.poll()) {
            note(*surplus);
        }
        for (std::size_t i = 0; i < list_.size(); ++i) {
            judge(i);
        }
        report_.line("nothing else arrives, and no other byte of the passive end's memory",
                     surplus_ != 0 ? std::to_string(surplus_) + " more completions"
                                   : difference(0, memory_.size()));
    }

    void post_receives(std::size_t index) {
        const Operation& op = list_[index];
        const std::size_t bytes = op.is_send() ? op.lead() + op.bytes : 0;
        for (std::uint32_t i = 0; i < op.receives(); ++i) {
            end_.post_receive(op.pair, kReceiveBit | wr_id(index, i),
                              memory_.subspan(op.offset + i * op.stride(), bytes));
        }
    }

    /// Until `due` receives are complete and the active end is done, or nothing comes any more.
    void take_in(std::uint32_t due) {
        using Clock = std::chrono::steady_clock;
        bool is_done = false;
        auto end = Clock::now() + kPatience;
        auto look = Clock::now();
        for (std::uint32_t taken = 0; taken < due || !is_done;) {
            const auto now = Clock::now();
            if (const auto completion = end_.poll()) {
                note(*completion);
                ++taken;
                end = now + kPatience;
            } else if (now > end) {
                return;
            } else if (!is_done && now > look) {
                look = now + kLook;
                post_late_receive();
                is_done = folder_.has("done");
                end = is_done ? now + kAfterwards : end;
            } else {
                std::this_thread::yield();
            }
        }
    }

    /// Once the device has told the peer that there is no receive.
    void post_late_receive() {
        if (late_ != 0 && end_.receiver_not_ready_count() > not_ready_before_) {
            post_receives(late_);
            late_ = 0;
        }
    }

    void note(const Completion& completion) {
        const std::size_t index = (completion.wr_id & ~kReceiveBit) >> kOperationShift;
        if ((completion.wr_id & kReceiveBit) == 0 || index >= list_.size()) {
            ++surplus_;
            return;
        }
        Arrivals& arrivals = arrivals_[index];
        ++arrivals.count;
        if (arrivals.problem.empty()) {
            arrivals.problem = objection(list_[index], completion);
        }
    }

    [[nodiscard]] std::string objection(const Operation& op, const Completion& completion) const {
        if (completion.outcome != op.receive_outcome()) {
            return completion.text;
        }
        if (completion.outcome != Outcome::kSuccess) {
            return "";
        }
        if (completion.bytes != op.lead() + op.bytes) {
            return std::to_string(completion.bytes) + " bytes arrived";
        }
        const bool has_imm = op.verb == Verb::kSendImm || op.verb == Verb::kWriteImm;
        if (completion.imm != (has_imm ? std::optional(kImm) : std::nullopt)) {
            return "wrong immediate data";
        }
        const bool invalidates = op.verb == Verb::kSendInv;
        if (completion.invalidated !=
            (invalidates ? std::optional(own_.window_key) : std::nullopt)) {
            return "wrong key invalidated";
        }
        return "";
    }

    /// READs leave nothing to look at here, nor do refused requests that would take no receive.
    void judge(std::size_t index) {
        const Operation& op = list_[index];
        if (op.lead() != 0) {  // the form of these bytes is not laid down
            std::memcpy(&expected_[op.offset], &memory_[op.offset], op.lead());
        }
        const Arrivals& arrivals = arrivals_[index];
        if (op.verb == Verb::kRead || (op.receives() == 0 && op.outcome != Outcome::kSuccess)) {
            return;
        }
        if (arrivals.count != op.receives()) {
            report_.line(name_of(op), std::to_string(arrivals.count) + " arrived");
            return;
        }
        report_.line(name_of(op), arrivals.problem.empty() ? difference(op) : arrivals.problem);
    }

    End& end_;
    const std::span<std::byte> memory_;
    const Options& options_;
    const bool is_active_;
    const Folder folder_;
    std::vector<Operation> list_;
    Bytes expected_;  // in the end
    Card own_;
    Card peer_;
    std::vector<Arrivals> arrivals_;  // of each operation
    std::size_t late_ = 0;            // the operation whose receive is not posted yet
    std::uint64_t not_ready_before_ = 0;
    unsigned surplus_ = 0;
    Report report_;
};

}  // namespace

Cards connect(End& end, const Options& options) {
    const Folder folder(options.dir);
    const Card own = end.card(options.is_active ? kActivePsn : kPassivePsn);
    folder.put(options.is_active ? "active" : "passive", to_text(own));
    const Card peer = read_card(folder.await(options.is_active ? "passive" : "active"));
    end.connect(own, peer);
    return {.own = own, .peer = peer};
}

Completion await_completion(End& end, const std::string& what) {
    const auto until = std::chrono::steady_clock::now() + kPatience;
    for (;;) {
        if (const auto completion = end.poll()) {
            return *completion;
        }
        if (std::chrono::steady_clock::now() > until) {
            fail("no completion of " + what);
        }
        std::this_thread::yield();  // the device may need this processor
    }
}

std::vector<std::byte> first_memory(const Options& options) {
    return options.has_strays ? strays::first_memory(options.is_active)
                              : image_before(operations(options.is_lossy), options.is_active);
}

int run(End& end, std::span<std::byte> memory, const Options& options) {
    return options.has_strays ? strays::run(end, memory, options)
                              : Course(end, memory, options).run();
}

}  // namespace traffic
