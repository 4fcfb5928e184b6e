// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A short list behind a lock: it is read by fi_getinfo only.
#include "ofi/registry.h"

#include <mutex>
#include <string>
#include <vector>

namespace rvt::ofi::registry {
namespace {

struct Record {
    fid* object;
    std::size_t fclass;
    std::string name;
};

std::mutex lock;  // order: innermost

std::vector<Record>& records() noexcept {
    static auto* const kRecords =
        new std::vector<Record>;  // outlives static destruction: closing may come late
    return *kRecords;
}

/// Precondition: the caller holds `lock`.
const Record* record_of(const fid* named, std::size_t fclass) noexcept {
    const Record* under = nullptr;
    for (const Record& record : records()) {
        if (record.object == named && record.fclass == fclass) {
            return &record;
        }
        const bool is_under = record.object->context == named && record.fclass == fclass;
        under = is_under && named != nullptr ? &record : under;
    }
    return under;
}

}  // namespace

void add(fid* object, std::string_view name) {
    const std::lock_guard guard(lock);
    records().push_back({object, object->fclass, std::string(name)});
}

void remove(const fid* object) noexcept {
    const std::lock_guard guard(lock);
    std::erase_if(records(), [object](const Record& record) { return record.object == object; });
}

fid* find(const fid* named, std::size_t fclass, std::string_view name, const Fits& fits) {
    const std::lock_guard guard(lock);
    const Record* const record = record_of(named, fclass);
    const bool is_meant =
        record != nullptr && record->name == name && (!fits || fits(*record->object));
    return is_meant ? record->object : nullptr;
}

std::string name_of(const fid* named, std::size_t fclass) {
    const std::lock_guard guard(lock);
    const Record* const record = record_of(named, fclass);
    return record != nullptr ? record->name : std::string();
}

fid* first(std::size_t fclass, std::string_view name, const Fits& fits) {
    const std::lock_guard guard(lock);
    for (const Record& record : records()) {
        if (record.fclass == fclass && record.name == name && (!fits || fits(*record.object))) {
            return record.object;
        }
    }
    return nullptr;
}

}  // namespace rvt::ofi::registry
