// Rows of bfloat16 times a weight of small integers in groups of 32 inputs (GGUF's Q4_0, Q4_1 and Q8_0).
//
// A weight is w = d q + m with d, m of its group, so a product is, group by group, d (x . q) + m (sum of x). The
// integers are exact in bfloat16 and the sums are float32: nothing is rounded that the file does not round. Every
// output is summed in one order, whatever the number of rows or threads: a row's result does not depend on its company.
//
// A *block* is 16 outputs; its record for one group holds, for int4,
//   4 x 64 bytes: 16-bit lane 2 o + p of chunk c has in nibble s the integer of output o, input 8 c + 2 s + p;
// and for int8
//   16 x 32 bytes: byte 2 o + p of pair i is the integer of output o, input 2 i + p;
// then d of the 16 outputs as float16, and for int4 m too. `quantized_linear.py` writes it.

#include "native.h"

namespace lmnb {

constexpr int64_t kGroup = 32, kBlock = 16;
constexpr int64_t kRecord4 = 320, kRecord8 = 544;

inline __m512 half16(const uint8_t* at) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
}

inline __m512bh integers(const uint8_t* at) {
    const __m128i* bytes = reinterpret_cast<const __m128i*>(at);
    __m512 low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(bytes)));
    __m512 high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(bytes + 1)));
    return _mm512_cvtne2ps_pbh(high, low);
}

// R rows times C blocks, all groups: total[r][c] are the 16 outputs of block c.
template <int Bits, int R, int C>
inline void tile(const bf16* x, int64_t groups, const float* sums, const uint8_t* weight, __m512 (&total)[R][C]) {
    constexpr int64_t record = Bits == 4 ? kRecord4 : kRecord8;
    const int64_t in = groups * kGroup, stride = groups * record;
    // The integers 0 to 15 in bfloat16, twice: bit 4 of an index does not matter.
    const __m512i table = _mm512_broadcast_i64x4(_mm256_setr_epi16(
        0x0000, 0x3F80, 0x4000, 0x4040, 0x4080, 0x40A0, 0x40C0, 0x40E0,
        0x4100, 0x4110, 0x4120, 0x4130, 0x4140, 0x4150, 0x4160, 0x4170));
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) total[r][c] = _mm512_setzero_ps();
    for (int64_t g = 0; g < groups; g++) {
        const uint8_t* at = weight + g * record;
        __m512 acc[R][C];
        for (int r = 0; r < R; r++)
            for (int c = 0; c < C; c++) acc[r][c] = _mm512_setzero_ps();
#pragma GCC unroll 4
        for (int chunk = 0; chunk < 4; chunk++) {
            __m512i packed[C];
            if constexpr (Bits == 4)
                for (int c = 0; c < C; c++) packed[c] = _mm512_loadu_si512(at + c * stride + chunk * 64);
#pragma GCC unroll 4
            for (int s = 0; s < 4; s++) {
                __m512bh w[C];
                for (int c = 0; c < C; c++) {
                    if constexpr (Bits == 4)
                        w[c] = (__m512bh)_mm512_permutexvar_epi16(_mm512_srli_epi16(packed[c], 4 * s), table);
                    else
                        w[c] = integers(at + c * stride + (chunk * 4 + s) * 32);
                }
#pragma GCC unroll 8
                for (int r = 0; r < R; r++) {
                    const __m512bh both = pair(x + r * in + g * kGroup + chunk * 8 + s * 2);
                    for (int c = 0; c < C; c++) acc[r][c] = _mm512_dpbf16_ps(acc[r][c], both, w[c]);
                }
            }
        }
        for (int c = 0; c < C; c++) {
            const uint8_t* scales = at + c * stride + (Bits == 4 ? 256 : 512);
            const __m512 d = half16(scales);
            for (int r = 0; r < R; r++) total[r][c] = _mm512_fmadd_ps(acc[r][c], d, total[r][c]);
            if constexpr (Bits == 4) {
                const __m512 m = half16(scales + 32);
                for (int r = 0; r < R; r++)
                    total[r][c] = _mm512_fmadd_ps(_mm512_set1_ps(sums[r * groups + g]), m, total[r][c]);
            }
        }
    }
}

struct Product {
    const bf16* x;  // [rows, groups * 32] bfloat16
    const uint8_t* weight;
    const bf16* bias;  // [outs] bfloat16, or null
    void* out;             // [rows, outs] bfloat16 or float32
    const float* sums;     // [rows, groups]: of each group's inputs
    int64_t groups, outs;
    bool out_wide;  // whether `out` is float32

    void put(__m512 value, int64_t row, int64_t first) const {
        const __mmask16 lanes = first_lanes(outs - first);
        if (bias) value = _mm512_add_ps(value, load(bias + first, lanes));
        if (out_wide)
            _mm512_mask_storeu_ps(static_cast<float*>(out) + row * outs + first, lanes, value);
        else
            store(static_cast<bf16*>(out) + row * outs + first, value, lanes);
    }

    template <int Bits, int R, int C>
    void run(int64_t row, int64_t block) const {
        constexpr int64_t record = Bits == 4 ? kRecord4 : kRecord8;
        __m512 total[R][C];
        tile<Bits, R, C>(x + row * groups * kGroup, groups, sums + row * groups, weight + block * groups * record, total);
        for (int r = 0; r < R; r++)
            for (int c = 0; c < C; c++) put(total[r][c], row + r, (block + c) * kBlock);
    }

    // Two blocks of all rows, in tiles of 8, 4, 2 and 1 rows.
    template <int Bits>
    void run_rows(int64_t rows, int64_t block) const {
        int64_t row = 0;
        for (; row + 8 <= rows; row += 8) run<Bits, 8, 2>(row, block);
        if (rows & 4) run<Bits, 4, 2>(row, block), row += 4;
        if (rows & 2) run<Bits, 2, 2>(row, block), row += 2;
        if (rows & 1) run<Bits, 1, 2>(row, block);
    }
};

static void sum_groups(const bf16* x, int64_t count, float* sums) {
    for (int64_t g = 0; g < count; g++) {
        float sum = 0;
        for (int i = 0; i < kGroup; i++) sum += wide(x[g * kGroup + i]);
        sums[g] = sum;
    }
}

template <int Bits>
static void product(Product p, int64_t rows) {
    static thread_local std::vector<float> sums;
    if constexpr (Bits == 4) {  // int8 has no minimum
        sums.resize(rows * p.groups);
        p.sums = sums.data();
        float* const at = sums.data();
        // Few rows are summed here: a second thread would take longer to come than to sum.
#pragma omp parallel for schedule(static) if (rows > kRowsForThreads)
        for (int64_t row = 0; row < rows; row++) sum_groups(p.x + row * p.groups * kGroup, p.groups, at + row * p.groups);
    }
    const int64_t blocks = (p.outs + kBlock - 1) / kBlock;
    const int64_t width = rows == 1 ? 4 : 2, columns = (blocks + width - 1) / width;
#pragma omp parallel for schedule(static)
    for (int64_t column = 0; column < columns; column++) {
        const int64_t first = column * width, last = std::min(blocks, first + width);
        if (last - first == 4)
            p.run<Bits, 1, 4>(0, first);
        else if (last - first == 2)
            p.run_rows<Bits>(rows, first);
        else  // the last few
            for (int64_t row = 0; row < rows; row++)
                for (int64_t block = first; block < last; block++) p.run<Bits, 1, 1>(row, block);
    }
}

extern "C" void lmnb_quantized_linear(const void* x, const void* weight, const void* bias, void* out, int64_t rows,
                                      int64_t in, int64_t outs, int64_t bits, int64_t out_wide) {
    const Product p{static_cast<const bf16*>(x), static_cast<const uint8_t*>(weight),
                    static_cast<const bf16*>(bias), out, nullptr, in / kGroup, outs, out_wide != 0};
    if (bits == 4)
        product<4>(p, rows);
    else
        product<8>(p, rows);
}

}  // namespace lmnb
