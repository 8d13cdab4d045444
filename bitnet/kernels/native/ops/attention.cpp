// Who computes which part of attention. A query's keys are seen in splits that begin at fixed
// positions, and their partial results are merged in order, whether one thread does them all or each
// is done by another: a long context keeps every thread busy and the bits do not change.
#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/counters.hpp"
#include "isa/dispatch.hpp"
#include "ops/elementary.hpp"
#include "ops/ops.hpp"
#include "system/split.hpp"

namespace bitnet {
using detail::active;

namespace {

constexpr int64_t kSplitKeys = int64_t(kSplitPages) * kKeyBlock;

// Queries [t0, t1) of one segment and key head over splits [first, last).
struct Unit {
    const AttentionArgs* args;
    int64_t kv_head, t0, t1, first, last;
    int64_t partials;  // where in the shared memory they go; -1: the unit is finished by itself

    int64_t rows() const { return (t1 - t0) * (args->heads / args->kv_heads); }
    int64_t floats() const { return PartialAttention::floats(rows(), args->head_dim); }
};

void merge(const PartialAttention& into, const PartialAttention& from, int64_t rows, int64_t dim) {
    for (int64_t r = 0; r < rows; ++r) {
        if (from.sum[r] == 0.0f) continue;
        float* acc = into.acc + r * dim;
        const float* more = from.acc + r * dim;
        if (into.sum[r] == 0.0f) {
            std::copy(more, more + dim, acc);
            into.top[r] = from.top[r];
            into.sum[r] = from.sum[r];
            continue;
        }
        const float top = from.top[r] > into.top[r] ? from.top[r] : into.top[r];
        const float a = exp_or_zero(into.top[r] - top), b = exp_or_zero(from.top[r] - top);
        for (int64_t d = 0; d < dim; ++d) acc[d] = acc[d] * a + more[d] * b;
        into.sum[r] = into.sum[r] * a + from.sum[r] * b;
        into.top[r] = top;
    }
}

void write(const Unit& unit, const PartialAttention& part) {
    const AttentionArgs& a = *unit.args;
    const int64_t group = a.heads / a.kv_heads, dim = a.head_dim;
    for (int64_t r = 0; r < unit.rows(); ++r) {
        const float s = 1.0f / part.sum[r];
        float* out = a.out + ((unit.t0 + r / group) * a.heads + unit.kv_head * group + r % group) * dim;
        for (int64_t d = 0; d < dim; ++d) out[d] = part.acc[r * dim + d] * s;
    }
}

void attend(const Unit& unit, int64_t split, float* partial) {
    active().attend(*unit.args, unit.kv_head, unit.t0, unit.t1, split, partial);
}

// All splits one after the other.
void attend_alone(const Unit& unit) {
    const int64_t rows = unit.rows(), dim = unit.args->head_dim;
    auto* memory = reinterpret_cast<float*>(thread_scratch(size_t(2 * unit.floats()) * sizeof(float)));
    const PartialAttention seen(memory, rows, dim), more(memory + unit.floats(), rows, dim);
    attend(unit, unit.first, memory);
    for (int64_t split = unit.first + 1; split < unit.last; ++split) {
        attend(unit, split, memory + unit.floats());
        merge(seen, more, rows, dim);
    }
    write(unit, seen);
}

}  // namespace

void attention(const std::vector<AttentionArgs>& batch) {
    std::vector<Unit> units;
    struct Piece {
        size_t unit;
        int64_t split;  // -1: all of them
    };
    std::vector<Piece> pieces;
    int64_t shared = 0, work = 0;
    for (const AttentionArgs& a : batch) {
        count_call(Op::attention);
        const bool few = a.tokens <= kQueryBlock;
        // Last blocks first: with a causal mask they are the longest.
        for (int64_t block = (a.tokens - 1) / kQueryBlock; block >= 0; --block)
            for (int64_t head = 0; head < a.kv_heads; ++head) {
                Unit unit{&a, head, block * kQueryBlock, std::min(a.tokens, (block + 1) * kQueryBlock), 0, 0, -1};
                unit.first = a.first_key(unit.t0) / kSplitKeys;
                unit.last = (a.start + unit.t1 - 1) / kSplitKeys + 1;
                if (few && unit.last - unit.first > 1) {
                    unit.partials = shared;
                    shared += (unit.last - unit.first) * unit.floats();
                    for (int64_t split = unit.first; split < unit.last; ++split) pieces.push_back({units.size(), split});
                } else {
                    pieces.push_back({units.size(), -1});
                }
                units.push_back(unit);
            }
        work += a.tokens * a.heads * a.head_dim * (a.start + a.tokens - a.first_key(0));
    }
    thread_local std::vector<float> partials;
    if (int64_t(partials.size()) < shared) partials.resize(size_t(shared));
    float* memory = partials.data();
    const auto partial = [&](const Unit& unit, int64_t split) {
        return memory + unit.partials + (split - unit.first) * unit.floats();
    };
    const auto run = [&](int64_t p0, int64_t p1) {
        for (int64_t p = p0; p < p1; ++p) {
            const Unit& unit = units[pieces[size_t(p)].unit];
            const int64_t split = pieces[size_t(p)].split;
            if (split < 0) attend_alone(unit);
            else attend(unit, split, partial(unit, split));
        }
    };
    Split(int64_t(pieces.size()), 1, work < kSerialWork).run(run);
    for (const Unit& unit : units) {
        if (unit.partials < 0) continue;
        const int64_t rows = unit.rows(), dim = unit.args->head_dim;
        const PartialAttention seen(partial(unit, unit.first), rows, dim);
        for (int64_t split = unit.first + 1; split < unit.last; ++split)
            merge(seen, PartialAttention(partial(unit, split), rows, dim), rows, dim);
        write(unit, seen);
    }
}

}  // namespace bitnet
