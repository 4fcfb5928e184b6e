// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Regions in the domain of a NIC, by a process that may lock little memory.
//
//   little_memory OWN-IP
#include "ends.h"

#include <cstring>
#include <string>
#include <vector>

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_errno.h>

namespace {

constexpr std::size_t kLittle = 4096;
constexpr std::size_t kMuch = 1 << 20;

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

}  // namespace

int main(int argc, char** argv) {
    if (argc != 2) {
        traffic::fail("usage: OWN-IP");
    }
    fi_info* const info = ask(argv[1]);
    fid_fabric* fabric = nullptr;
    fid_domain* domain = nullptr;
    if (fi_fabric(info->fabric_attr, &fabric, nullptr) != 0 ||
        fi_domain(fabric, info, &domain, nullptr) != 0) {
        traffic::fail("cannot open the domain");
    }
    traffic::Report report;
    report.line("a small region", try_region(domain, kLittle, 0));
    report.line("a large one is FI_ENOMEM", try_region(domain, kMuch, -FI_ENOMEM));
    report.line("and a small one again", try_region(domain, kLittle, 0));
    fi_close(&domain->fid);
    fi_close(&fabric->fid);
    fi_freeinfo(info);
    return report.status();
}
