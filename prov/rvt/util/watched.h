// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A handler that is made, called and destroyed on the control thread, for owners on any thread.
#pragma once

#include <memory>
#include <utility>

#include "util/control_thread.h"
#include "util/status.h"

namespace rvt::util {

/// @tparam Watch  A handler with start(); its constructor takes the thread and the subject.
template <class Watch>
class Watched {
  public:
    template <class Subject>
    Status start(Subject&& subject) {
        auto thread = ControlThread::acquire();
        if (!thread.is_ok()) {
            return thread.status();
        }
        thread_ = thread.take();
        watch_ = std::make_unique<Watch>(*thread_, std::forward<Subject>(subject));
        Status started = kOk;
        thread_->run([&] { started = watch_->start(); });
        return started;
    }
    Watched() = default;
    ~Watched() {
        if (watch_ != nullptr) {
            thread_->run([this] { watch_.reset(); });
            static_cast<void>(watch_.release());  // of a process that is gone
        }
    }
    Watched(const Watched&) = delete;
    Watched& operator=(const Watched&) = delete;

  private:
    std::shared_ptr<ControlThread> thread_;
    std::unique_ptr<Watch> watch_;
};

}  // namespace rvt::util
