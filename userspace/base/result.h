// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Result<T>: a value, or an Error that says what failed and what to do about it.
//
//   Result<Fd> open_ring();
//   SIGMA_ASSIGN(Fd ring, open_ring());      // returns the error to the caller
//   SIGMA_CHECK(pin(ring));                  // the same for Result<void>
//
// Messages are for people: `what` names the thing and the cause, `hint` a command or an option that
// mends it (may be empty). C++23 has std::expected; this is the part of it that we need.
#pragma once

#include <string>
#include <utility>
#include <variant>

namespace sigma {

struct Error {
  std::string what;
  std::string hint = {};
};

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}  // NOLINT(google-explicit-constructor)
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT(google-explicit-constructor)

  explicit operator bool() const { return state_.index() == 0; }
  bool ok() const { return state_.index() == 0; }

  T& operator*() & { return std::get<0>(state_); }
  const T& operator*() const& { return std::get<0>(state_); }
  T&& operator*() && { return std::get<0>(std::move(state_)); }
  T* operator->() { return &std::get<0>(state_); }
  const T* operator->() const { return &std::get<0>(state_); }

  const Error& error() const& { return std::get<1>(state_); }
  Error&& error() && { return std::get<1>(std::move(state_)); }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)), failed_(true) {}  // NOLINT(google-explicit-constructor)

  explicit operator bool() const { return !failed_; }
  bool ok() const { return !failed_; }
  const Error& error() const& { return error_; }
  Error&& error() && { return std::move(error_); }

 private:
  Error error_;
  bool failed_ = false;
};

using Status = Result<void>;

// strerror(errno) as a std::string, thread-safe.
std::string errno_text(int errnum);

}  // namespace sigma

#define SIGMA_CHECK(expression)                                       \
  do {                                                                \
    if (auto sigma_status_ = (expression); !sigma_status_.ok())       \
      return std::move(sigma_status_).error();                        \
  } while (0)

#define SIGMA_CONCAT_(a, b) a##b
#define SIGMA_CONCAT(a, b) SIGMA_CONCAT_(a, b)
#define SIGMA_ASSIGN(declaration, expression)                                            \
  auto SIGMA_CONCAT(sigma_result_, __LINE__) = (expression);                             \
  if (!SIGMA_CONCAT(sigma_result_, __LINE__).ok())                                       \
    return std::move(SIGMA_CONCAT(sigma_result_, __LINE__)).error();                     \
  declaration = *std::move(SIGMA_CONCAT(sigma_result_, __LINE__))
