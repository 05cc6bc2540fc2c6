// `lanes.h` with AVX-512: one register each. What pairs of bfloat16 are is up to `lanes_avx512_bf16.h` or
// `lanes_avx512_fma.h`.

#pragma once

namespace lmnb {

using Floats = __m512;
using Ints = __m512i;
using Lanes = __mmask16;

inline Floats zeros() { return _mm512_setzero_ps(); }
inline Floats all(float value) { return _mm512_set1_ps(value); }
inline Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
inline Floats sub(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
inline Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
inline Floats div(Floats a, Floats b) { return _mm512_div_ps(a, b); }
inline Floats max(Floats a, Floats b) { return _mm512_max_ps(a, b); }
inline Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }  // a b + c
inline float sum_of(Floats a) { return _mm512_reduce_add_ps(a); }
inline float max_of(Floats a) { return _mm512_reduce_max_ps(a); }
inline float first_of(Floats a) { return _mm512_cvtss_f32(a); }

inline Lanes equal(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
inline Lanes greater(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
inline Lanes is_nan(Floats a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }
inline Floats where(Lanes lanes, Floats a, Floats b) { return _mm512_mask_mov_ps(b, lanes, a); }

inline Ints all(int32_t value) { return _mm512_set1_epi32(value); }
inline Ints where(Lanes lanes, Ints a, Ints b) { return _mm512_mask_mov_epi32(b, lanes, a); }
// The smallest a + its lane's number, of those lanes.
inline int32_t least_place(Lanes lanes, Ints a) {
    const Ints lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_mask_reduce_min_epi32(lanes, _mm512_add_epi32(a, lane));
}

// Lanes that are not asked for are zero, and their memory is not touched; so in all that follows.
inline Floats load(const float* at, Lanes lanes = 0xFFFF) { return _mm512_maskz_loadu_ps(lanes, at); }
inline void store(float* at, Floats value, Lanes lanes = 0xFFFF) { _mm512_mask_storeu_ps(at, lanes, value); }

inline Floats widened(__m256i both) {  // 16 bfloat16
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(both), 16));
}
inline __m256i narrowed(Floats value);  // 16 bfloat16, by one of the headers behind this one
inline Floats load(const bf16* at, Lanes lanes = 0xFFFF) { return widened(_mm256_maskz_loadu_epi16(lanes, at)); }
inline void store(bf16* at, Floats value, Lanes lanes = 0xFFFF) {
    _mm256_mask_storeu_epi16(at, lanes, narrowed(value));
}
// `value` as it is after a rounding to bfloat16.
inline Floats rounded(Floats value) { return widened(narrowed(value)); }
inline Floats load_bytes(const uint8_t* at) {  // signed
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at))));
}
inline Floats load_half(const uint8_t* at) {  // float16
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
}

// Of 16 outputs two inputs' integers as float32, those of the even input and those of the odd one: see
// `quantized_linear.cpp` for the records. Int4 in four steps of a chunk.
struct EvenOdd {
    Floats even, odd;
};
inline EvenOdd wide_integers4(__m512i chunk, int step) {
    // Of an index only the lowest four bits matter.
    const Floats table = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return {_mm512_permutexvar_ps(_mm512_srli_epi32(chunk, 4 * step), table),
            _mm512_permutexvar_ps(_mm512_srli_epi32(chunk, 16 + 4 * step), table)};
}
inline EvenOdd wide_integers8(const uint8_t* at) {
    return {load_bytes(at), load_bytes(at + 16)};
}

// 2^x to float32's last bits, for x in [-126, 126] (others count as the nearest of those); NaN of NaN.
inline Floats exp2(Floats x) {
    x = _mm512_min_ps(_mm512_set1_ps(126.0f), _mm512_max_ps(_mm512_set1_ps(-126.0f), x));
    const Floats whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT), rest = sub(x, whole);
    Floats value = all(kExp2[0]);
    for (int k = 1; k < 7; k++) value = fma(value, rest, all(kExp2[k]));
    return _mm512_scalef_ps(value, whole);
}

// 16 rows of 32 bfloat16 become 16 rows of pairs, `stride` apart: out[i][r] is the pair i of row r.
inline void transpose_pairs(const bf16* const* rows, int64_t offset, int32_t* out, int64_t stride) {
    __m512i r[16], t[16];
    for (int i = 0; i < 16; i++) r[i] = _mm512_loadu_si512(rows[i] + offset);
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
    for (int i = 0; i < 8; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    }
    for (int i = 0; i < 16; i++) _mm512_store_si512(out + i * stride, r[i]);
}

// 32 numbers of one row and 32 of another become 32 pairs.
inline void interleave(const bf16* one, const bf16* other, int32_t* out) {
    const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37, 5,
                                         36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    const __m512i a = _mm512_loadu_si512(one), b = _mm512_loadu_si512(other);
    _mm512_store_si512(out, _mm512_permutex2var_epi16(a, low, b));
    _mm512_store_si512(out + 16, _mm512_permutex2var_epi16(a, high, b));
}

}  // namespace lmnb
