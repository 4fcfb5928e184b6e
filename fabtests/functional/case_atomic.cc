// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Atomic operations: fi_atomic(3). Every operation on every datatype, in every form of call,
// against the model in atomic_model.h. Each combination has its own slot at the target, so that one
// pass without synchronisation covers all.
#include <cstring>

#include "functional/atomic_model.h"
#include "functional/case.h"

namespace fab {
namespace {

constexpr std::size_t kElements = 3;
constexpr std::size_t kSlot = 128;  // room for kElements of the widest type
constexpr std::size_t kSlots = 512;

enum class Call { kPlain, kInject, kIov, kMsg };

struct Combination {
    fi_op op;
    const AtomicType* type;
    std::size_t index;
    std::size_t count;  ///< Elements, as far as the provider takes more than one.
};

int valid(fid_ep* ep, AtomicForm form, const AtomicType& type, fi_op op, std::size_t* count) {
    switch (form) {
        case AtomicForm::kBase: return fi_atomicvalid(ep, type.type, op, count);
        case AtomicForm::kFetch: return fi_fetch_atomicvalid(ep, type.type, op, count);
        case AtomicForm::kCompare: return fi_compare_atomicvalid(ep, type.type, op, count);
    }
    return -FI_ENOSYS;
}

/// Calls `visit` for each combination that the interface defines and the provider supports.
/// Returns: how many the interface defines and the provider does not support.
template <class Visit>
std::size_t for_each_combination(const Party& party, AtomicForm form, Visit visit) {
    std::size_t index = 0;
    std::size_t missing = 0;
    for (const AtomicType& type : atomic_types()) {
        for (const fi_op op : atomic_ops(form)) {
            ++index;
            if (!type.defines(op)) continue;
            std::size_t count = 0;
            if (valid(party.ep.ep, form, type, op, &count) != 0) {
                ++missing;
                continue;
            }
            FAB_CHECK(count >= 1);
            visit(Combination{op, &type, index, count < kElements ? 1 : kElements});
        }
    }
    FAB_CHECK(index < kSlots);
    return missing;
}

// Values that make every comparison come out both ways among the three elements.
int target_value(std::size_t i) {
    return static_cast<int>(5 + i);
}
int operand_value(std::size_t i) {
    return static_cast<int>(8 - 2 * i);
}
int compare_value(std::size_t i) {
    return static_cast<int>(7 - i);
}

using ValueOf = int (*)(std::size_t);

void set_all(const Combination& one, char* at, ValueOf value_of) {
    for (std::size_t i = 0; i < kElements; ++i) {
        one.type->set(at + i * one.type->size, value_of(i));
    }
}

/// Returns: the first element that differs, or kElements.
std::size_t first_difference(const Combination& one, const char* a, const char* b) {
    std::size_t i = 0;
    while (i < kElements && one.type->equal(a + i * one.type->size, b + i * one.type->size)) ++i;
    return i;
}

void expect_all(const Combination& one, const char* what, const char* got, const char* expected) {
    if (const std::size_t i = first_difference(one, got, expected); i < kElements) {
        FAB_FAIL("%s of %s on %s is wrong in element %zu of %zu", what,
                 fi_tostr(&one.op, FI_TYPE_ATOMIC_OP), one.type->name, i, one.count);
    }
}

/// The slot after the operation.
void model(const Combination& one, char* slot) {
    alignas(32) char operand[kSlot];
    alignas(32) char compare[kSlot];
    set_all(one, slot, target_value);
    set_all(one, operand, operand_value);
    set_all(one, compare, compare_value);
    for (std::size_t i = 0; i < one.count; ++i) {
        const std::size_t at = i * one.type->size;
        one.type->apply(one.op, slot + at, operand + at, compare + at);
    }
}

/// At the target. A completion at the initiator need not mean that the operation is done here, and
/// an injected one has none: waits for it.
void expect_slot(const Party& party, const Combination& one, const char* slot) {
    alignas(32) char expected[kSlot];
    model(one, expected);
    const double deadline = now_s() + kOpLimitS;
    while (first_difference(one, slot, expected) < kElements && now_s() < deadline) {
        party.ep.progress();
    }
    expect_all(one, "the target", slot, expected);
}

/// Buffers and addresses of one operation.
struct Operation {
    const Party& party;
    const Buffer& operand;
    const Buffer& compare;
    const Buffer& result;
    RemoteRegion remote;
    fi_addr_t to;
    void* context;

    long plain(const Combination& one, AtomicForm form) const {
        fid_ep* ep = party.ep.ep;
        const std::uint64_t at = remote.base + one.index * kSlot;
        switch (form) {
            case AtomicForm::kBase:
                return static_cast<long>(fi_atomic(ep, operand.as(), one.count, operand.desc(), to,
                                                   at, remote.key, one.type->type, one.op,
                                                   context));
            case AtomicForm::kFetch:
                return static_cast<long>(fi_fetch_atomic(
                    ep, operand.as(), one.count, operand.desc(), result.as(), result.desc(), to, at,
                    remote.key, one.type->type, one.op, context));
            case AtomicForm::kCompare:
                return static_cast<long>(
                    fi_compare_atomic(ep, operand.as(), one.count, operand.desc(), compare.as(),
                                      compare.desc(), result.as(), result.desc(), to, at,
                                      remote.key, one.type->type, one.op, context));
        }
        return -FI_ENOSYS;
    }

    long inject(const Combination& one) const {
        return static_cast<long>(fi_inject_atomic(party.ep.ep, operand.as(), one.count, to,
                                                  remote.base + one.index * kSlot, remote.key,
                                                  one.type->type, one.op));
    }

    /// The first `first` elements of a buffer, and the others, as far as the provider takes two.
    struct Pieces {
        Pieces(const Operation& operation, const Combination& one, const Buffer& buffer,
               std::size_t first)
            : ioc{{buffer.as(), first}, {buffer.as() + first * one.type->size, one.count - first}},
              desc{buffer.desc(), buffer.desc()} {
            if (one.count == 1 || operation.party.ep.info->tx_attr->iov_limit < 2) {
                count = 1;
                ioc[0].count = one.count;
            }
        }
        fi_ioc ioc[2];
        void* desc[2];
        std::size_t count = 2;
    };

    long iov(const Combination& one, AtomicForm form) const {
        fid_ep* ep = party.ep.ep;
        const std::uint64_t at = remote.base + one.index * kSlot;
        Pieces operands(*this, one, operand, 1);
        Pieces compares(*this, one, compare, one.count - 1);
        Pieces results(*this, one, result, 1);
        switch (form) {
            case AtomicForm::kBase:
                return static_cast<long>(fi_atomicv(ep, operands.ioc, operands.desc, operands.count,
                                                    to, at, remote.key, one.type->type, one.op,
                                                    context));
            case AtomicForm::kFetch:
                return static_cast<long>(fi_fetch_atomicv(
                    ep, operands.ioc, operands.desc, operands.count, results.ioc, results.desc,
                    results.count, to, at, remote.key, one.type->type, one.op, context));
            case AtomicForm::kCompare:
                return static_cast<long>(fi_compare_atomicv(
                    ep, operands.ioc, operands.desc, operands.count, compares.ioc, compares.desc,
                    compares.count, results.ioc, results.desc, results.count, to, at, remote.key,
                    one.type->type, one.op, context));
        }
        return -FI_ENOSYS;
    }

    long msg(const Combination& one, AtomicForm form) const {
        fi_ioc operands{operand.as(), one.count};
        fi_ioc results{result.as(), one.count};
        fi_ioc compares{compare.as(), one.count};
        void* operand_desc = operand.desc();
        void* result_desc = result.desc();
        void* compare_desc = compare.desc();
        fi_rma_ioc place{remote.base + one.index * kSlot, one.count, remote.key};
        fi_msg_atomic message{};
        message.msg_iov = &operands;
        message.desc = &operand_desc;
        message.iov_count = 1;
        message.addr = to;
        message.rma_iov = &place;
        message.rma_iov_count = 1;
        message.datatype = one.type->type;
        message.op = one.op;
        message.context = context;
        fid_ep* ep = party.ep.ep;
        switch (form) {
            case AtomicForm::kBase:
                return static_cast<long>(fi_atomicmsg(ep, &message, FI_COMPLETION));
            case AtomicForm::kFetch:
                return static_cast<long>(
                    fi_fetch_atomicmsg(ep, &message, &results, &result_desc, 1, FI_COMPLETION));
            case AtomicForm::kCompare:
                return static_cast<long>(fi_compare_atomicmsg(ep, &message, &compares,
                                                              &compare_desc, 1, &results,
                                                              &result_desc, 1, FI_COMPLETION));
        }
        return -FI_ENOSYS;
    }
};

void run_one(const Operation& operation, const Combination& one, AtomicForm form, Call call) {
    set_all(one, operation.operand.as(), operand_value);
    set_all(one, operation.compare.as(), compare_value);
    std::memset(operation.result.as(), 0, kSlot);
    operation.party.ep.post([&] {
        if (call == Call::kInject) return operation.inject(one);
        if (call == Call::kIov) return operation.iov(one, form);
        return call == Call::kMsg ? operation.msg(one, form) : operation.plain(one, form);
    });
    if (call == Call::kInject) return;
    const Completion done = operation.party.ep.wait_any(operation.party.ep.tx_cq);
    if (done.err != 0) {
        FAB_FAIL("%s on %s ended with error %d (%s)", fi_tostr(&one.op, FI_TYPE_ATOMIC_OP),
                 one.type->name, done.err, fi_strerror(done.err));
    }
    if (form == AtomicForm::kBase) return;
    alignas(32) char old[kSlot] = {};
    for (std::size_t i = 0; i < one.count; ++i) {
        one.type->set(old + i * one.type->size, target_value(i));
    }
    expect_all(one, "the fetched value", operation.result.as(), old);
}

/// Rank 0 operates on the slots of `target_rank`, whose owner then compares them with the model.
void run_all(Rank& self, AtomicForm form, Call call, bool on_itself) {
    Party party(self, {.caps = FI_ATOMIC});
    Buffer target(party.ep, kSlot * kSlots);
    Buffer operand(party.ep, kSlot);
    Buffer compare(party.ep, kSlot);
    Buffer result(party.ep, kSlot);
    Contexts contexts(1);
    for_each_combination(party, form, [&](const Combination& one) {
        set_all(one, target.as() + one.index * kSlot, target_value);
    });
    const RemoteRegion theirs = party.trade(self.other(), target.remote());
    if (on_itself || self.rank == 0) {
        const Operation operation{party,
                                  operand,
                                  compare,
                                  result,
                                  on_itself ? target.remote() : theirs,
                                  on_itself ? party.at(self.rank) : party.peer(),
                                  contexts.at(0)};
        for_each_combination(party, form,
                             [&](const Combination& one) { run_one(operation, one, form, call); });
    }
    if (on_itself || self.rank == 1) {
        for_each_combination(party, form, [&](const Combination& one) {
            expect_slot(party, one, target.as() + one.index * kSlot);
        });
    }
    party.barrier();
}

template <AtomicForm kForm, Call kCall, bool kOnItself = false>
void all(Rank& self) {
    run_all(self, kForm, kCall, kOnItself);
}

/// No combination that the interface defines is missing; of other providers it is said which are.
void every_combination(Rank& self) {
    Party party(self, {.caps = FI_ATOMIC});
    std::size_t missing = 0;
    std::size_t supported = 0;
    for (const AtomicForm form : {AtomicForm::kBase, AtomicForm::kFetch, AtomicForm::kCompare}) {
        missing += for_each_combination(party, form, [&](const Combination&) { ++supported; });
    }
    party.barrier();
    if (settings.provider == "rvt") FAB_EQUAL(missing, 0U);
    if (missing != 0) skip("%zu combinations missing, %zu there", missing, supported);
}

/// What is undefined is refused by the query and by the call, with the same error.
void undefined_refused(Rank& self) {
    Party party(self, {.caps = FI_ATOMIC});
    Buffer buffer(party.ep, 64);
    std::size_t count = 0;
    FAB_EQUAL(fi_atomicvalid(party.ep.ep, FI_DOUBLE, FI_BOR, &count), -FI_EOPNOTSUPP);
    FAB_EQUAL(fi_atomicvalid(party.ep.ep, FI_UINT64, FI_CSWAP, &count), -FI_EOPNOTSUPP);
    FAB_EQUAL(fi_compare_atomicvalid(party.ep.ep, FI_UINT64, FI_SUM, &count), -FI_EOPNOTSUPP);
    FAB_CHECK(fi_fetch_atomicvalid(party.ep.ep, static_cast<fi_datatype>(99), FI_SUM, &count) < 0);
    FAB_CHECK(fi_fetch_atomicvalid(party.ep.ep, FI_UINT64, static_cast<fi_op>(99), &count) < 0);
    long rc = 0;
    do {  // a provider may have to connect before it looks
        party.ep.progress();
        rc = static_cast<long>(fi_atomic(party.ep.ep, buffer.as(), 1, buffer.desc(), party.peer(),
                                         0, 0, FI_DOUBLE, FI_BOR, nullptr));
    } while (rc == -FI_EAGAIN);
    FAB_EQUAL(rc, -FI_EOPNOTSUPP);
}

/// All ranks add to one word of rank 0, rank 0 through the fabric too: nothing is lost.
void contended(Rank& self) {
    const std::uint64_t turns = turns_here(20'000);
    Party party(self, {.caps = FI_ATOMIC});
    Buffer target(party.ep, 64);
    Buffer one(party.ep, 64);
    Buffer result(party.ep, 64);
    Contexts contexts(1);
    RemoteRegion where = target.remote();
    if (self.rank == 0) {
        for (int r = 1; r < self.size; ++r) self.send(r, &where, sizeof where);
    } else {
        self.receive(0, &where, sizeof where);
    }
    *one.as<std::uint64_t>() = 1;
    std::uint64_t last = 0;
    for (std::uint64_t i = 0; i < turns; ++i) {
        party.ep.post([&] {
            return fi_fetch_atomic(party.ep.ep, one.as(), 1, one.desc(), result.as(), result.desc(),
                                   party.at(0), where.base, where.key, FI_UINT64, FI_SUM,
                                   contexts.at(0));
        });
        party.ep.wait_tx();
        const std::uint64_t now = *result.as<std::uint64_t>();
        if (i > 0) FAB_CHECK(now > last);
        last = now;
    }
    party.barrier();
    if (self.rank == 0) {
        FAB_EQUAL(*target.as<std::uint64_t>(), turns * static_cast<std::uint64_t>(self.size));
    }
}

/// A wrong key, a wrong place and a region without the right are errors.
void refused(Rank& self) {
    Party party(self, {.caps = FI_ATOMIC});
    Buffer target(party.ep, 64);
    Buffer operand(party.ep, 64);
    Contexts contexts(1);
    *operand.as<std::uint64_t>() = 1;
    const RemoteRegion remote = party.trade(self.other(), target.remote());
    const auto expect_error = [&](const char* what, std::uint64_t at, std::uint64_t key) {
        const auto rc = static_cast<long>(fi_fetch_atomic(
            party.ep.ep, operand.as(), 1, operand.desc(), operand.as() + 32, operand.desc(),
            party.peer(), at, key, FI_UINT64, FI_SUM, contexts.at(0)));
        if (rc < 0) return;
        if (party.ep.wait_any(party.ep.tx_cq).err == 0) FAB_FAIL("this succeeds: %s", what);
    };
    if (self.rank == 0) {
        expect_error("a key that nobody gave out", remote.base, remote.key ^ 0x1234567);
        expect_error("past the end", remote.base + 64, remote.key);
        expect_error("half past the end", remote.base + 60, remote.key);
    }
    party.barrier();
    for (std::size_t i = 0; i < 8; ++i) FAB_EQUAL(target.as<std::uint64_t>()[i], 0);
}

constexpr Case kAtomicTable[] = {
    {"atomic_base", all<AtomicForm::kBase, Call::kPlain>},
    {"atomic_fetch", all<AtomicForm::kFetch, Call::kPlain>},
    {"atomic_compare", all<AtomicForm::kCompare, Call::kPlain>},
    {"atomic_inject", all<AtomicForm::kBase, Call::kInject>},
    {"atomic_pieces_base", all<AtomicForm::kBase, Call::kIov>},
    {"atomic_pieces_fetch", all<AtomicForm::kFetch, Call::kIov>},
    {"atomic_pieces_compare", all<AtomicForm::kCompare, Call::kIov>},
    {"atomic_msg_base", all<AtomicForm::kBase, Call::kMsg>},
    {"atomic_msg_fetch", all<AtomicForm::kFetch, Call::kMsg>},
    {"atomic_msg_compare", all<AtomicForm::kCompare, Call::kMsg>},
    {"atomic_on_itself_base", all<AtomicForm::kBase, Call::kPlain, true>},
    {"atomic_on_itself_fetch", all<AtomicForm::kFetch, Call::kPlain, true>},
    {"atomic_on_itself_compare", all<AtomicForm::kCompare, Call::kPlain, true>},
    {"atomic_every_combination", every_combination},
    {"atomic_undefined_refused", undefined_refused},
    {"atomic_contended", contended, 3, 40},
    {"atomic_refused", refused},
};

}  // namespace

const std::span<const Case> kAtomicCases = kAtomicTable;

}  // namespace fab
