// A hidden state as the exact head reads it, with everything its rounding can cost.
#include <algorithm>
#include <cmath>
#include <limits>

#include "head/input.hpp"

namespace bitnet {
namespace {

constexpr double kUnit = 0x1p-24;  // rounding of a float operation
constexpr double kTiny = 1e-30;    // steps below it could be subnormal

float round_up(double value) {
    const auto f = float(value);
    return double(f) >= value ? f : std::nextafter(f, std::numeric_limits<float>::infinity());
}

// Rounds one block; the squared error.
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
    out.step[size_t(b)] = 0.5f * step;
    out.middle[size_t(b)] = int32_t(kHeadLevels - 1) * sum;
    return error;
}

// Block 0 once more, for the second codes of its columns; their residual is counted with block 0.
void repeat_first_block(int64_t blocks, HeadInput& out) {
    std::copy_n(out.high.begin(), kHeadBlock, out.high.begin() + blocks * kHeadBlock);
    std::copy_n(out.low.begin(), kHeadBlock, out.low.begin() + blocks * kHeadBlock);
    out.step[size_t(blocks)] = out.step[0] / float(kHeadLevels);
    out.middle[size_t(blocks)] = out.middle[0];
}

// The digits once more, in the order of the sixth bits.
void order_by_bits(int64_t cols, HeadInput& out) {
    const int64_t blocks = head_blocks(cols), groups = head_groups(cols), size = kHeadGroup * kHeadBlock;
    out.sixth_high.assign(size_t(groups * size), 0);
    out.sixth_low.assign(size_t(groups * size), 0);
    out.sixth_step.assign(size_t(groups * 8), 0.0f);
    out.sixth_middle.assign(size_t(groups * 8), 0);
    for (int64_t b = 0; b < blocks; ++b)
        for (int64_t i = 0; i < kHeadBlock; ++i) {
            const auto from = size_t(b * kHeadBlock + i);
            const auto to = size_t(b / kHeadGroup * size + i / 8 * kHeadGroupBytes + b % kHeadGroup * 8 + i % 8);
            out.sixth_high[to] = out.high[from];
            out.sixth_low[to] = out.low[from];
            const auto lane = size_t(2 * b + i % 8 / 4);
            out.sixth_middle[lane] += 128 * out.high[from] + out.low[from];
            out.sixth_step[lane] = out.step[size_t(b == 0 ? blocks : b)] * 0.5f;  // a quarter of a code's
        }
}

}  // namespace

bool head_input(const ExactHead& m, const float* x, HeadInput& out) {
    const int64_t blocks = head_blocks(m.cols), width = blocks * kHeadBlock;
    std::vector<double> scaled(size_t(width), 0.0);
    for (int64_t i = 0; i < m.cols; ++i) scaled[size_t(i)] = double(x[m.order[i]]) * double(m.factors[i]);
    out.high.resize(size_t(width + kHeadBlock));
    out.low.resize(out.high.size());
    out.step.resize(size_t(blocks + 1));
    out.middle.resize(out.step.size());
    out.norm.assign(size_t(blocks + 8), 0.0f);
    // Sums of positive floats come out at most this much too low.
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
    for (int64_t b = 0; b < blocks; ++b) error += round_block(&scaled[size_t(b * kHeadBlock)], b, out);
    repeat_first_block(blocks, out);
    order_by_bits(m.cols, out);
    const double norm = std::sqrt(total) * (1.0 + 1e-9), rounded = std::sqrt(error) * (1.0 + 1e-9);
    const double approximate = double(3 * blocks + 16) * 1.02 * kUnit;  // float sums over the blocks and half blocks
    const double exact = double(m.cols + 8) * 1.02 * kUnit;        // float sum of the head's own kernel
    const double residual = 16.0 * kUnit;                          // float arithmetic of the residuals
    // Products that underflow: 2^-125 each, per unit of a norm that is at least 1e-17.
    const double underflow = double(m.cols) * 0x1p-125 / 1e-17;
    out.slack = round_up((rounded + approximate * (norm + rounded) + (exact + residual) * norm + underflow) * sums);
    return true;
}

}  // namespace bitnet
