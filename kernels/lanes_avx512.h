// `lanes.h` with AVX-512: one register each, and an instruction that multiplies and adds pairs of bfloat16.

#pragma once

namespace lmnb {

using Floats = __m512;
using Ints = __m512i;
using Lanes = __mmask16;
using Pairs = __m512bh;
using Both = __m512bh;
// What products take their inputs as, and how many rows and blocks of 16 outputs they have at once.
using Input = bf16;
constexpr int kTileRows = 8, kTileBlocks = 2;
// Blocks of 16 keys or dimensions that attention has at once.
constexpr int kAttendBlocks = 8;

inline Lanes first_lanes(int64_t count) { return static_cast<Lanes>(count >= 16 ? 0xFFFF : (1u << count) - 1); }

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

inline Floats load(const bf16* at, Lanes lanes = 0xFFFF) {
    const __m512i bits = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, at));
    return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
}
inline void store(bf16* at, Floats value, Lanes lanes = 0xFFFF) {
    _mm256_mask_storeu_epi16(at, lanes, (__m256i)_mm512_cvtneps_pbh(value));
}
// `value` as it is after a rounding to bfloat16.
inline Floats rounded(Floats value) {
    const __m512i bits = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(value));
    return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
}
// What products take: these themselves. `room` is for as many, where they must be made.
inline const Input* as_inputs(const bf16* from, int64_t, Input*) { return from; }
constexpr bool kMakesInputs = false;
// `value` as it is after having been an input.
inline Floats as_input(Floats value) { return rounded(value); }
inline Floats load_half(const uint8_t* at) {  // float16
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
}

// 2^x to float32's last bits, for x in [-126, 126] (others count as the nearest of those); NaN of NaN.
inline Floats exp2(Floats x) {
    x = _mm512_min_ps(_mm512_set1_ps(126.0f), _mm512_max_ps(_mm512_set1_ps(-126.0f), x));
    const Floats whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT), rest = sub(x, whole);
    Floats value = all(kExp2[0]);
    for (int k = 1; k < 7; k++) value = fma(value, rest, all(kExp2[k]));
    return _mm512_scalef_ps(value, whole);
}

// Inputs 2 i and 2 i + 1 of a row, in all lanes.
inline Both pair(const bf16* at) {
    int32_t both;
    __builtin_memcpy(&both, at, 4);
    return (__m512bh)_mm512_set1_epi32(both);
}
inline Pairs load_pairs(const int32_t* at) { return (__m512bh)_mm512_load_si512(at); }  // aligned
inline Floats dot(Floats sum, Both a, Pairs b) { return _mm512_dpbf16_ps(sum, a, b); }  // sum + a0 b0 + a1 b1

// Of 16 outputs, two inputs' integers: see `quantized_linear.cpp` for the records. Int4 in four steps of a chunk.
struct Packed4 {
    __m512i chunk;
    explicit Packed4(const uint8_t* at) : chunk(_mm512_loadu_si512(at)) {}
    Pairs integers(int step) const {
        // The integers 0 to 15 in bfloat16, twice: bit 4 of an index does not matter.
        const __m512i table = _mm512_broadcast_i64x4(_mm256_setr_epi16(
            0x0000, 0x3F80, 0x4000, 0x4040, 0x4080, 0x40A0, 0x40C0, 0x40E0,
            0x4100, 0x4110, 0x4120, 0x4130, 0x4140, 0x4150, 0x4160, 0x4170));
        return (__m512bh)_mm512_permutexvar_epi16(_mm512_srli_epi16(chunk, 4 * step), table);
    }
};
inline Pairs integers8(const uint8_t* at) {
    const __m128i* bytes = reinterpret_cast<const __m128i*>(at);
    const __m512 low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(bytes)));
    const __m512 high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(bytes + 1)));
    return _mm512_cvtne2ps_pbh(high, low);
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
