// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Regions and endpoints in the domain of a NIC, by a process that may lock little memory, or whose
// control group may have few objects of the NIC.
//
//   little_memory OWN-IP [objects]
#include "ends.h"

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>

namespace {

constexpr std::size_t kLittle = 4096;
constexpr std::size_t kMuch = 1 << 20;
constexpr std::size_t kMost = 1000;  // objects: far more than the group may have

fi_info* ask(const char* ip) {
    fi_info* const hints = fi_allocinfo();
    hints->ep_attr->type = FI_EP_MSG;
    hints->caps = FI_MSG;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_VIRT_ADDR;
    hints->domain_attr->name = strdup("rxe0");
    hints->fabric_attr->prov_name = strdup("rvt");
    fi_info* info = nullptr;
    const int error = fi_getinfo(FI_VERSION(1, 17), ip, nullptr, FI_SOURCE, hints, &info);
    fi_freeinfo(hints);
    if (error != 0) {
        traffic::fail(std::string("fi_getinfo: ") + fi_strerror(-error));
    }
    return info;
}

/// Returns: what is wrong when another error than `expected` comes.
std::string try_region(fid_domain* domain, std::size_t bytes, int expected) {
    std::vector<char> memory(bytes);
    fid_mr* region = nullptr;
    const int error =
        fi_mr_reg(domain, memory.data(), bytes, FI_SEND | FI_RECV, 0, 0, 0, &region, nullptr);
    if (error == 0) {
        fi_close(&region->fid);
    }
    return error == expected ? std::string() : std::string("it is: ") + fi_strerror(-error);
}

void try_memory(fid_domain* domain, traffic::Report& report) {
    report.line("a small region", try_region(domain, kLittle, 0));
    report.line("a large one is FI_ENOMEM", try_region(domain, kMuch, -FI_ENOMEM));
    report.line("and a small one again", try_region(domain, kLittle, 0));
}

// ---- objects ----

void close_all(std::vector<fid*>& all) {
    for (; !all.empty(); all.pop_back()) {
        if (fi_close(all.back()) != 0) {
            traffic::fail("cannot close what there is");
        }
    }
}

/// Returns: the error that ends it; 0 after kMost.
template <class Make>
int make_until_refused(std::vector<fid*>& all, Make make) {
    while (all.size() < kMost) {
        fid* made = nullptr;
        if (const int error = make(&made); error != 0) {
            return error;
        }
        all.push_back(made);
    }
    return 0;
}

/// Makes as many as there can be, ends one and makes it again, ends all, and does so once more.
/// Returns: what is wrong.
template <class Make>
std::string try_all(Make make) {
    std::vector<fid*> all;
    std::array<std::size_t, 2> counts{};
    for (std::size_t& count : counts) {
        if (const int error = make_until_refused(all, make); error != -FI_ENOSPC) {
            return std::string("it is: ") + fi_strerror(-error);
        }
        count = all.size();
        if (count < 2 || fi_close(all.back()) != 0) {
            return "there are only " + std::to_string(count);
        }
        all.pop_back();
        if (make_until_refused(all, make) != -FI_ENOSPC || all.size() != count) {
            return "none in the place of one that has ended";
        }
        close_all(all);
    }
    return counts[0] == counts[1]
               ? std::string()
               : "first " + std::to_string(counts[0]) + ", then " + std::to_string(counts[1]);
}

void try_objects(fid_fabric* fabric, fid_domain* domain, fi_info* info, traffic::Report& report) {
    std::vector<char> memory(kLittle);
    fid_eq* eq = nullptr;
    fid_cq* cq = nullptr;
    fi_eq_attr events{};
    fi_cq_attr completions{};
    if (fi_eq_open(fabric, &events, &eq, nullptr) != 0 ||
        fi_cq_open(domain, &completions, &cq, nullptr) != 0) {
        traffic::fail("cannot open the queues");
    }
    const auto make_endpoint = [&](fid** made) {
        fid_ep* ep = nullptr;
        if (const int error = fi_endpoint(domain, info, &ep, nullptr); error != 0) {
            return error;
        }
        fi_ep_bind(ep, &eq->fid, 0);
        fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV);
        const int error = fi_enable(ep);
        if (error != 0) {
            fi_close(&ep->fid);
            return error;
        }
        *made = &ep->fid;
        return 0;
    };
    report.line("endpoints until FI_ENOSPC, and again", try_all(make_endpoint));
    report.line("regions until FI_ENOSPC, and again", try_all([&](fid** made) {
                    fid_mr* region = nullptr;
                    const int error = fi_mr_reg(domain, memory.data(), kLittle, FI_SEND | FI_RECV,
                                                0, 0, 0, &region, nullptr);
                    *made = region != nullptr ? &region->fid : nullptr;
                    return error;
                }));
    report.line("endpoints once more", try_all(make_endpoint));
    fi_close(&cq->fid);
    fi_close(&eq->fid);
}

}  // namespace

int main(int argc, char** argv) {
    const bool is_of_objects = argc == 3 && std::strcmp(argv[2], "objects") == 0;
    if (argc != 2 && !is_of_objects) {
        traffic::fail("usage: OWN-IP [objects]");
    }
    fi_info* const info = ask(argv[1]);
    fid_fabric* fabric = nullptr;
    fid_domain* domain = nullptr;
    if (fi_fabric(info->fabric_attr, &fabric, nullptr) != 0 ||
        fi_domain(fabric, info, &domain, nullptr) != 0) {
        traffic::fail("cannot open the domain");
    }
    traffic::Report report;
    if (is_of_objects) {
        try_objects(fabric, domain, info, report);
    } else {
        try_memory(domain, report);
    }
    fi_close(&domain->fid);
    fi_close(&fabric->fid);
    fi_freeinfo(info);
    return report.status();
}
