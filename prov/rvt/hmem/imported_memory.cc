// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "hmem/imported_memory.h"

#include <utility>

namespace rvt::hmem {

util::Result<std::unique_ptr<ImportedMemory>> ImportedMemory::make(const DmaBufPart& part,
                                                                   bool writes) {
    const util::Status checked = check_part(part, writes);
    if (!checked.is_ok()) {
        return checked;
    }
    util::UniqueFd kept = util::duplicate(part.fd);
    if (!kept.is_open()) {
        return errno;
    }
    return std::unique_ptr<ImportedMemory>(new ImportedMemory(std::move(kept), part.offset));
}

}  // namespace rvt::hmem
