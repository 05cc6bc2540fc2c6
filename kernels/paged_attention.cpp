// Attention of new tokens over keys and values that lie anywhere in the pool. See `paged_attention.py`.
//
// Keys are taken in tiles of 64, from position 0 (or the first that a window shows) on, with a running softmax: a
// token's result depends on its own keys alone, not on what it is computed beside, nor on whose tiles are shared.

#include <cmath>

#include "native.h"

namespace lmnb {

constexpr int64_t kTile = 64;

// Rows of 16 dwords become columns.
static inline void transpose(__m512i (&r)[16]) {
    __m512i t[16];
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
}

// One tile of a KV head's keys and values, laid out for products of pairs; what is not there is zero.
template <int D>
struct Tile {
    alignas(64) int32_t keys[D / 2][kTile];           // pairs of dimensions of each key
    alignas(64) int32_t values[kTile / 2][D];         // pairs of keys of each dimension
    int64_t first;                                    // position of the first key

    void lay_out(const bf16* key_pool, const bf16* value_pool, int64_t stride, const int64_t* slots, int64_t start,
                 int64_t count) {
        first = start;
        const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6,
                                             37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
        const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
        for (int64_t base = 0; base < count; base += 16) {
            for (int d = 0; d < D; d += 32) {
                __m512i rows[16];
                for (int i = 0; i < 16; i++)
                    rows[i] = base + i < count ? _mm512_loadu_si512(key_pool + slots[start + base + i] * stride + d)
                                               : _mm512_setzero_si512();
                transpose(rows);
                for (int i = 0; i < 16; i++) _mm512_store_si512(&keys[d / 2 + i][base], rows[i]);
            }
            for (int64_t i = base; i < base + 16; i += 2) {
                const bf16* one = value_pool + slots[start + std::min(i, count - 1)] * stride;
                const bf16* other = value_pool + slots[start + std::min(i + 1, count - 1)] * stride;
                for (int d = 0; d < D; d += 32) {
                    const __m512i a = i < count ? _mm512_loadu_si512(one + d) : _mm512_setzero_si512();
                    const __m512i b = i + 1 < count ? _mm512_loadu_si512(other + d) : _mm512_setzero_si512();
                    _mm512_store_si512(&values[i / 2][d], _mm512_permutex2var_epi16(a, low, b));
                    _mm512_store_si512(&values[i / 2][d + 16], _mm512_permutex2var_epi16(a, high, b));
                }
            }
        }
    }
};

// The running softmax of one query head of one token.
template <int D>
struct Row {
    __m512 sums, out[D / 16];  // of the weights (lane by lane), and of the weighted values
    float highest;             // score so far, in units of log 2

    void begin() {
        sums = _mm512_setzero_ps();
        for (__m512& part : out) part = _mm512_setzero_ps();
        highest = -INFINITY;
    }

    // Keys [from, to) of the tile.
    void take(const Tile<D>& tile, const bf16* query, int64_t from, int64_t to, float scale) {
        __m512 scores[4];
        __mmask16 seen[4];
        const int blocks = static_cast<int>((to + 15) / 16);
        for (int j = 0; j < 4; j++) {
            scores[j] = _mm512_setzero_ps();
            const int64_t start = std::clamp<int64_t>(from - j * 16, 0, 16), stop = std::clamp<int64_t>(to - j * 16, 0, 16);
            seen[j] = static_cast<__mmask16>(first_lanes(stop) & ~first_lanes(start));
        }
        if (blocks == 4) {
            for (int i = 0; i < D / 2; i++) {
                const __m512bh both = pair(query + 2 * i);
                for (int j = 0; j < 4; j++)
                    scores[j] = _mm512_dpbf16_ps(scores[j], both, (__m512bh)_mm512_load_si512(&tile.keys[i][j * 16]));
            }
        } else {
            for (int i = 0; i < D / 2; i++) {
                const __m512bh both = pair(query + 2 * i);
                for (int j = 0; j < blocks; j++)
                    scores[j] = _mm512_dpbf16_ps(scores[j], both, (__m512bh)_mm512_load_si512(&tile.keys[i][j * 16]));
            }
        }
        const __m512 least = _mm512_set1_ps(-INFINITY);
        for (int j = 0; j < 4; j++)
            scores[j] = _mm512_mask_mul_ps(least, seen[j], scores[j], _mm512_set1_ps(scale));
        const float top = _mm512_reduce_max_ps(
            _mm512_max_ps(_mm512_max_ps(scores[0], scores[1]), _mm512_max_ps(scores[2], scores[3])));
        if (top > highest) {
            const float change = highest == -INFINITY ? 0.0f : _mm512_cvtss_f32(exp2(_mm512_set1_ps(highest - top)));
            const __m512 factor = _mm512_set1_ps(change);
            sums = _mm512_mul_ps(sums, factor);
            for (__m512& part : out) part = _mm512_mul_ps(part, factor);
            highest = top;
        }
        alignas(64) bf16 weights[kTile];
        for (int j = 0; j < 4; j++) {
            const __m512 weight = _mm512_maskz_mov_ps(seen[j], exp2(_mm512_sub_ps(scores[j], _mm512_set1_ps(highest))));
            store(weights + j * 16, weight);
            sums = _mm512_add_ps(sums, rounded(weight));
        }
        for (int64_t i = from / 2; i < (to + 1) / 2; i++) {
            const __m512bh both = pair(weights + 2 * i);
            for (int d = 0; d < D; d += 16)
                out[d / 16] = _mm512_dpbf16_ps(out[d / 16], both, (__m512bh)_mm512_load_si512(&tile.values[i][d]));
        }
    }

    void finish(bf16* at) const {
        const __m512 whole = _mm512_set1_ps(_mm512_reduce_add_ps(sums));
        for (int d = 0; d < D; d += 16) store(at + d, _mm512_div_ps(out[d / 16], whole));
    }
};

struct Attention {
    const bf16 *queries, *keys, *values;
    const int64_t *table, *positions, *pieces;
    bf16* out;
    int64_t num_pieces, table_width, num_heads, num_kv_heads, window;
    float scale;

    // A piece is `count` requests from `row` of the table on, with `length` tokens each from `token` on. The first
    // `common` of their slots are the same.
    template <int D>
    void attend(const int64_t* piece, int64_t kv_head, Tile<D>& tile, Row<D>* rows) const {
        const int64_t row = piece[0], count = piece[1], token = piece[2], length = piece[3];
        const int64_t group = num_heads / num_kv_heads, stride = num_kv_heads * D;
        const bf16 *key_pool = keys + kv_head * D, *value_pool = values + kv_head * D;
        for (int64_t i = 0; i < count * length * group; i++) rows[i].begin();

        const auto use = [&](int64_t first, int64_t last) {  // tokens that may see some of the tile
            for (int64_t t = first; t < last; t++) {
                const int64_t position = positions[token + t];
                const int64_t from = std::max<int64_t>(0, position - window + 1 - tile.first);
                const int64_t to = std::min(kTile, position + 1 - tile.first);
                for (int64_t g = 0; from < to && g < group; g++) {
                    const bf16* query = queries + ((token + t) * num_heads + kv_head * group + g) * D;
                    rows[t * group + g].take(tile, query, from, to, scale);
                }
            }
        };
        const int64_t common = piece[4] / kTile * kTile;
        for (int64_t start = 0; start < common; start += kTile) {
            tile.lay_out(key_pool, value_pool, stride, table + row * table_width, start, kTile);
            use(0, count * length);
        }
        for (int64_t request = 0; request < count; request++) {
            const int64_t first = request * length, end = positions[token + first + length - 1] + 1;
            const int64_t hidden = std::max<int64_t>(0, positions[token + first] - window + 1);
            for (int64_t start = std::max(common, hidden / kTile * kTile); start < end; start += kTile) {
                tile.lay_out(key_pool, value_pool, stride, table + (row + request) * table_width, start,
                             std::min(kTile, end - start));
                use(first, first + length);
            }
        }
        for (int64_t t = 0; t < count * length; t++)
            for (int64_t g = 0; g < group; g++)
                rows[t * group + g].finish(out + ((token + t) * num_heads + kv_head * group + g) * D);
    }

    template <int D>
    void run() const {
        int64_t most = 0;
        for (int64_t i = 0; i < num_pieces; i++) most = std::max(most, pieces[i * 5 + 1] * pieces[i * 5 + 3]);
#pragma omp parallel
        {
            static thread_local Tile<D> tile;
            static thread_local std::vector<Row<D>> rows;
            rows.resize(std::max<size_t>(rows.size(), most * (num_heads / num_kv_heads)));
#pragma omp for schedule(dynamic)
            for (int64_t task = 0; task < num_pieces * num_kv_heads; task++)
                attend<D>(pieces + task / num_kv_heads * 5, task % num_kv_heads, tile, rows.data());
        }
    }
};

extern "C" void lmnb_paged_attention(const bf16* queries, const bf16* keys, const bf16* values, const int64_t* table,
                                     const int64_t* positions, const int64_t* pieces, bf16* out, int64_t num_pieces,
                                     int64_t table_width, int64_t num_heads, int64_t num_kv_heads, int64_t head_dim,
                                     int64_t window, double scale) {
    const Attention attention{queries, keys, values, table, positions, pieces, out, num_pieces,
                              table_width, num_heads, num_kv_heads, window, static_cast<float>(scale) * kLog2E};
    if (head_dim == 64)
        attention.run<64>();
    else
        attention.run<128>();
}

}  // namespace lmnb
