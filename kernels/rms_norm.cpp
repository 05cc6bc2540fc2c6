// Root-mean-square norm of rows, after the residual addition if there is one. See `rms_norm.py`.

#include "native.h"

namespace lmnb {

// One row of `size`. With `residual`, `total` gets x + residual in bfloat16, and that is what is normed; either may be
// where the other is.
static void norm_row(const bf16* x, const bf16* residual, const bf16* weight, bf16* total, bf16* out, int64_t size,
                     float eps) {
    Floats squares = zeros();
    for (int64_t i = 0; i < size; i += 16) {
        const Lanes lanes = first_lanes(size - i);
        Floats value = load(x + i, lanes);
        if (residual) {
            value = rounded(add(value, load(residual + i, lanes)));
            store(total + i, value, lanes);
        }
        squares = fma(value, value, squares);
    }
    const float mean = sum_of(squares) / static_cast<float>(size);
    const Floats factor = all(1.0f / __builtin_sqrtf(mean + eps));
    if (residual) x = total;
    for (int64_t i = 0; i < size; i += 16) {
        const Lanes lanes = first_lanes(size - i);
        const Floats value = mul(load(x + i, lanes), factor);
        store(out + i, mul(value, load(weight + i, lanes)), lanes);
    }
}

// x is [rows, heads, size], its rows `stride` elements apart; `weight` is [num_weights, size], one or one a head;
// `residual` and `total`, if there is one, are [rows * heads, size].
extern "C" void lmnb_rms_norm(const bf16* x, const bf16* residual, const bf16* weight, bf16* total, bf16* out,
                              int64_t rows, int64_t heads, int64_t stride, int64_t size, int64_t num_weights,
                              double eps) {
    each_row(rows * heads, rows > kRowsForThreads, [&](int64_t row) {
        norm_row(x + row / heads * stride + row % heads * size, residual ? residual + row * size : nullptr,
                 weight + row % num_weights * size, residual ? total + row * size : nullptr, out + row * size, size,
                 static_cast<float>(eps));
    });
}

}  // namespace lmnb
