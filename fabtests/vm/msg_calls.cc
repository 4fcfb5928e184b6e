// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// One end of the calls of calls.h, on FI_EP_MSG of rvt.
//
//   msg_calls DIR active|passive OWN-IP PEER-IP [computes|peer-computes]
#include <memory>
#include <vector>

#include "msg_end.h"

int main(int argc, char** argv) {
    const traffic::Options options = traffic::read_options(argc, argv);
    std::vector<std::byte> memory(calls::kMemoryBytes);
    const std::unique_ptr<calls::End> end = calls::make_msg_end(options, memory);
    return calls::run(*end, memory, options);
}
