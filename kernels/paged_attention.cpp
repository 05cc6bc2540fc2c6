// Attention of new tokens over keys and values that lie anywhere in the pool. See `paged_attention.py`.
//
// Keys are taken in tiles of 64, with a running softmax that begins anew at each multiple of 256 keys, a *stretch*, and
// what the stretches give is added up in order. So a token's result depends on its own keys alone: not on what it is
// computed beside, nor on whose tiles are shared, nor on whether one thread goes through all stretches or several do.

#include <cmath>

#include "amx.h"
#include "native.h"

namespace lmnb {

constexpr int64_t kTile = 64, kStretch = 256;
// Rows at once by lanes, and by the matrix unit; and keys at once, of which those that are not there are zero.
constexpr int kAtOnce = 4;
#ifdef LMNB_HAS_AMX
constexpr int kUnitRows = 16, kFilled = 32;
#else
constexpr int kUnitRows = 0, kFilled = 16;
#endif

// One tile of a KV head's keys and values, laid out for products of pairs.
template <int D>
struct Tile {
    alignas(64) int32_t keys[D / 2][kTile];           // pairs of dimensions of each key
    alignas(64) int32_t values[kTile / 2][D];         // pairs of keys of each dimension
    int64_t first, count;                             // position of the first key, and how many there are

    // Those from `start` on, up to `stop`; what comes behind the tile is fetched meanwhile: slots may lie anywhere, so
    // that no processor would guess it.
    void lay_out(const bf16* key_pool, const bf16* value_pool, int64_t stride, const int64_t* slots, int64_t start,
                 int64_t stop) {
        alignas(64) static const bf16 nothing[D] = {};
        first = start;
        count = std::min(kTile, stop - start);
        const int64_t end = (count + kFilled - 1) / kFilled * kFilled;
        const int64_t apart = value_pool - key_pool;
        const bf16* at[kTile];
        for (int64_t i = 0; i < end; i++) at[i] = i < count ? key_pool + slots[start + i] * stride : nothing;
        for (int64_t i = start + kTile; i < std::min(stop, start + 2 * kTile); i++)
            for (int d = 0; d < D; d += 32) {
                const bf16* const next = key_pool + slots[i] * stride + d;
                _mm_prefetch(reinterpret_cast<const char*>(next), _MM_HINT_T1);
                _mm_prefetch(reinterpret_cast<const char*>(next + apart), _MM_HINT_T1);
            }
        for (int64_t base = 0; base < end; base += 16) {
            for (int d = 0; d < D; d += 32) transpose_pairs(at + base, d, &keys[d / 2][base], kTile);
        }
        for (int64_t i = 0; i < end; i += 2) {
            const bf16* const one = i < count ? at[i] + apart : nothing;
            const bf16* const other = i + 1 < count ? at[i + 1] + apart : nothing;
            for (int d = 0; d < D; d += 32) interleave(one + d, other + d, &values[i / 2][d]);
        }
        checked = false;
    }

    // Whether all values that are there are finite: with one that is not, a weight of nothing gives more than nothing.
    bool finite() {
        if (checked) return all_finite;
        uint32_t others = 0;
        for (int64_t i = 0; i < (count + 1) / 2; i++)
            for (int d = 0; d < D; d++) {
                const uint32_t both = values[i][d];
                others |= (both & 0x7F80u) == 0x7F80u || (both & 0x7F800000u) == 0x7F800000u;
            }
        checked = true;
        return all_finite = !others;
    }

    // Take away the values of all keys but those of [from, to).
    void keep(int64_t from, int64_t to) {
        for (int64_t i = 0; i < kTile; i++)
            for (int d = 0; (i < from || i >= to) && d < D; d++) values[i / 2][d] &= i % 2 ? 0x0000FFFF : 0xFFFF0000;
    }

   private:
    bool checked, all_finite;  // what `finite` has found
};

inline Lanes lanes_between(int64_t from, int64_t to) {
    return static_cast<Lanes>(first_lanes(std::clamp<int64_t>(to, 0, 16)) & ~first_lanes(std::clamp<int64_t>(from, 0, 16)));
}

template <int D>
struct Row;

// What a row takes of a tile: keys [from, to).
template <int D>
struct Wanted {
    Row<D>* row;
    const bf16* query;
    int64_t from, to;
};

// The running softmax of one query head of one token.
template <int D>
struct Row {
    Floats sums, out[D / 16];  // of the weights (lane by lane), and of the weighted values
    float highest;             // score so far, in units of log 2

    void begin() {
        sums = zeros();
        for (Floats& part : out) part = zeros();
        highest = -INFINITY;
    }

    bool has_nothing() const {
        return highest == -INFINITY && equal(sums, zeros()) == 0xFFFF;
    }

    // Take in what another has found, of keys that come behind this one's.
    void merge(const Row& other) {
        if (other.has_nothing()) return;
        if (has_nothing()) {
            *this = other;
            return;
        }
        const float most = std::max(highest, other.highest);
        const auto share = [&](float top) {
            return all(top == most ? 1.0f : first_of(exp2(all(top - most))));
        };
        const Floats mine = share(highest), its = share(other.highest);
        sums = fma(other.sums, its, mul(sums, mine));
        for (int d = 0; d < D / 16; d++) out[d] = fma(other.out[d], its, mul(out[d], mine));
        highest = most;
    }

    // Of R rows at once, which see the same keys: one alone waits for its own sums most of the time.
    template <int R>
    static void take(const Tile<D>& tile, const Wanted<D>* wanted, float scale) {
        const int64_t from = wanted->from, to = wanted->to;
        alignas(64) Input room[kMakesInputs ? R : 1][D], weights[R][kTile];
        const Input* asked[R];
        Row* rows[R];
        for (int r = 0; r < R; r++) {
            asked[r] = as_inputs(wanted[r].query, D, room[kMakesInputs ? r : 0]);
            rows[r] = wanted[r].row;
        }
        Floats scores[R][4];
        Lanes seen[4];
        for (int j = 0; j < 4; j++) {
            seen[j] = lanes_between(from - j * 16, to - j * 16);
            for (int r = 0; r < R; r++) scores[r][j] = zeros();
        }
        const int blocks = static_cast<int>((to + 15) / 16);
        int done = 0;
        if constexpr (kAttendBlocks >= 4)
            if (blocks == 4) multiply_keys<R, 4>(tile, asked, done, scores), done = 4;
        for (; done < blocks; done++) multiply_keys<R, 1>(tile, asked, done, scores);
        for (int r = 0; r < R; r++) rows[r]->weigh(scores[r], seen, scale, weights[r]);
        for (int d = 0; d < D / 16; d += kDims) add_values<R>(tile, rows, weights, from / 2, (to + 1) / 2, d);
    }

    // The products of R queries with `Blocks` times 16 keys, those of block `first` first.
    template <int R, int Blocks>
    static void multiply_keys(const Tile<D>& tile, const Input* const* asked, int first, Floats (&scores)[R][4]) {
        Floats sums[R][Blocks];
        for (int r = 0; r < R; r++)
            for (int j = 0; j < Blocks; j++) sums[r][j] = zeros();
        for (int i = 0; i < D / 2; i++) {
            Both both[R];
            for (int r = 0; r < R; r++) both[r] = pair(asked[r] + 2 * i);
            for (int j = 0; j < Blocks; j++) {
                const Pairs keys = load_pairs(&tile.keys[i][(first + j) * 16]);
                for (int r = 0; r < R; r++) sums[r][j] = dot(sums[r][j], both[r], keys);
            }
        }
        for (int r = 0; r < R; r++)
            for (int j = 0; j < Blocks; j++) scores[r][first + j] = sums[r][j];
    }

    // Blocks of 16 dimensions of values that are added up at once.
    static constexpr int kDims = std::min(kAttendBlocks, D / 16);

    // Add pairs [from, to) of keys' weighted values, of `kDims` times 16 dimensions, those of block `first` first.
    template <int R>
    static void add_values(const Tile<D>& tile, Row* const* rows, const Input (&weights)[R][kTile], int64_t from,
                           int64_t to, int first) {
        Floats sums[R][kDims];
        for (int r = 0; r < R; r++)
            for (int d = 0; d < kDims; d++) sums[r][d] = rows[r]->out[first + d];
        for (int64_t i = from; i < to; i++) {
            Both both[R];
            for (int r = 0; r < R; r++) both[r] = pair(weights[r] + 2 * i);
            for (int d = 0; d < kDims; d++) {
                const Pairs values = load_pairs(&tile.values[i][(first + d) * 16]);
                for (int r = 0; r < R; r++) sums[r][d] = dot(sums[r][d], both[r], values);
            }
        }
        for (int r = 0; r < R; r++)
            for (int d = 0; d < kDims; d++) rows[r]->out[first + d] = sums[r][d];
    }

#ifdef LMNB_HAS_AMX
    // Up to 16 rows at once by the matrix unit, each its own keys; those of its tile that it does not see weigh nothing.
    static void take_by_unit(const Tile<D>& tile, const Wanted<D>* wanted, int count, float scale) {
        static_assert(D == 64 || D == 128);
        alignas(64) bf16 queries[kUnitRows][D], weights[kUnitRows][kTile];
        alignas(64) float products[kUnitRows][kTile], sums[kUnitRows][D];
        constexpr int64_t kKeyBytes = kTile * sizeof(int32_t), kValueBytes = D * sizeof(int32_t);  // of a row of pairs
        int64_t most = 0;
        for (int r = 0; r < count; r++) {
            std::copy_n(wanted[r].query, D, queries[r]);
            most = std::max(most, wanted[r].to);
        }
        amx::load<1>(queries[0], D * sizeof(bf16));
        amx::load<2>(queries[0] + 32, D * sizeof(bf16));
        if constexpr (D == 128) amx::load<3>(queries[0] + 64, D * sizeof(bf16));
        if constexpr (D == 128) amx::load<4>(queries[0] + 96, D * sizeof(bf16));
        for (int64_t key = 0; key < most; key += 16) {
            amx::zero<0>();
            multiply<1, 5>(&tile.keys[0][key], kKeyBytes);
            multiply<2, 6>(&tile.keys[16][key], kKeyBytes);
            if constexpr (D == 128) multiply<3, 5>(&tile.keys[32][key], kKeyBytes);
            if constexpr (D == 128) multiply<4, 6>(&tile.keys[48][key], kKeyBytes);
            amx::store<0>(products[0] + key, sizeof products[0]);
        }
        for (int r = 0; r < count; r++) {
            Floats scores[4];
            Lanes seen[4];
            for (int j = 0; j < 4; j++) {
                scores[j] = load(products[r] + j * 16);
                seen[j] = lanes_between(wanted[r].from - j * 16, wanted[r].to - j * 16);
            }
            wanted[r].row->weigh(scores, seen, scale, weights[r]);
            for (int d = 0; d < D / 16; d++) store(sums[r] + d * 16, wanted[r].row->out[d]);
        }
        amx::load<1>(weights[0], sizeof weights[0]);
        amx::load<2>(weights[0] + 32, sizeof weights[0]);
        for (int d = 0; d < D; d += 16) {
            amx::load<0>(sums[0] + d, kValueBytes);
            multiply<1, 5>(&tile.values[0][d], kValueBytes);
            if (most > 32) multiply<2, 6>(&tile.values[16][d], kValueBytes);
            amx::store<0>(sums[0] + d, kValueBytes);
        }
        for (int r = 0; r < count; r++)
            for (int d = 0; d < D / 16; d++) wanted[r].row->out[d] = load(sums[r] + d * 16);
    }

    template <int A, int B>
    static void multiply(const int32_t* pairs, int64_t row_bytes) {
        amx::load<B>(pairs, row_bytes);
        amx::multiply<0, A, B>();
    }
#endif

    // The weights of a tile's keys from their products with the query.
    void weigh(Floats (&scores)[4], const Lanes (&seen)[4], float scale, Input* weights) {
        const Floats least = all(-INFINITY);
        for (int j = 0; j < 4; j++) scores[j] = where(seen[j], mul(scores[j], all(scale)), least);
        const float top = max_of(max(max(scores[0], scores[1]), max(scores[2], scores[3])));
        if (top > highest) {
            const float change = highest == -INFINITY ? 0.0f : first_of(exp2(all(highest - top)));
            const Floats factor = all(change);
            sums = mul(sums, factor);
            for (Floats& part : out) part = mul(part, factor);
            highest = top;
        }
        for (int j = 0; j < 4; j++) {
            const Floats weight = where(seen[j], exp2(sub(scores[j], all(highest))), zeros());
            store(weights + j * 16, weight);
            sums = add(sums, as_input(weight));
        }
    }

    void finish(bf16* at) const {
        const Floats whole = all(sum_of(sums));
        for (int d = 0; d < D; d += 16) store(at + d, add(div(out[d / 16], whole), zeros()));  // nothing has no sign
    }
};

// Rows that are to take what they see of a tile, several at once; by lanes only those that see the same keys.
template <int D>
class Waiting {
   public:
    Waiting(Tile<D>& tile, float scale) : tile_(tile), scale_(scale) {}

    void add(const Wanted<D>& wanted) {
        if ((wanted.from > 0 || wanted.to < tile_.count) && !tile_.finite()) {  // what it does not see must not reach it
            Tile<D> own = tile_;
            own.keep(wanted.from, wanted.to);
            take(own, &wanted, 1);
            return;
        }
        if (count_ && !amx::used() && (wanted.from != rows_->from || wanted.to != rows_->to)) take_all();
        rows_[count_++] = wanted;
        if (count_ == (amx::used() ? kUnitRows : kAtOnce)) take_all();
    }

    void take_all() {
        take(tile_, rows_, count_);
        count_ = 0;
    }

   private:
    void take(const Tile<D>& tile, const Wanted<D>* rows, int count) const {
#ifdef LMNB_HAS_AMX
        if (amx::used()) return count ? Row<D>::take_by_unit(tile, rows, count, scale_) : void();
#endif
        static_assert(kAtOnce == 4);
        if (count == 4) Row<D>::template take<4>(tile, rows, scale_);
        if (count == 3) Row<D>::template take<3>(tile, rows, scale_);
        if (count == 2) Row<D>::template take<2>(tile, rows, scale_);
        if (count == 1) Row<D>::template take<1>(tile, rows, scale_);
    }

    Tile<D>& tile_;
    const float scale_;
    Wanted<D> rows_[std::max(kAtOnce, kUnitRows)];
    int count_ = 0;
};

// Of what the stretches of each task give, where several threads share a task; else there are none.
struct Apart {
    int64_t stretches = 0, rows = 0;           // of a task, at the most
    uint8_t* results = nullptr;                // [tasks, stretches, rows] of `Row`
    std::atomic<int64_t>* finished = nullptr;  // [tasks]: stretches that are; 0 before and behind a call
};

struct Attention {
    const bf16 *queries, *keys, *values;
    const int64_t *table, *positions, *pieces;
    bf16* out;
    int64_t num_pieces, table_width, num_heads, num_kv_heads, window;
    float scale;
    Apart apart;

    int64_t group() const { return num_heads / num_kv_heads; }
    // A piece's (token, head) pairs that read one KV head.
    int64_t rows_of(const int64_t* piece) const { return piece[1] * piece[3] * group(); }
    // Where the keys of `piece` end.
    int64_t end_of(const int64_t* piece) const {
        int64_t end = 0;
        for (int64_t request = 0; request < piece[1]; request++)
            end = std::max(end, positions[piece[2] + (request + 1) * piece[3] - 1] + 1);
        return end;
    }
    // The first key that a window shows to a token; there are pieces of several requests only where there is no window.
    int64_t shown_from(int64_t token) const { return std::max<int64_t>(0, positions[token] - window + 1); }
    int64_t first_stretch(const int64_t* piece) const { return shown_from(piece[2]) / kStretch; }
    int64_t last_stretch(const int64_t* piece) const { return (end_of(piece) + kStretch - 1) / kStretch; }

    // One stretch, for the rows of a piece: `count` requests from `row` of the table on, with `length` tokens each from
    // `token` on. The first `common` of their slots are the same.
    template <int D>
    void attend(const int64_t* piece, int64_t kv_head, int64_t stretch, Tile<D>& tile, Row<D>* rows) const {
        const int64_t row = piece[0], count = piece[1], token = piece[2], length = piece[3];
        const int64_t group = this->group(), stride = num_kv_heads * D;
        const bf16 *key_pool = keys + kv_head * D, *value_pool = values + kv_head * D;
        const int64_t begin = stretch * kStretch, finish = begin + kStretch;
        for (int64_t i = 0; i < rows_of(piece); i++) rows[i].begin();

        const auto query = [&](int64_t i) {
            return queries + ((token + i / group) * num_heads + kv_head * group + i % group) * D;
        };
        const auto use = [&](int64_t first, int64_t last) {  // tokens that may see some of the tile
            Waiting<D> waiting(tile, scale);
            for (int64_t t = first; t < last; t++) {
                const int64_t position = positions[token + t];
                const int64_t from = std::max<int64_t>(0, position - window + 1 - tile.first);
                const int64_t to = std::min(kTile, position + 1 - tile.first);
                for (int64_t i = t * group; from < to && i < (t + 1) * group; i++)
                    waiting.add({&rows[i], query(i), from, to});
            }
            waiting.take_all();
        };
        const int64_t common = piece[4] / kTile * kTile, shared = std::min(common, finish);
        for (int64_t start = begin; start < shared; start += kTile) {
            tile.lay_out(key_pool, value_pool, stride, table + row * table_width, start, shared);
            use(0, count * length);
        }
        for (int64_t request = 0; request < count; request++) {
            const int64_t first = request * length, end = positions[token + first + length - 1] + 1;
            const int64_t own = std::max({begin, common, shown_from(token + first) / kTile * kTile});
            for (int64_t start = own; start < std::min(end, finish); start += kTile) {
                tile.lay_out(key_pool, value_pool, stride, table + (row + request) * table_width, start,
                             std::min(end, finish));
                use(first, first + length);
            }
        }
    }

    template <int D>
    void write(const int64_t* piece, int64_t kv_head, const Row<D>* rows) const {
        const int64_t group = this->group();
        for (int64_t i = 0; i < rows_of(piece); i++)
            rows[i].finish(out + ((piece[2] + i / group) * num_heads + kv_head * group + i % group) * D);
    }

    // All stretches of a piece, one after the other.
    template <int D>
    void attend_whole(const int64_t* piece, int64_t kv_head, Tile<D>& tile, Row<D>* rows) const {
        const int64_t first = first_stretch(piece), last = last_stretch(piece);
        Row<D>* const more = rows + rows_of(piece);
        for (int64_t stretch = first; stretch < last; stretch++) {
            attend<D>(piece, kv_head, stretch, tile, stretch == first ? rows : more);
            for (int64_t i = 0; stretch > first && i < rows_of(piece); i++) rows[i].merge(more[i]);
        }
        write<D>(piece, kv_head, rows);
    }

    // One stretch of a piece; whoever has its last one adds them up.
    template <int D>
    void attend_apart(int64_t task, int64_t index, Tile<D>& tile) const {
        const int64_t* const piece = pieces + task / num_kv_heads * 5;
        const int64_t first = first_stretch(piece), last = last_stretch(piece);
        if (first + index >= last) return;
        Row<D>* const results = reinterpret_cast<Row<D>*>(apart.results) + task * apart.stretches * apart.rows;
        attend<D>(piece, task % num_kv_heads, first + index, tile, results + index * apart.rows);
        if (apart.finished[task].fetch_add(1) + 1 < last - first) return;
        apart.finished[task].store(0);
        for (int64_t other = 1; other < last - first; other++)
            for (int64_t i = 0; i < rows_of(piece); i++) results[i].merge(results[other * apart.rows + i]);
        write<D>(piece, task % num_kv_heads, results);
    }

    // The tasks that are left, of all threads' together.
    template <int D>
    void run(std::atomic<int64_t>& next) const {
        static thread_local Tile<D> tile;
        static thread_local std::vector<Row<D>> rows;
        const int64_t tasks = num_pieces * num_kv_heads;
        if (apart.stretches) {
            for (int64_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < tasks * apart.stretches;)
                attend_apart<D>(task / apart.stretches, task % apart.stretches, tile);
            return;
        }
        int64_t most = 0;
        for (int64_t i = 0; i < num_pieces; i++) most = std::max(most, rows_of(pieces + i * 5));
        rows.resize(std::max<size_t>(rows.size(), 2 * most));
        for (int64_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < tasks;)
            attend_whole<D>(pieces + task / num_kv_heads * 5, task % num_kv_heads, tile, rows.data());
    }

    void run(std::atomic<int64_t>& next, int64_t head_dim) const {
#ifdef LMNB_HAS_AMX
        if (amx::used()) amx::configure({16, 16, 16, 16, 16, 16, 16, 0});
#endif
        if (head_dim == 64)
            run<64>(next);
        else
            run<128>(next);
#ifdef LMNB_HAS_AMX
        if (amx::used()) amx::release();
#endif
    }
};

// With fewer tasks for each thread, those of long contexts are shared out, unless that takes more memory than this.
constexpr int64_t kTasksForThread = 4, kMostApart = 32 << 20;

// How `attention` is shared out, and the bytes that it takes.
static int64_t share_out(const Attention& attention, int64_t head_dim, Apart& apart) {
    const int64_t tasks = attention.num_pieces * attention.num_kv_heads, threads = omp_get_max_threads();
    apart = {};
    if (threads == 1 || tasks >= kTasksForThread * threads) return 0;
    for (int64_t i = 0; i < attention.num_pieces; i++) {
        const int64_t* const piece = attention.pieces + i * 5;
        apart.stretches = std::max(apart.stretches, attention.last_stretch(piece) - attention.first_stretch(piece));
        apart.rows = std::max(apart.rows, attention.rows_of(piece));
    }
    const int64_t row_bytes = head_dim == 64 ? sizeof(Row<64>) : sizeof(Row<128>);
    const int64_t bytes = tasks * apart.stretches * apart.rows * row_bytes;
    if (apart.stretches > 1 && bytes <= kMostApart) return bytes;
    apart = {};
    return 0;
}

// Memory for calls of which one is made at a time; it is the calling thread's.
static void give_room(Apart* aparts, int64_t count, int64_t bytes, int64_t tasks) {
    static thread_local std::vector<uint8_t> results;
    static thread_local std::vector<std::atomic<int64_t>> finished;
    if (static_cast<int64_t>(results.size()) < bytes + 64) results.resize(bytes + 64);
    if (static_cast<int64_t>(finished.size()) < tasks) finished = std::vector<std::atomic<int64_t>>(tasks);
    for (int64_t i = 0; i < count; i++) {
        aparts[i].results = results.data() + -reinterpret_cast<uintptr_t>(results.data()) % 64;
        aparts[i].finished = finished.data();
    }
}

extern "C" void lmnb_paged_attention(const bf16* queries, const bf16* keys, const bf16* values, const int64_t* table,
                                     const int64_t* positions, const int64_t* pieces, bf16* out, int64_t num_pieces,
                                     int64_t table_width, int64_t num_heads, int64_t num_kv_heads, int64_t head_dim,
                                     int64_t window, double scale) {
    Attention attention{queries, keys, values, table, positions, pieces, out, num_pieces,
                        table_width, num_heads, num_kv_heads, window, static_cast<float>(scale) * kLog2E, {}};
    const int64_t bytes = share_out(attention, head_dim, attention.apart);
    if (bytes) give_room(&attention.apart, 1, bytes, num_pieces * num_kv_heads);
    std::atomic<int64_t> next{0};
    in_team([&](const Team&) { attention.run(next, head_dim); });
}

}  // namespace lmnb
