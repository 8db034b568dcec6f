// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Whether two declarations of a C function mean the same calls: our headers name handles and enums
// by types of their own.
#pragma once

#include <type_traits>

namespace same {

template <typename T>
concept Complete = requires { sizeof(T); };

template <typename A, typename B>
struct Type;

template <typename A, typename B>
inline constexpr bool type = Type<std::remove_cv_t<A>, std::remove_cv_t<B>>::value;

template <typename A, typename B>
constexpr bool compare() {
  if constexpr (std::is_void_v<A> || std::is_void_v<B>) {
    return std::is_same_v<A, B>;
  } else if constexpr (std::is_pointer_v<A> && std::is_pointer_v<B>) {
    using To = std::remove_pointer_t<A>;
    using From = std::remove_pointer_t<B>;
    // Handles are pointers to what nobody sees.
    if constexpr (Complete<To> && Complete<From>) return type<To, From>;
    else return true;
  } else if constexpr (std::is_integral_v<A> && std::is_integral_v<B>) {
    return sizeof(A) == sizeof(B) && std::is_signed_v<A> == std::is_signed_v<B>;
  } else if constexpr ((std::is_integral_v<A> || std::is_enum_v<A>) &&
                       (std::is_integral_v<B> || std::is_enum_v<B>)) {
    return sizeof(A) == sizeof(B);
  } else if constexpr (std::is_class_v<A> && std::is_class_v<B>) {
    return sizeof(A) == sizeof(B) && alignof(A) == alignof(B);
  } else {
    return false;
  }
}

template <typename A, typename B>
struct Type : std::bool_constant<compare<A, B>()> {};

template <typename R, typename... A, typename S, typename... B>
  requires(sizeof...(A) == sizeof...(B))
struct Type<R(A...), S(B...)> : std::bool_constant<type<R, S> && (type<A, B> && ...)> {};

template <typename R, typename... A, typename S, typename... B>
  requires(sizeof...(A) != sizeof...(B))
struct Type<R(A...), S(B...)> : std::false_type {};

}  // namespace same
