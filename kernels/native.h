// What the kernels for a CPU share: bfloat16 in and out of float32, 16 lanes at a time.

#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace lmnb {

using bf16 = uint16_t;

inline __mmask16 first_lanes(int64_t count) {
    return static_cast<__mmask16>(count >= 16 ? 0xFFFF : (1u << count) - 1);
}

inline float wide(bf16 value) {
    const uint32_t bits = static_cast<uint32_t>(value) << 16;
    float out;
    __builtin_memcpy(&out, &bits, 4);
    return out;
}

inline __m512 load(const bf16* at, __mmask16 lanes = 0xFFFF) {
    const __m512i bits = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, at));
    return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
}

inline void store(bf16* at, __m512 value, __mmask16 lanes = 0xFFFF) {
    _mm256_mask_storeu_epi16(at, lanes, (__m256i)_mm512_cvtneps_pbh(value));
}

// `value` as it is after a rounding to bfloat16.
inline __m512 rounded(__m512 value) {
    const __m512i bits = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(value));
    return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
}

// 2^x to float32's last bits, for x in [-126, 126] (others count as the nearest of those); NaN of NaN.
inline __m512 exp2(__m512 x) {
    x = _mm512_min_ps(_mm512_set1_ps(126.0f), _mm512_max_ps(_mm512_set1_ps(-126.0f), x));
    const __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT), rest = _mm512_sub_ps(x, whole);
    __m512 value = _mm512_set1_ps(1.5403530e-4f);  // ln(2)^k / k!
    for (const float factor : {1.3333558e-3f, 9.6181291e-3f, 5.5504109e-2f, 2.4022651e-1f, 6.9314718e-1f, 1.0f})
        value = _mm512_fmadd_ps(value, rest, _mm512_set1_ps(factor));
    return _mm512_scalef_ps(value, whole);
}

constexpr float kLog2E = 1.44269504f;

// Inputs 2 i and 2 i + 1 of a row, in all lanes.
inline __m512bh pair(const bf16* at) {
    int32_t both;
    __builtin_memcpy(&both, at, 4);
    return (__m512bh)_mm512_set1_epi32(both);
}

// Rows below which another thread would cost more than it saves.
constexpr int64_t kRowsForThreads = 16;

}  // namespace lmnb
