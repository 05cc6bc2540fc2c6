// All of a decoder layer behind its attention, and the norm that comes next, in one call. See `layer_tail.py`.

#include "native.h"

namespace lmnb {

// x is [rows, width] (attention's output), residual, normed and total [rows, hidden]; biases may be null. The numbers
// are those of the operations called one by one.
extern "C" void lmnb_layer_tail(const bf16* x, const bf16* residual, const void* out_weight, const void* out_bias,
                                const bf16* post_norm, const void* gate_up_weight, const void* gate_up_bias,
                                const void* down_weight, const void* down_bias, const bf16* next_norm, bf16* normed,
                                bf16* total, int64_t rows, int64_t width, int64_t hidden, int64_t inner,
                                int64_t out_bits, int64_t gate_up_bits, int64_t down_bits, double eps) {
    static thread_local std::vector<bf16> scratch;
    scratch.resize(rows * (3 * hidden + 3 * inner));
    bf16 *branch = scratch.data(), *middle = branch + rows * hidden, *input = middle + rows * hidden;
    bf16 *gate_up = input + rows * hidden, *active = gate_up + rows * 2 * inner;
    lmnb_quantized_linear(x, out_weight, out_bias, branch, rows, width, hidden, out_bits, 0);
    lmnb_rms_norm(branch, residual, post_norm, middle, input, rows, 1, hidden, hidden, 1, eps);
    lmnb_quantized_linear(input, gate_up_weight, gate_up_bias, gate_up, rows, hidden, 2 * inner, gate_up_bits, 0);
    lmnb_silu_mul(gate_up, active, rows, inner);
    lmnb_quantized_linear(active, down_weight, down_bias, branch, rows, inner, hidden, down_bits, 0);
    lmnb_rms_norm(branch, middle, next_norm, total, normed, rows, 1, hidden, hidden, 1, eps);
}

}  // namespace lmnb
