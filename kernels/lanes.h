// Sixteen lanes of float32, and bfloat16 in and out of them: what every kernel for a CPU is written in.
//
// `Floats` are 16 numbers, `Ints` 16 whole ones, `Lanes` a bit for each (lane 0 the lowest). `Pairs` are 16 pairs of
// bfloat16, the two of a lane to be multiplied with the two of another's lane; `Both` is one pair for all lanes. How
// they lie in registers is up to the instruction set; what they give is not, but for the last bits of sums.

#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace lmnb {

using bf16 = uint16_t;

constexpr float kLog2E = 1.44269504f;
// ln(2)^k / k! for k from 6 down: 2^x in [-0.5, 0.5] to float32's last bits.
constexpr float kExp2[] = {1.5403530e-4f, 1.3333558e-3f, 9.6181291e-3f, 5.5504109e-2f,
                           2.4022651e-1f, 6.9314718e-1f, 1.0f};

}  // namespace lmnb

#if defined(__AVX512BW__) && defined(__AVX512VL__)
#include "lanes_avx512.h"
#ifdef __AVX512BF16__
#include "lanes_avx512_bf16.h"
#else
#include "lanes_avx512_fma.h"
#endif
#else
#include "lanes_avx2.h"
#endif

namespace lmnb {

inline Lanes first_lanes(int64_t count) { return static_cast<Lanes>(count >= 16 ? 0xFFFF : (1u << count) - 1); }

// Whether what products take must be made of bfloat16, or is that itself.
constexpr bool kMakesInputs = sizeof(Input) > sizeof(bf16);
// `count` numbers as products take them: these themselves, or float32 in `room`.
inline const bf16* as_inputs(const bf16* from, int64_t, bf16*) { return from; }
inline const float* as_inputs(const bf16* from, int64_t count, float* room) {
    for (int64_t i = 0; i < count; i += 16) store(room + i, load(from + i, first_lanes(count - i)), first_lanes(count - i));
    return room;
}
// `value` as it is after having been an input.
inline Floats as_input(Floats value) { return kMakesInputs ? value : rounded(value); }

}  // namespace lmnb
