// `lanes.h` with AVX2, FMA and F16C: two registers each. Pairs of bfloat16 are multiplied as the float32 that they are.

#pragma once

namespace lmnb {

struct Floats {
    __m256 low, high;
};
struct Ints {
    __m256i low, high;
};
using Lanes = uint16_t;
struct Pairs {
    Floats even, odd;
};
struct Both {
    __m256 even, odd;
};
// What products take their inputs as, and how many rows and blocks of 16 outputs they have at once.
using Input = float;
constexpr int kTileRows = 4, kTileBlocks = 1;
// Blocks of 16 keys or dimensions that attention has at once.
constexpr int kAttendBlocks = 1;

inline Floats zeros() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline Floats all(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
inline Floats add(Floats a, Floats b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
inline Floats sub(Floats a, Floats b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
inline Floats mul(Floats a, Floats b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
inline Floats div(Floats a, Floats b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
inline Floats max(Floats a, Floats b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
inline Floats fma(Floats a, Floats b, Floats c) {  // a b + c
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline float sum_of(Floats a) {
    const __m256 eight = _mm256_add_ps(a.low, a.high);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_shuffle_ps(four, four, 1)));
}
inline float max_of(Floats a) {
    const __m256 eight = _mm256_max_ps(a.low, a.high);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_shuffle_ps(four, four, 1)));
}
inline float first_of(Floats a) { return _mm256_cvtss_f32(a.low); }

// Lanes as all bits of what they stand for, and back.
inline Ints bits_of(Lanes lanes) {
    const __m256i bits = _mm256_set1_epi32(lanes), low = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i high = _mm256_slli_epi32(low, 8);
    return {_mm256_cmpeq_epi32(_mm256_and_si256(bits, low), low), _mm256_cmpeq_epi32(_mm256_and_si256(bits, high), high)};
}
inline Lanes lanes_of(__m256 low, __m256 high) {
    return static_cast<Lanes>(_mm256_movemask_ps(low) | _mm256_movemask_ps(high) << 8);
}

inline Lanes equal(Floats a, Floats b) {
    return lanes_of(_mm256_cmp_ps(a.low, b.low, _CMP_EQ_OQ), _mm256_cmp_ps(a.high, b.high, _CMP_EQ_OQ));
}
inline Lanes greater(Floats a, Floats b) {
    return lanes_of(_mm256_cmp_ps(a.low, b.low, _CMP_GT_OQ), _mm256_cmp_ps(a.high, b.high, _CMP_GT_OQ));
}
inline Lanes is_nan(Floats a) {
    return lanes_of(_mm256_cmp_ps(a.low, a.low, _CMP_UNORD_Q), _mm256_cmp_ps(a.high, a.high, _CMP_UNORD_Q));
}
inline Floats where(Lanes lanes, Floats a, Floats b) {
    if (lanes == 0xFFFF) return a;
    const Ints bits = bits_of(lanes);
    return {_mm256_blendv_ps(b.low, a.low, _mm256_castsi256_ps(bits.low)),
            _mm256_blendv_ps(b.high, a.high, _mm256_castsi256_ps(bits.high))};
}

inline Ints all(int32_t value) { return {_mm256_set1_epi32(value), _mm256_set1_epi32(value)}; }
inline Ints where(Lanes lanes, Ints a, Ints b) {
    const Ints bits = bits_of(lanes);
    return {_mm256_blendv_epi8(b.low, a.low, bits.low), _mm256_blendv_epi8(b.high, a.high, bits.high)};
}
// The smallest a + its lane's number, of those lanes.
inline int32_t least_place(Lanes lanes, Ints a) {
    alignas(32) int32_t each[16];
    _mm256_store_si256(reinterpret_cast<__m256i*>(each), a.low);
    _mm256_store_si256(reinterpret_cast<__m256i*>(each + 8), a.high);
    int32_t least = INT32_MAX;
    for (int lane = 0; lane < 16; lane++)
        if (lanes >> lane & 1 && each[lane] + lane < least) least = each[lane] + lane;
    return least;
}

// Lanes that are not asked for are zero, and their memory is not touched; so in all that follows.
inline Floats load(const float* at, Lanes lanes = 0xFFFF) {
    if (lanes == 0xFFFF) return {_mm256_loadu_ps(at), _mm256_loadu_ps(at + 8)};
    const Ints bits = bits_of(lanes);
    return {_mm256_maskload_ps(at, bits.low), _mm256_maskload_ps(at + 8, bits.high)};
}
inline void store(float* at, Floats value, Lanes lanes = 0xFFFF) {
    if (lanes == 0xFFFF) {
        _mm256_storeu_ps(at, value.low);
        _mm256_storeu_ps(at + 8, value.high);
        return;
    }
    const Ints bits = bits_of(lanes);
    _mm256_maskstore_ps(at, bits.low, value.low);
    _mm256_maskstore_ps(at + 8, bits.high, value.high);
}

inline Floats widened(__m256i both) {  // 16 bfloat16
    const __m256i low = _mm256_cvtepu16_epi32(_mm256_castsi256_si128(both));
    const __m256i high = _mm256_cvtepu16_epi32(_mm256_extracti128_si256(both, 1));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(low, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(high, 16))};
}
// The upper halves of float32 after a rounding to the nearest, of two alike to the even one; NaN stays NaN.
inline __m256i rounded_bits(__m256 value) {
    const __m256i bits = _mm256_castps_si256(value), odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i near = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    return _mm256_srli_epi32(_mm256_blendv_epi8(near, _mm256_or_si256(bits, _mm256_set1_epi32(0x400000)), nan), 16);
}
inline __m256i narrowed(Floats value) {
    const __m256i mixed = _mm256_packus_epi32(rounded_bits(value.low), rounded_bits(value.high));
    return _mm256_permute4x64_epi64(mixed, 0xD8);
}

// Here the lanes asked for are the first ones.
inline Floats load(const bf16* at, Lanes lanes = 0xFFFF) {
    if (lanes == 0xFFFF) return widened(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
    alignas(32) bf16 each[16] = {};
    std::memcpy(each, at, __builtin_popcount(lanes) * sizeof(bf16));
    return widened(_mm256_load_si256(reinterpret_cast<const __m256i*>(each)));
}
inline void store(bf16* at, Floats value, Lanes lanes = 0xFFFF) {
    if (lanes == 0xFFFF) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), narrowed(value));
        return;
    }
    alignas(32) bf16 each[16];
    _mm256_store_si256(reinterpret_cast<__m256i*>(each), narrowed(value));
    std::memcpy(at, each, __builtin_popcount(lanes) * sizeof(bf16));
}
// `value` as it is after a rounding to bfloat16.
inline Floats rounded(Floats value) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(rounded_bits(value.low), 16)),
            _mm256_castsi256_ps(_mm256_slli_epi32(rounded_bits(value.high), 16))};
}
inline Floats load_bytes(const uint8_t* at) {  // signed
    const auto eight = [](const uint8_t* from) {
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
    };
    return {eight(at), eight(at + 8)};
}
inline Floats load_half(const uint8_t* at) {  // float16
    const __m128i* halves = reinterpret_cast<const __m128i*>(at);
    return {_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))};
}

inline __m256 exp2(__m256 x) {
    x = _mm256_min_ps(_mm256_set1_ps(126.0f), _mm256_max_ps(_mm256_set1_ps(-126.0f), x));
    const __m256 whole = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), rest = _mm256_sub_ps(x, whole);
    __m256 value = _mm256_set1_ps(kExp2[0]);
    for (int k = 1; k < 7; k++) value = _mm256_fmadd_ps(value, rest, _mm256_set1_ps(kExp2[k]));
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(whole), _mm256_set1_epi32(127));
    return _mm256_mul_ps(value, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
}
// 2^x to float32's last bits, for x in [-126, 126] (others count as the nearest of those); NaN of NaN.
inline Floats exp2(Floats x) { return {exp2(x.low), exp2(x.high)}; }

// Inputs 2 i and 2 i + 1 of a row, in all lanes.
inline Both pair(const float* at) { return {_mm256_broadcast_ss(at), _mm256_broadcast_ss(at + 1)}; }

inline Pairs load_pairs(const int32_t* at) {  // aligned
    const __m256i low = _mm256_load_si256(reinterpret_cast<const __m256i*>(at));
    const __m256i high = _mm256_load_si256(reinterpret_cast<const __m256i*>(at + 8));
    const __m256i upper = _mm256_set1_epi32(static_cast<int32_t>(0xFFFF0000));
    return {{_mm256_castsi256_ps(_mm256_slli_epi32(low, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(high, 16))},
            {_mm256_castsi256_ps(_mm256_and_si256(low, upper)), _mm256_castsi256_ps(_mm256_and_si256(high, upper))}};
}
inline Floats dot(Floats sum, Both a, Pairs b) {  // sum + a0 b0 + a1 b1
    sum = {_mm256_fmadd_ps(a.even, b.even.low, sum.low), _mm256_fmadd_ps(a.even, b.even.high, sum.high)};
    return {_mm256_fmadd_ps(a.odd, b.odd.low, sum.low), _mm256_fmadd_ps(a.odd, b.odd.high, sum.high)};
}

// Of 16 outputs, two inputs' integers: see `quantized_linear.cpp` for the records. Int4 in four steps of a chunk.
struct Packed4 {
    __m256i low, high;
    explicit Packed4(const uint8_t* at)
        : low(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at))),
          high(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at + 32))) {}
    Pairs integers(int step) const {
        const auto four_bits = [](__m256i lanes, int from) {
            return _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(lanes, from), _mm256_set1_epi32(15)));
        };
        return {{four_bits(low, 4 * step), four_bits(high, 4 * step)},
                {four_bits(low, 16 + 4 * step), four_bits(high, 16 + 4 * step)}};
    }
};
inline Pairs integers8(const uint8_t* at) {
    return {load_bytes(at), load_bytes(at + 16)};
}

// 8 rows of 16 bfloat16 become 8 rows of pairs, `stride` apart.
inline void transpose_eight(const bf16* const* rows, int64_t offset, int32_t* out, int64_t stride) {
    __m256i r[8], t[8];
    for (int i = 0; i < 8; i++) r[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[i] + offset));
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        r[i] = _mm256_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm256_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm256_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm256_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        _mm256_store_si256(reinterpret_cast<__m256i*>(out + i * stride), _mm256_permute2x128_si256(r[i], r[i + 4], 0x20));
        _mm256_store_si256(reinterpret_cast<__m256i*>(out + (i + 4) * stride), _mm256_permute2x128_si256(r[i], r[i + 4], 0x31));
    }
}

// 16 rows of 32 bfloat16 become 16 rows of pairs, `stride` apart: out[i][r] is the pair i of row r.
inline void transpose_pairs(const bf16* const* rows, int64_t offset, int32_t* out, int64_t stride) {
    for (int half = 0; half < 2; half++)
        for (int row = 0; row < 16; row += 8)
            transpose_eight(rows + row, offset + 16 * half, out + 8 * half * stride + row, stride);
}

// 32 numbers of one row and 32 of another become 32 pairs.
inline void interleave(const bf16* one, const bf16* other, int32_t* out) {
    for (int half = 0; half < 32; half += 16) {
        const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(one + half));
        const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(other + half));
        const __m256i low = _mm256_unpacklo_epi16(a, b), high = _mm256_unpackhi_epi16(a, b);
        _mm256_store_si256(reinterpret_cast<__m256i*>(out + half), _mm256_permute2x128_si256(low, high, 0x20));
        _mm256_store_si256(reinterpret_cast<__m256i*>(out + half + 8), _mm256_permute2x128_si256(low, high, 0x31));
    }
}

}  // namespace lmnb
