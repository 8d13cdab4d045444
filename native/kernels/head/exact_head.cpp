// Rounds hidden states, bounds the logits of all rows, and computes those of few rows exactly.
// exact_head.hpp describes the copy: its blocks, second codes and sixth bits.
#include "head/exact_head.hpp"

#include <limits>

#include "isa/kernels.hpp"
#include "ops/ops.hpp"
#include "system/thread_pool.hpp"

namespace bitnet {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();  // logit of a row that is left out
constexpr int64_t kRowsAhead = 6;  // how many rows ahead sixth bits are prefetched

const HeadKernels& kernels() { return detail::active().exact_head; }

// Calls body(begin, end) for ranges of [0, n), several per thread.
template <class F>
void split(int64_t n, F&& body) {
    const int64_t parts = int64_t(threads()) * (threads() > 1 ? 16 : 1);
    const int64_t step = std::max<int64_t>(1, (n + parts - 1) / parts);
    parallel_for((n + step - 1) / step,
                 [&](int64_t c) { body(c * step, std::min(n, (c + 1) * step)); });
}

// Approximate logits and upper bounds of all rows, for one hidden state.
struct Bounds {
    std::vector<float> approx, upper;  // (tiles * 16,)
    std::vector<float> best, highest;  // (tiles,) their maxima; NaN where one of a tile's values is

    void resize(int64_t tiles) {
        approx.resize(size_t(tiles * kHeadRows));
        upper.resize(approx.size());
        best.resize(size_t(tiles));
        highest.resize(best.size());
    }
    void summarize(int64_t tile) {
        const auto at = tile * kHeadRows;
        bool numbers = true;
        for (int64_t r = at; r < at + kHeadRows; ++r)
            numbers = numbers && !std::isnan(approx[size_t(r)]) && !std::isnan(upper[size_t(r)]);
        const auto highest_of = [&](const std::vector<float>& values) {
            const float* first = &values[size_t(at)];
            return numbers ? *std::max_element(first, first + kHeadRows)
                           : std::numeric_limits<float>::quiet_NaN();
        };
        best[size_t(tile)] = highest_of(approx);
        highest[size_t(tile)] = highest_of(upper);
    }
    // False if a value is NaN, which has no place in an order, so that no row can be chosen.
    bool ordered() const {
        return std::none_of(best.begin(), best.end(),
                            [](float value) { return std::isnan(value); });
    }
    void leave_out(int64_t row) { approx[size_t(row)] = upper[size_t(row)] = kNone; }
};

// Bounds the logits of all *inputs*. Every tile is read once and used for all of them.
void bound_all(const ExactHead& m, const std::vector<HeadInput>& inputs, std::vector<Bounds>& out) {
    const int64_t tiles = head_tiles(m.rows), blocks = head_stored_blocks(m.cols),
                  bytes = head_tile_bytes(m.cols);
    const HeadTile kernel = kernels().tile;
    for (size_t i = 0; i < inputs.size(); ++i) out[i].resize(tiles);
    split(tiles, [&](int64_t t0, int64_t t1) {
        for (int64_t t = t0; t < t1; ++t)
            for (size_t i = 0; i < inputs.size(); ++i) {
                const int64_t r = t * kHeadRows;
                kernel(m.tiles + t * bytes, blocks, inputs[i], m.step + r, m.residual + r,
                       m.norm + r, &out[i].approx[size_t(r)], &out[i].upper[size_t(r)]);
                for (int64_t row = m.rows; row < r + kHeadRows; ++row) out[i].leave_out(row);
                out[i].summarize(t);
            }
    });
}

// Rows that are likely to be the *count* best: the best row of each of the best tiles, or, if there
// are few tiles, the best of all rows.
std::vector<int64_t> likely_best(const Bounds& s, int64_t count) {
    const bool by_tile = count * 4 <= int64_t(s.best.size());
    const std::vector<float>& values = by_tile ? s.best : s.approx;
    std::vector<int64_t> order(values.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = int64_t(i);
    count = std::min(count, int64_t(order.size()));
    std::nth_element(order.begin(), order.begin() + (count - 1), order.end(),
                     [&](int64_t a, int64_t b) { return values[size_t(a)] > values[size_t(b)]; });
    order.resize(size_t(count));
    if (by_tile)
        for (int64_t& tile : order) {  // becomes the number of a row
            const auto first = s.approx.begin() + tile * kHeadRows;
            tile = std::max_element(first, first + kHeadRows) - s.approx.begin();
        }
    order.erase(std::remove_if(order.begin(), order.end(),
                               [&](int64_t r) { return s.approx[size_t(r)] == kNone; }),
                order.end());
    return order;
}

// Rows whose upper bound is *threshold* or more, in rising order.
std::vector<int64_t> rows_from(const Bounds& s, float threshold) {
    std::vector<int64_t> rows;
    for (size_t t = 0; t < s.highest.size(); ++t) {
        if (s.highest[t] < threshold) continue;
        for (size_t r = t * kHeadRows; r < (t + 1) * kHeadRows; ++r)
            if (s.upper[r] >= threshold && s.upper[r] != kNone) rows.push_back(int64_t(r));
    }
    return rows;
}

// Tightens the upper bounds of *rows*, in rising order, by their sixth bits, and, if *approx*, adds
// these to the approximate logits.
void refine(const ExactHead& m, const HeadInput& x, const std::vector<int64_t>& rows, Bounds& s,
            bool approx) {
    const HeadSixth kernel = kernels().sixth;
    const int64_t bytes = head_sixth_bytes(m.cols), count = int64_t(rows.size());
    split(count, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            prefetch_bytes(m.sixth + rows[size_t(std::min(i + kRowsAhead, count - 1))] * bytes,
                           bytes);
            const int64_t r = rows[size_t(i)];
            const uint8_t* row = m.sixth + r * bytes;
            float sum, error, value, upper;
            kernel(row, m.cols, x, &sum, &error);
            finish_row(s.approx[size_t(r)] + sum * m.step[r],
                       error * read<float>(row) + x.slack * m.norm[r], value, upper);
            s.upper[size_t(r)] = std::min(s.upper[size_t(r)], upper);
            if (approx) s.approx[size_t(r)] = value;
        }
    });
}

// Sum of exp(upper bound - threshold) over the rows whose upper bound is below *threshold*, rounded
// up. For any number of threads, the rows are cut into the same pieces, whose sums are added in
// order.
double tail_below(const Bounds& s, float threshold) {
    constexpr int64_t kPiece = 64;  // tiles
    const auto tiles = int64_t(s.highest.size()), pieces = (tiles + kPiece - 1) / kPiece;
    std::vector<double> sums(static_cast<size_t>(pieces));
    parallel_for(pieces, [&](int64_t piece) {
        const int64_t end = std::min(tiles, (piece + 1) * kPiece) * kHeadRows;
        for (int64_t r = piece * kPiece * kHeadRows; r < end; ++r)
            if (s.upper[size_t(r)] < threshold)
                sums[size_t(piece)] += std::exp(double(s.upper[size_t(r)]) - double(threshold));
    });
    double total = 0.0;
    for (const double sum : sums) total += sum;
    return total * (1.0 + 1e-9);
}

// The result of one query. Changes *s*, the bounds for its hidden state.
HeadResult choose(const ExactHead& m, const HeadQuery& query, const HeadInput& x, Bounds& s) {
    HeadResult out;
    out.usable = true;
    for (const int64_t row : query.listed) {
        s.leave_out(row);
        s.summarize(row / kHeadRows);
    }
    const std::vector<int64_t> likely = likely_best(s, query.count);
    std::vector<float> exact(likely.size());
    linear_rows(m, query.x, likely.data(), int64_t(likely.size()), exact.data());
    if (std::any_of(exact.begin(), exact.end(), [](float logit) { return std::isnan(logit); }))
        return {};
    // At least query.count rows reach the lowest of these logits, so no row below it is among the
    // best. If there are not that many rows, all are found.
    float threshold = kNone;
    if (int64_t(likely.size()) == query.count)
        threshold = *std::min_element(exact.begin(), exact.end());
    if (query.margin >= 0.0f && !exact.empty())
        threshold =
            std::min(threshold, *std::max_element(exact.begin(), exact.end()) - query.margin);
    std::vector<int64_t> rows = rows_from(s, threshold);
    if (threshold > kNone) {
        out.refined = int64_t(rows.size());
        refine(m, x, rows, s, false);
        rows.erase(std::remove_if(rows.begin(), rows.end(),
                                  [&](int64_t r) { return s.upper[size_t(r)] < threshold; }),
                   rows.end());
    }
    out.ids.resize(rows.size() + query.listed.size());
    std::merge(rows.begin(), rows.end(), query.listed.begin(), query.listed.end(), out.ids.begin());
    out.logits.resize(out.ids.size());
    linear_rows(m, query.x, out.ids.data(), int64_t(out.ids.size()), out.logits.data());
    out.bound = threshold;
    if (query.margin >= 0.0f && threshold > kNone) out.tail = tail_below(s, threshold);
    return out;
}

// ---- rounding of a hidden state for products with the copy, and a bound on all errors of that

constexpr double kUnit = 0x1p-24;  // largest relative error of a float operation
constexpr double kTiny = 1e-30;    // a block of smaller numbers could have a subnormal step

// The least float that is not below *value*.
float round_up(double value) {
    const auto f = float(value);
    return double(f) >= value ? f : std::nextafter(f, std::numeric_limits<float>::infinity());
}

// Rounds block *b*, whose 64 numbers are *x*; returns the squared error.
double round_block(const double* x, int64_t b, HeadInput& out) {
    double largest = 0.0, error = 0.0;
    for (int64_t i = 0; i < kHeadBlock; ++i) largest = std::max(largest, std::fabs(x[i]));
    const float step = largest < kTiny ? 0.0f : round_up(largest / double(kHeadLargest));
    int32_t sum = 0;
    for (int64_t i = 0; i < kHeadBlock; ++i) {
        const auto q = step == 0.0f ? 0 : int32_t(std::nearbyint(x[i] / double(step)));
        const int32_t high = (q + 64) >> 7;
        out.high[size_t(b * kHeadBlock + i)] = int8_t(high);
        out.low[size_t(b * kHeadBlock + i)] = int8_t(q - 128 * high);
        sum += q;
        const double left = x[i] - double(step) * q;
        error += left * left;
    }
    // A weight is step * (code - 15.5), computed in integers as step / 2 * (2 * code - 31).
    out.step[size_t(b)] = 0.5f * step;
    out.middle[size_t(b)] = int32_t(kHeadLevels - 1) * sum;
    return error;
}

// Appends block 0 again, for its second codes. The error of these is counted with block 0.
void repeat_first_block(int64_t blocks, HeadInput& out) {
    std::copy_n(out.high.begin(), kHeadBlock, out.high.begin() + blocks * kHeadBlock);
    std::copy_n(out.low.begin(), kHeadBlock, out.low.begin() + blocks * kHeadBlock);
    out.step[size_t(blocks)] = out.step[0] / float(kHeadLevels);
    out.middle[size_t(blocks)] = out.middle[0];
}

// Fills in the digits in the order of the sixth bits.
void order_by_bits(int64_t cols, HeadInput& out) {
    const int64_t blocks = head_blocks(cols), groups = head_groups(cols),
                  size = kHeadGroup * kHeadBlock;
    out.sixth_high.assign(size_t(groups * size), 0);
    out.sixth_low.assign(size_t(groups * size), 0);
    out.sixth_step.assign(size_t(groups * 8), 0.0f);
    out.sixth_middle.assign(size_t(groups * 8), 0);
    for (int64_t b = 0; b < blocks; ++b)
        for (int64_t i = 0; i < kHeadBlock; ++i) {
            const auto from = size_t(b * kHeadBlock + i);
            const auto to = size_t(b / kHeadGroup * size + i / 8 * kHeadGroupBytes +
                                   b % kHeadGroup * 8 + i % 8);
            out.sixth_high[to] = out.high[from];
            out.sixth_low[to] = out.low[from];
            const auto lane = size_t(2 * b + i % 8 / 4);
            out.sixth_middle[lane] += 128 * out.high[from] + out.low[from];
            out.sixth_step[lane] =
                out.step[size_t(b == 0 ? blocks : b)] * 0.5f;  // a quarter of a code's
        }
}

}  // namespace

bool head_input(const ExactHead& m, const float* x, HeadInput& out) {
    const int64_t blocks = head_blocks(m.cols), width = blocks * kHeadBlock;
    std::vector<double> scaled(size_t(width), 0.0);
    for (int64_t i = 0; i < m.cols; ++i)
        scaled[size_t(i)] = double(x[m.order[i]]) * double(m.factors[i]);
    out.high.resize(size_t(width + kHeadBlock));
    out.low.resize(out.high.size());
    out.step.resize(size_t(blocks + 1));
    out.middle.resize(out.step.size());
    out.norm.assign(size_t(blocks + 8), 0.0f);
    // Factor that makes up for how much too low the float sums of positive terms can be.
    const double sums = 1.0 + double(blocks + 9) * 4.0 * kUnit;
    double total = 0.0;
    for (int64_t b = 0; b < blocks; ++b) {
        double squares = 0.0;
        for (int64_t i = 0; i < kHeadBlock; ++i) {
            const double v = scaled[size_t(b * kHeadBlock + i)];
            squares += v * v;
        }
        total += squares;
        out.norm[size_t(b)] = round_up(std::sqrt(squares) * sums);
    }
    if (!(total < kHeadLimit * kHeadLimit)) return false;
    double error = 0.0;
    for (int64_t b = 0; b < blocks; ++b)
        error += round_block(&scaled[size_t(b * kHeadBlock)], b, out);
    repeat_first_block(blocks, out);
    order_by_bits(m.cols, out);
    const double norm = std::sqrt(total) * (1.0 + 1e-9), rounded = std::sqrt(error) * (1.0 + 1e-9);
    // Float sums over the blocks and half blocks, that of the head's own kernel, and the arithmetic
    // of the residuals. 1.02 is for the terms of higher order.
    const double approximate = double(3 * blocks + 16) * 1.02 * kUnit;
    const double exact = double(m.cols + 8) * 1.02 * kUnit;
    const double residual = 16.0 * kUnit;
    // Products that underflow: 2^-125 each, per unit of the row's norm, at least 1e-17 (norm_up).
    const double underflow = double(m.cols) * 0x1p-125 / 1e-17;
    out.slack = round_up(
        (rounded + approximate * (norm + rounded) + (exact + residual) * norm + underflow) * sums);
    return true;
}

bool build_copy(const ExactHead& m, int64_t begin, int64_t end) {
    const int64_t width = head_blocks(m.cols) * kHeadBlock;
    std::vector<float> inverse(size_t(m.cols));  // powers of two, so products with it are exact
    for (int64_t i = 0; i < m.cols; ++i) inverse[size_t(i)] = 1.0f / m.factors[i];
    std::atomic<bool> fits{true};
    split(end - begin, [&](int64_t t0, int64_t t1) {
        std::vector<float> row(size_t(m.cols)), rows(size_t(width * kHeadRows));
        for (int64_t t = begin + t0; t < begin + t1; ++t) {
            std::fill(rows.begin(), rows.end(), 0.0f);
            for (int64_t r = t * kHeadRows; r < std::min(m.rows, (t + 1) * kHeadRows); ++r) {
                detail::active().dequantize(m.type, m.weight, r, m.cols, row.data());
                float* to = &rows[size_t((r - t * kHeadRows) * width)];
                for (int64_t i = 0; i < m.cols; ++i)
                    to[i] = row[size_t(m.order[i])] * inverse[size_t(i)];
            }
            if (!kernels().pack(m, t, rows.data())) fits = false;
        }
    });
    return fits;
}

std::vector<HeadResult> find_logits(const ExactHead& m, const std::vector<HeadQuery>& queries) {
    std::vector<HeadResult> results(queries.size());
    std::vector<HeadInput> inputs;
    std::vector<size_t> at;  // index of the query of each input
    for (size_t i = 0; i < queries.size(); ++i) {
        HeadInput input;
        if (!head_input(m, queries[i].x, input)) continue;
        inputs.push_back(std::move(input));
        at.push_back(i);
    }
    thread_local std::vector<Bounds> bounds;  // a megabyte per hidden state
    if (bounds.size() < inputs.size()) bounds.resize(inputs.size());
    if (!inputs.empty()) bound_all(m, inputs, bounds);
    for (size_t i = 0; i < at.size(); ++i)
        if (bounds[i].ordered()) results[at[i]] = choose(m, queries[at[i]], inputs[i], bounds[i]);
    return results;
}

bool head_bounds(const ExactHead& m, const float* x, bool sixth, float* approx, float* upper) {
    std::vector<HeadInput> inputs(1);
    std::vector<Bounds> bounds(1);
    if (!head_input(m, x, inputs[0])) return false;
    bound_all(m, inputs, bounds);
    if (sixth) refine(m, inputs[0], rows_from(bounds[0], kNone), bounds[0], true);
    std::copy(bounds[0].approx.begin(), bounds[0].approx.end(), approx);
    std::copy(bounds[0].upper.begin(), bounds[0].upper.end(), upper);
    return true;
}

}  // namespace bitnet
