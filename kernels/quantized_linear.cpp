// Rows of bfloat16 times a weight of small integers in groups of 32 inputs (GGUF's Q4_0, Q4_1 and Q8_0).
//
// A weight is w = d q + m with d, m of its group, so a product is, group by group, d (x . q) + m (sum of x). The
// integers are exact in bfloat16 and the sums are float32: nothing is rounded that the file does not round. Every
// output is summed in one order, whatever the number of rows or threads: a row's result does not depend on its company.
//
// A *block* is 16 outputs, a *column* four blocks (the last one may have fewer), whose records lie in the order in which
// they are read: group by group, block by block. The record of a block's group holds, for int4,
//   4 x 64 bytes: 16-bit lane 2 o + p of chunk c has in nibble s the integer of output o, input 8 c + 2 s + p;
// and for int8
//   16 x 32 bytes: byte 16 p + o of pair i is the integer of output o, input 2 i + p;
// then d of the 16 outputs as float16, and for int4 m too. `quantized_linear.py` writes it.

#include "native.h"

namespace lmnb {

constexpr int64_t kGroup = 32, kBlock = 16, kColumn = 4;
constexpr int64_t kRecord4 = 320, kRecord8 = 544;
// How far ahead of a record those to come are fetched into the second level's cache, in bytes.
constexpr int64_t kAhead4 = 8192, kAhead8 = 16384;

// R rows times C blocks, all groups: total[r][c] are the 16 outputs of block c. The next group's records are `stride`
// bytes on; the first `fetched` bytes of each group are fetched ahead.
template <int Bits, int R, int C>
inline void tile(const Input* x, int64_t groups, const float* sums, const uint8_t* weight, int64_t stride,
                 int64_t fetched, Floats (&total)[R][C]) {
    constexpr int64_t record = Bits == 4 ? kRecord4 : kRecord8, ahead = Bits == 4 ? kAhead4 : kAhead8;
    const int64_t in = groups * kGroup;
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) total[r][c] = zeros();
    for (int64_t g = 0; g < groups; g++) {
        const uint8_t* at = weight + g * stride;
        for (int64_t line = 0; line < fetched; line += 64)
            _mm_prefetch(reinterpret_cast<const char*>(at + ahead + line), _MM_HINT_T1);
        Floats acc[R][C];
        for (int r = 0; r < R; r++)
            for (int c = 0; c < C; c++) acc[r][c] = zeros();
#pragma GCC unroll 4
        for (int chunk = 0; chunk < 4; chunk++) {
#pragma GCC unroll 4
            for (int s = 0; s < 4; s++) {
                Pairs w[C];
                for (int c = 0; c < C; c++) {
                    if constexpr (Bits == 4)
                        w[c] = Packed4(at + c * record + chunk * 64).integers(s);
                    else
                        w[c] = integers8(at + c * record + (chunk * 4 + s) * 32);
                }
#pragma GCC unroll 8
                for (int r = 0; r < R; r++) {
                    const Both both = pair(x + r * in + g * kGroup + chunk * 8 + s * 2);
                    for (int c = 0; c < C; c++) acc[r][c] = dot(acc[r][c], both, w[c]);
                }
            }
        }
        for (int c = 0; c < C; c++) {
            const uint8_t* scales = at + c * record + (Bits == 4 ? 256 : 512);
            const Floats d = load_half(scales);
            for (int r = 0; r < R; r++) total[r][c] = fma(acc[r][c], d, total[r][c]);
            if constexpr (Bits == 4) {
                const Floats m = load_half(scales + 32);
                for (int r = 0; r < R; r++)
                    total[r][c] = fma(all(sums[r * groups + g]), m, total[r][c]);
            }
        }
    }
}

struct Product {
    const bf16* x;  // [rows, groups * 32] bfloat16
    const uint8_t* weight;
    const bf16* bias;   // [outs] bfloat16, or null
    void* out;          // [rows, outs] bfloat16 or float32
    const float* sums;  // [rows, groups]: of each group's inputs; int8 needs none
    int64_t groups, outs;
    bool out_wide;  // whether `out` is float32

    void put(Floats value, int64_t row, int64_t first) const {
        const Lanes lanes = first_lanes(outs - first);
        if (bias) value = add(value, load(bias + first, lanes));
        if (out_wide)
            store(static_cast<float*>(out) + row * outs + first, value, lanes);
        else
            store(static_cast<bf16*>(out) + row * outs + first, value, lanes);
    }

    int64_t blocks() const { return (outs + kBlock - 1) / kBlock; }

    // C blocks of one column, R rows of `inputs`. With `fetch`, what comes behind the column is fetched meanwhile.
    template <int Bits, int R, int C>
    void run(const Input* inputs, int64_t row, int64_t block, bool fetch) const {
        constexpr int64_t record = Bits == 4 ? kRecord4 : kRecord8;
        const int64_t first = block / kColumn * kColumn, stride = std::min(kColumn, blocks() - first) * record;
        Floats total[R][C];
        tile<Bits, R, C>(inputs + row * groups * kGroup, groups, sums + row * groups,
                         weight + first * groups * record + (block - first) * record, stride, fetch ? stride : 0, total);
        for (int r = 0; r < R; r++)
            for (int c = 0; c < C; c++) put(total[r][c], row + r, (block + c) * kBlock);
    }

    // Two blocks of R rows, at once if there are registers for it.
    template <int Bits, int R>
    void run_two(const Input* inputs, int64_t row, int64_t block, bool fetch) const {
        if constexpr (R * 2 <= kTileRows * kTileBlocks) {
            run<Bits, R, 2>(inputs, row, block, fetch);
        } else {
            run<Bits, R, 1>(inputs, row, block, fetch);
            run<Bits, R, 1>(inputs, row, block + 1, false);
        }
    }

    // Two blocks of the rows from `row` on, in tiles of R rows, as many as there are registers for, and then of fewer.
    template <int Bits, int R = kTileRows>
    void run_rows(const Input* inputs, int64_t row, int64_t rows, int64_t block, bool fetch) const {
        for (; row + R <= rows; row += R) run_two<Bits, R>(inputs, row, block, fetch), fetch = false;
        if constexpr (R > 1) run_rows<Bits, (R > 4 ? R / 2 : R - 1)>(inputs, row, rows, block, fetch);
    }

    // One thread's part of the blocks, all rows.
    template <int Bits>
    void run_part(int64_t rows, const Team& team) const {
        const int64_t pairs = (blocks() + 1) / 2, last = std::min(blocks(), team.last(pairs) * 2);
        const Input* const inputs = all_inputs(rows);
        for (int64_t block = team.first(pairs) * 2; block < last;) {
            if (rows == 1 && block % kColumn == 0 && block + 4 <= last) {
                run<Bits, 1, 4>(inputs, 0, block, true);
                block += 4;
            } else if (block + 2 <= last) {
                run_rows<Bits>(inputs, 0, rows, block, block % kColumn == 0);
                block += 2;
            } else {  // the last one
                for (int64_t row = 0; row < rows; row++) run<Bits, 1, 1>(inputs, row, block, false);
                block += 1;
            }
        }
    }

    // `x`, as this thread's products take it.
    const Input* all_inputs(int64_t rows) const {
        static thread_local std::vector<Input> room;
        const int64_t count = rows * groups * kGroup;
        if (kMakesInputs && static_cast<int64_t>(room.size()) < count) room.resize(count);
        return as_inputs(x, count, room.data());
    }

    void run_part(int64_t rows, int64_t bits, const Team& team) const {
        if (bits == 4)
            run_part<4>(rows, team);
        else
            run_part<8>(rows, team);
    }
};

static void sum_groups(const bf16* x, int64_t count, float* sums) {
    for (int64_t g = 0; g < count; g++)
        sums[g] = sum_of(add(load(x + g * kGroup), load(x + g * kGroup + 16)));
}

extern "C" void lmnb_quantized_linear(const bf16* x, const uint8_t* weight, const bf16* bias, void* out, int64_t rows,
                                      int64_t in, int64_t outs, int64_t bits, int64_t out_wide) {
    const int64_t groups = in / kGroup;
    static thread_local std::vector<float> scratch;
    scratch.resize(rows * groups);
    float* const sums = scratch.data();  // other threads see this one's
    const Product product{x, weight, bias, out, sums, groups, outs, out_wide != 0};
    // Few rows are summed here: a second thread would take longer to come than to sum.
    const bool alone = rows <= kRowsForThreads;
    if (bits == 4 && alone) sum_groups(x, rows * groups, sums);
    in_team([&](const Team& team) {
        if (bits == 4 && !alone) {
            const int64_t first = team.first(rows), last = team.last(rows);
            sum_groups(x + first * in, (last - first) * groups, sums + first * groups);
            team.meet();
        }
        product.run_part(rows, bits, team);
    });
}

}  // namespace lmnb
