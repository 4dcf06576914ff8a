// How threads share work on a CPU.

#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#include <sched.h>

namespace {

// Units of work, of which each thread has a part of its own. Done with that, it takes what is left
// of the others' parts. So it seldom meets a counter that another thread has written, which takes
// as long as a short unit.
class Shares {
 public:
  // counters: how many units are taken of each thread's part, 0 at first. They lie `apart` numbers
  // from each other, in different cache lines. threads: how many may come; it does not matter how
  // many do. thread: the number of this one.
  Shares(int64_t* counters, int64_t apart, int64_t threads, int64_t thread, int64_t units)
      : units(units),
        counters(counters),
        apart(apart),
        threads(threads),
        owner(thread),
        left(threads) {}

  // A unit that nobody has taken yet, or `units` where there is none.
  int64_t take() {
    for (; left > 0; --left) {
      const int64_t begin = units * owner / threads, end = units * (owner + 1) / threads;
      int64_t& taken = counters[owner * apart];
      // looking costs many threads less than adding where nothing is left
      if (begin + __atomic_load_n(&taken, __ATOMIC_RELAXED) < end) {
        const int64_t unit = begin + __atomic_fetch_add(&taken, 1, __ATOMIC_RELAXED);
        if (unit < end) return unit;
      }
      owner = owner + 1 < threads ? owner + 1 : 0;
    }
    return units;
  }

  const int64_t units;

 private:
  int64_t* const counters;
  const int64_t apart, threads;
  int64_t owner;  // of the part that units are taken from
  int64_t left;   // how many parts may still have units
};

// Say that some units are done, and wait until `all` are, by whichever threads.
void wait_for(int64_t& done, int64_t some, int64_t all) {
  constexpr int64_t PATIENCE = 2000;  // looks, some 50 us, before others may use the core
  if (some) __atomic_fetch_add(&done, some, __ATOMIC_SEQ_CST);
  for (int64_t looks = 0; __atomic_load_n(&done, __ATOMIC_SEQ_CST) < all; ++looks) {
    if (looks > PATIENCE) sched_yield();
#if defined(__x86_64__)
    else _mm_pause();
#endif
  }
}

}  // namespace
