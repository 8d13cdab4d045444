// Decode: few activation rows, so a weight row is read once, in place, and used for all of them.
//
// The including file defines `dot32`: the sums of four neighbouring products u8 x s8 (dot32_signed:
// s8 x s8) of 32, as eight int32.
#pragma once

#include "formats_x86.hpp"

namespace bitnet {
namespace {

constexpr int kPrefetch = 1024;  // bytes ahead; the hardware prefetcher stops at page ends

inline void prefetch(const uint8_t* p) {
    _mm_prefetch(reinterpret_cast<const char*>(p + kPrefetch), _MM_HINT_T0);
}

// The scale of the first 16 products in the lower lanes, of the others in the upper ones.
inline __m256 both_halves(float first, float second) {
    return _mm256_blend_ps(_mm256_set1_ps(first), _mm256_set1_ps(second), 0xf0);
}

// One row times N tokens, tokens t .. t+N-1.
template <class F, int N>
void block_row(const LinearArgs& a, int64_t r, int64_t t) {
    const int64_t groups = a.cols / 32;
    const uint8_t* row = a.weight + r * a.row_bytes;
    const int8_t* q[N];
    const float *step[N], *sum32[N];
    __m256 even[N], odd[N], minima[N];
    float tail[N];
    for (int n = 0; n < N; ++n) {
        q[n] = a.q + (t + n) * a.cols;
        step[n] = a.step + 2 * (t + n) * groups;
        sum32[n] = a.sum32 + (t + n) * groups;
        even[n] = odd[n] = minima[n] = _mm256_setzero_ps();
        tail[n] = 0.0f;
    }
    const auto dot = [](__m256i codes, const int8_t* x) {
        if constexpr (F::kHalves) codes = _mm256_sub_epi8(codes, _mm256_set1_epi8(F::kOffset));
        if constexpr (F::kSigned || F::kHalves) return _mm256_cvtepi32_ps(dot32_signed(codes, load256(x)));
        else return _mm256_cvtepi32_ps(dot32(codes, load256(x)));
    };
    int64_t g = 0;
    for (; g + 8 <= groups; g += 8) {
        const Scales scales = F::scales(row, g);
        for (int64_t line = 0; line < 256 / F::kBlock * F::kBytes; line += 64)
            prefetch(row + 32 * g / F::kBlock * F::kBytes + line);
        alignas(32) float s[N][8], second[N][8];
        for (int n = 0; n < N; ++n) {
            _mm256_store_ps(s[n], _mm256_mul_ps(scales.s, _mm256_loadu_ps(step[n] + g)));
            _mm256_store_ps(second[n], _mm256_mul_ps(scales.second, _mm256_loadu_ps(step[n] + groups + g)));
            if constexpr (!F::kSigned && !F::kHalves)
                minima[n] = _mm256_fmadd_ps(scales.m, _mm256_loadu_ps(sum32[n] + g), minima[n]);
        }
#pragma GCC unroll 8
        for (int j = 0; j < 8; ++j) {
            const __m256i codes = F::codes(row, g + j);
            for (int n = 0; n < N; ++n) {
                const __m256 scale = both_halves(s[n][j], second[n][j]);
                __m256& sum = j % 2 ? odd[n] : even[n];
                sum = _mm256_fmadd_ps(dot(codes, q[n] + 32 * (g + j)), scale, sum);
            }
        }
    }
    if constexpr (F::kBlock == 32) {
        for (; g < groups; ++g) {
            float s, m;
            F::scale(row, g, s, m);
            const __m256i codes = F::codes(row, g);
            for (int n = 0; n < N; ++n) {
                const __m256 scale = both_halves(s * step[n][g], s * step[n][groups + g]);
                even[n] = _mm256_fmadd_ps(dot(codes, q[n] + 32 * g), scale, even[n]);
                tail[n] += m * sum32[n][g];
            }
        }
    }
    for (int n = 0; n < N; ++n)
        a.y[(t + n) * a.rows + r] = sum8(_mm256_add_ps(_mm256_add_ps(even[n], odd[n]), minima[n])) + tail[n];
}

template <class F>
void decode_block(const LinearArgs& a, int64_t r0, int64_t r1, uint8_t*) {
    for (int64_t r = r0; r < r1; ++r) {
        int64_t t = 0;
        for (; t + 4 <= a.tokens; t += 4) block_row<F, 4>(a, r, t);
        for (; t + 2 <= a.tokens; t += 2) block_row<F, 2>(a, r, t);
        for (; t < a.tokens; ++t) block_row<F, 1>(a, r, t);
    }
}

template <Type kType, int N>
void float_row(const LinearArgs& a, int64_t r, int64_t t) {
    const uint8_t* row = a.weight + r * a.row_bytes;
    const float* x = a.x + t * a.cols;
    __m256 sum[N][2];
    for (int n = 0; n < N; ++n) sum[n][0] = sum[n][1] = _mm256_setzero_ps();
    int64_t i = 0;
    for (; i + 32 <= a.cols; i += 32) {
        prefetch(row + i * kBlocks[int(kType)].bytes);
        for (int j = 0; j < 4; ++j) {
            const __m256 w = load_floats(kType, row, i + 8 * j);
            for (int n = 0; n < N; ++n)
                sum[n][j % 2] = _mm256_fmadd_ps(w, _mm256_loadu_ps(x + n * a.cols + i + 8 * j), sum[n][j % 2]);
        }
    }
    for (int n = 0; n < N; ++n) {
        float total = sum8(_mm256_add_ps(sum[n][0], sum[n][1]));
        for (int64_t k = i; k < a.cols; ++k) {
            const float w = kType == Type::F32   ? read<float>(row + 4 * k)
                            : kType == Type::F16 ? one_half(row + 2 * k)
                                                 : bf16_to_float(read<uint16_t>(row + 2 * k));
            total += w * x[n * a.cols + k];
        }
        a.y[(t + n) * a.rows + r] = total;
    }
}

template <Type kType>
void decode_float(const LinearArgs& a, int64_t r0, int64_t r1, uint8_t*) {
    for (int64_t r = r0; r < r1; ++r) {
        int64_t t = 0;
        for (; t + 4 <= a.tokens; t += 4) float_row<kType, 4>(a, r, t);
        for (; t < a.tokens; ++t) float_row<kType, 1>(a, r, t);
    }
}

}  // namespace
}  // namespace bitnet
