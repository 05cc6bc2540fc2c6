// Rotation of queries and keys, and the write of keys and values into the pool. See `rotary_store.py`.

#include <cstring>

#include "native.h"

namespace lmnb {

// Everything of one token: cos, sin are [dim] (the first half of sin negated), queries [num_queries, dim], keys and
// values [num_keys, dim], in the pool.
static void rotate_token(const bf16* heads, const bf16* new_values, const bf16* cos, const bf16* sin, bf16* queries,
                         bf16* keys, bf16* values, int64_t num_queries, int64_t num_keys, int64_t dim) {
    const int64_t half = dim / 2;
    for (int64_t head = 0; head < num_queries + num_keys; head++) {
        const bf16* from = heads + head * dim;
        bf16* to = head < num_queries ? queries + head * dim : keys + (head - num_queries) * dim;
        for (int64_t i = 0; i < half; i += 16) {
            const Lanes lanes = first_lanes(half - i);
            const Floats low = load(from + i, lanes), high = load(from + half + i, lanes);
            const bf16 *c = cos + i, *s = sin + i;
            store(to + i, fma(high, load(s, lanes), mul(low, load(c, lanes))), lanes);
            store(to + half + i,
                  fma(low, load(s + half, lanes), mul(high, load(c + half, lanes))), lanes);
        }
    }
    std::memcpy(values, new_values, num_keys * dim * sizeof(bf16));
}

// A token's query, key and value heads lie one after the other in `heads` and `new_values`, `stride` elements from
// those of the next token. cos, sin are [tokens, dim], queries [tokens, num_queries, dim], keys and values
// [slots, num_keys, dim].
extern "C" void lmnb_rotary_store(const bf16* heads, const bf16* new_values, const bf16* cos, const bf16* sin,
                                  const int64_t* slots, bf16* queries, bf16* keys, bf16* values, int64_t tokens,
                                  int64_t heads_stride, int64_t values_stride, int64_t num_queries, int64_t num_keys,
                                  int64_t dim) {
    each_row(tokens, tokens > kRowsForThreads, [&](int64_t token) {
        const int64_t slot = slots[token] * num_keys * dim;
        rotate_token(heads + token * heads_stride, new_values + token * values_stride, cos + token * dim,
                     sin + token * dim, queries + token * num_queries * dim, keys + slot, values + slot, num_queries,
                     num_keys, dim);
    });
}

}  // namespace lmnb
