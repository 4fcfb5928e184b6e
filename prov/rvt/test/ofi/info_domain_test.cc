// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Which open domain an answer of fi_getinfo(3) names, and what is answered to hints that name one.
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <span>
#include <string>

#include "ofi/fixture.h"
#include "util/lock.h"
#include "util/unique_fd.h"

using namespace rvt::test;

namespace {

/// Hints that a domain is opened with, and others that it is not right for.
struct Misfit {
    const char* hint;  // why
    void (*first)(fi_info&);
    void (*second)(fi_info&);
};

constexpr auto kNothing = [](fi_info&) {};

// clang-format off
const Misfit kMisfits[] = {
    {"domain_attr->mr_mode", kNothing, [](fi_info& h) { h.domain_attr->mr_mode = FI_MR_VIRT_ADDR; }},
    {"domain_attr->mr_mode", kNothing, [](fi_info& h) { h.domain_attr->mr_mode = FI_MR_PROV_KEY; }},
    {"domain_attr->mr_mode", [](fi_info& h) { h.domain_attr->mr_mode = FI_MR_VIRT_ADDR; }, kNothing},
    {"domain_attr->data_progress", kNothing, [](fi_info& h) { h.domain_attr->data_progress = FI_PROGRESS_AUTO; }},
    {"addr_format", kNothing, [](fi_info& h) { h.addr_format = FI_SOCKADDR_IN6; }},
    {"caps", [](fi_info& h) { h.caps = FI_MSG; }, [](fi_info& h) { h.caps = FI_ATOMIC; }},
    {"caps", kNothing, [](fi_info& h) { h.caps = FI_MSG | FI_HMEM; h.domain_attr->mr_mode = FI_MR_HMEM; }},
    {"domain_attr->threading", [](fi_info& h) { h.domain_attr->threading = FI_THREAD_DOMAIN; },
                               [](fi_info& h) { h.domain_attr->threading = FI_THREAD_SAFE; }},
};
// clang-format on

Info rdm_hints(void (*set)(fi_info&)) {
    Info hints = new_hints();
    hints->ep_attr->type = FI_EP_RDM;
    set(*hints);
    return hints;
}

/// Where all domains have a lock, there is one misfit less.
std::span<const Misfit> misfits() {
    const std::span all(kMisfits);
    return rvt::util::OwnerLock::is_supported() ? all : all.first(all.size() - 1);
}

/// What is logged meanwhile.
template <class Call>
std::string logged(Call call) {
    const rvt::util::UniqueFd log(memfd_create("log", 0));
    const rvt::util::UniqueFd before(dup(STDERR_FILENO));
    dup2(log.get(), STDERR_FILENO);
    call();
    dup2(before.get(), STDERR_FILENO);
    std::array<char, 4096> text{};
    const ssize_t bytes = pread(log.get(), text.data(), text.size(), 0);
    return {text.data(), static_cast<std::size_t>(bytes)};
}

}  // namespace

Test(info_domain, the_first_open_domain_that_fits_an_answer_is_named) {
    for (const Misfit& misfit : misfits()) {
        const Opened other(ask(rdm_hints(misfit.first)).info);
        const Answer none = ask(rdm_hints(misfit.second));
        RVT_OK(none.error);
        cr_assert(none.info->domain_attr->domain == nullptr, "%s", misfit.hint);
        const Opened right(ask(rdm_hints(misfit.second)).info);
        const Answer answer = ask(rdm_hints(misfit.second));
        cr_assert(answer.info->domain_attr->domain == right.domain.get(), "%s", misfit.hint);
    }
}

Test(info_domain, a_domain_in_hints_that_does_not_fit_is_refused_with_the_reason) {
    setenv("FI_PROVIDER", "rvt", 1);
    setenv("FI_LOG_LEVEL", "warn", 1);
    for (const Misfit& misfit : misfits()) {
        const Opened other(ask(rdm_hints(misfit.first)).info);
        const Info hints = rdm_hints(misfit.second);
        hints->domain_attr->domain = other.domain.get();
        int error = 0;
        const std::string log = logged([&] { error = ask(hints).error; });
        cr_assert(error == -FI_ENODATA, "%s: %d", misfit.hint, error);
        const std::string reason = std::string(" does not match: ") + misfit.hint + ": ";
        cr_assert(log.find(reason) != std::string::npos, "%s: %s", misfit.hint, log.c_str());
        const Info same = rdm_hints(misfit.first);
        same->domain_attr->domain = other.domain.get();
        cr_assert(ask(same).error == 0, "%s", misfit.hint);
    }
}

Test(info_domain, what_hints_leave_open_is_as_in_the_domain_that_they_name) {
    const Info first = new_hints();
    first->caps = FI_MSG;
    first->domain_attr->threading = FI_THREAD_DOMAIN;
    first->domain_attr->data_progress = FI_PROGRESS_AUTO;
    const Opened open(ask(first).info);
    const Info hints = new_hints();
    hints->domain_attr->domain = open.domain.get();
    const Answer answer = ask(hints);
    RVT_OK(answer.error);
    RVT_ASSERT(answer.info->domain_attr->domain == open.domain.get());
    RVT_EQ(answer.info->caps & (FI_TAGGED | FI_RMA | FI_ATOMIC), FI_TAGGED | FI_RMA);
    RVT_EQ(answer.info->domain_attr->data_progress, FI_PROGRESS_AUTO);
    RVT_EQ(answer.info->domain_attr->threading,
           rvt::util::OwnerLock::is_supported() ? FI_THREAD_DOMAIN : FI_THREAD_SAFE);
}

Test(info_domain, a_side_is_not_offered_what_the_domain_in_hints_lacks) {
    const Info first = new_hints();
    first->caps = FI_MSG;
    const Opened open(ask(first).info);
    const Info hints = new_hints();
    hints->tx_attr->caps = FI_MSG | FI_ATOMIC;
    hints->domain_attr->domain = open.domain.get();
    RVT_EQ(ask(hints).error, -FI_ENODATA);
}

/// With FI_HOOK set the application has objects of libfabric's own, which ours have as contexts.
Test(info_domain, hints_may_name_what_a_hook_has_put_over_open_objects) {
    const Opened other;
    const Opened open;
    fid_fabric over_fabric{};
    fid_domain over_domain{};
    open.fabric->fid.context = &over_fabric;
    open.domain->fid.context = &over_domain;
    const Info hints = new_hints();
    hints->domain_attr->domain = &over_domain;
    const Answer answer = ask(hints);
    RVT_OK(answer.error);
    RVT_ASSERT(answer.info->domain_attr->domain == &over_domain);
    hints->fabric_attr->fabric = &over_fabric;
    const Answer both = ask(hints);
    RVT_OK(both.error);
    RVT_ASSERT(both.info->fabric_attr->fabric == &over_fabric);
    RVT_ASSERT(both.info->domain_attr->domain == &over_domain);
    open.domain->fid.context = nullptr;
    RVT_EQ(ask(hints).error, -FI_ENODATA);
}

Test(info_domain, an_answer_can_be_handed_back_as_hints) {
    const Opened other;
    const Opened open;
    const Info hints = new_hints();
    hints->domain_attr->domain = open.domain.get();
    const Answer answer = ask(hints);
    RVT_OK(answer.error);
    RVT_ASSERT(answer.info->fabric_attr->fabric == open.fabric.get());
    const Answer again = ask(answer.info);
    RVT_OK(again.error);
    RVT_ASSERT(again.info->domain_attr->domain == open.domain.get());
}

Test(info_domain, an_answer_for_a_fabric_names_no_domain_of_another) {
    const Opened open;
    const auto other = opened<fid_fabric>(
        [&](fid_fabric** made) { return fi_fabric(open.info->fabric_attr, made, nullptr); });
    const Info hints = new_hints();
    hints->fabric_attr->fabric = other.get();
    const Answer answer = ask(hints);
    RVT_OK(answer.error);
    RVT_ASSERT(answer.info->fabric_attr->fabric == other.get());
    RVT_ASSERT(answer.info->domain_attr->domain == nullptr);
    const auto domain = opened<fid_domain>(
        [&](fid_domain** made) { return fi_domain(other.get(), open.info.get(), made, nullptr); });
    RVT_ASSERT(ask(hints).info->domain_attr->domain == domain.get());
    hints->domain_attr->domain = open.domain.get();
    RVT_EQ(ask(hints).error, -FI_ENODATA);
    hints->fabric_attr->fabric = open.fabric.get();
    RVT_ASSERT(ask(hints).info->domain_attr->domain == open.domain.get());
}
