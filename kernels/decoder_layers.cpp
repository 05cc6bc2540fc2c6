// All layers of a decoder, and the norm behind them, in one call of one team of threads. See `decoder_layers.py`.

#include "native.h"

namespace lmnb {

struct Weight {
    const uint8_t* integers;
    const bf16* bias;  // or null
    int64_t bits;
};

struct Layer {
    const bf16* input_norm;
    Weight qkv;
    const bf16* head_norm;  // [num_heads + num_kv_heads, head_dim], or null
    Weight out;
    const bf16* post_norm;
    Weight gate_up, down;
    int64_t window, kind;  // the kind says which pieces it attends by
};

// A layer's part of the pool.
struct Place {
    bf16 *keys, *values;
};

struct Pieces {
    const int64_t* pieces;
    int64_t count;
};

struct Shape {
    int64_t num_layers, hidden, num_heads, num_kv_heads, head_dim, inner;
};

static int64_t padded(int64_t size) { return (size + 63) / 64 * 64; }  // elements, so that threads share no line

// What a thread has of the rows, or all have together. Of one row every thread has its own: computing it again takes
// less time than waiting for it.
struct Rows {
    bf16 *residual, *normed, *active;
    float* sums;

    static int64_t bytes(int64_t rows, const Shape& s) {
        return padded(rows * s.hidden) * 4 + padded(rows * s.inner) * 2 + padded(rows * groups(s)) * 4;
    }
    static int64_t groups(const Shape& s) { return std::max({s.hidden, s.inner, s.num_heads * s.head_dim}) / kGroup; }

    Rows(uint8_t* at, int64_t rows, const Shape& s) {
        residual = reinterpret_cast<bf16*>(at);
        normed = residual + padded(rows * s.hidden);
        active = normed + padded(rows * s.hidden);
        sums = reinterpret_cast<float*>(active + padded(rows * s.inner));
    }
};

struct Step {
    const Layer* layers;
    const Place* places;
    const Pieces* pieces;
    const Apart* aparts;  // [kinds of layers]
    Shape shape;
    float eps;
    double scale;
    const bf16 *embedded, *cos, *sin;  // [rows, hidden], [rows, head_dim] twice
    const int64_t *slots, *table, *positions, *wanted;
    int64_t rows, table_width, num_wanted;
    const bf16* last_norm;
    bf16* normed;  // [num_wanted, hidden]
    bf16 *qkv, *queries, *attended, *branch, *kept, *gate_up;  // what all threads write parts of
    std::atomic<int64_t>* next;                                // [num_layers]: attention's next task

    void product(const bf16* x, const Weight& weight, void* out, const float* sums, int64_t ins, int64_t outs,
                 int64_t rows, const Team& team) const {
        const Product product{x, weight.integers, weight.bias, out, sums, ins / kGroup, outs, false};
        product.run_part(rows, weight.bits, team);
        team.meet();
    }

    // `work(row)` of this thread's share of the rows; of one row, in every thread.
    template <class Work>
    void each(int64_t count, const Team& team, const Work& work) const {
        if (rows == 1) {
            for (int64_t row = 0; row < count; row++) work(row);
            return;
        }
        for (int64_t row = team.first(count); row < team.last(count); row++) work(row);
        team.meet();
    }

    Attention attention_of(const Layer& layer, const Place& place) const {
        const Pieces& its = pieces[layer.kind];
        return {queries, place.keys, place.values, table, positions, its.pieces, attended, its.count, table_width,
                shape.num_heads, shape.num_kv_heads, layer.window, static_cast<float>(scale) * kLog2E,
                aparts[layer.kind]};
    }

    void attend(const Layer& layer, int64_t index, const Team& team) const {
        const Place& place = places[index];
        const int64_t width = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim;
        const int64_t query_width = shape.num_heads * shape.head_dim, kv_width = shape.num_kv_heads * shape.head_dim;
        for (int64_t row = team.first(rows); row < team.last(rows); row++) {
            bf16* const heads = qkv + row * width;
            for (int64_t head = 0; layer.head_norm && head < shape.num_heads + shape.num_kv_heads; head++) {
                bf16* const at = heads + head * shape.head_dim;
                norm_row(at, nullptr, layer.head_norm + head * shape.head_dim, nullptr, at, shape.head_dim, eps);
            }
            const int64_t slot = slots[row] * kv_width;
            rotate_token(heads, heads + query_width + kv_width, cos + row * shape.head_dim, sin + row * shape.head_dim,
                         queries + row * query_width, place.keys + slot, place.values + slot, shape.num_heads,
                         shape.num_kv_heads, shape.head_dim);
        }
        team.meet();
        const Attention attention = attention_of(layer, place);
        attention.run(next[index], shape.head_dim);
        team.meet();
    }

    void run(Rows mine, const Team& team) const {
        const int64_t hidden = shape.hidden, inner = shape.inner, query_width = shape.num_heads * shape.head_dim;
        const int64_t width = query_width + 2 * shape.num_kv_heads * shape.head_dim;
        const int64_t hidden_groups = hidden / kGroup, inner_groups = inner / kGroup, query_groups = query_width / kGroup;
        each(rows, team, [&](int64_t row) {
            bf16* const x = mine.normed + row * hidden;
            std::copy_n(embedded + row * hidden, hidden, mine.residual + row * hidden);
            norm_row(embedded + row * hidden, nullptr, layers[0].input_norm, nullptr, x, hidden, eps);
            sum_groups(x, hidden_groups, mine.sums + row * hidden_groups);
        });
        int64_t count = rows;
        for (int64_t index = 0; index < shape.num_layers; index++) {
            const Layer& layer = layers[index];
            const bool is_last = index == shape.num_layers - 1;
            product(mine.normed, layer.qkv, qkv, mine.sums, hidden, width, rows, team);
            attend(layer, index, team);
            const bf16* x = attended;
            bf16* residual = mine.residual;
            if (is_last && rows > 1) {  // nothing behind the last attention mixes rows: go on with those that are wanted
                count = num_wanted;
                each(count, team, [&](int64_t row) {
                    std::copy_n(attended + wanted[row] * query_width, query_width, queries + row * query_width);
                    std::copy_n(mine.residual + wanted[row] * hidden, hidden, kept + row * hidden);
                });
                x = queries, residual = kept;
            }
            each(count, team, [&](int64_t row) {
                sum_groups(x + row * query_width, query_groups, mine.sums + row * query_groups);
            });
            product(x, layer.out, branch, mine.sums, query_width, hidden, count, team);
            each(count, team, [&](int64_t row) {
                norm_row(branch + row * hidden, residual + row * hidden, layer.post_norm, residual + row * hidden,
                         mine.normed + row * hidden, hidden, eps);
                sum_groups(mine.normed + row * hidden, hidden_groups, mine.sums + row * hidden_groups);
            });
            product(mine.normed, layer.gate_up, gate_up, mine.sums, hidden, 2 * inner, count, team);
            each(count, team, [&](int64_t row) {
                silu_mul_row(gate_up + row * 2 * inner, mine.active + row * inner, inner);
                sum_groups(mine.active + row * inner, inner_groups, mine.sums + row * inner_groups);
            });
            product(mine.active, layer.down, branch, mine.sums, inner, hidden, count, team);
            const bf16* const next_norm = is_last ? last_norm : layers[index + 1].input_norm;
            each(count, team, [&](int64_t row) {
                norm_row(branch + row * hidden, residual + row * hidden, next_norm, residual + row * hidden,
                         mine.normed + row * hidden, hidden, eps);
                if (!is_last) sum_groups(mine.normed + row * hidden, hidden_groups, mine.sums + row * hidden_groups);
            });
        }
        if (rows > 1)
            each(count, team, [&](int64_t row) { std::copy_n(mine.normed + row * hidden, hidden, normed + row * hidden); });
        else if (team.index == 0)
            std::copy_n(mine.normed, hidden, normed);
    }
};

// `layers` and `places` are [num_layers], `pieces` [kinds of layers]; `wanted`: the rows whose results are wanted, all of one row; the rest is as in
// `lmnb_paged_attention`, `lmnb_rotary_store` and `Step`.
extern "C" void lmnb_decoder_layers(const Layer* layers, const Place* places, const Pieces* pieces,
                                    const bf16* embedded, const bf16* cos, const bf16* sin, const int64_t* slots, const int64_t* table,
                                    const int64_t* positions, const int64_t* wanted, const bf16* last_norm, bf16* normed,
                                    int64_t rows, int64_t num_wanted, int64_t table_width, int64_t num_layers,
                                    int64_t hidden, int64_t num_heads, int64_t num_kv_heads, int64_t head_dim,
                                    int64_t inner, double eps, double scale) {
    const Shape shape{num_layers, hidden, num_heads, num_kv_heads, head_dim, inner};
    const int64_t most = std::max(rows, num_wanted), query_width = num_heads * head_dim;
    const int64_t sizes[] = {most * (query_width + 2 * num_kv_heads * head_dim), most * query_width, most * query_width,
                             most * hidden, most * hidden, most * 2 * inner};
    const int64_t copies = rows == 1 ? omp_get_max_threads() : 1, own = Rows::bytes(most, shape);
    int64_t bytes = copies * own + 64;
    for (const int64_t size : sizes) bytes += padded(size) * sizeof(bf16);
    static thread_local std::vector<uint8_t> scratch;
    if (static_cast<int64_t>(scratch.size()) < bytes) scratch.resize(bytes);
    uint8_t* const start = scratch.data() + -reinterpret_cast<uintptr_t>(scratch.data()) % 64;
    bf16* shared[6];
    bf16* at = reinterpret_cast<bf16*>(start + copies * own);
    for (int i = 0; i < 6; at += padded(sizes[i]), i++) shared[i] = at;
    std::vector<std::atomic<int64_t>> next(num_layers);
    int64_t num_kinds = 0;
    for (int64_t i = 0; i < num_layers; i++) num_kinds = std::max(num_kinds, layers[i].kind + 1);
    std::vector<Apart> aparts(num_kinds);
    const Step step{layers, places, pieces, aparts.data(), shape, static_cast<float>(eps), scale, embedded, cos, sin,
                    slots, table, positions, wanted, rows, table_width, num_wanted, last_norm, normed, shared[0],
                    shared[1], shared[2], shared[3], shared[4], shared[5], next.data()};
    int64_t room = 0, tasks = 0;
    for (int64_t i = 0; i < num_layers; i++) {
        const int64_t kind = layers[i].kind;
        room = std::max(room, share_out(step.attention_of(layers[i], places[i]), head_dim, aparts[kind]));
        tasks = std::max(tasks, pieces[kind].count * num_kv_heads);
    }
    if (room) give_room(aparts.data(), num_kinds, room, tasks);
    in_team([&](const Team& team) { step.run(Rows(start + (rows == 1 ? team.index : 0) * own, most, shape), team); });
}

}  // namespace lmnb
