// silu(gate) * up of rows that hold gate, then up. See `silu_mul.py`.

#include "native.h"

namespace lmnb {

static void silu_mul_row(const bf16* gate_up, bf16* out, int64_t size) {
    const bf16* up = gate_up + size;
    for (int64_t i = 0; i < size; i += 16) {
        const Lanes lanes = first_lanes(size - i);
        const Floats g = load(gate_up + i, lanes);
        const Floats down = add(all(1.0f), exp2(mul(g, all(-kLog2E))));
        store(out + i, mul(div(g, down), load(up + i, lanes)), lanes);
    }
}

// gate_up is [rows, 2 * size], out [rows, size].
extern "C" void lmnb_silu_mul(const bf16* gate_up, bf16* out, int64_t rows, int64_t size) {
    each_row(rows, rows > kRowsForThreads,
             [&](int64_t row) { silu_mul_row(gate_up + row * 2 * size, out + row * size, size); });
}

}  // namespace lmnb
