// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A library of a device, loaded when it is first needed and kept: threads of it may outlive us.
#pragma once

#include "util/status.h"

namespace rvt::hmem {

class DeviceLibrary {
  public:
    /// Returns: ENOSYS without such a library, said at log level info. `name` and `user` stay.
    util::Status open(const char* name, const char* user) noexcept;

    /// Looks a function up. Returns: false when there is none of the name, said likewise.
    template <class Function>
    bool find(const char* name, Function*& function) const noexcept {
        function = reinterpret_cast<Function*>(look_up(name));
        return function != nullptr;
    }
    /// The same for one that newer libraries have.
    template <class Function>
    void find_newer(const char* name, Function*& function) const noexcept {
        function = reinterpret_cast<Function*>(look_up_newer(name));
    }

  private:
    void* look_up(const char* name) const noexcept;
    void* look_up_newer(const char* name) const noexcept;

    void* handle_ = nullptr;
    const char* name_ = "";
    const char* user_ = "";
};

}  // namespace rvt::hmem
