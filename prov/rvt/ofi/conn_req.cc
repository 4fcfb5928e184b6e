// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Handles come from applications, which may hand in one twice: they are looked up, never followed.
#include "ofi/conn_req.h"

#include <algorithm>
#include <mutex>
#include <vector>

namespace rvt::ofi {
namespace {

std::mutex lock;  // order: innermost

std::vector<std::unique_ptr<ConnReq>>& requests() noexcept {
    static auto* const kRequests = new std::vector<std::unique_ptr<ConnReq>>;
    return *kRequests;
}

template <class Matches>
std::unique_ptr<ConnReq> take(Matches matches) noexcept {
    const std::lock_guard guard(lock);
    const auto found = std::ranges::find_if(requests(), matches);
    if (found == requests().end()) {
        return nullptr;
    }
    std::unique_ptr<ConnReq> taken = std::move(*found);
    requests().erase(found);
    return taken;
}

}  // namespace

void conn_req_add(std::unique_ptr<ConnReq> request) {
    const std::lock_guard guard(lock);
    requests().push_back(std::move(request));
}

std::unique_ptr<ConnReq> conn_req_take(const fid* handle) noexcept {
    return take([handle](const auto& request) { return &request->handle == handle; });
}

std::size_t conn_req_count_of(const Pep& pep) noexcept {
    const std::lock_guard guard(lock);
    return static_cast<std::size_t>(std::ranges::count_if(
        requests(), [&pep](const auto& request) { return request->pep == &pep; }));
}

std::unique_ptr<ConnReq> conn_req_take_of(const Pep& pep) noexcept {
    return take([&pep](const auto& request) { return request->pep == &pep; });
}

}  // namespace rvt::ofi
