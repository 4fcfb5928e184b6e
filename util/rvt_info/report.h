// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A report of named values in sections, printed as text or as JSON.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace rvt::info {

struct Section {
    std::string title;
    std::vector<std::pair<std::string, std::string>> values;

    void add(std::string name, std::string value) {
        values.emplace_back(std::move(name), std::move(value));
    }
    void add(std::string name, unsigned long long value) {
        values.emplace_back(std::move(name), std::to_string(value));
    }
};

/// Sections of one kind make one list in JSON: {"devices": [{...}, ...], "parameters": [...]}.
struct Report {
    std::vector<std::pair<std::string, std::vector<Section>>> parts;
};

void print_text(const Report& report);
void print_json(const Report& report);

}  // namespace rvt::info
