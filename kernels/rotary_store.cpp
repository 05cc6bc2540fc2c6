// Rotation of queries and keys, and the write of keys and values into the pool. See `rotary_store.py`.

#include <cstring>

#include "native.h"

namespace lmnb {

// A token's query, key and value heads lie one after the other in `heads` and `new_values`, `stride` elements from
// those of the next token. cos, sin are [tokens, dim] (the first half of sin negated), queries [tokens, num_queries,
// dim], keys and values [slots, num_keys, dim].
extern "C" void lmnb_rotary_store(const bf16* heads, const bf16* new_values, const bf16* cos, const bf16* sin,
                                  const int64_t* slots, bf16* queries, bf16* keys, bf16* values, int64_t tokens,
                                  int64_t heads_stride, int64_t values_stride, int64_t num_queries, int64_t num_keys,
                                  int64_t dim) {
    const int64_t half = dim / 2;
#pragma omp parallel for schedule(static) if (tokens > kRowsForThreads)
    for (int64_t token = 0; token < tokens; token++) {
        const int64_t slot = slots[token] * num_keys * dim;
        for (int64_t head = 0; head < num_queries + num_keys; head++) {
            const bf16* from = heads + token * heads_stride + head * dim;
            bf16* to = head < num_queries ? queries + (token * num_queries + head) * dim
                                          : keys + slot + (head - num_queries) * dim;
            for (int64_t i = 0; i < half; i += 16) {
                const __mmask16 lanes = first_lanes(half - i);
                const __m512 low = load(from + i, lanes), high = load(from + half + i, lanes);
                const bf16 *c = cos + token * dim + i, *s = sin + token * dim + i;
                store(to + i, _mm512_fmadd_ps(high, load(s, lanes), _mm512_mul_ps(low, load(c, lanes))), lanes);
                store(to + half + i,
                      _mm512_fmadd_ps(low, load(s + half, lanes), _mm512_mul_ps(high, load(c + half, lanes))), lanes);
            }
        }
        std::memcpy(values + slot, new_values + token * values_stride, num_keys * dim * sizeof(bf16));
    }
}

}  // namespace lmnb
