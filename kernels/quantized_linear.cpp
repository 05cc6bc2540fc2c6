// Rows of bfloat16 times a weight of small integers in groups of 32 inputs (GGUF's Q4_0, Q4_1 and Q8_0).
//
// A weight is w = d q + m with d, m of its group, so a product is, group by group, d (x . q) + m (sum of x). The
// integers are exact in bfloat16 and the sums are float32: nothing is rounded that the file does not round. Every
// output is summed in one order, whatever the number of rows or threads: a row's result does not depend on its company.
// Where there is a matrix unit lanes make the products of a row or two, in the unit's order of sums.
//
// A *block* is 16 outputs, a *column* four blocks (the last one may have fewer), whose records lie in the order in which
// they are read: group by group, block by block. The record of a block's group holds, for int4,
//   4 x 64 bytes: 16-bit lane 2 o + p of chunk c has in nibble s the integer of output o, input 8 c + 2 s + p;
// and for int8
//   16 x 32 bytes: byte 16 p + o of pair i is the integer of output o, input 2 i + p;
// then d of the 16 outputs as float16, and for int4 m too. `quantized_linear.py` writes it.

#include "amx.h"
#include "native.h"

namespace lmnb {

constexpr int64_t kGroup = 32, kBlock = 16, kColumn = 4;
// Bytes of a record, and where its scales are.
template <int Bits>
constexpr int64_t kRecord = Bits == 4 ? 320 : 544;
template <int Bits>
constexpr int64_t kScales = Bits == 4 ? 256 : 512;
// How far ahead of a record those to come are fetched into the second level's cache, in bytes.
template <int Bits>
constexpr int64_t kAhead = Bits == 4 ? 8192 : 16384;

// How lanes multiply two inputs with the two integers of 16 outputs, and sum: as is quickest.
struct Quickest {
    using In = Input;
    using Sum = Floats;
    static constexpr int kRows = kTileRows, kBlocks = kTileBlocks;  // at once

    static Sum none() { return zeros(); }
    static Pairs integers4(const uint8_t* chunk, int step) { return Packed4(chunk).integers(step); }
    static Pairs integers8(const uint8_t* at) { return lmnb::integers8(at); }
    static Both both(const In* at) { return pair(at); }
    static void dot(Sum& sum, Both a, Pairs b) { sum = lmnb::dot(sum, a, b); }
    static Floats whole(Sum sum) { return sum; }
};

#ifdef LMNB_HAS_AMX
// As the matrix unit sums: the even inputs' products and the odd ones' each for themselves.
struct UnitOrder {
    using In = float;
    using Sum = EvenOdd;
    static constexpr int kRows = 2, kBlocks = 2;

    static Sum none() { return {zeros(), zeros()}; }
    static EvenOdd integers4(const uint8_t* chunk, int step) { return wide_integers4(_mm512_loadu_si512(chunk), step); }
    static EvenOdd integers8(const uint8_t* at) { return wide_integers8(at); }
    static EvenOdd both(const In* at) { return {all(at[0]), all(at[1])}; }
    static void dot(Sum& sum, EvenOdd a, EvenOdd b) {
        sum = {fma(a.even, b.even, sum.even), fma(a.odd, b.odd, sum.odd)};
    }
    static Floats whole(Sum sum) { return add(zeros(), add(sum.even, sum.odd)); }  // so that zeros have its sign
};
#endif

// R rows times C blocks, all groups: total[r][c] are the 16 outputs of block c. The next group's records are `stride`
// bytes on; the first `fetched` bytes of each group are fetched ahead.
template <class Way, int Bits, int R, int C>
inline void tile(const typename Way::In* x, int64_t groups, const float* sums, const uint8_t* weight, int64_t stride,
                 int64_t fetched, Floats (&total)[R][C]) {
    constexpr int64_t record = kRecord<Bits>, ahead = kAhead<Bits>;
    const int64_t in = groups * kGroup;
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) total[r][c] = zeros();
    for (int64_t g = 0; g < groups; g++) {
        const uint8_t* at = weight + g * stride;
        for (int64_t line = 0; line < fetched; line += 64)
            _mm_prefetch(reinterpret_cast<const char*>(at + ahead + line), _MM_HINT_T1);
        typename Way::Sum acc[R][C];
        for (int r = 0; r < R; r++)
            for (int c = 0; c < C; c++) acc[r][c] = Way::none();
#pragma GCC unroll 4
        for (int chunk = 0; chunk < 4; chunk++) {
#pragma GCC unroll 4
            for (int s = 0; s < 4; s++) {
                decltype(Way::integers8(at)) w[C];
                for (int c = 0; c < C; c++) {
                    if constexpr (Bits == 4)
                        w[c] = Way::integers4(at + c * record + chunk * 64, s);
                    else
                        w[c] = Way::integers8(at + c * record + (chunk * 4 + s) * 32);
                }
#pragma GCC unroll 8
                for (int r = 0; r < R; r++) {
                    const auto both = Way::both(x + r * in + g * kGroup + chunk * 8 + s * 2);
                    for (int c = 0; c < C; c++) Way::dot(acc[r][c], both, w[c]);
                }
            }
        }
        for (int c = 0; c < C; c++) {
            const uint8_t* scales = at + c * record + kScales<Bits>;
            const Floats d = load_half(scales);
            for (int r = 0; r < R; r++) total[r][c] = fma(Way::whole(acc[r][c]), d, total[r][c]);
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

    // From a block's record of one group to that of the next, and where its first one is.
    template <int Bits>
    int64_t stride_of(int64_t block) const {
        return std::min(kColumn, blocks() - block / kColumn * kColumn) * kRecord<Bits>;
    }
    template <int Bits>
    const uint8_t* records_of(int64_t block) const {
        return weight + (block / kColumn * kColumn * groups + block % kColumn) * kRecord<Bits>;
    }

    // C blocks of one column, R rows of `inputs`. With `fetch`, what comes behind the column is fetched meanwhile.
    template <class Way, int Bits, int R, int C>
    void run(const typename Way::In* inputs, int64_t row, int64_t block, bool fetch) const {
        const int64_t stride = stride_of<Bits>(block);
        Floats total[R][C];
        tile<Way, Bits, R, C>(inputs + row * groups * kGroup, groups, sums + row * groups, records_of<Bits>(block), stride,
                              fetch ? stride : 0, total);
        for (int r = 0; r < R; r++)
            for (int c = 0; c < C; c++) put(total[r][c], row + r, (block + c) * kBlock);
    }

    // Two blocks of R rows, at once if there are registers for it.
    template <class Way, int Bits, int R>
    void run_two(const typename Way::In* inputs, int64_t row, int64_t block, bool fetch) const {
        if constexpr (R * 2 <= Way::kRows * Way::kBlocks) {
            run<Way, Bits, R, 2>(inputs, row, block, fetch);
        } else {
            run<Way, Bits, R, 1>(inputs, row, block, fetch);
            run<Way, Bits, R, 1>(inputs, row, block + 1, false);
        }
    }

    // Two blocks of the rows from `row` on, in tiles of R rows, as many as there are registers for, and then of fewer.
    template <class Way, int Bits, int R = Way::kRows>
    void run_rows(const typename Way::In* inputs, int64_t row, int64_t rows, int64_t block, bool fetch) const {
        for (; row + R <= rows; row += R) run_two<Way, Bits, R>(inputs, row, block, fetch), fetch = false;
        if constexpr (R > 1) run_rows<Way, Bits, (R > 4 ? R / 2 : R - 1)>(inputs, row, rows, block, fetch);
    }

    // One thread's part of the blocks, all rows, by lanes.
    template <class Way, int Bits>
    void run_part_lanes(int64_t rows, const Team& team) const {
        const int64_t pairs = (blocks() + 1) / 2, last = std::min(blocks(), team.last(pairs) * 2);
        const auto* const inputs = all_inputs<typename Way::In>(rows);
        for (int64_t block = team.first(pairs) * 2; block < last;) {
            if (rows == 1 && block % kColumn == 0 && block + 4 <= last) {
                run<Way, Bits, 1, 4>(inputs, 0, block, true);
                block += 4;
            } else if (block + 2 <= last) {
                run_rows<Way, Bits>(inputs, 0, rows, block, block % kColumn == 0);
                block += 2;
            } else {  // the last one
                for (int64_t row = 0; row < rows; row++) run<Way, Bits, 1, 1>(inputs, row, block, false);
                block += 1;
            }
        }
    }

    // `x`, as this thread's products take it.
    template <class In>
    const In* all_inputs(int64_t rows) const {
        static thread_local std::vector<In> room;
        const int64_t count = rows * groups * kGroup;
        if (sizeof(In) > sizeof(bf16) && static_cast<int64_t>(room.size()) < count) room.resize(count);
        return as_inputs(x, count, room.data());
    }

#ifdef LMNB_HAS_AMX
    // A thread's tiles: sums of 16 rows, and of the rows that are left; inputs of either; integers.
    static constexpr int kSums = 0, kRestSums = 1, kInputs = 2, kRestInputs = 3, kIntegers = 4;
    static constexpr int64_t kAmxRows = 16;
    // Rows up to which lanes are quicker: what they wait for is memory.
    static constexpr int64_t kLaneRows = 2;
    // Groups at once, whose integers and inputs the first cache holds; and how many later a group's sums are added up.
    static constexpr int64_t kAmxGroups = 12, kLag = 3;

    // Some groups of a block.
    struct Part {
        int64_t block, from, to;  // groups [from, to)
        const uint8_t* weight;    // of the block's first group
        int64_t stride;           // from one group's record to the next
    };

    // The integers of a part as bfloat16, a tile for each group. The same part of the next column is fetched meanwhile.
    template <int Bits>
    void unpack(const Part& part, bf16* to) const {
        for (int64_t g = part.from; g < part.to; g++) {
            const uint8_t* const at = part.weight + g * part.stride;
            for (int64_t line = 0; line < kRecord<Bits>; line += 64)
                _mm_prefetch(reinterpret_cast<const char*>(at + groups * part.stride + line), _MM_HINT_T1);
#pragma GCC unroll 4
            for (int chunk = 0; chunk < 4; chunk++)
#pragma GCC unroll 4
                for (int s = 0; s < 4; s++, to += 32) {
                    if constexpr (Bits == 4)
                        _mm512_store_si512(to, (__m512i)Packed4(at + chunk * 64).integers(s));
                    else
                        _mm512_store_si512(to, (__m512i)integers8(at + (chunk * 4 + s) * 32));
                }
        }
    }

    // R rows by a part whose integers are unpacked. `of_inputs` are the sums of the rows' inputs, [groups, 16]; `totals`
    // hold what the groups before have given, [R, 16].
    template <int Bits, int R, int Sums, int Inputs>
    void multiply_part(const Part& part, const bf16* integers, const float* of_inputs, float* totals, int64_t row) const {
        alignas(64) float sums[kLag + 1][R][kBlock];
        Floats total[R];
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) total[r] = part.from ? load(totals + r * kBlock) : zeros();
        const int64_t in = groups * kGroup, count = part.to - part.from, lag = std::min(kLag, count);
        const bf16* const inputs = x + row * in + part.from * kGroup;
        of_inputs += part.from * kBlock;
        const uint8_t* scales = part.weight + part.from * part.stride + kScales<Bits>;
        const auto multiply = [&](int64_t g) {
            amx::load<Inputs>(inputs + g * kGroup, in * sizeof(bf16));
            amx::load<kIntegers>(integers + g * kGroup * kBlock, 64);
            amx::zero<Sums>();
            amx::multiply<Sums, Inputs, kIntegers>();
        };
        float* const ring = sums[0][0];
        const auto place = [&](int64_t g) { return ring + g % (kLag + 1) * R * kBlock; };
        for (int64_t g = 0; g < lag; g++) {
            multiply(g);
            amx::store<Sums>(place(g), 64);
        }
        for (int64_t g = lag; g < count + lag; g++) {
            const float* const sum = place(g - lag);
            if (g < count) multiply(g);
            const Floats d = load_half(scales);
#pragma GCC unroll 16
            for (int r = 0; r < R; r++) total[r] = fma(load(sum + r * kBlock), d, total[r]);
            if constexpr (Bits == 4) {
                const Floats m = load_half(scales + 32);
#pragma GCC unroll 16
                for (int r = 0; r < R; r++) total[r] = fma(all(of_inputs[r]), m, total[r]);
            }
            scales += part.stride, of_inputs += kBlock;
            if (g < count) amx::store<Sums>(place(g), 64);
        }
        if (part.to < groups) {
#pragma GCC unroll 16
            for (int r = 0; r < R; r++) store(totals + r * kBlock, total[r]);
        } else {
#pragma GCC unroll 16
            for (int r = 0; r < R; r++) put(total[r], row + r, part.block * kBlock);
        }
    }

    // The last `rest` rows, fewer than a tile has.
    template <int Bits, int R = kAmxRows - 1, class... Arguments>
    void multiply_rest(int64_t rest, Arguments... arguments) const {
        if (rest == R)
            multiply_part<Bits, R, kRestSums, kRestInputs>(arguments...);
        else if constexpr (R > 1)
            multiply_rest<Bits, R - 1>(rest, arguments...);
    }

    // One thread's part of the blocks, all rows, by the matrix unit.
    template <int Bits>
    void run_part_amx(int64_t rows, const Team& team) const {
        const int64_t rest = rows % kAmxRows, tiles = (rows + kAmxRows - 1) / kAmxRows;
        static thread_local std::vector<float> room;
        const int64_t integer_size = kAmxGroups * kGroup * kBlock / 2, total_size = tiles * kAmxRows * kBlock;
        const size_t size = integer_size + total_size + tiles * groups * kAmxRows + 16;
        if (room.size() < size) room.resize(size);
        float* const start = room.data() + -reinterpret_cast<uintptr_t>(room.data()) % 64 / sizeof(float);
        bf16* const integers = reinterpret_cast<bf16*>(start);
        float *const totals = start + integer_size, *const of_inputs = totals + total_size;
        for (int64_t row = 0; Bits == 4 && row < rows; row++)
            for (int64_t g = 0; g < groups; g++)
                of_inputs[(row / kAmxRows * groups + g) * kAmxRows + row % kAmxRows] = sums[row * groups + g];
        const uint8_t last = static_cast<uint8_t>(rest);
        amx::configure({16, last, 16, last, 16, 0, 0, 0});
        for (int64_t block = team.first(blocks()); block < team.last(blocks()); block++) {
            for (int64_t from = 0; from < groups; from += kAmxGroups) {
                const Part part{block, from, std::min(from + kAmxGroups, groups), records_of<Bits>(block),
                                stride_of<Bits>(block)};
                unpack<Bits>(part, integers);
                int64_t row = 0;
                for (; row + kAmxRows <= rows; row += kAmxRows)
                    multiply_part<Bits, kAmxRows, kSums, kInputs>(part, integers, of_inputs + row * groups,
                                                                  totals + row * kBlock, row);
                if (rest) multiply_rest<Bits>(rest, part, integers, of_inputs + row * groups, totals + row * kBlock, row);
            }
        }
        amx::release();
    }

    template <int Bits>
    void run_part_unit(int64_t rows, const Team& team) const {
        const FloatMode like_the_unit{FloatMode::kNoTiny};  // lanes too: a row must not tell which of them made it
        if (rows <= kLaneRows)
            run_part_lanes<UnitOrder, Bits>(rows, team);
        else
            run_part_amx<Bits>(rows, team);
    }
#endif

    void run_part(int64_t rows, int64_t bits, const Team& team) const {
#ifdef LMNB_HAS_AMX
        if (amx::used()) return bits == 4 ? run_part_unit<4>(rows, team) : run_part_unit<8>(rows, team);
#endif
        if (bits == 4)
            run_part_lanes<Quickest, 4>(rows, team);
        else
            run_part_lanes<Quickest, 8>(rows, team);
    }
};

static void sum_groups(const bf16* x, int64_t count, float* sums) {
    for (int64_t g = 0; g < count; g++)
        sums[g] = sum_of(add(load(x + g * kGroup), load(x + g * kGroup + 16)));
}

extern "C" void lmnb_quantized_linear(const bf16* x, const uint8_t* weight, const bf16* bias, void* out, int64_t rows,
                                      int64_t in, int64_t outs, int64_t bits, int64_t out_wide) {
    const FloatMode usual;
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

// What has become of the matrix unit, in `state`. With `leave` no kernel uses it any more.
extern "C" void lmnb_matrix_unit(int64_t* state, int64_t leave) {
    if (leave) amx::left = true;
    *state = amx::state();
}

}  // namespace lmnb
