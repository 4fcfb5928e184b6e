// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Two forms of the same report.
#include "rvt_info/report.h"

#include <algorithm>
#include <cstdio>

namespace rvt::info {
namespace {

std::string quoted(const std::string& text) {
    std::string out = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') {
            out += '\\';
            out += c;
        } else if (static_cast<unsigned char>(c) < 0x20) {
            char escape[8];
            std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(c));
            out += escape;
        } else {
            out += c;
        }
    }
    return out + "\"";
}

void print_json_section(const Section& section) {
    std::printf("{\"title\": %s", quoted(section.title).c_str());
    for (const auto& [name, value] : section.values) {
        std::printf(", %s: %s", quoted(name).c_str(), quoted(value).c_str());
    }
    std::printf("}");
}

}  // namespace

void print_text(const Report& report) {
    for (const auto& [kind, sections] : report.parts) {
        for (const Section& section : sections) {
            std::printf("%s\n", section.title.c_str());
            std::size_t width = 0;
            for (const auto& [name, value] : section.values) {
                width = std::max(width, name.size());
            }
            for (const auto& [name, value] : section.values) {
                std::printf("    %-*s  %s\n", static_cast<int>(width), name.c_str(), value.c_str());
            }
        }
    }
}

void print_json(const Report& report) {
    std::printf("{");
    const char* separator = "";
    for (const auto& [kind, sections] : report.parts) {
        std::printf("%s%s: [", separator, quoted(kind).c_str());
        const char* comma = "";
        for (const Section& section : sections) {
            std::printf("%s", comma);
            print_json_section(section);
            comma = ", ";
        }
        std::printf("]");
        separator = ", ";
    }
    std::printf("}\n");
}

}  // namespace rvt::info
