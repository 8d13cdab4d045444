// Products with one or several matrices, and the choice and products of experts.
#include "ops/linear.hpp"

#include <numeric>

#include "ops/elementary.hpp"
#include "ops/ops.hpp"
#include "system/thread_pool.hpp"

namespace bitnet {
using detail::active;

namespace {

// Makes room for *n* items.
template <class T>
void ensure(std::vector<T>& items, int64_t n) {
    if (int64_t(items.size()) < n) items.resize(size_t(n));
}

}  // namespace

LinearCall::LinearCall(const LinearJob& linear_job, const float* x, int64_t tokens,
                       const Activations& activations)
    : job(linear_job) {
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
        if (is_ternary(m.type))
            tokens_.cols = m.cols;
        else if (is_grouped(m.type))
            runs_.cols = m.cols;
        else if (!is_float(m.type))
            block_cols_ = m.cols;
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
    // The row with zeros up to *cols*.
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
        active().quantize_ternary(padded(cols), cols, &tokens_.q[size_t(t * cols)],
                                  &tokens_.step[size_t(t)], &tokens_.sums[size_t(t)]);
    if (const int64_t cols = runs_.cols) {
        const auto at = size_t(t * cols / 32);
        active().quantize_runs(padded(cols), cols, &runs_.q[size_t(t * cols)], &runs_.step[at],
                               &runs_.sums[at]);
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
    // Inputs of each form have a buffer of their own: only one form in two widths cannot be shared.
    if (is_float(a.type) || is_float(b.type)) return true;
    return is_ternary(a.type) != is_ternary(b.type) || is_grouped(a.type) != is_grouped(b.type) ||
           a.cols == b.cols;
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
            const int64_t r1 =
                std::min((std::min(t1, part.end) - part.start) * kTileRows, args.rows);
            if (r0 < r1) part.product.run(r0, r1);
        }
    });
}

void linear(const LinearJob& job, const float* x, int64_t tokens) {
    if (tokens == 0) return;
    thread_local Activations activations;
    activations.prepare({job.matrix}, tokens);
    if (!is_float(job.matrix.type)) {
        Activations& rows = activations;  // every thread must fill that of the caller's thread
        Split(tokens, 1, tokens * job.matrix.cols < kSerialWork).run([&](int64_t t0, int64_t t1) {
            for (int64_t t = t0; t < t1; ++t) rows.quantize(x + t * job.matrix.inputs, t);
        });
    }
    linear_group({job}, x, tokens, activations);
}

// ---- a mixture of experts

namespace {

void softmax(float* x, int64_t n) {
    const float top = *std::max_element(x, x + n);
    float sum = 0.0f;
    for (int64_t i = 0; i < n; ++i) {
        x[i] = exp_fast(x[i] - top);
        sum += x[i];
    }
    for (int64_t i = 0; i < n; ++i) x[i] /= sum;
}

// Index of the best score among those whose *left* is not 0, the first of equal ones; -1: none.
int64_t best(const float* scores, const uint8_t* left, int64_t n) {
    int64_t place = -1;
    for (int64_t i = 0; i < n; ++i)
        if (left[i] && (place < 0 || scores[i] > scores[place])) place = i;
    return place;
}

// Clears *left* for the experts outside of the best groups. The score of a group, in *of_group*, is
// the sum of its two best.
void keep_groups(const Routing& routing, const float* scores, uint8_t* left, float* of_group,
                 uint8_t* groups_left) {
    const int64_t size = routing.count / routing.groups;
    for (int64_t g = 0; g < routing.groups; ++g) {
        const float* own = scores + g * size;
        uint8_t* own_left = left + g * size;
        const int64_t first = best(own, own_left, size);
        own_left[first] = 0;
        const int64_t second = best(own, own_left, size);
        own_left[first] = 1;
        of_group[g] = second < 0 ? own[first] : own[first] + own[second];
    }
    for (int64_t i = 0; i < routing.groups_used; ++i)
        groups_left[best(of_group, groups_left, routing.groups)] = 0;
    for (int64_t g = 0; g < routing.groups; ++g)
        if (groups_left[g]) std::memset(left + g * size, 0, size_t(size));
}

// The uses of one expert by tokens: *count* of them, from place *first* on in room.order.
struct Uses {
    int64_t expert, first, count;
    bool alone() const { return count == 1; }  // so its token need not be gathered
};

// The product of a job for the uses of one expert.
struct Part {
    LinearCall product;
    size_t job;
    Uses uses;
};

// Rows [r0, r1) of the matrix of a part, which one thread multiplies.
struct Piece {
    size_t part;
    int64_t r0, r1;
};

// Sorts the uses of experts, numbered token by token, by expert: fills room.order with their
// numbers, and room.begins with the place where those of each expert begin.
std::vector<Uses> sort_by_expert(const ExpertInput& in, ExpertRoom& room) {
    const int64_t count = in.tokens * in.used;
    room.begins.assign(size_t(in.count) + 1, 0);
    for (int64_t i = 0; i < count; ++i) ++room.begins[size_t(in.experts[i]) + 1];
    std::partial_sum(room.begins.begin(), room.begins.end(), room.begins.begin());
    room.order.resize(size_t(count));
    room.next = room.begins;
    for (int64_t i = 0; i < count; ++i) room.order[size_t(room.next[size_t(in.experts[i])]++)] = i;
    std::vector<Uses> all;
    for (int64_t e = 0; e < in.count; ++e) {
        const int64_t first = room.begins[size_t(e)], end = room.begins[size_t(e) + 1];
        if (first < end) all.push_back({e, first, end - first});
    }
    return all;
}

// Gathers the inputs of experts that several tokens use, in the order of experts: in room.inputs,
// and, if a matrix has floats, in room.x.
void gather(const ExpertInput& in, const std::vector<Uses>& all, const Activations& activations,
            const std::vector<Matrix>& forms, ExpertRoom& room) {
    if (std::all_of(all.begin(), all.end(), [](const Uses& uses) { return uses.alone(); })) return;
    const int64_t count = in.tokens * in.used;
    room.inputs.prepare(forms, count);
    const bool floats =
        std::any_of(forms.begin(), forms.end(), [](const Matrix& m) { return is_float(m.type); });
    if (floats && int64_t(room.x.size()) < count * in.cols) room.x.resize(size_t(count * in.cols));
    Split(int64_t(all.size()), 1, count * in.cols < kSerialWork).run([&](int64_t i0, int64_t i1) {
        for (int64_t i = i0; i < i1; ++i) {
            const Uses& uses = all[size_t(i)];
            for (int64_t at = uses.first; !uses.alone() && at < uses.first + uses.count; ++at) {
                const int64_t use = room.order[size_t(at)], row = in.apart ? use : use / in.used;
                room.inputs.take(activations, row, at);
                if (floats)
                    std::copy_n(in.x + row * in.cols, in.cols, &room.x[size_t(at * in.cols)]);
            }
        }
    });
}

// The product of job *j* for the *uses* of an expert.
Part part_of(const std::vector<ExpertJob>& jobs, size_t j, const Uses& uses, const ExpertInput& in,
             const Activations& activations, ExpertRoom& room) {
    const ExpertJob& job = jobs[j];
    const Matrix& m = job.matrices[uses.expert];
    const float* bias = job.biases ? job.biases + uses.expert * m.rows : nullptr;
    if (!uses.alone()) {
        LinearCall product({m, bias, room.y[j].data()}, room.x.data(), uses.count, room.inputs);
        product.args = product.args.of_tokens(uses.first, uses.first + uses.count);
        return {product, j, uses};
    }
    const int64_t use = room.order[size_t(uses.first)], row = in.apart ? use : use / in.used;
    LinearCall product({m, bias, job.y}, in.x, 1, activations);
    product.args = product.args.of_tokens(row, row + 1);
    product.args.y = job.y + use * m.rows;
    return {product, j, uses};
}

// Copies rows [r0, r1) of the products of gathered tokens to the results *y*, which are by token.
void scatter(const Part& part, float* y, const ExpertRoom& room, int64_t r0, int64_t r1) {
    const int64_t stride = part.product.args.rows;
    for (int64_t i = 0; !part.uses.alone() && i < part.uses.count; ++i) {
        const float* from = part.product.args.y + i * stride;
        std::copy(from + r0, from + r1, y + room.order[size_t(part.uses.first + i)] * stride + r0);
    }
}

// Softmax of the logit of *expert*, the best of those that are *left*, over the logits near it. A
// logit is near if its distance, divided by the larger of the best logit and its own magnitude, is
// at most routing.nearness.
float share_of_near(const Routing& routing, const float* logits, const uint8_t* left,
                    int64_t expert) {
    const float best = logits[expert];
    float sum = 0.0f;
    for (int64_t i = 0; i < routing.count; ++i) {
        const float size = std::fabs(logits[i]) < best ? best : std::fabs(logits[i]);
        const bool is_near = !((best - logits[i]) / size > routing.nearness);
        if (left[i] && is_near) sum += exp_fast(logits[i] - best);
    }
    return 1.0f / sum;
}

}  // namespace

Gating gating_of(std::string_view name) {
    constexpr std::string_view kNames[] = {"softmax", "softmax_chosen", "sigmoid", "sparse"};
    return Gating(place_of(kNames, name, "unknown gating"));
}

void check(const Routing& routing) {
    require(std::isfinite(routing.scale), "the factor on the weights of experts is not finite");
    require(routing.groups > 0 && routing.count % routing.groups == 0 && routing.groups_used > 0 &&
                routing.groups_used <= routing.groups,
            "the experts are not whole groups, or more groups are chosen than there are");
    require(
        routing.used > 0 && routing.used <= routing.count / routing.groups * routing.groups_used,
        "more experts are chosen than the groups in use have");
}

void route(const Routing& routing, const float* logits, const float* bias, float* experts,
           float* weights) {
    const int64_t n = routing.count;
    // Floats: *n* scores, *n* choices, a score per group; then a byte per expert and per group.
    const int64_t floats = 2 * n + routing.groups, bytes = n + routing.groups;
    auto* scores = reinterpret_cast<float*>(thread_scratch(size_t(floats) * 4 + size_t(bytes)));
    float* choice = scores + n;
    float* of_group = choice + n;
    auto* left = reinterpret_cast<uint8_t*>(of_group + routing.groups);
    std::memset(left, 1, size_t(bytes));
    std::copy(logits, logits + n, scores);
    if (routing.gating == Gating::softmax) softmax(scores, n);
    if (routing.gating == Gating::sigmoid)
        for (int64_t i = 0; i < n; ++i) scores[i] = 1.0f / (1.0f + exp_fast(-scores[i]));
    for (int64_t i = 0; i < n; ++i) choice[i] = bias ? scores[i] + bias[i] : scores[i];
    if (routing.groups > 1) keep_groups(routing, choice, left, of_group, left + n);
    for (int64_t i = 0; i < routing.used; ++i) {
        const int64_t expert = best(choice, left, n);
        experts[i] = float(expert);
        weights[i] = routing.gating == Gating::sparse ? share_of_near(routing, logits, left, expert)
                                                      : scores[expert];
        left[expert] = 0;
    }
    if (routing.gating == Gating::softmax_chosen) softmax(weights, routing.used);
    if (routing.renormalised) {
        float sum = 0.0f;
        for (int64_t i = 0; i < routing.used; ++i) sum += weights[i];
        sum = sum < kLeastSum ? kLeastSum : sum;
        for (int64_t i = 0; i < routing.used; ++i) weights[i] /= sum;
    }
    for (int64_t i = 0; i < routing.used; ++i) weights[i] *= routing.scale;
}

void expert_products(const std::vector<ExpertJob>& jobs, const ExpertInput& in,
                     const Activations& activations, const std::vector<Matrix>& forms,
                     ExpertRoom& room) {
    const std::vector<Uses> all = sort_by_expert(in, room);
    gather(in, all, activations, forms, room);
    if (room.y.size() < jobs.size()) room.y.resize(jobs.size());
    const bool all_alone = int64_t(all.size()) == in.tokens * in.used;  // then y takes the results
    for (size_t j = 0; j < jobs.size(); ++j) {
        const auto size = size_t(in.tokens * in.used * jobs[j].matrices[0].rows);
        if (room.y[j].size() < size && !all_alone) room.y[j].resize(size);
    }
    std::vector<Part> parts;
    // Cost of a tile, in tokens: reading its weights costs about as much as four of them.
    std::vector<int64_t> costs;
    int64_t work = 0, total = 0;
    for (const Uses& uses : all)
        for (size_t j = 0; j < jobs.size(); ++j) {
            parts.push_back(part_of(jobs, j, uses, in, activations, room));
            const Matrix& m = jobs[j].matrices[uses.expert];
            costs.push_back(uses.count + 4);
            total += costs.back() * ((m.rows + kTileRows - 1) / kTileRows);
            work += m.rows * m.cols * uses.count;
        }
    const int64_t piece_cost =
        work < kSerialWork ? total : total / (threads() * (threads() > 1 ? 8 : 1)) + 1;
    std::vector<Piece> pieces;
    for (size_t i = 0; i < parts.size(); ++i) {
        const int64_t rows = parts[i].product.args.rows,
                      step = std::max<int64_t>(1, piece_cost / costs[i]) * kTileRows;
        for (int64_t r = 0; r < rows; r += step) pieces.push_back({i, r, std::min(rows, r + step)});
    }
    auto run = [&](int64_t i) {
        const Piece& piece = pieces[size_t(i)];
        const Part& part = parts[piece.part];
        part.product.run(piece.r0, piece.r1);
        scatter(part, jobs[part.job].y, room, piece.r0, piece.r1);
    };
    if (work >= kSerialWork)
        parallel_for(int64_t(pieces.size()), run);
    else
        for (size_t i = 0; i < pieces.size(); ++i) run(int64_t(i));
}

}  // namespace bitnet
