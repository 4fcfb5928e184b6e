// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Fabrics, domains and what hangs off them: life cycles, -FI_EBUSY, refused attributes.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <barrier>
#include <latch>
#include <memory>
#include <string>
#include <thread>

#include "core/address_vector.h"
#include "ofi/av.h"
#include "ofi/fixture.h"
#include "ofi/sleeper.h"
#include "ofi/wait.h"
#include "ofi/wait_set.h"

using namespace rvt::test;

namespace {

/// Keeps whoever tells it of an address, and with him those who wait for his end.
class Holding final : public rvt::core::AddressObserver {
  public:
    void address_inserted(std::uint64_t /*index*/,
                          const rvt::util::SockAddr& /*address*/) noexcept override {
        is_told_.count_down();
        may_go_on_.wait();
    }
    void address_removed(std::uint64_t /*index*/,
                         const rvt::util::SockAddr& /*address*/) noexcept override {}

    void await_call() { is_told_.wait(); }
    void let_go() { may_go_on_.count_down(); }

  private:
    std::latch is_told_{1};
    std::latch may_go_on_{1};
};

/// An endpoint that its address vector cannot let go of, so that to close it takes until then.
void queue_of_an_endpoint_that_is_being_closed_is_busy(fi_ep_type type) {
    const Info hints = new_hints();
    hints->ep_attr->type = type;
    const Opened open(ask(hints, "127.0.0.1", nullptr, FI_SOURCE).info);
    const auto av = open.av();
    auto cq = open.cq();
    auto cntr = open.cntr();
    auto ep = opened<fid_ep>([&](fid_ep** made) {
        return fi_endpoint(open.domain.get(), open.info.get(), made, nullptr);
    });
    RVT_OK(fi_ep_bind(ep.get(), &av->fid, 0));
    RVT_OK(fi_ep_bind(ep.get(), &cq->fid, FI_TRANSMIT | FI_RECV));
    RVT_OK(fi_ep_bind(ep.get(), &cntr->fid, FI_SEND | FI_RECV));
    RVT_OK(fi_enable(ep.get()));
    Holding holding;
    rvt::ofi::Av& vector = rvt::ofi::Av::from(av.get());
    vector.addresses.add_observer(&holding);
    sockaddr_in peer{};
    peer.sin_family = AF_INET;
    peer.sin_port = htons(9);
    peer.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    std::thread inserter([&] { fi_av_insert(av.get(), &peer, 1, nullptr, 0, nullptr); });
    holding.await_call();
    Sleeper closer([&] { ep.reset(); });
    closer.await_sleep();
    RVT_EQ(fi_close(&cq->fid), -FI_EBUSY);
    RVT_EQ(fi_close(&cntr->fid), -FI_EBUSY);
    holding.let_go();
    inserter.join();
    closer.join();
    vector.addresses.remove_observer(&holding);
    RVT_OK(fi_close(&cq.release()->fid));
    RVT_OK(fi_close(&cntr.release()->fid));
}

}  // namespace

Test(fabric, is_busy_while_something_is_open_in_it) {
    Opened open;
    fid_fabric* const fabric = open.fabric.release();
    RVT_EQ(fi_close(&fabric->fid), -FI_EBUSY);
    open.domain.reset();
    RVT_OK(fi_close(&fabric->fid));
}

Test(fabric, of_another_name_is_refused) {
    char name[] = "other";
    fi_fabric_attr attr{};
    attr.name = name;
    char prov[] = "rvt";
    attr.prov_name = prov;
    fid_fabric* fabric = nullptr;
    RVT_EQ(fi_fabric(&attr, &fabric, nullptr), -FI_ENODATA);
}

Test(domain, is_busy_while_a_queue_is_open_in_it) {
    Opened open;
    auto cq = open.cq();
    fid_domain* const domain = open.domain.release();
    RVT_EQ(fi_close(&domain->fid), -FI_EBUSY);
    cq.reset();
    RVT_OK(fi_close(&domain->fid));
}

Test(domain, two_can_be_open_at_a_time) {
    const Opened open;
    const auto second = opened<fid_domain>(
        [&](fid_domain** d) { return fi_domain(open.fabric.get(), open.info.get(), d, nullptr); });
    RVT_ASSERT(second.get() != open.domain.get());
}

Test(domain, has_no_transmit_contexts_nor_scalable_endpoints) {
    const Opened open;
    fid_stx* stx = nullptr;
    fid_ep* ep = nullptr;
    RVT_EQ(fi_stx_context(open.domain.get(), nullptr, &stx, nullptr), -FI_ENOSYS);
    RVT_EQ(fi_scalable_ep(open.domain.get(), open.info.get(), &ep, nullptr), -FI_ENOSYS);
}

Test(domain, knows_the_atomics_of_each_kind) {
    const Opened open;
    fi_atomic_attr attr{};
    RVT_OK(fi_query_atomic(open.domain.get(), FI_UINT64, FI_SUM, &attr, 0));
    RVT_EQ(attr.size, 8);
    RVT_EQ(attr.count, 512);
    RVT_OK(fi_query_atomic(open.domain.get(), FI_UINT32, FI_CSWAP, &attr, FI_COMPARE_ATOMIC));
    RVT_OK(fi_query_atomic(open.domain.get(), FI_DOUBLE, FI_ATOMIC_READ, &attr, FI_FETCH_ATOMIC));
    RVT_EQ(fi_query_atomic(open.domain.get(), FI_UINT64, FI_CSWAP, &attr, 0), -FI_EOPNOTSUPP);
    RVT_EQ(fi_query_atomic(open.domain.get(), FI_FLOAT, FI_BOR, &attr, 0), -FI_EOPNOTSUPP);
    RVT_EQ(fi_query_atomic(open.domain.get(), FI_DOUBLE_COMPLEX, FI_MIN, &attr, 0), -FI_EOPNOTSUPP);
}

Test(domain, of_datagrams_has_no_atomics) {
    const Info hints = new_hints();
    hints->ep_attr->type = FI_EP_DGRAM;
    const Opened open(ask(hints).info);
    fi_atomic_attr attr{};
    RVT_EQ(fi_query_atomic(open.domain.get(), FI_UINT64, FI_SUM, &attr, 0), -FI_EOPNOTSUPP);
    RVT_EQ(fi_query_atomic(open.domain.get(), FI_UINT64, FI_CSWAP, &attr, FI_COMPARE_ATOMIC),
           -FI_EOPNOTSUPP);
}

/// Numbers of 2.x: FI_DIFF, and floats of 16 and 8 bits.
Test(domain, knows_atomics_that_the_headers_may_not_name) {
    const Opened open;
    const auto size_of = [&](int type, int op, std::uint64_t flags) -> std::size_t {
        fi_atomic_attr attr{};
        const int rc = fi_query_atomic(open.domain.get(), static_cast<fi_datatype>(type),
                                       static_cast<fi_op>(op), &attr, flags);
        return rc == 0 ? attr.size : 0;
    };
    const std::size_t sizes[] = {2, 2, 1, 1, 0};  // of types 16 to 20
    for (int type = 16; type <= 20; ++type) {
        const std::size_t size = sizes[type - 16];
        RVT_EQ(size_of(type, 19, 0), size);
        RVT_EQ(size_of(type, FI_PROD, FI_FETCH_ATOMIC), size);
        RVT_EQ(size_of(type, FI_CSWAP_LE, FI_COMPARE_ATOMIC), size);
        RVT_EQ(size_of(type, FI_BAND, 0), 0);
        RVT_EQ(size_of(type, FI_MSWAP, FI_COMPARE_ATOMIC), 0);
    }
    RVT_EQ(size_of(FI_DOUBLE_COMPLEX, 19, FI_FETCH_ATOMIC), 16);
    RVT_EQ(size_of(FI_UINT64, 19, FI_COMPARE_ATOMIC), 0);
    RVT_EQ(size_of(FI_UINT64, 20, 0), 0);
}

// ---- endpoints ----

Test(ep_rdm, its_queues_are_busy_until_it_is_closed, .timeout = 30) {
    queue_of_an_endpoint_that_is_being_closed_is_busy(FI_EP_RDM);
}

Test(ep_dgram, its_queues_are_busy_until_it_is_closed, .timeout = 30) {
    queue_of_an_endpoint_that_is_being_closed_is_busy(FI_EP_DGRAM);
}

// ---- event queues ----

Test(eq, gives_back_what_was_written_in_order) {
    const Opened open;
    const auto eq = open.eq({.size = 0,
                             .flags = FI_WRITE,
                             .wait_obj = FI_WAIT_NONE,
                             .signaling_vector = 0,
                             .wait_set = nullptr});
    for (std::uint32_t event = 7; event < 10; ++event) {
        fi_eq_entry entry{&eq->fid, nullptr, event};
        RVT_EQ(fi_eq_write(eq.get(), event, &entry, sizeof entry, 0), sizeof entry);
    }
    for (std::uint32_t expected = 7; expected < 10; ++expected) {
        std::uint32_t event = 0;
        fi_eq_entry entry{};
        RVT_EQ(fi_eq_read(eq.get(), &event, &entry, sizeof entry, FI_PEEK), sizeof entry);
        RVT_EQ(fi_eq_read(eq.get(), &event, &entry, sizeof entry, 0), sizeof entry);
        RVT_EQ(event, expected);
        RVT_EQ(entry.data, expected);
    }
    std::uint32_t event = 0;
    fi_eq_entry entry{};
    RVT_EQ(fi_eq_read(eq.get(), &event, &entry, sizeof entry, 0), -FI_EAGAIN);
}

Test(eq, a_buffer_that_is_too_small_leaves_the_event) {
    const Opened open;
    const auto eq = open.eq({.size = 0,
                             .flags = FI_WRITE,
                             .wait_obj = FI_WAIT_NONE,
                             .signaling_vector = 0,
                             .wait_set = nullptr});
    fi_eq_entry entry{};
    RVT_EQ(fi_eq_write(eq.get(), 1, &entry, sizeof entry, 0), sizeof entry);
    std::uint32_t event = 0;
    RVT_EQ(fi_eq_read(eq.get(), &event, &entry, 4, 0), -FI_ETOOSMALL);
    RVT_EQ(fi_eq_read(eq.get(), &event, &entry, sizeof entry, 0), sizeof entry);
}

Test(eq, a_wait_ends_at_its_time_limit) {
    const Opened open;
    for (const fi_wait_obj kind : {FI_WAIT_UNSPEC, FI_WAIT_NONE}) {
        const auto eq = open.eq(with<fi_eq_attr>([&](auto& attr) { attr.wait_obj = kind; }));
        std::uint32_t event = 0;
        fi_eq_entry entry{};
        RVT_EQ(fi_eq_sread(eq.get(), &event, &entry, sizeof entry, 20, 0), -FI_EAGAIN);
    }
}

/// Some applications open their queues without one, and then wait.
Test(eq, an_event_ends_a_wait_though_no_wait_object_was_asked_for, .timeout = 30) {
    const Opened open;
    const auto eq = open.eq(with<fi_eq_attr>([](auto& attr) { attr.flags = FI_WRITE; }));
    fi_wait_obj kind = FI_WAIT_UNSPEC;
    RVT_OK(fi_control(&eq->fid, FI_GETWAITOBJ, &kind));
    RVT_EQ(kind, FI_WAIT_NONE);
    std::uint32_t event = 0;
    Sleeper waiter([&] {
        fi_eq_entry entry{};
        RVT_EQ(fi_eq_sread(eq.get(), &event, &entry, sizeof entry, -1, 0), sizeof entry);
    });
    waiter.await_sleep();
    const fi_eq_entry written{};
    RVT_EQ(fi_eq_write(eq.get(), 7, &written, sizeof written, 0), sizeof written);
    waiter.join();
    RVT_EQ(event, 7);
}

Test(eq, its_descriptor_is_readable_while_there_are_events) {
    const Opened open;
    for (const fi_wait_obj kind : {FI_WAIT_FD, FI_WAIT_UNSPEC, FI_WAIT_NONE}) {
        const auto eq = open.eq(with<fi_eq_attr>([&](auto& attr) {
            attr.flags = FI_WRITE;
            attr.wait_obj = kind;
        }));
        int fd = -1;
        RVT_OK(fi_control(&eq->fid, FI_GETWAIT, &fd));
        int again = -1;
        RVT_OK(fi_control(&eq->fid, FI_GETWAIT, &again));
        RVT_EQ(again, fd);
        pollfd source{fd, POLLIN, 0};
        RVT_EQ(poll(&source, 1, 0), 0);
        fi_eq_entry entry{};
        RVT_EQ(fi_eq_write(eq.get(), 1, &entry, sizeof entry, 0), sizeof entry);
        RVT_EQ(poll(&source, 1, 0), 1);
        fid* fids[] = {&eq->fid};
        RVT_EQ(fi_trywait(open.fabric.get(), fids, 1), -FI_EAGAIN);
        std::uint32_t event = 0;
        RVT_EQ(fi_eq_sread(eq.get(), &event, &entry, sizeof entry, -1, 0), sizeof entry);
        RVT_EQ(poll(&source, 1, 0), 0);
        RVT_OK(fi_trywait(open.fabric.get(), fids, 1));
    }
}

// ---- poll and wait sets ----

Test(poll_set, reports_a_counter_once_for_each_move) {
    const Opened open;
    auto cntr = opened<fid_cntr>([&](fid_cntr** c) {
        fi_cntr_attr attr{};
        return fi_cntr_open(open.domain.get(), &attr, c, reinterpret_cast<void*>(0x55));
    });
    fi_poll_attr attr{};
    const auto set =
        opened<fid_poll>([&](fid_poll** p) { return fi_poll_open(open.domain.get(), &attr, p); });
    RVT_OK(fi_poll_add(set.get(), &cntr->fid, 0));
    RVT_EQ(fi_close(&cntr->fid), -FI_EBUSY);
    void* contexts[4] = {};
    RVT_EQ(fi_poll(set.get(), contexts, 4), 0);
    RVT_OK(fi_cntr_add(cntr.get(), 1));
    RVT_EQ(fi_poll(set.get(), contexts, 4), 1);
    RVT_ASSERT(contexts[0] == reinterpret_cast<void*>(0x55));
    RVT_EQ(fi_poll(set.get(), contexts, 4), 0);
    RVT_OK(fi_cntr_set(cntr.get(), 0));
    RVT_OK(fi_cntr_add(cntr.get(), 1));
    RVT_EQ(fi_poll(set.get(), contexts, 4), 1);
    RVT_EQ(fi_poll(set.get(), contexts, 4), 0);
    RVT_OK(fi_poll_del(set.get(), &cntr->fid, 0));
}

Test(poll_set, what_there_is_no_room_for_is_told_next_time) {
    const Opened open;
    std::array<Owned<fid_cntr>, 3> cntrs;
    fi_poll_attr poll_attr{};
    const auto set = opened<fid_poll>(
        [&](fid_poll** p) { return fi_poll_open(open.domain.get(), &poll_attr, p); });
    for (auto& cntr : cntrs) {
        cntr = opened<fid_cntr>([&](fid_cntr** c) {
            fi_cntr_attr attr{};
            return fi_cntr_open(open.domain.get(), &attr, c, &cntr);
        });
        RVT_OK(fi_poll_add(set.get(), &cntr->fid, 0));
        RVT_OK(fi_cntr_add(cntr.get(), 1));
    }
    for (auto& cntr : cntrs) {
        void* context = nullptr;
        RVT_EQ(fi_poll(set.get(), &context, 1), 1);
        RVT_ASSERT(context == &cntr);
    }
    void* context = nullptr;
    RVT_EQ(fi_poll(set.get(), &context, 1), 0);
    for (auto& cntr : cntrs) {
        RVT_OK(fi_poll_del(set.get(), &cntr->fid, 0));
    }
}

Test(eq, callers_of_old_versions_bring_no_room_for_error_data) {
    const Info hints = new_hints();
    const Opened open(ask(hints, nullptr, nullptr, 0, FI_VERSION(1, 4)).info);
    const auto eq = open.eq();
    fi_av_attr attr{};
    attr.flags = FI_EVENT;
    const auto av = open.av(attr);
    RVT_OK(fi_av_bind(av.get(), &eq->fid, 0));
    const std::array<char, 128> nobody{};
    fi_addr_t number = 0;
    RVT_OK(fi_av_insert(av.get(), nobody.data(), 1, &number, 0, nullptr));
    // They never set the fields; what they hold is not looked at.
    fi_eq_err_entry error;
    std::memset(&error, 0x5a, sizeof error);
    RVT_EQ(fi_eq_readerr(eq.get(), &error, 0), sizeof error);
    RVT_ASSERT(error.err_data == nullptr);
    RVT_EQ(error.err_data_size, 0);
}

namespace {

/// An address vector of whose refusal the queue has the error.
Owned<fid_av> av_that_has_refused(const Opened& open, fid_eq& eq) {
    auto av = open.av(with<fi_av_attr>([](auto& attr) { attr.flags = FI_EVENT; }));
    RVT_OK(fi_av_bind(av.get(), &eq.fid, 0));
    const std::array<char, 128> nobody{};
    RVT_OK(fi_av_insert(av.get(), nobody.data(), 1, nullptr, 0, nullptr));
    return av;
}

}  // namespace

Test(eq, its_errors_are_read_whatever_the_flags) {
    const Opened open;
    const auto eq = open.eq();
    const auto av = av_that_has_refused(open, *eq);
    fi_eq_err_entry error{};
    constexpr std::uint64_t kFlags = sizeof error;
    RVT_EQ(fi_eq_readerr(eq.get(), &error, kFlags | FI_PEEK), sizeof error);
    RVT_EQ(fi_eq_readerr(eq.get(), &error, kFlags), sizeof error);
    RVT_EQ(fi_eq_readerr(eq.get(), &error, kFlags), -FI_EAGAIN);
}

Test(eq, its_errors_have_a_text) {
    const Opened open;
    const auto eq = open.eq();
    const auto av = av_that_has_refused(open, *eq);
    fi_eq_err_entry error{};
    RVT_EQ(fi_eq_readerr(eq.get(), &error, 0), sizeof error);
    const auto text_of = [&](char* buffer, std::size_t bytes) {
        return fi_eq_strerror(eq.get(), error.prov_errno, error.err_data, buffer, bytes);
    };
    RVT_NE(error.err, 0);
    const std::string expected = fi_strerror(error.err);
    RVT_ASSERT(text_of(nullptr, 0) == expected);
    char text[128] = "";
    RVT_ASSERT(text_of(text, sizeof text) == text);
    RVT_ASSERT(text == expected);
    char shorter[] = "--------";
    RVT_ASSERT(text_of(shorter, 6) == shorter);
    RVT_ASSERT(shorter == expected.substr(0, 5));
    RVT_EQ(shorter[6], '-');
}

Test(wait_set, wakes_for_any_member) {
    const Opened open;
    fi_wait_attr wait_attr{.wait_obj = FI_WAIT_UNSPEC, .flags = 0};
    const auto set = opened<fid_wait>(
        [&](fid_wait** w) { return fi_wait_open(open.fabric.get(), &wait_attr, w); });
    const auto eq = open.eq({.size = 0,
                             .flags = FI_WRITE,
                             .wait_obj = FI_WAIT_SET,
                             .signaling_vector = 0,
                             .wait_set = set.get()});
    const auto cntr = open.cntr({.events = FI_CNTR_EVENTS_COMP,
                                 .wait_obj = FI_WAIT_SET,
                                 .wait_set = set.get(),
                                 .flags = 0});
    RVT_EQ(fi_close(&set->fid), -FI_EBUSY);
    RVT_EQ(fi_wait(set.get(), 10), -FI_ETIMEDOUT);
    fi_eq_entry entry{};
    RVT_EQ(fi_eq_write(eq.get(), 1, &entry, sizeof entry, 0), sizeof entry);
    RVT_OK(fi_wait(set.get(), 1000));
}

Test(wait_set, members_come_and_go_while_somebody_waits, .timeout = 60) {
    const Opened open;
    fi_wait_attr wait_attr{.wait_obj = FI_WAIT_UNSPEC, .flags = 0};
    const auto set = opened<fid_wait>(
        [&](fid_wait** w) { return fi_wait_open(open.fabric.get(), &wait_attr, w); });
    std::atomic<bool> is_over{false};
    // relaxed: says only that it is time to leave.
    std::thread waiter([&] {
        while (!is_over.load(std::memory_order_relaxed)) {
            const int waited = fi_wait(set.get(), 1);
            RVT_ASSERT(waited == 0 || waited == -FI_ETIMEDOUT);
        }
    });
    for (int round = 0; round < 2000; ++round) {
        std::array<Owned<fid_cq>, 6> queues;
        for (auto& cq : queues) {
            cq = open.cq(with<fi_cq_attr>([&](auto& attr) {
                attr.wait_obj = FI_WAIT_SET;
                attr.wait_set = set.get();
            }));
        }
    }
    is_over.store(true, std::memory_order_relaxed);  // relaxed: as above.
    waiter.join();
}

/// What ends the waits is an event of the new member.
Test(wait_set, a_queue_that_comes_wakes_all_who_sleep, .timeout = 30) {
    const Opened open;
    fi_wait_attr wait_attr{.wait_obj = FI_WAIT_UNSPEC, .flags = 0};
    const auto set = opened<fid_wait>(
        [&](fid_wait** w) { return fi_wait_open(open.fabric.get(), &wait_attr, w); });
    std::array<int, 2> ended{-1, -1};
    std::array<std::unique_ptr<Sleeper>, 2> sleepers;
    for (std::size_t i = 0; i < sleepers.size(); ++i) {
        sleepers[i] = std::make_unique<Sleeper>([&, i] { ended[i] = fi_wait(set.get(), -1); });
        sleepers[i]->await_sleep();
    }
    const auto eq = open.eq({.size = 0,
                             .flags = FI_WRITE,
                             .wait_obj = FI_WAIT_SET,
                             .signaling_vector = 0,
                             .wait_set = set.get()});
    fi_eq_entry entry{};
    RVT_EQ(fi_eq_write(eq.get(), 1, &entry, sizeof entry, 0), sizeof entry);
    for (std::size_t i = 0; i < sleepers.size(); ++i) {
        sleepers[i]->join();
        RVT_OK(ended[i]);
    }
}

/// A queue that nobody has asked for work says nothing.
Test(wait_set, a_queue_that_comes_makes_its_descriptor_readable_until_it_is_asked) {
    const Opened open;
    fi_wait_attr wait_attr{.wait_obj = FI_WAIT_FD, .flags = 0};
    const auto set = opened<fid_wait>(
        [&](fid_wait** w) { return fi_wait_open(open.fabric.get(), &wait_attr, w); });
    pollfd source{.fd = -1, .events = POLLIN, .revents = 0};
    RVT_OK(fi_control(&set->fid, FI_GETWAIT, &source.fd));
    fid* fids[] = {&set->fid};
    RVT_OK(fi_trywait(open.fabric.get(), fids, 1));
    RVT_EQ(poll(&source, 1, 0), 0);
    const auto cq = open.cq(with<fi_cq_attr>([&](auto& attr) {
        attr.wait_obj = FI_WAIT_SET;
        attr.wait_set = set.get();
    }));
    RVT_EQ(poll(&source, 1, 0), 1);
    RVT_OK(fi_trywait(open.fabric.get(), fids, 1));
    RVT_EQ(poll(&source, 1, 0), 0);
}

Test(wait_set, is_busy_until_its_last_member_has_let_go_of_it) {
    rvt::ofi::WaitSet set;
    RVT_OK(set.open(FI_WAIT_FD));
    auto member = std::make_unique<rvt::ofi::WaitObject>();
    fid handle{};
    RVT_OK(member->open(FI_WAIT_SET, &set.handle));
    set.add_member(&handle);
    set.remove_member(&handle);
    RVT_ASSERT(set.users.is_any());
    member.reset();
    RVT_ASSERT(!set.users.is_any());
}

Test(wait_object, all_who_ask_for_its_condition_are_given_the_same, .timeout = 60) {
    for (int round = 0; round < 300; ++round) {
        rvt::ofi::WaitObject wait;
        RVT_OK(wait.open(FI_WAIT_MUTEX_COND, nullptr));
        std::array<fi_mutex_cond, 4> handles{};
        std::array<std::thread, handles.size()> threads;
        std::barrier start(static_cast<std::ptrdiff_t>(threads.size()));
        for (std::size_t i = 0; i < threads.size(); ++i) {
            threads[i] = std::thread([&, i] {
                start.arrive_and_wait();
                RVT_OK(wait.control(FI_GETWAIT, &handles[i]));
            });
        }
        for (std::thread& thread : threads) {
            thread.join();
        }
        for (const fi_mutex_cond& each : handles) {
            RVT_ASSERT(each.mutex == handles[0].mutex && each.cond == handles[0].cond);
        }
    }
}

/// A file, which the kernel takes into no set, is the first of so many sources that they need one.
Test(wait_object, a_source_too_many_is_refused_and_the_others_wake, .timeout = 30) {
    rvt::ofi::WaitObject wait;
    RVT_OK(wait.open(FI_WAIT_UNSPEC, nullptr));
    const rvt::util::UniqueFd file(memfd_create("file", MFD_CLOEXEC));
    std::array<rvt::util::UniqueFd, 18> events;
    RVT_OK(wait.add_source(file.get()));
    for (std::size_t i = 0; i < events.size(); ++i) {
        events[i].reset(eventfd(0, EFD_CLOEXEC));
        if (i < 15) {
            RVT_OK(wait.add_source(events[i].get()));
        }
    }
    RVT_EQ(wait.add_source(events[15].get()), EPERM);
    wait.remove_source(file.get());
    RVT_OK(wait.add_source(events[16].get()));
    RVT_OK(wait.add_source(events[17].get()));
    RVT_EQ(eventfd_write(events[3].get(), 1), 0);
    pollfd set{.fd = wait.epoll_fd(), .events = POLLIN, .revents = 0};
    RVT_EQ(poll(&set, 1, 0), 1);
}
