// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Reads the parameters of packet devices.
#include "roce_tuning.h"

#include <string_view>

#include "util/fork_guard.h"
#include "util/lock.h"
#include "util/log.h"
#include "util/mutex.h"
#include "util/params.h"

namespace rvt {
namespace {

/// A forked child opens one of its own: it does not write its parent's.
class ProcessCapture {
  public:
    ProcessCapture() = default;
    /// Devices that an application leaves open keep the capture; what they have given it is
    /// written.
    ~ProcessCapture() {
        if (writer_ != nullptr) {
            writer_->flush();
        }
    }
    ProcessCapture(const ProcessCapture&) = delete;
    ProcessCapture& operator=(const ProcessCapture&) = delete;

    std::shared_ptr<protocol::PcapWriter> get(std::string_view file) {
        const util::Guard guard(lock_);
        if (!is_opened_ || generation_ != util::fork_generation()) {
            auto opened = protocol::PcapWriter::open(file);
            writer_ = opened.is_ok() ? opened.take() : nullptr;
            generation_ = util::fork_generation();
            is_opened_ = true;
        }
        return writer_;
    }

  private:
    util::Mutex lock_;  // order: before the capture's
    bool is_opened_ RVT_GUARDED_BY(lock_) = false;
    unsigned generation_ RVT_GUARDED_BY(lock_) = 0;
    std::shared_ptr<protocol::PcapWriter> writer_ RVT_GUARDED_BY(lock_);
};

protocol::FaultPlan read_faults() noexcept {
    const std::string_view text = util::param_text(util::ParamId::kFault);
    const auto plan = protocol::parse_faults(text);
    if (!plan.is_ok()) {
        const std::string_view unknown = protocol::unknown_fault(text);
        const std::string_view shown = unknown.empty() ? text : unknown;
        RVT_WARN(kCore,
                 "parameter fault: cannot read \"%.*s\"%s; parts are drop, duplicate, reorder, "
                 "corrupt, delay=PERCENT%%, delay=PERCENT%%:TIMEus, seed=NUMBER; no faults happen",
                 static_cast<int>(shown.size()), shown.data(),
                 unknown.empty() ? ": a part is empty" : "");
        return {};
    }
    return plan.value();
}

}  // namespace

protocol::FaultPlan packet_faults() noexcept {
    static const protocol::FaultPlan kPlan = read_faults();
    return kPlan;
}

std::shared_ptr<protocol::PcapWriter> packet_capture() noexcept {
    static ProcessCapture capture;
    const std::string_view file = util::param_text(util::ParamId::kPcap);
    return file.empty() ? nullptr : capture.get(file);
}

}  // namespace rvt
