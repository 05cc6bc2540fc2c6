// Scores of a vocabulary under the masks of grammars. See `masked_scores.py`.

#include <limits>

#include "native.h"

namespace lmnb {

// Which of the 16 tokens from `first` on, a multiple of 16, a mask of 32-bit words allows; none behind its end.
static inline Lanes allowed_lanes(const uint32_t* mask, int64_t words, int64_t first) {
    return first / 32 < words ? static_cast<Lanes>(mask[first / 32] >> (first % 32)) : 0;
}

// Rows below which a second thread would take longer to come than it saves.
constexpr int64_t kMaskedRowsForThreads = 4;

// The likeliest allowed token of each row, the first of those that are alike, and its score; minus infinity if none is
// allowed, NaN if any allowed score is NaN. `scores` is [rows, tokens], `stride` apart; `masks` are [rows], each of
// `words`, or null: all are allowed.
extern "C" void lmnb_likeliest(const float* scores, const uint32_t* const* masks, int64_t* chosen, float* best,
                               int64_t rows, int64_t tokens, int64_t stride, int64_t words) {
    each_row(rows, rows >= kMaskedRowsForThreads, [&](int64_t row) {
        const float* const at = scores + row * stride;
        const uint32_t* const mask = masks[row];
        Floats top = all(-std::numeric_limits<float>::infinity());
        Ints place = all(int32_t{0});
        Lanes broken = 0;
        for (int64_t first = 0; first < tokens; first += 16) {
            Lanes lanes = first_lanes(tokens - first);
            if (mask) lanes &= allowed_lanes(mask, words, first);
            if (!lanes) continue;
            const Floats value = load(at + first, lanes);
            broken |= lanes & is_nan(value);
            const Lanes higher = lanes & greater(value, top);
            if (!higher) continue;
            top = where(higher, value, top);
            place = where(higher, all(static_cast<int32_t>(first)), place);
        }
        best[row] = broken ? std::numeric_limits<float>::quiet_NaN() : max_of(top);
        const Lanes same = equal(top, all(best[row]));
        chosen[row] = same ? least_place(same, place) : 0;
    });
}

// Minus infinity in place of what the masks do not allow; arguments as above.
extern "C" void lmnb_forbid_masked(float* scores, const uint32_t* const* masks, int64_t rows, int64_t tokens,
                                   int64_t stride, int64_t words) {
    const Floats never = all(-std::numeric_limits<float>::infinity());
    each_row(rows, rows >= kMaskedRowsForThreads, [&](int64_t row) {
        if (!masks[row]) return;
        for (int64_t first = 0; first < tokens; first += 16) {
            const Lanes lanes = first_lanes(tokens - first) & ~allowed_lanes(masks[row], words, first);
            store(scores + row * stride + first, never, lanes);
        }
    });
}

}  // namespace lmnb
