// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "common/cm.h"

#include <rdma/fi_errno.h>

#include <array>
#include <cstdlib>
#include <cstring>

#include "common/endpoint.h"

namespace fab {

namespace {
constexpr int kTurnMs = 5;
}  // namespace

CmEvent next_cm_event(fid_eq* eq, fid_cq* cq) {
    std::array<char, 512> room{};
    CmEvent event;
    ssize_t got = -FI_EAGAIN;
    const double deadline = now_s() + kOpLimitS;
    // Some providers make and end connections only while queues of completions are read.
    while (got == -FI_EAGAIN && now_s() < deadline) {
        fi_cq_read(cq, nullptr, 0);
        got = fi_eq_sread(eq, &event.type, room.data(), room.size(), kTurnMs, 0);
    }
    if (got == -FI_EAVAIL) {
        fi_eq_err_entry entry{};
        FAB_OK(fi_eq_readerr(eq, &entry, 0));
        event.error = entry.err;
        event.data.assign(static_cast<const char*>(entry.err_data), entry.err_data_size);
        return event;
    }
    if (got < static_cast<ssize_t>(sizeof(fi_eq_cm_entry))) {
        fail_fi(__FILE__, __LINE__, "fi_eq_sread", got);
    }
    fi_eq_cm_entry entry{};
    std::memcpy(&entry, room.data(), sizeof entry);
    event.info = entry.info;
    event.data.assign(room.data() + sizeof entry, static_cast<std::size_t>(got) - sizeof entry);
    return event;
}

CmEvent expect_cm_event(fid_eq* eq, fid_cq* cq, std::uint32_t type) {
    CmEvent event = next_cm_event(eq, cq);
    FAB_EQUAL(event.error, 0);
    FAB_EQUAL(event.type, type);
    return event;
}

fid_pep* listen(const Rank& self, fid_fabric* fabric, fi_info* info, fid_eq* eq) {
    fid_pep* pep = nullptr;
    FAB_OK(fi_passive_ep(fabric, info, &pep, nullptr));
    FAB_OK(fi_pep_bind(pep, &eq->fid, 0));
    FAB_OK(fi_listen(pep));
    std::array<char, 256> name{};
    std::size_t bytes = name.size();
    FAB_OK(fi_getname(&pep->fid, name.data(), &bytes));
    self.send_string(self.other(), {name.data(), bytes});
    return pep;
}

std::vector<char> receive_listener(const Rank& self) {
    const std::string name = self.receive_string(kListener);
    return {name.begin(), name.end()};
}

fi_info* dup_towards(const fi_info& info, const std::vector<char>& to) {
    fi_info* const towards = fi_dupinfo(&info);
    if (towards == nullptr) FAB_FAIL("fi_dupinfo: out of memory");
    std::free(towards->dest_addr);
    towards->dest_addr = std::malloc(to.size());
    towards->dest_addrlen = to.size();
    std::memcpy(towards->dest_addr, to.data(), to.size());
    return towards;
}

}  // namespace fab
