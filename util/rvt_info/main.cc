// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// rvt_info: what the provider offers here, why it refuses a request, how it reaches a peer. An
// ordinary libfabric client: it knows nothing that an application could not ask.
#include <getopt.h>
#include <net/if.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>

#include "rvt_info/hints.h"
#include "rvt_info/peer.h"
#include "rvt_info/refusals.h"
#include "rvt_info/report.h"

namespace rvt::info {
namespace {

struct Options {
    bool is_json = false;
    bool has_why = false;
    std::string why;
    std::vector<std::string> peers;
};

constexpr const char* kUsage =
    "usage: rvt_info [--json] [--why HINTS] [--peer ADDRESS]...\n"
    "\n"
    "Without options: the devices of the rvt provider, what they can do, the interfaces that\n"
    "domains may be named by, the names of NICs that stay, and the provider's parameters.\n"
    "  --why HINTS     which of the hints a device refuses, what it offers, what to change;\n"
    "                  HINTS as caps=FI_TAGGED|FI_REMOTE_COMM,tx_attr->inject_size=64\n"
    "  --peer ADDRESS  how the endpoint at 127.0.0.1:4711 is reached, and why not otherwise\n"
    "  --json          the same, for programs\n"
    "  --hints         the names of all hints that --why takes\n";

std::string named(const void* value, fi_type type) {
    char text[2048] = "";
    fi_tostr_r(text, sizeof text, value, type);
    return text;
}

std::string device_of(const fi_info& info) {
    return std::string(info.fabric_attr->name) + "/" + info.domain_attr->name;
}

Section device_section(const fi_info& info) {
    Section section;
    section.title = "device " + device_of(info);
    section.add("endpoints", named(&info.ep_attr->type, FI_TYPE_EP_TYPE));
    section.add("address",
                info.src_addr != nullptr ? static_cast<const char*>(info.src_addr) : "-");
    section.add("capabilities", named(&info.caps, FI_TYPE_CAPS));
    section.add("message order", named(&info.tx_attr->msg_order, FI_TYPE_MSG_ORDER));
    section.add("largest message, bytes", info.ep_attr->max_msg_size);
    section.add("largest injected message, bytes", info.tx_attr->inject_size);
    section.add("buffers of one operation", info.tx_attr->iov_limit);
    section.add("remote buffers of one operation", info.tx_attr->rma_iov_limit);
    section.add("operations outstanding", info.tx_attr->size);
    section.add("ordered one-sided access up to, bytes", info.ep_attr->max_order_waw_size);
    section.add("unexpected messages kept, bytes", info.rx_attr->total_buffered_recv);
    section.add("memory keys, bytes each", info.domain_attr->mr_key_size);
    section.add("memory regions", info.domain_attr->mr_cnt);
    section.add("remote data with a message, bytes", info.domain_attr->cq_data_size);
    section.add("threading", named(&info.domain_attr->threading, FI_TYPE_THREADING));
    section.add("progress", named(&info.domain_attr->data_progress, FI_TYPE_PROGRESS));
    return section;
}

/// What each can do for an application that keeps all rules of registration: without them NICs, and
/// remote memory in connections, are not offered.
constexpr const char* kAnyDevice =
    "addr_format=FI_ADDR_STR,domain_attr->mr_mode="
    "FI_MR_LOCAL|FI_MR_VIRT_ADDR|FI_MR_ALLOCATED|FI_MR_PROV_KEY";

std::vector<Section> devices() {
    std::string error;
    const Info hints = parse_hints(kAnyDevice, error);
    fi_info* found = nullptr;
    std::vector<Section> sections;
    if (fi_getinfo(FI_VERSION(1, 17), nullptr, nullptr, 0, hints.get(), &found) == 0) {
        for (const fi_info* info = found; info != nullptr; info = info->next) {
            sections.push_back(device_section(*info));
        }
        fi_freeinfo(found);
    }
    return sections;
}

/// The interfaces whose names domains may have, with the address that endpoints get there.
std::vector<Section> interfaces() {
    const std::unique_ptr<struct if_nameindex, decltype(&if_freenameindex)> all(if_nameindex(),
                                                                                &if_freenameindex);
    Section section;
    section.title = "interfaces";
    for (const auto* one = all.get(); one != nullptr && one->if_name != nullptr; ++one) {
        std::string error;
        const Info hints = parse_hints(kAnyDevice, error);
        hints->domain_attr->name = strdup(one->if_name);
        hints->ep_attr->type = FI_EP_RDM;
        fi_info* found = nullptr;
        if (fi_getinfo(FI_VERSION(1, 17), nullptr, nullptr, 0, hints.get(), &found) == 0) {
            section.add(one->if_name, static_cast<const char*>(found->src_addr));
            fi_freeinfo(found);
        }
    }
    return section.values.empty() ? std::vector<Section>() : std::vector<Section>{section};
}

std::string line_of(const std::filesystem::path& path) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return line;
}

/// A port of a NIC under the name that stays, if domains may have that.
void add_port(Section& section, const std::filesystem::path& device, const std::string& port) {
    std::string error;
    const Info hints = parse_hints(kAnyDevice, error);
    const std::string name = line_of(device / "node_guid") + "/" + port;
    hints->domain_attr->name = strdup(name.c_str());
    fi_info* found = nullptr;
    if (fi_getinfo(FI_VERSION(1, 17), nullptr, nullptr, 0, hints.get(), &found) == 0) {
        section.add(name, device.filename().string() + ", port " + port + ", " +
                              static_cast<const char*>(found->src_addr));
        fi_freeinfo(found);
    }
}

/// NICs by the names that stay when their devices are called otherwise.
std::vector<Section> nics() {
    Section section;
    section.title = "names of NICs that stay";
    std::error_code none;
    for (const auto& device : std::filesystem::directory_iterator("/sys/class/infiniband", none)) {
        const auto ports = std::filesystem::directory_iterator(device.path() / "ports", none);
        for (const auto& port : ports) {
            add_port(section, device.path(), port.path().filename().string());
        }
    }
    return section.values.empty() ? std::vector<Section>() : std::vector<Section>{section};
}

std::vector<Section> parameters() {
    fi_param* params = nullptr;
    int count = 0;
    Section section;
    section.title = "parameters";
    if (fi_getparams(&params, &count) == 0) {
        for (int i = 0; i < count; ++i) {
            if (std::strncmp(params[i].name, "FI_RVT_", 7) == 0) {
                const char* value = params[i].value != nullptr ? params[i].value : "not set";
                section.add(params[i].name, std::string(value) + "; " + params[i].help_string);
            }
        }
        fi_freeparams(params);
    }
    return {section};
}

/// What the provider has refused since it was asked last.
std::vector<Section> refusals() {
    std::vector<Section> sections;
    for (const Refused& refused : take_refusals()) {
        Section section;
        section.title = refused.device + " refuses";
        add_reason(section, refused);
        sections.push_back(section);
    }
    return sections;
}

/// For when nothing was offered and nothing refused. Returns: whether that explains it.
bool explains_silence() {
    const char* const wanted = std::getenv("FI_PROVIDER");
    if (wanted != nullptr) {
        std::fprintf(stderr,
                     "rvt_info: libfabric does not ask the provider, as FI_PROVIDER=%s tells it; "
                     "set it to rvt, or not at all\n",
                     wanted);
    }
    return wanted != nullptr;
}

/// Answers --why. Returns: the exit status.
int why(const std::string& text, std::vector<Section>& sections) {
    std::string error;
    const Info hints = parse_hints(text, error);
    if (!hints) {
        std::fprintf(stderr, "rvt_info: %s\n", error.c_str());
        return 2;
    }
    take_refusals();
    fi_info* found = nullptr;
    const int result = fi_getinfo(FI_VERSION(1, 17), nullptr, nullptr, 0, hints.get(), &found);
    sections = refusals();
    for (const fi_info* info = found; info != nullptr; info = info->next) {
        Section section;
        section.title =
            device_of(*info) + " " + named(&info->ep_attr->type, FI_TYPE_EP_TYPE) + " accepts";
        section.add("capabilities", named(&info->caps, FI_TYPE_CAPS));
        section.add("mr_mode demanded", named(&info->domain_attr->mr_mode, FI_TYPE_MR_MODE));
        sections.push_back(section);
    }
    fi_freeinfo(found);
    if (sections.empty()) {
        if (!explains_silence()) {
            std::fprintf(stderr, "rvt_info: the provider says no more than: %s\n",
                         fi_strerror(-result));
        }
        return 1;
    }
    return 0;
}

/// Says so where libfabric does not have the provider.
bool is_missing(const std::vector<Section>& all_parameters) {
    if (!all_parameters.front().values.empty()) {
        return false;
    }
    std::fprintf(
        stderr,
        "rvt_info: libfabric does not find the provider; set FI_PROVIDER_PATH to the "
        "folder of librvt-fi.so%s\n",
        std::getenv("FI_PROVIDER") != nullptr ? ", and FI_PROVIDER to rvt or not at all" : "");
    return true;
}

/// Returns: -1 to go on, else the exit status.
int parse_options(int argc, char** argv, Options& options) {
    const option long_options[] = {
        {"json", no_argument, nullptr, 'j'},       {"why", required_argument, nullptr, 'w'},
        {"peer", required_argument, nullptr, 'p'}, {"hints", no_argument, nullptr, 'n'},
        {"help", no_argument, nullptr, 'h'},       {nullptr, 0, nullptr, 0},
    };
    for (int choice = 0;
         (choice = getopt_long(argc, argv, "jw:p:h", long_options, nullptr)) != -1;) {
        switch (choice) {
            case 'j': options.is_json = true; break;
            case 'w':
                options.has_why = true;
                options.why = optarg;
                break;
            case 'p': options.peers.emplace_back(optarg); break;
            case 'n': std::printf("%s", hint_names().c_str()); return 0;
            case 'h': std::printf("%s", kUsage); return 0;
            default: std::fprintf(stderr, "%s", kUsage); return 2;
        }
    }
    if (optind != argc) {
        std::fprintf(stderr, "%s", kUsage);
        return 2;
    }
    return -1;
}

int run(const Options& options) {
    Report report;
    std::vector<Section> all_parameters = parameters();
    if (is_missing(all_parameters)) {
        return 1;
    }
    if (options.has_why) {
        std::vector<Section> sections;
        if (const int status = why(options.why, sections); status != 0) {
            return status;
        }
        report.parts.emplace_back("why", std::move(sections));
    }
    if (!options.peers.empty()) {
        if (devices().empty() && refusals().empty() && explains_silence()) {
            return 1;
        }
        std::vector<Section> sections;
        for (const std::string& peer : options.peers) {
            sections.push_back(describe_peer(peer));
        }
        report.parts.emplace_back("peers", std::move(sections));
    }
    if (report.parts.empty()) {
        report.parts.emplace_back("devices", devices());
        if (report.parts.front().second.empty()) {
            report.parts.emplace_back("why", refusals());
            if (report.parts.back().second.empty() && explains_silence()) {
                return 1;
            }
        }
        report.parts.emplace_back("interfaces", interfaces());
        report.parts.emplace_back("nics", nics());
        report.parts.emplace_back("parameters", std::move(all_parameters));
    }
    options.is_json ? print_json(report) : print_text(report);
    return 0;
}

}  // namespace
}  // namespace rvt::info

int main(int argc, char** argv) {
    rvt::info::Options options;
    const int status = rvt::info::parse_options(argc, argv, options);
    if (status >= 0) {
        return status;
    }
    const std::string deaf = rvt::info::catch_log_lines();
    if (options.has_why && !deaf.empty()) {
        std::fprintf(stderr, "rvt_info: cannot read libfabric's log: %s\n", deaf.c_str());
        return 1;
    }
    return rvt::info::run(options);
}
