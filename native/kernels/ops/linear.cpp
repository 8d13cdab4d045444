#include "ops/linear.hpp"

#include "ops/counters.hpp"
#include "ops/ops.hpp"
#include "system/split.hpp"

namespace bitnet {
using detail::active;

namespace {

template <class T>
void ensure(std::vector<T>& items, int64_t n) {
    if (int64_t(items.size()) < n) items.resize(size_t(n));
}

}  // namespace

LinearCall::LinearCall(const LinearJob& its, const float* x, int64_t tokens, const Activations& activations) : job(its) {
    const Matrix& m = job.matrix;
    const bool decode = tokens <= kDecodeTokens;
    count_call(decode ? Op::decode : Op::prefill, m.type);
    kernel = (decode ? active().decode : active().prefill)[int(m.type)];
    args.weight = m.data;
    args.type = m.type;
    args.row_bytes = row_bytes(m.type, m.cols);
    args.rows = m.rows;
    args.cols = m.cols;
    args.tokens = tokens;
    args.scale = m.scale;
    args.x = x;
    args.y = job.y;
    activations.point(args);
}

void LinearCall::run(int64_t r0, int64_t r1) const {
    kernel(args, r0, r1, thread_scratch(scratch_bytes(args.cols)));
    const Matrix& m = job.matrix;
    if (!m.factors && !job.bias) return;
    for (int64_t t = 0; t < args.tokens; ++t) {
        float* y = args.y + t * m.rows;
        if (m.factors)
            for (int64_t r = r0; r < r1; ++r) y[r] *= m.factors[m.n_factors == 1 ? 0 : r];
        if (job.bias)
            for (int64_t r = r0; r < r1; ++r) y[r] += job.bias[r];
    }
}

void Activations::prepare(const std::vector<Matrix>& matrices, int64_t tokens) {
    block_cols_ = tokens_.cols = runs_.cols = 0;
    for (const Matrix& m : matrices) {
        inputs_ = m.inputs;
        if (is_ternary(m.type)) tokens_.cols = m.cols;
        else if (is_grouped(m.type)) runs_.cols = m.cols;
        else if (!is_float(m.type)) block_cols_ = m.cols;
    }
    if (block_cols_) ensure(blocks_, tokens * block_inputs(block_cols_));
    tokens_.make_room(tokens, tokens);
    runs_.make_room(tokens, tokens * runs_.cols / 32);
}

void Activations::Rounded::make_room(int64_t tokens, int64_t steps) {
    ensure(q, tokens * cols);
    ensure(step, cols ? steps : 0);
    ensure(sums, cols ? steps : 0);
}

void Activations::quantize(const float* x, int64_t t) {
    const auto padded = [&](int64_t cols) {
        if (cols == inputs_) return x;
        auto* row = reinterpret_cast<float*>(thread_scratch(size_t(cols) * sizeof(float)));
        std::copy(x, x + inputs_, row);
        std::fill(row + inputs_, row + cols, 0.0f);
        return static_cast<const float*>(row);
    };
    if (const int64_t cols = block_cols_)
        active().quantize_block(padded(cols), cols, &blocks_[size_t(t * block_inputs(cols))]);
    if (const int64_t cols = tokens_.cols)
        active().quantize_ternary(padded(cols), cols, &tokens_.q[size_t(t * cols)], &tokens_.step[size_t(t)],
                                  &tokens_.sums[size_t(t)]);
    if (const int64_t cols = runs_.cols) {
        const auto at = size_t(t * cols / 32);
        active().quantize_runs(padded(cols), cols, &runs_.q[size_t(t * cols)], &runs_.step[at], &runs_.sums[at]);
    }
}

void Activations::take(const Activations& other, int64_t from, int64_t t) {
    if (const int64_t n = block_cols_ ? block_inputs(block_cols_) : 0)
        std::copy_n(&other.blocks_[size_t(from * n)], n, &blocks_[size_t(t * n)]);
    tokens_.take(other.tokens_, from, t, 1);
    runs_.take(other.runs_, from, t, runs_.cols / 32);
}

void Activations::Rounded::take(const Rounded& other, int64_t from, int64_t t, int64_t steps) {
    if (cols == 0) return;
    std::copy_n(&other.q[size_t(from * cols)], cols, &q[size_t(t * cols)]);
    std::copy_n(&other.step[size_t(from * steps)], steps, &step[size_t(t * steps)]);
    std::copy_n(&other.sums[size_t(from * steps)], steps, &sums[size_t(t * steps)]);
}

void Activations::point(LinearArgs& a) const {
    const Rounded& rounded = is_grouped(a.type) ? runs_ : tokens_;
    a.inputs = blocks_.data();
    a.q = rounded.q.data();
    a.step = rounded.step.data();
    a.sums = rounded.sums.data();
}

bool share_input(const Matrix& a, const Matrix& b) {
    if (is_float(a.type) || is_float(b.type)) return true;
    return is_ternary(a.type) != is_ternary(b.type) || is_grouped(a.type) != is_grouped(b.type) || a.cols == b.cols;
}

void linear_group(const std::vector<LinearJob>& jobs, const float* x, int64_t tokens,
                  const Activations& activations) {
    struct Part {
        LinearCall product;
        int64_t start, end;  // tiles, counted over all jobs
    };
    std::vector<Part> parts;
    parts.reserve(jobs.size());
    int64_t tiles = 0, work = 0;
    for (const LinearJob& job : jobs) {
        const Matrix& m = job.matrix;
        const int64_t count = (m.rows + kTileRows - 1) / kTileRows;
        parts.push_back({LinearCall(job, x, tokens, activations), tiles, tiles + count});
        tiles += count;
        work += m.rows * m.cols * tokens;
    }
    Split(tiles, 1, work < kSerialWork).run([&](int64_t t0, int64_t t1) {
        for (const Part& part : parts) {
            const LinearArgs& args = part.product.args;
            const int64_t r0 = (std::max(t0, part.start) - part.start) * kTileRows;
            const int64_t r1 = std::min((std::min(t1, part.end) - part.start) * kTileRows, args.rows);
            if (r0 < r1) part.product.run(r0, r1);
        }
    });
}

void linear(const LinearJob& job, const float* x, int64_t tokens) {
    if (tokens == 0) return;
    thread_local Activations activations;
    activations.prepare({job.matrix}, tokens);
    if (!is_float(job.matrix.type)) {
        Activations& rows = activations;  // the threads below fill the caller's
        Split(tokens, 1, tokens * job.matrix.cols < kSerialWork).run([&](int64_t t0, int64_t t1) {
            for (int64_t t = t0; t < t1; ++t) rows.quantize(x + t * job.matrix.inputs, t);
        });
    }
    linear_group({job}, x, tokens, activations);
}

}  // namespace bitnet
