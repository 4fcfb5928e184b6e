// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The one way of reporting failure between backends, core and clients of the core: a Status, or a
// Result that holds a value or a Status.
#pragma once

#include <cerrno>
#include <optional>
#include <utility>

namespace rvt {

/// Outcome of an operation: 0, or a positive errno that says why it failed.
///
/// Fits in a register; never ignored silently.
class [[nodiscard]] Status {
  public:
    constexpr Status() noexcept = default;
    // An errno literal is a failure: `return ENOMEM;` reads as it means.
    constexpr Status(int error) noexcept : error_(error) {}  // NOLINT(google-explicit-constructor)

    [[nodiscard]] constexpr bool is_ok() const noexcept { return error_ == 0; }
    [[nodiscard]] constexpr int error() const noexcept { return error_; }
    friend constexpr bool operator==(Status, Status) noexcept = default;

  private:
    int error_ = 0;
};

inline constexpr Status kOk{};

/// A value, or the Status that explains why there is none.
template <class T>
class [[nodiscard]] Result {
  public:
    Result(T value) noexcept : value_(std::move(value)) {}  // NOLINT(google-explicit-constructor)
    Result(Status why) noexcept : status_(why) {}           // NOLINT(google-explicit-constructor)
    Result(int error) noexcept : status_(error) {}          // NOLINT(google-explicit-constructor)

    [[nodiscard]] bool is_ok() const noexcept { return value_.has_value(); }
    [[nodiscard]] Status status() const noexcept { return status_; }
    [[nodiscard]] int error() const noexcept { return status_.error(); }
    /// Precondition: is_ok().
    [[nodiscard]] T& value() noexcept { return *value_; }
    [[nodiscard]] const T& value() const noexcept { return *value_; }
    /// Moves the value out. Precondition: is_ok().
    [[nodiscard]] T take() noexcept { return std::move(*value_); }

  private:
    std::optional<T> value_;
    Status status_;
};

}  // namespace rvt
