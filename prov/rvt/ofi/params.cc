// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Declares the parameters to libfabric and reads their values.
#include "ofi/params.h"

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>
#include <rdma/providers/fi_prov.h>

#include "util/params.h"

namespace rvt::ofi {
namespace {

using util::Param;
using util::ParamType;

void define_number(const fi_provider* provider, const Param& param) noexcept {
    // As text: libfabric would take the 60 of "60s", and a number that begins with 0 for octal.
    fi_param_define(provider, param.name, FI_PARAM_STRING, "%s (%s%s%lld to %lld, default: %lld)",
                    param.help, param.unit, *param.unit != '\0' ? ", " : "",
                    static_cast<long long>(param.min), static_cast<long long>(param.max),
                    static_cast<long long>(param.default_number));
}

void define_bool(const fi_provider* provider, const Param& param) noexcept {
    // As text: libfabric would say neither what is possible in place of "maybe" nor what is used.
    fi_param_define(provider, param.name, FI_PARAM_STRING, "%s (yes or no, default: %s)",
                    param.help, param.default_number != 0 ? "yes" : "no");
}

void define(const fi_provider* provider, const Param& param) noexcept {
    switch (param.type) {
        case ParamType::kBool: define_bool(provider, param); break;
        case ParamType::kNumber: define_number(provider, param); break;
        case ParamType::kText:
            fi_param_define(provider, param.name, FI_PARAM_STRING, "%s", param.help);
            break;
    }
}

void read_bool(fi_provider* provider, const Param& param) noexcept {
    char* given = nullptr;
    if (fi_param_get_str(provider, param.name, &given) == 0) {
        util::parse_param_bool(param.id, given);
    }
}

void read_number(fi_provider* provider, const Param& param) noexcept {
    char* given = nullptr;
    if (fi_param_get_str(provider, param.name, &given) == 0) {
        util::parse_param_number(param.id, given);
    }
}

void read_text(fi_provider* provider, const Param& param) noexcept {
    char* given = nullptr;
    if (fi_param_get_str(provider, param.name, &given) == 0) {
        util::set_param_text(param.id, given);
    }
}

void read(fi_provider* provider, const Param& param) noexcept {
    switch (param.type) {
        case ParamType::kBool: read_bool(provider, param); break;
        case ParamType::kNumber: read_number(provider, param); break;
        case ParamType::kText: read_text(provider, param); break;
    }
}

}  // namespace

void define_params(fi_provider* provider) noexcept {
    for (const Param& param : util::all_params()) {
        define(provider, param);
        read(provider, param);
    }
}

}  // namespace rvt::ofi
