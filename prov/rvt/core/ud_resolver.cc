// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What is known of each peer, and what waits for it.
#include "core/ud_resolver.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/addresses.h"
#include "util/log.h"

namespace rvt::core {
namespace {

constexpr std::uint64_t kLookUs = 1'000'000;  // between two looks at all peers
constexpr std::size_t kMostHints = 64;        // that nobody has read

std::string text_of(const Address& peer) {
    return to_sock_addr(peer).to_string();
}

void warn(const Address& peer, int error, unsigned udp_port) {
    const std::string name = text_of(peer);
    switch (error) {
        case ECONNREFUSED:
            RVT_WARN(kEpCtrl,
                     "cannot send datagrams to %s: nobody has service %u there; is its endpoint "
                     "open, and of the port space udp?",
                     name.c_str(), peer.port);
            break;
        case EHOSTUNREACH:
            RVT_WARN(kEpCtrl,
                     "cannot send datagrams to %s: nobody has udp port %u there; does its process "
                     "run, with the same FI_RVT_ROCE_PORT?",
                     name.c_str(), udp_port);
            break;
        default:
            RVT_WARN(kEpCtrl,
                     "cannot send datagrams to %s: no answer from its udp port %u about service "
                     "%u; is it a host with a RoCE device, and the network open for that port?",
                     name.c_str(), udp_port, peer.port);
            break;
    }
}

}  // namespace

std::size_t UdResolver::Hash::operator()(const Address& address) const noexcept {
    return to_sock_addr(address).hash();
}

std::size_t UdResolver::SourceHash::operator()(const Source& source) const noexcept {
    return Hash()({.gid = source.gid, .port = 0}) ^ (source.qpn * std::size_t{0x9e3779b97f4a7c15});
}

// ---- life ----

Status UdResolver::open(const UdPair& own) {
    const Status opened = services_.open_service(service_, own, *this);
    is_open_ = opened.is_ok();
    return opened;
}

UdResolver::~UdResolver() {
    if (is_open_) {
        services_.close_service(service_);
    }
}

// ---- what the port reports ----

void UdResolver::resolved(const Address& peer, const Result<UdPair>& pair) noexcept {
    tell({.peer = peer, .gone_qpn = 0, .pair = pair});
}

/// Such word may come without end to an endpoint that makes no progress, and is a hint only.
void UdResolver::pair_gone(const Address& host, std::uint32_t qpn) noexcept {
    {
        const util::Guard guard(news_lock_);
        if (news_.size() >= kMostHints) {
            return;
        }
    }
    tell({.peer = host, .gone_qpn = qpn, .pair = EHOSTUNREACH});
}

void UdResolver::tell(News news) noexcept {
    {
        const util::Guard guard(news_lock_);
        news_.push_back(news);
    }
    // release: pairs with the acquire in run_locked(); who sees it finds the news.
    has_news_.store(true, std::memory_order_release);
    owner_.wake();
}

void UdResolver::run_locked(const AddressVector& av) noexcept {
    if (has_news()) [[unlikely]] {
        take_news_locked();
    }
    if (can_send_kept_) [[unlikely]] {
        can_send_kept_ = false;
        for (auto& [address, peer] : peers_) {
            send_kept_locked(peer);
        }
    }
    const std::uint64_t now = device_.now_us();
    if (now >= next_look_us_) [[unlikely]] {
        next_look_us_ = now + kLookUs;
        look_at_peers_locked(av, now);
    }
}

void UdResolver::take_news_locked() noexcept {
    std::vector<News> all;
    {
        const util::Guard guard(news_lock_);
        // relaxed: under the lock, which tell() has held before it says so.
        has_news_.store(false, std::memory_order_relaxed);
        all.swap(news_);
    }
    for (const News& news : all) {
        if (news.gone_qpn == 0) {
            const auto found = peers_.find(news.peer);
            if (found != peers_.end()) {
                take_answer_locked(found->first, found->second, news.pair);
            }
            continue;
        }
        for (auto& [address, peer] : peers_) {
            if (address.gid == news.peer.gid && peer.pair.qpn == news.gone_qpn) {
                lose_locked(address, peer);
            }
        }
    }
}

void UdResolver::take_answer_locked(const Address& address, Peer& peer,
                                    const Result<UdPair>& pair) noexcept {
    peer.is_asked = false;
    peer.believed_until_us = device_.now_us() + kBelievedUs;
    if (pair.is_ok()) {
        learn_locked(address, peer, pair.value());
        send_kept_locked(peer);
        return;
    }
    if (pair.error() == EHOSTUNREACH) {
        unlearn_locked(address, peer);
    }
    if (peer.pair.qpn == 0) {
        fail_locked(address, peer, pair.error());
    }
}

/// The next send asks, if none waits.
void UdResolver::lose_locked(const Address& address, Peer& peer) noexcept {
    unlearn_locked(address, peer);
    if (!peer.kept.empty() && !peer.is_asked && !ask_locked(address, peer).is_ok()) {
        fail_locked(address, peer, EHOSTUNREACH);
    }
}

// ---- what is known ----

void UdResolver::learn_locked(const Address& address, Peer& peer, const UdPair& pair) noexcept {
    if (peer.pair == pair) {
        return;
    }
    unlearn_locked(address, peer);
    peer.pair = pair;
    sources_[{.gid = address.gid, .qpn = pair.qpn}] = address;
    RVT_INFO(kEpCtrl, "datagrams to %s go to pair 0x%x", text_of(address).c_str(), pair.qpn);
}

void UdResolver::unlearn_locked(const Address& address, Peer& peer) noexcept {
    stop_use_locked(peer);
    const auto source = sources_.find({.gid = address.gid, .qpn = peer.pair.qpn});
    if (source != sources_.end() && source->second == address) {
        sources_.erase(source);
    }
    peer.pair = {};
}

void UdResolver::note_use_locked(Peer& peer, std::uint64_t number) noexcept {
    if (std::ranges::find(peer.numbers, number) == peer.numbers.end()) {
        peer.numbers.push_back(number);
    }
}

void UdResolver::stop_use_locked(Peer& peer) noexcept {
    for (const std::uint64_t number : std::exchange(peer.numbers, {})) {
        owner_.unlearn_locked(number);
    }
}

Result<util::SockAddr> UdResolver::source_of(const Address& host, std::uint32_t qpn) noexcept {
    const auto found = sources_.find({.gid = host.gid, .qpn = qpn});
    if (found == sources_.end()) {
        return ENOENT;
    }
    const auto peer = peers_.find(found->second);
    if (peer != peers_.end()) {
        peer->second.was_heard = true;
    }
    return to_sock_addr(found->second);
}

/// What is no longer believed is asked for with the next send; what has no number any more is
/// forgotten.
void UdResolver::look_at_peers_locked(const AddressVector& av, std::uint64_t now_us) noexcept {
    for (auto& [address, peer] : peers_) {
        if (std::exchange(peer.was_heard, false)) {
            peer.believed_until_us = std::max(peer.believed_until_us, now_us + kBelievedUs);
        }
        if (!peer.is_asked && now_us >= peer.believed_until_us) {
            stop_use_locked(peer);
        }
        if (!av.find(to_sock_addr(address)).is_ok()) {
            unlearn_locked(address, peer);
        }
    }
    std::erase_if(peers_, [](const auto& entry) {
        const Peer& peer = entry.second;
        return peer.pair.qpn == 0 && !peer.is_asked && peer.kept.empty();
    });
}

// ---- sends ----

Result<UdPair> UdResolver::find_locked(std::uint64_t number,
                                       const util::SockAddr& address) noexcept {
    const Address key = to_address(address);
    Peer& peer = peers_[key];
    const bool is_known = peer.pair.qpn != 0;
    if (!peer.is_asked && (!is_known || device_.now_us() >= peer.believed_until_us)) {
        [[maybe_unused]] const Status asked = ask_locked(key, peer);  // or by the next send
    }
    if (!is_known || !peer.kept.empty()) {
        return EAGAIN;
    }
    note_use_locked(peer, number);
    return peer.pair;
}

Status UdResolver::ask_locked(const Address& address, Peer& peer) noexcept {
    const Status asked = services_.ask(address, service_);
    peer.is_asked = asked.is_ok();
    return asked;
}

Status UdResolver::keep_locked(const RdSend& request, const util::SockAddr& address) noexcept {
    Peer& peer = peers_[to_address(address)];
    const bool has_question = peer.is_asked || peer.pair.qpn != 0;
    if (!has_question || kept_ >= most_kept_ || peer.kept.size() >= kMostKept) {
        return EAGAIN;
    }
    UdKept& kept = peer.kept.emplace_back();
    kept.request = request;
    kept.request.iov = nullptr;
    std::copy_n(request.iov, request.iov_count, kept.iov.begin());
    if (has(request.flags, RdFlags::kInject)) {
        for (std::size_t i = 0; i < request.iov_count; ++i) {
            const auto* const bytes = static_cast<const std::byte*>(request.iov[i].iov_base);
            kept.injected.insert(kept.injected.end(), bytes, bytes + request.iov[i].iov_len);
        }
        kept.iov[0] = {.iov_base = kept.injected.data(), .iov_len = kept.injected.size()};
        kept.request.iov_count = 1;
    }
    ++kept_;
    return kOk;
}

void UdResolver::send_kept_locked(Peer& peer) noexcept {
    if (peer.pair.qpn == 0) {
        return;
    }
    while (!peer.kept.empty()) {
        const std::uint64_t number = peer.kept.front().request.dest;
        note_use_locked(peer, number);
        if (owner_.post_kept_locked(peer.kept.front(), peer.pair).error() == EAGAIN) {
            can_send_kept_ = true;
            return;
        }
        peer.kept.pop_front();
        --kept_;
    }
}

void UdResolver::fail_locked(const Address& address, Peer& peer, int error) noexcept {
    warn(address, error, device_.address().port);
    const WcStatus status =
        error == ETIMEDOUT ? WcStatus::kRetryExcErr : WcStatus::kPeerUnreachable;
    kept_ -= peer.kept.size();
    for (const UdKept& kept : std::exchange(peer.kept, {})) {
        owner_.fail_kept_locked(kept, status);
    }
}

void UdResolver::fail_all_locked(WcStatus status) noexcept {
    for (auto& [address, peer] : peers_) {
        kept_ -= peer.kept.size();
        for (const UdKept& kept : std::exchange(peer.kept, {})) {
            owner_.fail_kept_locked(kept, status);
        }
    }
}

void UdResolver::forget_locked(std::uint64_t number, const util::SockAddr& address) noexcept {
    const auto found = peers_.find(to_address(address));
    if (found == peers_.end()) {
        return;
    }
    Peer& peer = found->second;
    std::erase(peer.numbers, number);
    kept_ -= std::erase_if(peer.kept, [&](const UdKept& kept) {
        const bool is_meant = kept.request.dest == number;
        if (is_meant) {
            owner_.fail_kept_locked(kept, WcStatus::kCanceled);
        }
        return is_meant;
    });
}

}  // namespace rvt::core
