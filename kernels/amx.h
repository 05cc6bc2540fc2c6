// The matrix unit of Intel's processors since Sapphire Rapids: eight tiles of 16 rows of 64 bytes, and products of them.
//
// `LMNB_HAS_AMX` says whether this is compiled for one, which takes g++ 11. A program may give the same functions in its own
// header, `LMNB_AMX`: the tests do, for processors that have no such unit.

#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

#if defined(LMNB_AMX)
#define LMNB_HAS_AMX
#include LMNB_AMX
#elif defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__AVX512BW__) && \
    defined(__AVX512VL__)
#define LMNB_HAS_AMX

namespace lmnb::amx {

// Whether Linux lets this process use the unit: asked once, for all threads.
inline bool permitted() {
    constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    static const bool may = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
    return may;
}

// Give each of this thread's tiles so many rows, and zeros. They are the thread's until `release`.
inline void configure(const uint8_t (&rows)[8]) {
    struct alignas(64) {
        uint8_t palette = 1, start_row = 0, reserved[14] = {};
        uint16_t row_bytes[16] = {};
        uint8_t rows[16] = {};
    } config;
    for (int tile = 0; tile < 8; tile++) {
        config.rows[tile] = rows[tile];
        config.row_bytes[tile] = rows[tile] ? 64 : 0;
    }
    asm volatile("ldtilecfg %0" ::"m"(config) : "memory");
}
inline void release() { asm volatile("tilerelease"); }

// Not the compiler's own functions: those name tiles by macros, and do not say that a load reads memory.
template <int Tile>
inline void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(Tile));
}
template <int Tile>
inline void load(const void* at, int64_t row_bytes) {
    asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(Tile), "r"(at), "r"(row_bytes) : "memory");
}
template <int Tile>
inline void store(void* at, int64_t row_bytes) {
    asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(Tile), "r"(at), "r"(row_bytes) : "memory");
}
// Sum[m][n] += the sum over k of a[m][k] b[k][n], k < 32: bfloat16 in, float32 out. `b` lies in pairs: row k / 2 has
// at 2 n + k % 2 its number n. The even k and the odd ones are summed one after the other, each for themselves.
template <int Sum, int A, int B>
inline void multiply() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(Sum), "i"(A), "i"(B));
}

}  // namespace lmnb::amx
#endif

namespace lmnb::amx {

enum State : int64_t { kNotCompiled, kNotPermitted, kLeft, kUsed };

inline std::atomic<bool> left{false};  // for what it has given

inline State state() {
#ifdef LMNB_HAS_AMX
    return left.load(std::memory_order_relaxed) ? kLeft : permitted() ? kUsed : kNotPermitted;
#else
    return kNotCompiled;
#endif
}
inline bool used() { return state() == kUsed; }

}  // namespace lmnb::amx
