// What the kernels for a CPU share: the lanes that they are written in, and the threads that work on a call together.

#pragma once

#include <linux/futex.h>
#include <omp.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <vector>

#include "lanes.h"

namespace lmnb {

// Rows below which another thread would cost more than it saves.
constexpr int64_t kRowsForThreads = 16;

// Where the threads of a team wait for each other: within a fraction of a microsecond while each has a processor, and
// asleep where one has to wait for a processor itself. (OpenMP's own barrier sends them to sleep at once as soon as the
// process has more threads than there are processors.)
class Barrier {
   public:
    void wait(int size) {
        const int now = phase_.load(std::memory_order_relaxed);
        if (arrived_.fetch_add(1) == size - 1) {
            arrived_.store(0, std::memory_order_relaxed);
            phase_.store(now + 1);
            if (sleepers_.load()) syscall(SYS_futex, &phase_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
            return;
        }
        for (int turn = 0; turn < kTurns; turn++) {
            if (phase_.load(std::memory_order_acquire) != now) return;
            _mm_pause();
        }
        sleepers_.fetch_add(1);
        while (phase_.load() == now) syscall(SYS_futex, &phase_, FUTEX_WAIT_PRIVATE, now, nullptr, nullptr, 0);
        sleepers_.fetch_sub(1);
    }

   private:
    static constexpr int kTurns = 2000;  // some tens of microseconds
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<int> phase_{0}, sleepers_{0};
};

// One thread of those that work on a call together.
struct Team {
    Barrier* barrier;
    int64_t index, size;

    void meet() const {
        if (size > 1) barrier->wait(static_cast<int>(size));
    }
    int64_t first(int64_t count) const { return count * index / size; }  // of `count` things, those before this thread's
    int64_t last(int64_t count) const { return count * (index + 1) / size; }
};

// How its thread computes while it lives. A program may have set that otherwise for one of its threads, and a result must
// not depend on who computes it.
class FloatMode {
   public:
    static constexpr unsigned kUsual = 0x1F80;  // to the nearest; numbers below the smallest normal one are numbers
    static constexpr unsigned kNoTiny = kUsual | _MM_FLUSH_ZERO_ON | _MM_DENORMALS_ZERO_ON;  // those are zero

    explicit FloatMode(unsigned mode = kUsual) { _mm_setcsr(mode); }
    ~FloatMode() { _mm_setcsr(before_); }

   private:
    const unsigned before_ = _mm_getcsr();
};

// `work(team)` in every thread.
template <class Work>
void in_team(const Work& work) {
    Barrier barrier;
#pragma omp parallel
    {
        const FloatMode usual;
        work(Team{&barrier, omp_get_thread_num(), omp_get_num_threads()});
    }
}

// `work(row)` for each of `count` rows, by one thread or by all.
template <class Work>
void each_row(int64_t count, bool by_all, const Work& work) {
#pragma omp parallel if (by_all)
    {
        const FloatMode usual;
#pragma omp for schedule(static)
        for (int64_t row = 0; row < count; row++) work(row);
    }
}

}  // namespace lmnb
