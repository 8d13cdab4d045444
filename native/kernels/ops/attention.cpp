// How attention is divided among threads. Keys are read in splits that begin at fixed positions,
// and the partial results of splits are merged in order, whether one thread computes all of them or
// several threads do. So a long context keeps every thread busy, and the bits do not change.

#include "ops/ops.hpp"
#include "ops/partial_attention.hpp"
#include "system/thread_pool.hpp"

namespace bitnet {
using detail::active;

namespace {

// Rows (queries of one head each) of a unit, which share a page in the caches of a core: at most so
// many, unless kQueryBlock tokens have more.
constexpr int64_t kQueryRows = 128;
// Units are larger than kQueryBlock tokens only if each thread has at least so many of them, so
// that a slow core does not delay the others.
constexpr int64_t kUnitsPerThread = 4;
constexpr int64_t kSplitKeys = int64_t(kSplitPages) * kKeyBlock;

// Attention of queries [t0, t1) of one segment and key head over splits [first, last).
struct Unit {
    const AttentionArgs* args;
    int64_t kv_head, t0, t1, first, last;
    // Where the results of its splits begin, if threads share them; -1: one thread computes all
    int64_t partials;

    int64_t rows() const { return (t1 - t0) * (args->heads / args->kv_heads); }
    int64_t floats() const { return PartialAttention::floats(rows(), args->head_dim); }
};

// Factor that makes the result from a sum of weighted values. Relative to the score *top*, the sum
// of the weights is *sum*; one more key has the score *sink* and the value 0.
float with_sink(float sink, float top, float sum) {
    const float sink_score = sink * kLog2E;
    const float most = sink_score > top ? sink_score : top;
    const float before = power_or_zero(top - most);
    return before / (sum * before + power_or_zero(sink_score - most));
}

// Writes the results of a unit, and may change its sums *part*; *spare* has room for a head.
void write(const Unit& unit, const PartialAttention& part, float* spare) {
    const AttentionArgs& a = *unit.args;
    const int64_t group = a.heads / a.kv_heads, dim = a.head_dim;
    const bool rotated = a.kv_type == KvType::q8;
    for (int64_t r = 0; r < unit.rows(); ++r) {
        const int64_t head = unit.kv_head * group + r % group;
        float s = a.sinks ? with_sink(a.sinks[head], part.top[r], part.sum[r]) : 1.0f / part.sum[r];
        float *out = a.out + ((unit.t0 + r / group) * a.heads + head) * dim,
              *acc = part.acc + r * code_width(dim);
        if (rotated) {
            rotate(acc, dim, spare);
            s *= 1.0f / float(rotated_block(dim));
        }
        for (int64_t d = 0; d < dim; ++d) out[d] = acc[d] * s;
    }
}

// Computes splits [first, last) of a unit.
void attend(const Unit& unit, int64_t first, int64_t last, float* partial, float* scratch) {
    active().attend(*unit.args, unit.kv_head, unit.t0, unit.t1, first, last, partial, scratch);
}

}  // namespace

void attention(const std::vector<AttentionArgs>& batch) {
    std::vector<Unit> units;
    int64_t blocks = 0;  // of kQueryBlock tokens and one key head
    for (const AttentionArgs& a : batch)
        blocks += (a.tokens + kQueryBlock - 1) / kQueryBlock * a.kv_heads;
    // Blocks that a unit may have if each thread is to get enough units.
    const int64_t most_for_threads = std::max<int64_t>(1, blocks / (kUnitsPerThread * threads()));
    // What one thread computes at a time: a split of a unit.
    struct Piece {
        size_t unit;
        int64_t split;  // -1: all splits
    };
    std::vector<Piece> pieces;
    int64_t shared = 0, work = 0;
    for (const AttentionArgs& a : batch) {
        count_call(Op::attention);
        const bool shares_splits = a.tokens <= kQueryBlock;  // too few queries for the threads
        const int64_t most_for_rows =
            std::max<int64_t>(1, kQueryRows / (kQueryBlock * (a.heads / a.kv_heads)));
        const int64_t size = kQueryBlock * std::min(most_for_threads, most_for_rows);  // tokens
        // Last tokens first: with a causal mask they have the most keys.
        for (int64_t i = (a.tokens - 1) / size; i >= 0; --i)
            for (int64_t head = 0; head < a.kv_heads; ++head) {
                Unit unit{&a, head, i * size, std::min(a.tokens, (i + 1) * size), 0, 0, -1};
                unit.first = a.first_key(unit.t0) / kSplitKeys;
                unit.last = (a.end_key(unit.t1 - 1) - 1) / kSplitKeys + 1;
                if (shares_splits && unit.last - unit.first > 1) {
                    unit.partials = shared;
                    shared += (unit.last - unit.first) * unit.floats();
                    for (int64_t split = unit.first; split < unit.last; ++split)
                        pieces.push_back({units.size(), split});
                } else {
                    pieces.push_back({units.size(), -1});
                }
                units.push_back(unit);
            }
        work += a.tokens * a.heads * a.head_dim * (a.start + a.tokens - a.first_key(0));
    }
    thread_local std::vector<float> partials;
    if (int64_t(partials.size()) < shared) partials.resize(size_t(shared));
    float* all = partials.data();
    const auto partial = [&](const Unit& unit, int64_t split) {
        return all + unit.partials + (split - unit.first) * unit.floats();
    };
    const auto run = [&](int64_t p0, int64_t p1) {
        for (int64_t p = p0; p < p1; ++p) {
            const Unit& unit = units[pieces[size_t(p)].unit];
            const int64_t split = pieces[size_t(p)].split, rows = unit.rows(),
                          dim = unit.args->head_dim;
            const int64_t floats = split < 0 ? unit.floats() : 0;
            auto* memory = reinterpret_cast<float*>(
                thread_scratch(size_t(floats + attend_scratch(rows, dim)) * sizeof(float)));
            if (split >= 0) {
                attend(unit, split, split + 1, partial(unit, split), memory);
                continue;
            }
            attend(unit, unit.first, unit.last, memory, memory + floats);
            write(unit, PartialAttention(memory, rows, dim), memory + floats);
        }
    };
    // This Split divides pieces among threads (system/thread_pool.hpp), not keys.
    Split(int64_t(pieces.size()), 1, work < kSerialWork).run(run);
    for (const Unit& unit : units) {
        if (unit.partials < 0) continue;
        const int64_t rows = unit.rows(), dim = unit.args->head_dim;
        const PartialAttention total(partial(unit, unit.first), rows, dim);
        for (int64_t split = unit.first + 1; split < unit.last; ++split)
            merge(total, PartialAttention(partial(unit, split), rows, dim), rows, dim);
        write(unit, total, reinterpret_cast<float*>(thread_scratch(size_t(dim) * sizeof(float))));
    }
}

}  // namespace bitnet
