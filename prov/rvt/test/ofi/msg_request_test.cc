// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The objects that the info of a request names, fi_cm(3): those that are open when it is made.
#include <memory>

#include "ofi/msg_pair.h"

using namespace rvt::test;  // NOLINT(google-build-using-namespace)

namespace {

/// The info that the listener is told of a request with.
Info request_of(MsgClient& client, const MsgListener& listener) {
    client.connect(listener);
    return expect_event(listener.eq.get(), FI_CONNREQ).info;
}

/// A domain where its endpoints may be opened.
Owned<fid_domain> domain_of(const MsgListener& listener) {
    return opened<fid_domain>([&](fid_domain** made) {
        return fi_domain(listener.fabric.get(), listener.info.get(), made, nullptr);
    });
}

}  // namespace

Test(msg_request, a_domain_that_does_not_fit_is_not_named) {
    const Opened other;  // with keys of the application
    const MsgListener listener;
    MsgClient client;  // whose domain is another fabric's
    const auto domain = domain_of(listener);
    const Info request = request_of(client, listener);
    RVT_ASSERT(request->domain_attr->domain == domain.get());
    const auto ep = opened<fid_ep>([&](fid_ep** made) {
        return fi_endpoint(request->domain_attr->domain, request.get(), made, nullptr);
    });
}

Test(msg_request, nothing_is_named_that_has_been_closed) {
    auto before = std::make_unique<Opened>(ask_msg().info);
    const MsgListener listener;
    RVT_ASSERT(listener.info->domain_attr->domain == before->domain.get());
    RVT_ASSERT(listener.info->fabric_attr->fabric == before->fabric.get());
    MsgClient client;
    before.reset();
    const Info request = request_of(client, listener);
    RVT_ASSERT(request->domain_attr->domain == nullptr);
    RVT_ASSERT(request->fabric_attr->fabric == listener.fabric.get());
}

Test(msg_request, what_lies_where_a_closed_domain_was_is_not_named) {
    auto before = std::make_unique<Opened>(ask_msg().info);
    const MsgListener listener;
    void* const place = before->domain.get();
    MsgClient client;
    before.reset();
    const auto domain = opened<fid_domain>([&](fid_domain** made) {
        return fi_domain(listener.fabric.get(), listener.info.get(), made, place);
    });
    const Info request = request_of(client, listener);
    RVT_ASSERT(request->domain_attr->domain == domain.get());
}

/// With FI_HOOK set the application has a passive endpoint of libfabric's own, which ours has as
/// its context.
Test(msg_request, an_endpoint_takes_over_from_what_a_hook_has_put_over_a_passive_one) {
    const MsgFabric at(ask_msg().info);
    fid_pep over{};
    auto pep = opened<fid_pep>([&](fid_pep** made) {
        return fi_passive_ep(at.fabric.get(), at.info.get(), made, &over.fid);
    });
    const sockaddr_in name = name_of(&pep->fid);
    const Info hints = msg_hints({});
    hints->handle = &over.fid;
    const Answer taken = ask(hints, own_node.c_str(), nullptr, FI_SOURCE);
    hints->handle = nullptr;
    RVT_OK(taken.error);
    RVT_ASSERT(taken.info->handle == &over.fid);
    sockaddr_in answered{};
    std::memcpy(&answered, taken.info->src_addr, sizeof answered);
    RVT_EQ(answered.sin_port, name.sin_port);
    const MsgEnd end(at.fabric.get(), at.eq.get(), taken.info.get());
    pep.reset();
    RVT_EQ(name_of(&end.ep->fid).sin_port, name.sin_port);
}
