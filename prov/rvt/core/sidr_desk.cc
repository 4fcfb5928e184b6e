// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Answers and questions.
#include "core/sidr_desk.h"

#include <algorithm>

namespace rvt::core {
namespace {

// Of the first question; each repetition waits twice as long, see CmAgent::kMostBackoffUs.
constexpr std::uint32_t kResponseUs = 60'000;
constexpr std::uint8_t kRepetitions = 15;

std::uint64_t service_id(std::uint16_t number) noexcept {
    return protocol::ip_service_id(protocol::PortSpace::kUdp, number);
}

}  // namespace

// ---- services ----

Status SidrDesk::open(std::uint16_t service, const UdPair& pair, SidrUser& user) {
    const Status opened = agent_.listen(service_id(service), service);
    if (opened.is_ok()) {
        services_[service] = {.pair = pair, .user = &user};
    }
    return opened;
}

void SidrDesk::close(std::uint16_t service, std::uint64_t now_us) noexcept {
    std::erase_if(questions_, [&](const Question& one) {
        if (one.own == service) {
            [[maybe_unused]] const Status dropped = agent_.disconnect(one.handle, {}, now_us);
        }
        return one.own == service;
    });
    services_.erase(service);
    [[maybe_unused]] const Status ended = agent_.unlisten(service_id(service));
}

/// The same each time that the question is repeated. Of a service for connections nobody has a
/// pair of datagrams.
void SidrDesk::answer(const CmEvent& request, std::uint64_t now_us) {
    const auto found = services_.find(protocol::ip_service_port(request.service_id));
    const bool is_known =
        found != services_.end() && request.service_id == service_id(found->first);
    CmSidrAnswer answer{.status = protocol::SidrStatus::kInvalidServiceId};
    if (is_known) {
        answer = {.qpn = found->second.pair.qpn, .qkey = found->second.pair.qkey};
    }
    [[maybe_unused]] const Status sent = agent_.answer_sidr(request.handle, answer, now_us);
}

// ---- questions ----

Status SidrDesk::ask(const Address& peer, std::uint16_t own, std::uint64_t now_us) {
    const auto sent = send(peer, own, now_us);
    if (sent.is_ok()) {
        questions_.push_back({.peer = peer,
                              .own = own,
                              .handle = sent.value(),
                              .deadline_us = now_us + timeout_us_});
    }
    return sent.status();
}

Result<CmHandle> SidrDesk::send(const Address& peer, std::uint16_t own, std::uint64_t now_us) {
    return agent_.resolve({.service_id = service_id(peer.port),
                           .dest = {.dest = {.gid = peer.gid, .port = udp_port_}},
                           .response_timeout_us = kResponseUs,
                           .max_cm_retries = kRepetitions,
                           .source_port = own},
                          now_us);
}

bool SidrDesk::take(const CmEvent& event, std::uint64_t now_us) {
    if (event.type == CmEventType::kSidrRequest) {
        answer(event, now_us);
        return true;
    }
    const auto found = std::ranges::find(questions_, event.handle, &Question::handle);
    if (found == questions_.end()) {
        return event.type == CmEventType::kSidrReply;
    }
    const auto i = static_cast<std::size_t>(found - questions_.begin());
    if (event.type == CmEventType::kUnreachable) {
        const auto again = send(found->peer, found->own, now_us);
        if (again.is_ok()) {
            found->handle = again.value();
        } else {
            finish(i, ETIMEDOUT);
        }
        return true;
    }
    const bool is_found = event.sidr_status == protocol::SidrStatus::kOk;
    finish(i, is_found ? Result<UdPair>(UdPair{.qpn = event.remote.qpn, .qkey = event.qkey})
                       : Result<UdPair>(ECONNREFUSED));
    return true;
}

void SidrDesk::finish(std::size_t i, const Result<UdPair>& pair) {
    const Question ended = questions_[i];
    questions_[i] = questions_.back();
    questions_.pop_back();
    services_.at(ended.own).user->resolved(ended.peer, pair);
}

void SidrDesk::peer_refused(const Address& host, std::uint32_t dest_qpn, std::uint64_t now_us) {
    if (dest_qpn != protocol::kGsiQpn) {
        for (const auto& [number, service] : services_) {
            service.user->pair_gone(host, dest_qpn);
        }
        return;
    }
    for (std::size_t i = questions_.size(); i-- != 0;) {
        if (questions_[i].peer.gid == host.gid) {
            [[maybe_unused]] const Status dropped =
                agent_.disconnect(questions_[i].handle, {}, now_us);
            finish(i, EHOSTUNREACH);
        }
    }
}

void SidrDesk::run_timers(std::uint64_t now_us) {
    for (std::size_t i = questions_.size(); i-- != 0;) {
        if (now_us >= questions_[i].deadline_us) {
            [[maybe_unused]] const Status dropped =
                agent_.disconnect(questions_[i].handle, {}, now_us);
            finish(i, ETIMEDOUT);
        }
    }
}

std::uint64_t SidrDesk::next_due_us() const noexcept {
    std::uint64_t due = kNever;
    for (const Question& one : questions_) {
        due = std::min(due, one.deadline_us);
    }
    return due;
}

}  // namespace rvt::core
