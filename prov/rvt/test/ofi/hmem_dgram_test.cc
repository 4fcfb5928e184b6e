// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Datagram endpoints with memory of devices that the CPU cannot touch.
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <unistd.h>

#include "ofi/on_device.h"
#include "ofi/pair.h"
#include "ofi/ways.h"

using namespace rvt::test;
using fab::standin::How;
using fab::standin::Library;

namespace {

EndOptions with_devices(std::uint64_t caps = 0) {
    EndOptions options{.caps = FI_MSG | FI_HMEM | caps, .mr_mode = FI_MR_HMEM};
    options.type = FI_EP_DGRAM;
    options.node = own_node.c_str();
    return options;
}

/// Two ends with memory of the device each.
struct Devices {
    explicit Devices(How how = How::kWithoutShare, Library library = Library::kCuda,
                     fi_hmem_iface iface = FI_HMEM_CUDA)
        : a((fab::standin::use(how, library), kDeviceBytes)) {
        pair.emplace(with_devices());
        mr_a = reg(pair->a, a, iface);
        mr_b = reg(pair->b, b, iface);
        blank();
    }
    static Owned<fid_mr> reg(const End& end, const OnDevice& memory, fi_hmem_iface iface) {
        return opened<fid_mr>([&](fid_mr** mr) {
            return try_reg(end.open.domain.get(), memory.at(), kDeviceBytes, iface, mr);
        });
    }
    void* desc_a() { return fi_mr_desc(mr_a.get()); }
    void* desc_b() { return fi_mr_desc(mr_b.get()); }
    fid_ep* from() { return pair->a.ep.get(); }
    fid_ep* to() { return pair->b.ep.get(); }
    [[nodiscard]] fi_addr_t peer() const { return pair->a.peer; }

    void blank() const { b.write(0, std::vector<char>(8192, 'x')); }
    void recv(std::size_t offset, std::size_t bytes, void* context = nullptr) {
        RVT_OK(fi_recv(to(), b.at(offset), bytes, desc_b(), FI_ADDR_UNSPEC, context));
    }
    ssize_t send(std::size_t offset, std::size_t bytes) {
        return fi_send(from(), a.at(offset), bytes, desc_a(), peer(), nullptr);
    }
    /// What was sent is there, and nothing behind it.
    void expect(std::size_t offset, const std::vector<char>& bytes) {
        const fi_cq_tagged_entry entry = pair->b.next();
        RVT_EQ(entry.len, bytes.size());
        RVT_ASSERT(entry.buf == b.at(offset));
        cr_assert(b.read(offset, bytes.size()) == bytes, "%zu bytes", bytes.size());
        cr_assert(b.read(offset + bytes.size(), 100) == std::vector<char>(100, 'x'), "%zu bytes",
                  bytes.size());
    }

    OnDevice a;
    OnDevice b;
    std::optional<Pair> pair;
    Owned<fid_mr> mr_a;
    Owned<fid_mr> mr_b;
};

void datagrams_arrive(Devices& at) {
    const std::size_t most = at.pair->a.open.info->ep_attr->max_msg_size;
    for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{300}, most}) {
        const auto bytes = numbered(size, 5);
        at.blank();
        at.a.write(3, bytes);
        at.recv(5, size + 100);
        RVT_OK(at.send(3, size));
        at.pair->a.next();
        at.expect(5, bytes);
    }
}

Owned<fid_mc> join(End& end, const Owned<fid_eq>& eq) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(20'000 + getpid() % 40'000));
    inet_pton(AF_INET, "239.255.3.5", &address.sin_addr);
    auto mc = opened<fid_mc>(
        [&](fid_mc** made) { return fi_join(end.ep.get(), &address, 0, made, nullptr); });
    std::uint32_t event = 0;
    fi_eq_entry entry{};
    RVT_EQ(fi_eq_read(eq.get(), &event, &entry, sizeof entry, 0), sizeof entry);
    RVT_EQ(event, FI_JOIN_COMPLETE);
    return mc;
}

}  // namespace

// ---- what arrives ----

/// By the shared port the first ones wait for the answer of their peer.
RVT_DGRAM_TEST(hmem_dgram, datagrams_of_any_size_go_from_device_to_device) {
    Devices at;
    datagrams_arrive(at);
}

RVT_DGRAM_TEST(hmem_dgram, memory_of_other_devices_is_taken_too) {
    for (const auto& [library, iface] :
         {std::pair{Library::kRocr, FI_HMEM_ROCR}, std::pair{Library::kZe, FI_HMEM_ZE}}) {
        Devices at(How::kWithoutShare, library, iface);
        datagrams_arrive(at);
    }
}

RVT_DGRAM_TEST(hmem_dgram, every_form_of_call_takes_them) {
    Devices at;
    const auto bytes = numbered(200, 9);
    at.a.write(0, bytes);
    const iovec out{at.a.at(), bytes.size()};
    void* desc = at.desc_a();
    const fi_msg msg{&out, &desc, 1, at.peer(), nullptr, 7};
    const auto carry = [&](auto post) {
        at.blank();
        const iovec in[] = {{at.b.at(), 50}, {at.b.at(50), 400}};
        void* descs[] = {at.desc_b(), at.desc_b()};
        RVT_OK(fi_recvv(at.to(), in, descs, 2, FI_ADDR_UNSPEC, nullptr));
        RVT_OK(post());
        at.expect(0, bytes);
    };
    carry([&] { return fi_sendv(at.from(), &out, &desc, 1, at.peer(), nullptr); });
    carry([&] {
        return fi_senddata(at.from(), at.a.at(), bytes.size(), desc, 7, at.peer(), nullptr);
    });
    carry([&] { return fi_sendmsg(at.from(), &msg, FI_REMOTE_CQ_DATA); });
    carry([&] { return fi_sendmsg(at.from(), &msg, FI_INJECT); });
}

RVT_DGRAM_TEST(hmem_dgram, memory_of_the_host_stands_beside_that_of_a_device) {
    Devices at;
    const auto bytes = numbered(96, 2);
    std::vector<char> host(bytes.begin(), bytes.begin() + 32);
    at.a.write(64, {bytes.begin() + 32, bytes.end()});
    const iovec out[] = {{host.data(), 32}, {at.a.at(64), 64}};
    void* out_descs[] = {nullptr, at.desc_a()};
    std::vector<char> end(16);
    const iovec in[] = {{at.b.at(8), 80}, {end.data(), 16}};
    void* in_descs[] = {at.desc_b(), nullptr};
    const fi_msg receive{in, in_descs, 2, FI_ADDR_UNSPEC, nullptr, 0};
    RVT_OK(fi_recvmsg(at.to(), &receive, 0));
    RVT_OK(fi_sendv(at.from(), out, out_descs, 2, at.peer(), nullptr));
    RVT_EQ(at.pair->b.next().len, 96);
    cr_assert(at.b.read(8, 80) == std::vector<char>(bytes.begin(), bytes.begin() + 80));
    cr_assert(end == std::vector<char>(bytes.begin() + 80, bytes.end()));
    const auto before = fab::standin::counts().copied;
    RVT_OK(fi_recv(at.to(), end.data(), 16, nullptr, FI_ADDR_UNSPEC, nullptr));
    RVT_OK(fi_send(at.from(), host.data(), 16, nullptr, at.peer(), nullptr));
    at.pair->b.next();
    RVT_OK(fi_recv(at.to(), end.data(), 16, nullptr, FI_ADDR_UNSPEC, nullptr));
    RVT_OK(fi_inject(at.from(), host.data(), 16, at.peer()));
    at.pair->b.next();
    RVT_EQ(fab::standin::counts().copied, before);
}

RVT_DGRAM_TEST(hmem_dgram, a_group_is_sent_to_from_a_device_and_receives_into_one) {
    fab::standin::use(How::kWithoutShare);
    EndOptions options = with_devices(FI_MULTICAST);
    options.is_enabled = false;
    End from(options);
    End to(options);
    std::vector<Owned<fid_eq>> queues;
    std::vector<Owned<fid_mc>> groups;
    for (End* end : {&from, &to}) {
        queues.push_back(end->open.eq());
        RVT_OK(fi_ep_bind(end->ep.get(), &queues.back()->fid, 0));
        RVT_OK(fi_enable(end->ep.get()));
        groups.push_back(join(*end, queues.back()));
    }
    to.other = &from;
    const OnDevice out;
    const OnDevice in;
    const auto mr_out = Devices::reg(from, out, FI_HMEM_CUDA);
    const auto mr_in = Devices::reg(to, in, FI_HMEM_CUDA);
    const auto bytes = numbered(400, 4);
    out.write(0, bytes);
    RVT_OK(fi_recv(to.ep.get(), in.at(7), 400, fi_mr_desc(mr_in.get()), FI_ADDR_UNSPEC, nullptr));
    RVT_OK(fi_send(from.ep.get(), out.at(), 400, fi_mr_desc(mr_out.get()),
                   fi_mc_addr(groups[0].get()), nullptr));
    RVT_EQ(to.next().len, 400);
    cr_assert(in.read(7, 400) == bytes);
    groups.clear();
    from.ep.reset();
    to.other = nullptr;
    to.ep.reset();
}

// ---- what does not ----

RVT_DGRAM_TEST(hmem_dgram, of_what_is_cut_the_beginning_is_on_the_device) {
    Devices at;
    const auto bytes = numbered(30, 6);
    at.a.write(0, bytes);
    at.recv(0, 10);
    RVT_OK(at.send(0, 30));
    const fi_cq_err_entry error = at.pair->b.next_error();
    RVT_EQ(error.err, FI_ETRUNC);
    RVT_EQ(error.olen, 20);
    RVT_ASSERT(error.buf == at.b.at());
    cr_assert(at.b.read(0, 10) == std::vector<char>(bytes.begin(), bytes.begin() + 10));
    cr_assert(at.b.read(10, 20) == std::vector<char>(20, 'x'));
}

RVT_DGRAM_TEST(hmem_dgram, a_copy_that_fails_is_an_error_of_its_call_or_receive) {
    Devices at;
    at.recv(0, 64);
    RVT_OK(at.send(0, 64));
    fab::standin::fail_copies(0);
    RVT_EQ(at.pair->b.next_error().err, FI_EIO);
    at.pair->a.next();
    RVT_EQ(at.send(0, 64), -FI_EIO);
    fab::standin::fail_copies(-1);
    at.recv(0, 64);
    RVT_OK(at.send(0, 64));
    RVT_EQ(at.pair->b.next().len, 64);
}

Test(hmem_dgram, what_is_refused_is_not_copied) {
    Devices at;
    const std::size_t most = at.pair->a.open.info->ep_attr->max_msg_size;
    const iovec one{at.a.at(), at.pair->a.open.info->tx_attr->inject_size + 1};
    void* desc = at.desc_a();
    const fi_msg msg{&one, &desc, 1, at.peer(), nullptr, 0};
    const auto before = fab::standin::counts().copied;
    RVT_EQ(at.send(0, most + 1), -FI_EMSGSIZE);
    RVT_EQ(fi_sendmsg(at.from(), &msg, FI_INJECT), -FI_EMSGSIZE);
    RVT_EQ(fi_sendmsg(at.from(), &msg, FI_MULTICAST), -FI_EINVAL);
    RVT_EQ(fi_sendmsg(at.from(), &msg, FI_DELIVERY_COMPLETE), -FI_EBADFLAGS);
    RVT_EQ(at.send(kDeviceBytes - 8, 16), -FI_EINVAL);
    RVT_EQ(fi_recvmsg(at.to(), nullptr, 0), -FI_EINVAL);
    RVT_EQ(fi_recv(at.to(), at.b.at(kDeviceBytes - 8), 16, at.desc_b(), FI_ADDR_UNSPEC, nullptr),
           -FI_EINVAL);
    RVT_EQ(fab::standin::counts().copied, before);
}

// ---- regions and endpoints that go ----

RVT_DGRAM_TEST(hmem_dgram, a_receive_keeps_its_memory_when_the_region_is_closed) {
    Devices at;
    const auto bytes = numbered(64, 8);
    at.a.write(0, bytes);
    at.recv(0, 164);
    at.mr_b.reset();
    RVT_OK(at.send(0, 64));
    at.mr_a.reset();
    at.expect(0, bytes);
}

RVT_DGRAM_TEST(hmem_dgram, what_is_cancelled_or_left_when_an_endpoint_closes_copies_nothing) {
    Devices at;
    int context = 0;
    const auto before = fab::standin::counts().copied;
    at.recv(0, 64, &context);
    at.recv(64, 64);
    RVT_OK(fi_cancel(&at.to()->fid, &context));
    const fi_cq_err_entry error = at.pair->b.next_error();
    RVT_EQ(error.err, FI_ECANCELED);
    RVT_ASSERT(error.buf == at.b.at());
    at.mr_b.reset();
    at.pair->a.other = nullptr;
    at.pair->b.ep.reset();
    RVT_EQ(fab::standin::counts().copied, before);
}

RVT_DGRAM_TEST(hmem_dgram, automatic_progress_needs_no_call) {
    fab::standin::use(How::kWithoutShare);
    EndOptions options = with_devices();
    options.data_progress = FI_PROGRESS_AUTO;
    Pair pair(options);
    const OnDevice in;
    const auto mr = Devices::reg(pair.b, in, FI_HMEM_CUDA);
    const auto bytes = numbered(32, 1);
    in.write(0, std::vector<char>(32, 'x'));
    RVT_OK(fi_recv(pair.b.ep.get(), in.at(), 32, fi_mr_desc(mr.get()), FI_ADDR_UNSPEC, nullptr));
    RVT_OK(fi_inject(pair.a.ep.get(), bytes.data(), bytes.size(), pair.a.peer));
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (in.read(0, 32) != bytes && std::chrono::steady_clock::now() < end) {
    }
    cr_assert(in.read(0, 32) == bytes);
    RVT_EQ(pair.b.next().len, 32);
}

Test(hmem_dgram, options_say_what_is_true) {
    Devices at;
    fid* const ep = &at.from()->fid;
    int p2p = -1;
    std::size_t bytes = sizeof p2p;
    RVT_OK(fi_getopt(ep, FI_OPT_ENDPOINT, FI_OPT_FI_HMEM_P2P, &p2p, &bytes));
    RVT_EQ(p2p, static_cast<int>(FI_HMEM_P2P_ENABLED));
    p2p = FI_HMEM_P2P_REQUIRED;
    RVT_EQ(fi_setopt(ep, FI_OPT_ENDPOINT, FI_OPT_FI_HMEM_P2P, &p2p, sizeof p2p), -FI_EOPNOTSUPP);
    p2p = FI_HMEM_P2P_DISABLED;
    RVT_OK(fi_setopt(ep, FI_OPT_ENDPOINT, FI_OPT_FI_HMEM_P2P, &p2p, sizeof p2p));
    RVT_EQ(fi_getopt(ep, FI_OPT_ENDPOINT, FI_OPT_XPU_TRIGGER, &p2p, &bytes), -FI_EOPNOTSUPP);
}
