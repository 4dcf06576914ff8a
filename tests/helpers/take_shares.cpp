// What `tests/ttc/test_shares.py` calls: rounds of work that threads share as the kernels do.

#include "../../ttc/shares.h"

struct Work {
  int64_t thread, done, threads, units, rounds, apart;
  int64_t* counters;  // (threads, apart)
  int64_t* taken;     // (rounds, units): how often each unit was taken
  int64_t* early;     // how many units were taken before all of the round before were done
};

extern "C" void take_shares(Work* shared) {
  const int64_t thread = __atomic_fetch_add(&shared->thread, 1, __ATOMIC_SEQ_CST);
  const Work work = *shared;
  for (int64_t round = 0; round < work.rounds; ++round) {
    Shares shares(work.counters + round, work.apart, work.threads, thread, work.units);
    int64_t done = 0;
    for (int64_t unit; (unit = shares.take()) < work.units; ++done) {
      __atomic_fetch_add(work.taken + round * work.units + unit, 1, __ATOMIC_SEQ_CST);
      if (__atomic_load_n(&shared->done, __ATOMIC_SEQ_CST) < round * work.units)
        __atomic_fetch_add(work.early, 1, __ATOMIC_SEQ_CST);
    }
    wait_for(shared->done, done, (round + 1) * work.units);
  }
}
