// silu(gate) * up of rows that hold gate, then up. See `silu_mul.py`.

#include "native.h"

namespace lmnb {

// gate_up is [rows, 2 * size], out [rows, size].
extern "C" void lmnb_silu_mul(const bf16* gate_up, bf16* out, int64_t rows, int64_t size) {
#pragma omp parallel for schedule(static) if (rows > kRowsForThreads)
    for (int64_t row = 0; row < rows; row++) {
        const bf16 *gate = gate_up + row * 2 * size, *up = gate + size;
        for (int64_t i = 0; i < size; i += 16) {
            const __mmask16 lanes = first_lanes(size - i);
            const __m512 g = load(gate + i, lanes);
            const __m512 down = _mm512_add_ps(_mm512_set1_ps(1.0f), exp2(_mm512_mul_ps(g, _mm512_set1_ps(-kLog2E))));
            store(out + row * size + i, _mm512_mul_ps(_mm512_div_ps(g, down), load(up + i, lanes)), lanes);
        }
    }
}

}  // namespace lmnb
