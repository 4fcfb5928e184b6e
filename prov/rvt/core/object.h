// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// What all verbs objects share: a place for the backend's private data, and a count of the objects
// that need this one, so that it is not destroyed under them.
#pragma once

#include <atomic>
#include <cstdint>

#include "rvt/status.h"

namespace rvt::core {

class Object {
  public:
    Object(const Object&) = delete;
    Object& operator=(const Object&) = delete;

    /// The backend's own; opaque to the core. Set by the entry that creates the object.
    [[nodiscard]] void* priv() const noexcept { return priv_; }
    void set_priv(void* priv) noexcept { priv_ = priv; }

    /// kOk when nothing needs this object any more, else EBUSY.
    [[nodiscard]] Status is_unused() const noexcept {
        // acquire: pairs with the release in ~Use: what the last user did is over.
        return users_.load(std::memory_order_acquire) == 0 ? kOk : Status(EBUSY);
    }

  protected:
    Object() = default;
    ~Object() = default;

  private:
    friend class Use;
    std::atomic<std::uint32_t> users_{0};
    void* priv_ = nullptr;
};

/// Keeps an object from being destroyed for as long as it lives.
class Use {
  public:
    Use() = default;
    explicit Use(Object& object) noexcept : object_(&object) {
        // relaxed: the caller holds the object by other means at this moment.
        object_->users_.fetch_add(1, std::memory_order_relaxed);
    }
    Use(Use&& other) noexcept : object_(other.object_) { other.object_ = nullptr; }
    Use& operator=(Use&& other) noexcept {
        if (this != &other) {
            release();
            object_ = other.object_;
            other.object_ = nullptr;
        }
        return *this;
    }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    ~Use() { release(); }

    void release() noexcept {
        if (object_ != nullptr) {
            // release: pairs with the acquire in is_unused().
            object_->users_.fetch_sub(1, std::memory_order_release);
            object_ = nullptr;
        }
    }

  private:
    Object* object_ = nullptr;
};

}  // namespace rvt::core
