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

}  // namespace

Test(msg_request, a_domain_that_does_not_fit_is_not_named) {
    const Opened other;  // with keys of the application
    const MsgListener listener;
    MsgClient client;
    const Info request = request_of(client, listener);
    RVT_ASSERT(request->domain_attr->domain == client.end.domain.get());
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
    RVT_ASSERT(request->domain_attr->domain == client.end.domain.get());
    RVT_ASSERT(request->fabric_attr->fabric == listener.fabric.get());
}
