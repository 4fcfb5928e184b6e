// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What event queues are told of a NIC, which exists only here: that which is bound to the NIC's
// domain, and those of RDM endpoints whose traffic it carries.
#include "ofi/device_events.h"

#include <array>
#include <memory>
#include <string>

#include <poll.h>
#include <sys/eventfd.h>

#include "backend/verbs/mock_nic.h"
#include "backend/verbs/nic.h"
#include "common/check.h"
#include "core/context.h"
#include "core/device.h"
#include "core/rd_endpoint.h"
#include "ofi/domain.h"
#include "ofi/ep_rdm.h"
#include "ofi/eq.h"
#include "ofi/fabric.h"
#include "ofi/info.h"

using namespace rvt;

namespace {

constexpr util::SockAddr kOwn{.family = AF_INET, .ip = {10, 1, 2, 3}};

struct OpenNic {
    void happens(ibv_event_type type) {
        ibv_async_event event{};
        event.event_type = type;
        event.element.port_num = 1;
        mock.events.push_back(event);
        nic->take_events();
    }

    verbs::MockNic mock;
    core::Registry registry;
    std::shared_ptr<verbs::Nic> nic =
        verbs::Nic::open(registry, {.device = "mock0", .port = 1, .address = kOwn}).take();
};

struct Bound : OpenNic {
    Bound() {
        fabric.handle.api_version = FI_VERSION(1, 17);
        eq.fabric = &fabric;
        domain.handle.fid.context = this;
        domain.eq = &eq;
        eq.wake_fd.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE));
        RVT_OK(keep(domain.nic_context, open_device(nic->device())));
        RVT_OK(watch.start(ofi::DeviceNews{.context = domain.nic_context.get(),
                                           .told = {{{&eq, &domain.handle.fid}}}}));
    }
    /// Waits for the next error.
    fi_eq_err_entry error() {
        pollfd readable{.fd = eq.wake_fd.get(), .events = POLLIN, .revents = 0};
        RVT_EQ(poll(&readable, 1, 10'000), 1);
        fi_eq_err_entry entry{};
        RVT_EQ(eq.read_error(&entry, 0), static_cast<ssize_t>(sizeof entry));
        return entry;
    }

    ofi::Fabric fabric;
    ofi::Eq eq;
    ofi::Domain domain{ofi::LockPolicy::kSpin};
    util::Watched<ofi::DeviceEvents> watch;
};

// ---- an RDM endpoint ----

/// An engine that has a NIC, and never any work.
class IdleEngine final : public core::RdEndpoint {
  public:
    static inline core::Device* nic = nullptr;

    IdleEngine() {
        progress = [](core::ProgressSource*) noexcept { return 0u; };
    }
    std::array<core::Device*, 2> watch_wire() override { return {nullptr, nic}; }
    util::Status enable() override { return util::kOk; }
    util::SockAddr address() const noexcept override { return kOwn; }
    util::Status bind_address(const util::SockAddr&) override { return util::kOk; }
    util::Status end_copies(int) noexcept override { return util::kOk; }

    void bind(const core::RdCompletion&, core::AddressVector*) noexcept override {}
    util::Status send(const core::RdSend&) noexcept override { return ENOSYS; }
    util::Status recv(const core::RdRecv&) noexcept override { return ENOSYS; }
    util::Status rma(const core::RdRma&) noexcept override { return ENOSYS; }
    util::Status atomic(const core::RdAtomic&) noexcept override { return ENOSYS; }
    void send_waiting_locked() noexcept override {}
    bool has_unsent_locked() const noexcept override { return false; }
    util::Status cancel(void*) noexcept override { return ENOENT; }
    void set_min_multi_recv(std::size_t) noexcept override {}
    std::size_t min_multi_recv() const noexcept override { return 0; }
    void forbid_p2p() noexcept override {}
    bool uses_key(std::uint32_t) noexcept override { return false; }
    void withdraw_key(std::uint32_t) noexcept override {}
    std::string describe_peer(std::uint64_t) override { return {}; }
    util::Status arm_locked() noexcept override { return util::kOk; }
    void disarm_locked() noexcept override {}
    int wake_fd() const noexcept override { return -1; }
    void address_inserted(std::uint64_t, const util::SockAddr&) noexcept override {}
    void address_removed(std::uint64_t, const util::SockAddr&) noexcept override {}
};

struct IdleEp : ofi::EpRdm {
    IdleEngine over;
};

constexpr ofi::RdmOps kIdleOps{
    .tables = {}, .create = [](ofi::Domain&, const core::RdAttr&) -> ofi::EpRdm* {
        auto* const made = new IdleEp;
        made->engine = &made->over;
        made->destroy = [](ofi::EpRdm* self) noexcept { delete static_cast<IdleEp*>(self); };
        return made;
    }};

struct RdmOverNic : OpenNic {
    RdmOverNic() {
        IdleEngine::nic = &nic->device();
        ofi::set_rdm_engine({&kIdleOps, &kIdleOps});
        fi_info* const hints = fi_allocinfo();
        hints->ep_attr->type = FI_EP_RDM;
        RVT_EQ(ofi::getinfo(FI_VERSION(1, 17), nullptr, nullptr, 0, hints, &info), 0);
        fi_freeinfo(hints);
        RVT_EQ(ofi::fabric_open(info->fabric_attr, &fabric, nullptr), 0);
        for (fid_eq** const one : {&domain_eq, &eq}) {
            fi_eq_attr attr{};
            attr.wait_obj = FI_WAIT_UNSPEC;
            RVT_EQ(fi_eq_open(fabric, &attr, one, nullptr), 0);
        }
        RVT_EQ(fi_domain(fabric, info, &domain, nullptr), 0);
        RVT_EQ(fi_domain_bind(domain, &domain_eq->fid, 0), 0);
        fi_av_attr vector{};
        RVT_EQ(fi_av_open(domain, &vector, &av, nullptr), 0);
        fi_cq_attr completions{};
        RVT_EQ(fi_cq_open(domain, &completions, &cq, nullptr), 0);
        RVT_EQ(fi_endpoint(domain, info, &ep, this), 0);
        RVT_EQ(fi_ep_bind(ep, &eq->fid, 0), 0);
        RVT_EQ(fi_ep_bind(ep, &av->fid, 0), 0);
        RVT_EQ(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV), 0);
        RVT_EQ(fi_enable(ep), 0);
    }
    ~RdmOverNic() {
        for (fid* const object : {&ep->fid, &cq->fid, &av->fid, &domain->fid, &eq->fid,
                                  &domain_eq->fid, &fabric->fid}) {
            RVT_EQ(fi_close(object), 0);
        }
        fi_freeinfo(info);
    }
    RdmOverNic(const RdmOverNic&) = delete;
    RdmOverNic& operator=(const RdmOverNic&) = delete;

    /// Waits for the next error of either queue.
    void expect(int error) const {
        expect(eq, &ep->fid, error);
        expect(domain_eq, &domain->fid, error);
    }
    static void expect(fid_eq* from, const fid* object, int error) {
        std::uint32_t event = 0;
        fi_eq_entry entry{};
        RVT_EQ(fi_eq_sread(from, &event, &entry, sizeof entry, 10'000, 0), -FI_EAVAIL);
        fi_eq_err_entry failed{};
        RVT_EQ(fi_eq_readerr(from, &failed, 0), static_cast<ssize_t>(sizeof failed));
        RVT_EQ(failed.err, error);
        RVT_ASSERT(failed.fid == object && failed.context == object->context);
    }

    fi_info* info = nullptr;
    fid_fabric* fabric = nullptr;
    fid_eq* domain_eq = nullptr;
    fid_eq* eq = nullptr;
    fid_domain* domain = nullptr;
    fid_av* av = nullptr;
    fid_cq* cq = nullptr;
    fid_ep* ep = nullptr;
};

}  // namespace

Test(device_events, a_nic_that_is_gone_is_an_error_of_the_domain) {
    Bound on;
    on.happens(IBV_EVENT_DEVICE_FATAL);
    const fi_eq_err_entry error = on.error();
    RVT_EQ(error.err, FI_ENODEV);
    RVT_ASSERT(error.fid == &on.domain.handle.fid && error.context == &on);
}

Test(device_events, it_is_told_once) {
    Bound on;
    on.happens(IBV_EVENT_DEVICE_FATAL);
    on.happens(IBV_EVENT_DEVICE_FATAL);
    RVT_EQ(on.error().err, FI_ENODEV);
    on.happens(IBV_EVENT_PORT_ERR);
    RVT_EQ(on.error().err, FI_ENETDOWN);
}

Test(device_events, a_port_that_goes_down_again_is_told_again) {
    Bound on;
    on.happens(IBV_EVENT_PORT_ERR);
    RVT_EQ(on.error().err, FI_ENETDOWN);
    on.happens(IBV_EVENT_PORT_ACTIVE);
    on.happens(IBV_EVENT_PORT_ERR);
    RVT_EQ(on.error().err, FI_ENETDOWN);
}

Test(device_events, an_rdm_endpoint_is_told_of_the_nic_that_carries_its_flows) {
    RdmOverNic on;
    on.happens(IBV_EVENT_PORT_ERR);
    on.expect(FI_ENETDOWN);
    on.happens(IBV_EVENT_DEVICE_FATAL);
    on.expect(FI_ENODEV);
}

Test(device_events, an_rdm_endpoint_that_is_closed_takes_what_it_was_told_along) {
    RdmOverNic on;
    on.happens(IBV_EVENT_PORT_ERR);
    RdmOverNic::expect(on.domain_eq, &on.domain->fid, FI_ENETDOWN);  // by then both know
    RVT_EQ(fi_close(&on.ep->fid), 0);
    std::uint32_t event = 0;
    fi_eq_entry entry{};
    RVT_EQ(fi_eq_read(on.eq, &event, &entry, sizeof entry, 0), -FI_EAGAIN);
    RVT_EQ(fi_endpoint(on.domain, on.info, &on.ep, nullptr), 0);  // for the end
}
