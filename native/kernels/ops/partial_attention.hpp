// Partial results of attention over a part of the cache: how two of them are merged, and the
// rotation of a q8 cache.
#pragma once

#include <algorithm>

#include "isa/kernels.hpp"
#include "ops/elementary.hpp"

namespace bitnet {
// Each instruction set compiles its own copy: no unit may run code of another's flags.
namespace {

constexpr float kLog2E = 1.44269504f;  // scores are powers of two

// Elements that are rotated together: a power of two.
constexpr int64_t rotated_block(int64_t dim) { return dim & -dim; }

// Multiplies *x* by a Hadamard matrix that is not normalized: rotating twice gives
// rotated_block(dim) times *x*. *spare* has room for a block.
[[maybe_unused]] void rotate(float* __restrict x, int64_t dim, float* __restrict spare) {
    const int64_t block = rotated_block(dim), half = block / 2;
    for (float* end = x + dim; x < end; x += block)
        for (int64_t n = block; n > 1; n /= 2) {
            for (int64_t i = 0; i < half; ++i) {
                spare[i] = x[2 * i] + x[2 * i + 1];
                spare[half + i] = x[2 * i] - x[2 * i + 1];
            }
            std::copy_n(spare, block, x);
        }
}

// Adds the results *from* to *into*, whose keys come before.
[[maybe_unused]] void merge(const PartialAttention& into, const PartialAttention& from,
                            int64_t rows, int64_t head_dim) {
    const int64_t dim = code_width(head_dim);
    constexpr int kRows = 16;  // whose weights are computed together
    for (int64_t r0 = 0; r0 < rows; r0 += kRows) {
        const int n = int(std::min<int64_t>(kRows, rows - r0));
        float* top = into.top + r0;
        float* sum = into.sum + r0;
        const float *more_top = from.top + r0, *more_sum = from.sum + r0;
        float both[kRows] = {}, a[kRows] = {}, b[kRows] = {};
        for (int i = 0; i < n; ++i) {
            both[i] = more_top[i] > top[i] ? more_top[i] : top[i];
            a[i] = top[i];
            b[i] = more_top[i];
        }
        for (int i = 0; i < kRows; ++i) {
            a[i] = power_or_zero(a[i] - both[i]);
            b[i] = power_or_zero(b[i] - both[i]);
        }
        for (int i = 0; i < n; ++i) {
            if (more_sum[i] == 0.0f) continue;
            float* __restrict acc = into.acc + (r0 + i) * dim;
            const float* __restrict more = from.acc + (r0 + i) * dim;
            if (sum[i] == 0.0f) {
                std::copy(more, more + dim, acc);
                top[i] = more_top[i];
                sum[i] = more_sum[i];
                continue;
            }
            for (int64_t d = 0; d < dim; ++d) acc[d] = acc[d] * a[i] + more[d] * b[i];
            sum[i] = sum[i] * a[i] + more_sum[i] * b[i];
            top[i] = both[i];
        }
    }
}

}  // namespace
}  // namespace bitnet
