// Partial results of attention over a part of the cache: how two of them are merged, and the
// rotation of a q8 cache.
#pragma once

#include <algorithm>

#include "isa/kernels.hpp"
#include "ops/elementary.hpp"

namespace bitnet {
// Each instruction set compiles its own copy: no unit may run code of another's flags.
namespace {

constexpr float kLog2E = 1.44269504f;  // weights are computed as powers of two

// Number of elements that are rotated together: the largest power of two that divides *dim*.
constexpr int64_t rotated_block(int64_t dim) { return dim & -dim; }

// Multiplies each block of *x* by a Hadamard matrix that is not normalized: two rotations multiply
// *x* by rotated_block(dim). *spare* has room for a block.
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

// Merges the results *from* into *into*, whose keys come first.
[[maybe_unused]] void merge(const PartialAttention& into, const PartialAttention& from,
                            int64_t rows, int64_t head_dim) {
    const int64_t dim = code_width(head_dim);
    constexpr int kRows = 16;  // rows whose factors are computed together
    for (int64_t r0 = 0; r0 < rows; r0 += kRows) {
        const int n = int(std::min<int64_t>(kRows, rows - r0));
        float* top = into.top + r0;
        float* sum = into.sum + r0;
        const float *more_top = from.top + r0, *more_sum = from.sum + r0;
        float most[kRows] = {}, into_factor[kRows] = {}, from_factor[kRows] = {};
        for (int i = 0; i < n; ++i) {
            most[i] = more_top[i] > top[i] ? more_top[i] : top[i];
            into_factor[i] = top[i];
            from_factor[i] = more_top[i];
        }
        for (int i = 0; i < kRows; ++i) {
            into_factor[i] = power_or_zero(into_factor[i] - most[i]);
            from_factor[i] = power_or_zero(from_factor[i] - most[i]);
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
            for (int64_t d = 0; d < dim; ++d)
                acc[d] = acc[d] * into_factor[i] + more[d] * from_factor[i];
            sum[i] = sum[i] * into_factor[i] + more_sum[i] * from_factor[i];
            top[i] = most[i];
        }
    }
}

}  // namespace
}  // namespace bitnet
