// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Opening and closing of NICs and of ports at them. The control thread takes what the NIC and
// rdma_cm report; completions are taken by who reads queues.
#include "nic_station.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include <fcntl.h>
#include <sys/epoll.h>

#include "backend/verbs/nic.h"
#include "backend/verbs/rdma_cm_port.h"
#include "backend/verbs/rdma_cm_service.h"
#include "backend/verbs/removal.h"
#include "core/addresses.h"
#include "ofi/msg_nic.h"
#include "ofi/nic_memory.h"
#include "util/control_thread.h"
#include "util/fork_guard.h"
#include "util/local_addresses.h"
#include "util/params.h"
#include "util/watched.h"

namespace rvt {
namespace {

using util::ControlThread;

/// What of the NIC is bounded by the endpoint's own limits.
constexpr std::uint32_t kMostInline = 256;

// ---- who looks after them ----

class EventWatch final : public ControlThread::Handler {
  public:
    EventWatch(ControlThread& thread, verbs::Nic& nic) noexcept : Handler(thread), nic_(nic) {}
    util::Status start() { return watch(nic_.event_fd(), EPOLLIN); }
    void on_ready(std::uint32_t) override {
        if (!nic_.take_events()) {
            unwatch();
        }
    }

  private:
    verbs::Nic& nic_;
};

class RemovalWatch final : public ControlThread::Handler {
  public:
    RemovalWatch(ControlThread& thread, verbs::Removal& removal) noexcept
        : Handler(thread), removal_(removal) {}
    util::Status start() { return watch(removal_.event_fd(), EPOLLIN); }
    void on_ready(std::uint32_t) override { removal_.take_events(); }

  private:
    verbs::Removal& removal_;
};

/// @tparam Cm  verbs::RdmaCmPort or verbs::RdmaCmService.
template <class Cm>
class CmWatch final : public ControlThread::Handler {
  public:
    CmWatch(ControlThread& thread, Cm& cm) noexcept : Handler(thread), cm_(cm) {}
    util::Status start() {
        on_timer();
        return watch(cm_.event_fd(), EPOLLIN);
    }
    void on_ready(std::uint32_t) override { cm_.take_events(); }
    /// Nobody says when something is asked for; to look four times a second is often enough.
    void on_timer() override {
        cm_.check_deadlines();
        set_timer(ControlThread::Clock::now() + std::chrono::milliseconds(250));
    }

  private:
    Cm& cm_;
};

// ---- ports ----

class NicPort final : public ofi::MsgPort {
  public:
    NicPort(std::shared_ptr<verbs::Nic> nic, std::unique_ptr<verbs::RdmaCmPort> cm) noexcept
        : nic_(std::move(nic)), cm_(std::move(cm)) {}
    util::Status start() {
        // Of its own: sets of descriptors take each once.
        wake_fd_ = util::ProcessFd(util::UniqueFd(
            fcntl(nic_->device().ops().wake_fd(nic_->device()), F_DUPFD_CLOEXEC, 0)));
        return wake_fd_.get() >= 0 ? watch_.start(*cm_) : util::Status(errno);
    }

    core::RcPort& rc() noexcept override { return *cm_; }
    util::SockAddr address() const noexcept override { return cm_->address(); }
    core::RcCall call_to(const util::SockAddr& address) const noexcept override {
        return {.dest = core::to_address(address),
                .service = address.port,
                .source = cm_->address().port};
    }
    util::SockAddr name_of(const Address& peer, std::uint16_t service) const noexcept override {
        util::SockAddr name = core::to_sock_addr(peer);
        name.port = service;
        return name;
    }
    const char* way() const noexcept override { return "by a NIC"; }
    int wake_fd() const noexcept override { return wake_fd_.get(); }
    /// What the queues have said until now is no news: who sleeps has armed them, and looks again.
    util::Status arm() noexcept override {
        cm_->poll();
        return util::kOk;
    }

  private:
    unsigned poll_device() noexcept override { return 0; }

    const std::shared_ptr<verbs::Nic> nic_;
    const std::unique_ptr<verbs::RdmaCmPort> cm_;
    util::ProcessFd wake_fd_;
    util::Watched<CmWatch<verbs::RdmaCmPort>> watch_;
};

std::uint32_t connect_timeout_ms() noexcept {
    return static_cast<std::uint32_t>(util::param_number(util::ParamId::kConnectTimeoutMs));
}

// ---- NICs ----

class OpenNic final : public ofi::MsgNic {
  public:
    explicit OpenNic(std::shared_ptr<verbs::Nic> nic) noexcept : nic_(std::move(nic)) {}
    util::Status start();

    [[nodiscard]] const std::string& name() const noexcept override {
        return nic_->address().device;
    }
    core::Device& device() noexcept override { return nic_->device(); }
    [[nodiscard]] const verbs::Nic& nic() const noexcept { return *nic_; }
    [[nodiscard]] const std::string& identity() const noexcept override { return identity_; }
    util::Result<std::shared_ptr<ofi::MsgPort>> open_port(const util::SockAddr& address,
                                                          ofi::MsgPortRole role) override;
    util::Result<std::unique_ptr<core::UdSharing>> open_datagrams(
        const util::SockAddr& address) override;

  private:
    const std::shared_ptr<verbs::Nic> nic_;
    const std::string identity_ = verbs::identity_of(nic_->address());
    util::Watched<EventWatch> watch_;
    std::unique_ptr<verbs::Removal> removal_;
    util::Watched<RemovalWatch> removal_watch_;
};

util::Status OpenNic::start() {
    if (const util::Status watched = watch_.start(*nic_); !watched.is_ok()) {
        return watched;
    }
    auto removal = verbs::Removal::open(*nic_);
    if (!removal.is_ok()) {
        return removal.status();
    }
    removal_ = removal.take();
    return removal_watch_.start(*removal_);
}

util::Result<std::shared_ptr<ofi::MsgPort>> OpenNic::open_port(const util::SockAddr& address,
                                                               ofi::MsgPortRole role) {
    auto cm = verbs::RdmaCmPort::open({.nic = nic_.get(),
                                       .address = address,
                                       .listens = role == ofi::MsgPortRole::kListens,
                                       .connect_timeout_ms = connect_timeout_ms()});
    if (!cm.is_ok()) {
        return cm.status();
    }
    auto port = std::make_shared<NicPort>(nic_, cm.take());
    const util::Status started = port->start();
    return started.is_ok() ? util::Result<std::shared_ptr<ofi::MsgPort>>(std::move(port))
                           : util::Result<std::shared_ptr<ofi::MsgPort>>(started);
}

// ---- datagrams ----

class NicDatagrams final : public core::UdSharing {
  public:
    explicit NicDatagrams(std::shared_ptr<OpenNic> nic) noexcept : nic_(std::move(nic)) {}
    /// Returns: as ofi::MsgNic::open_datagrams().
    util::Status start(const util::SockAddr& address);

    core::Device& device() noexcept override { return nic_->device(); }
    [[nodiscard]] util::SockAddr address() const noexcept override { return service_->address(); }
    core::UdServices& services() noexcept override { return *service_; }
    /// Whoever reads the queue asks the NIC.
    void poll() noexcept override {}
    /// What queues have said until now is no news: who sleeps has armed its own, and looks again.
    util::Status arm() noexcept override {
        device().progress();
        return util::kOk;
    }
    [[nodiscard]] int wake_fd() const noexcept override { return wake_set_.get(); }
    util::Status watch(int fd) noexcept override {
        epoll_event event{};
        event.events = EPOLLIN;
        return epoll_ctl(wake_set_.get(), EPOLL_CTL_ADD, fd, &event) == 0 ? util::kOk
                                                                          : util::Status(errno);
    }
    void expect_traffic() noexcept override {}

  private:
    const std::shared_ptr<OpenNic> nic_;
    std::unique_ptr<verbs::RdmaCmService> service_;
    util::ProcessFd wake_set_;
    util::Watched<CmWatch<verbs::RdmaCmService>> watch_;
};

util::Status NicDatagrams::start(const util::SockAddr& address) {
    const verbs::Nic& nic = nic_->nic();
    if (!nic.limits().has_ud) {
        return EOPNOTSUPP;
    }
    auto service = verbs::RdmaCmService::open(
        {.nic = &nic, .address = address, .timeout_ms = connect_timeout_ms()});
    if (!service.is_ok()) {
        return service.status();
    }
    service_ = service.take();
    {
        const util::ForkHold hold;
        wake_set_ = util::ProcessFd(util::UniqueFd(epoll_create1(EPOLL_CLOEXEC)));
    }
    if (!wake_set_.is_open()) {
        return errno;
    }
    const util::Status watched = watch(device().ops().wake_fd(device()));
    return watched.is_ok() ? watch_.start(*service_) : watched;
}

struct KnownNics {
    std::mutex lock;
    std::map<std::string, std::weak_ptr<OpenNic>> open;  // by identity and address
    std::map<std::string, ofi::MsgNicOffer> offers;      // by identity; what a NIC is stays
    std::map<std::string, std::string> told;             // name and address, as identity
};

KnownNics& known_nics() {
    static auto* const kKnown = new KnownNics;
    return *kKnown;
}

std::string name_of(const verbs::NicAddress& address) {
    return verbs::identity_of(address) + address.address.to_string();
}

/// As infos name it that carry the address; with the port that theirs may have.
std::string info_of(const std::string& name, util::SockAddr address) {
    address.port = 0;
    return name + " " + address.to_string();
}

bool has_interface(const std::string& name) {
    return util::network_address(AF_INET, name) || util::network_address(AF_INET6, name);
}

/// Where a NIC without a GUID is gone there may be another one.
void forget_gone(KnownNics& known, const std::vector<verbs::NicAddress>& all) {
    const std::lock_guard guard(known.lock);
    std::erase_if(known.offers, [&](const auto& offer) {
        return std::ranges::find(all, offer.first, verbs::identity_of) == all.end();
    });
    for (const verbs::NicAddress& address : all) {
        const auto place = known.open.find(name_of(address));
        const auto open = place != known.open.end() ? place->second.lock() : nullptr;
        if (open != nullptr && open->device().is_going()) {
            known.offers.erase(verbs::identity_of(address));
        }
    }
}

/// Precondition: the caller holds the lock.
util::Result<std::shared_ptr<OpenNic>> open_locked(KnownNics& known,
                                                   const verbs::NicAddress& address) {
    std::weak_ptr<OpenNic>& place = known.open[name_of(address)];
    if (auto open = place.lock(); open != nullptr && !open->device().is_going()) {
        return open;
    }
    auto nic = verbs::Nic::open(core::Registry::instance(), address);
    if (!nic.is_ok()) {
        return nic.status();
    }
    auto made = std::make_shared<OpenNic>(nic.take());
    const util::Status started = made->start();
    if (!started.is_ok()) {
        return started;
    }
    place = made;
    return made;
}

/// Who sends datagrams has an address of the NIC, each of which is opened by itself.
util::Result<std::shared_ptr<OpenNic>> open_at(const std::string& identity,
                                               const util::SockAddr& address) {
    const std::vector<verbs::NicAddress> all = verbs::find_nics();
    const auto found = std::ranges::find_if(all, [&](const verbs::NicAddress& one) {
        return verbs::identity_of(one) == identity && one.address.family == address.family &&
               one.address.ip == address.ip;
    });
    if (found == all.end()) {
        return EADDRNOTAVAIL;
    }
    KnownNics& known = known_nics();
    const std::lock_guard guard(known.lock);
    return open_locked(known, *found);
}

util::Result<std::unique_ptr<core::UdSharing>> OpenNic::open_datagrams(
    const util::SockAddr& address) {
    auto open = open_at(identity_, address);
    if (!open.is_ok()) {
        return open.status();
    }
    auto made = std::make_unique<NicDatagrams>(open.take());
    const util::Status started = made->start(address);
    if (!started.is_ok()) {
        return started;
    }
    return std::unique_ptr<core::UdSharing>(std::move(made));
}

/// Of an endpoint the pair has a completion queue of its own. What the NIC does not say is as many
/// as the core could have.
std::uint32_t max_pairs(const DeviceLimits& limits) noexcept {
    const std::uint32_t pairs = limits.own_max_qp != 0 ? limits.own_max_qp : limits.max_qp;
    return limits.own_max_cq != 0 ? std::min(pairs, limits.own_max_cq) : pairs;
}

ofi::MsgNicOffer offer_of(const verbs::Nic& nic) {
    const DeviceLimits& limits = nic.device().limits();
    return {.identity = verbs::identity_of(nic.address()),
            .inject_bytes = std::min(limits.max_inline_bytes, kMostInline),
            .max_pairs = max_pairs(limits),
            .max_regions = limits.own_max_mr,
            .max_queue = limits.max_qp_wr,
            .max_sge = limits.max_sge,
            .max_read_sge = limits.max_read_sge,
            .max_srq_sge = limits.max_srq_sge,
            .max_bytes = limits.max_message_bytes,
            .has_atomics = nic.limits().has_atomics,
            .has_srq = nic.limits().has_srq,
            .has_cq_data = limits.has_immediate,
            .is_iwarp = nic.limits().is_iwarp,
            .datagram_bytes = nic.limits().has_ud ? limits.max_ud_bytes : 0,
            .is_preferred = !nic.quirks().is_software};
}

std::vector<ofi::MsgNicOffer> list() {
    std::vector<ofi::MsgNicOffer> offers;
    if (!util::param_is_set(util::ParamId::kVerbs)) {
        return offers;
    }
    KnownNics& known = known_nics();
    const std::vector<verbs::NicAddress> all = verbs::find_nics();
    forget_gone(known, all);
    for (const verbs::NicAddress& address : all) {
        const std::lock_guard guard(known.lock);
        const std::string identity = verbs::identity_of(address);
        auto offer = known.offers.find(identity);
        if (offer == known.offers.end()) {
            const auto open = open_locked(known, address);
            if (!open.is_ok()) {
                continue;  // which has been logged
            }
            offer = known.offers.emplace(identity, offer_of(open.value()->nic())).first;
        }
        known.told[info_of(address.device, address.address)] = identity;
        offers.push_back(offer->second);
        offers.back().name = address.device;
        offers.back().stable_name = verbs::stable_name(address);
        offers.back().address = address.address;
        offers.back().needs_local_mr = !ofi::keeps_registrations();
    }
    return offers;
}

util::Result<std::shared_ptr<ofi::MsgNic>> open(const std::string& name,
                                                const util::SockAddr& source) {
    const std::vector<verbs::NicAddress> all = util::param_is_set(util::ParamId::kVerbs)
                                                   ? verbs::find_nics()
                                                   : std::vector<verbs::NicAddress>();
    KnownNics& known = known_nics();
    const std::lock_guard guard(known.lock);
    const auto told = known.told.find(info_of(name, source));
    const verbs::NicAddress* const found =
        verbs::find_wanted(all, {.name = name,
                                 .source = source,
                                 .identity = told != known.told.end() ? told->second : "",
                                 .is_interface = has_interface(name)});
    if (found == nullptr) {
        return ENODEV;
    }
    auto open = open_locked(known, *found);
    return open.is_ok() ? util::Result<std::shared_ptr<ofi::MsgNic>>(open.take())
                        : util::Result<std::shared_ptr<ofi::MsgNic>>(open.status());
}

}  // namespace

std::shared_ptr<core::Device> open_flow_nic(const util::SockAddr& address) {
    if (!util::param_is_set(util::ParamId::kVerbs)) {
        return nullptr;
    }
    for (const verbs::NicAddress& nic : verbs::find_nics()) {
        if (nic.address.ip != address.ip || nic.address.family != address.family) {
            continue;
        }
        KnownNics& known = known_nics();
        const std::lock_guard guard(known.lock);
        const auto open = open_locked(known, nic);
        if (!open.is_ok()) {
            return nullptr;  // which has been logged
        }
        const verbs::Nic& opened = open.value()->nic();
        const bool is_wanted =
            !opened.quirks().is_software || util::param_is_set(util::ParamId::kVerbsEmulated);
        const bool has_way = opened.limits().has_rocev2 || opened.limits().has_ib_path;
        if (is_wanted && has_way && opened.limits().has_srq) {
            return {open.value(), &open.value()->device()};
        }
    }
    return nullptr;
}

void use_nics() noexcept {
    ofi::set_msg_nics({.list = list, .open = open});
}

}  // namespace rvt
