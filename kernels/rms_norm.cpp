// Root-mean-square norm of rows, after the residual addition if there is one. See `rms_norm.py`.

#include "native.h"

namespace lmnb {

// x is [rows, heads, size], its rows `stride` elements apart; `weight` is [num_weights, size], one or one a head. With
// `residual`, `total` gets x + residual in bfloat16, and that is what is normed.
extern "C" void lmnb_rms_norm(const bf16* x, const bf16* residual, const bf16* weight, bf16* total, bf16* out,
                              int64_t rows, int64_t heads, int64_t stride, int64_t size, int64_t num_weights,
                              double eps) {
#pragma omp parallel for schedule(static) if (rows > kRowsForThreads)
    for (int64_t row = 0; row < rows * heads; row++) {
        const bf16* source = x + row / heads * stride + row % heads * size;
        __m512 squares = _mm512_setzero_ps();
        for (int64_t i = 0; i < size; i += 16) {
            const __mmask16 lanes = first_lanes(size - i);
            __m512 value = load(source + i, lanes);
            if (residual) {
                value = rounded(_mm512_add_ps(value, load(residual + row * size + i, lanes)));
                store(total + row * size + i, value, lanes);
            }
            squares = _mm512_fmadd_ps(value, value, squares);
        }
        const float mean = _mm512_reduce_add_ps(squares) / static_cast<float>(size);
        const __m512 factor = _mm512_set1_ps(1.0f / __builtin_sqrtf(mean + static_cast<float>(eps)));
        if (residual) source = total + row * size;
        const bf16* scale = weight + row % num_weights * size;
        for (int64_t i = 0; i < size; i += 16) {
            const __mmask16 lanes = first_lanes(size - i);
            const __m512 value = _mm512_mul_ps(load(source + i, lanes), factor);
            store(out + row * size + i, _mm512_mul_ps(value, load(scale + i, lanes)), lanes);
        }
    }
}

}  // namespace lmnb
