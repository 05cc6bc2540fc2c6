// `lanes_avx512.h` without BF16: pairs of bfloat16 are multiplied as the float32 that they are.

#pragma once

namespace lmnb {

using Pairs = EvenOdd;
using Both = EvenOdd;
// What products take their inputs as, and how many rows and blocks of 16 outputs they have at once.
using Input = float;
constexpr int kTileRows = 8, kTileBlocks = 2;
// Blocks of 16 keys or dimensions that attention has at once.
constexpr int kAttendBlocks = 4;

// The upper halves of float32 after a rounding to the nearest, of two alike to the even one; NaN stays NaN.
inline __m256i narrowed(Floats value) {
    const __m512i bits = _mm512_castps_si512(value), odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), all(1));
    const __m512i near = _mm512_add_epi32(bits, _mm512_add_epi32(odd, all(0x7FFF)));
    const __m512i kept = _mm512_mask_or_epi32(near, is_nan(value), bits, all(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(kept, 16));
}

// Inputs 2 i and 2 i + 1 of a row, in all lanes.
inline Both pair(const float* at) { return {all(at[0]), all(at[1])}; }

inline Pairs load_pairs(const int32_t* at) {  // aligned
    const __m512i both = _mm512_load_si512(at);
    return {_mm512_castsi512_ps(_mm512_slli_epi32(both, 16)),
            _mm512_castsi512_ps(_mm512_and_si512(both, all(static_cast<int32_t>(0xFFFF0000))))};
}
inline Floats dot(Floats sum, Both a, Pairs b) {  // sum + a0 b0 + a1 b1
    return fma(a.odd, b.odd, fma(a.even, b.even, sum));
}

struct Packed4 {
    __m512i chunk;
    explicit Packed4(const uint8_t* at) : chunk(_mm512_loadu_si512(at)) {}
    Pairs integers(int step) const { return wide_integers4(chunk, step); }
};
inline Pairs integers8(const uint8_t* at) { return wide_integers8(at); }

}  // namespace lmnb
