// `lanes_avx512.h` with BF16: an instruction multiplies and adds pairs of bfloat16.

#pragma once

namespace lmnb {

using Pairs = __m512bh;
using Both = __m512bh;
// What products take their inputs as, and how many rows and blocks of 16 outputs they have at once.
using Input = bf16;
constexpr int kTileRows = 8, kTileBlocks = 2;
// Blocks of 16 keys or dimensions that attention has at once.
constexpr int kAttendBlocks = 8;

inline __m256i narrowed(Floats value) { return (__m256i)_mm512_cvtneps_pbh(value); }

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
    // Their lower halves are zero: bfloat16 has eight bits of a number.
    const __m512i even = _mm512_castps_si512(load_bytes(at)), odd = _mm512_castps_si512(load_bytes(at + 16));
    return (__m512bh)_mm512_or_si512(_mm512_srli_epi32(even, 16), odd);
}

}  // namespace lmnb
