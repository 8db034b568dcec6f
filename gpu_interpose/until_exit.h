// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Functions of other libraries as the reader's thread calls them: until the process ends. Its exit
// waits for the thread, but not for long; what a library answers behind its own destructors, nobody
// knows. From then on each call fails here.
#pragma once

#include <atomic>
#include <type_traits>

namespace sigma::gpu {

inline std::atomic<bool> process_ends{false};

// The real functions, of a struct of function pointers.
template <typename Calls>
inline Calls until_exit_calls{};

template <auto Member, typename F>
struct UntilExit;

template <auto Member, typename Calls, typename R, typename... A>
struct UntilExit<Member, R (*Calls::*)(A...)> {
  static R call(A... arguments) {
    if (!process_ends.load(std::memory_order_acquire))
      return (until_exit_calls<Calls>.*Member)(arguments...);
    if constexpr (std::is_pointer_v<R>)
      return nullptr;
    else
      return R{kRefused};
  }
  static constexpr int kRefused = 3;  // CUDA: not initialised; gdrcopy: not 0
};

// The same function, until the process ends.
template <auto Member, typename Calls>
void bound_until_exit(Calls& calls) {
  until_exit_calls<Calls>.*Member = calls.*Member;
  calls.*Member = UntilExit<Member, decltype(Member)>::call;
}

}  // namespace sigma::gpu
