// Ternary weights times int8 activations. Decode reads a weight row once, in place; prefill unpacks
// TernaryVec::kLanes rows at a time, interleaved so that one register holds four neighbouring codes
// of every row, and multiplies them with all tokens.
//
// The including file defines `TernarySum`, which adds up products of codes 0..2 along a row, and
// `TernaryVec`, the vector type of the tiles.
#pragma once

#include "kernels.hpp"
#include "simd_x86.hpp"

namespace bitnet {
namespace {

constexpr int kPrefetch = 1024;  // bytes ahead; the hardware prefetcher stops at page ends

inline void prefetch(const uint8_t* p) {
    _mm_prefetch(reinterpret_cast<const char*>(p + kPrefetch), _MM_HINT_T0);
}
// Ternary: 128 weights in 32 bytes; codes 0, 1, 2 of quarter n.
struct FormatI2_S {
    static constexpr bool kBlockScale = false;
    static const uint8_t* part(const uint8_t* row, int64_t p) { return row + 32 * p; }
    static __m256i quarter(__m256i bytes, int n) {
        const __m256i shifted = n == 0 ? _mm256_srli_epi16(bytes, 6)
                                : n == 1 ? _mm256_srli_epi16(bytes, 4)
                                : n == 2 ? _mm256_srli_epi16(bytes, 2)
                                         : bytes;
        return _mm256_and_si256(shifted, _mm256_set1_epi8(3));
    }
};

struct FormatTQ2_0 {
    static constexpr bool kBlockScale = true;
    static const uint8_t* part(const uint8_t* row, int64_t p) { return row + p / 2 * 66 + p % 2 * 32; }
    static __m256i quarter(__m256i bytes, int n) { return FormatI2_S::quarter(bytes, 3 - n); }
};

// Integer sum of one row times N tokens: sum of code * q over *parts* x 128 weights, from part p0.
template <class F, int N>
void ternary_run(const uint8_t* row, const int8_t* const* q, int64_t p0, int64_t p1, int32_t* out) {
    TernarySum sum[N];
    for (int64_t p = p0; p < p1; ++p) {
        const uint8_t* at = F::part(row, p);
        const __m256i bytes = load256(at);
        if (p % 2 == 0) prefetch(at);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            const __m256i codes = F::quarter(bytes, i);
            for (int n = 0; n < N; ++n) sum[n].add(codes, load256(q[n] + 128 * p + 32 * i), i);
        }
        for (int n = 0; n < N; ++n) sum[n].end_part(p - p0);
    }
    for (int n = 0; n < N; ++n) out[n] = sum[n].total();
}

template <class F, int N>
void ternary_row(const LinearArgs& a, int64_t r, int64_t t) {
    const uint8_t* row = a.weight + r * a.row_bytes;
    const int64_t parts = a.cols / 128;
    const int8_t* q[N];
    for (int n = 0; n < N; ++n) q[n] = a.q + (t + n) * a.cols;
    int32_t sum[N];
    if constexpr (!F::kBlockScale) {
        ternary_run<F, N>(row, q, 0, parts, sum);
        for (int n = 0; n < N; ++n)
            a.y[(t + n) * a.rows + r] = float(sum[n] - a.sums[t + n]) / a.step[t + n] * a.scale;
    } else {
        double total[N] = {};
        for (int64_t p = 0; p < parts;) {
            int64_t end = p + 2;
            const uint16_t d = read<uint16_t>(F::part(row, p) + 64);
            while (end < parts && read<uint16_t>(F::part(row, end) + 64) == d) end += 2;
            ternary_run<F, N>(row, q, p, end, sum);
            for (int n = 0; n < N; ++n) {
                int32_t x_sum = a.sums[t + n];
                if (p != 0 || end != parts) {
                    x_sum = 0;
                    for (int64_t i = 128 * p; i < 128 * end; ++i) x_sum += q[n][i];
                }
                total[n] += double(half_to_float(d)) * (sum[n] - x_sum);
            }
            p = end;
        }
        for (int n = 0; n < N; ++n)
            a.y[(t + n) * a.rows + r] = float(total[n]) / a.step[t + n] * a.scale;
    }
}

template <class F>
void decode_ternary(const LinearArgs& a, int64_t r0, int64_t r1, uint8_t*) {
    for (int64_t r = r0; r < r1; ++r) {
        int64_t t = 0;
        for (; t + 4 <= a.tokens; t += 4) ternary_row<F, 4>(a, r, t);
        for (; t < a.tokens; ++t) ternary_row<F, 1>(a, r, t);
    }
}

// TQ1_0: five weights to a byte; a row is unpacked to one code per byte first.
inline void decode_tq1_0(const LinearArgs& a, int64_t r0, int64_t r1, uint8_t* scratch) {
    const int64_t parts = a.cols / 128;
    for (int64_t r = r0; r < r1; ++r) {
        const uint8_t* row = a.weight + r * a.row_bytes;
        for (int64_t p = 0; p < parts; ++p) unpack_ternary(Type::TQ1_0, row, p, scratch + 128 * p);
        for (int64_t t = 0; t < a.tokens; ++t) {
            const int8_t* q = a.q + t * a.cols;
            const __m256i ones = _mm256_set1_epi8(1);
            double total = 0.0;
            for (int64_t p = 0; p < parts;) {
                const float d = ternary_block_scale(Type::TQ1_0, row, p);
                TernarySum sum, x_sum;
                int64_t i = 0;
                do {
#pragma GCC unroll 4
                    for (int j = 0; j < 4; ++j) {
                        const __m256i x = load256(q + 128 * p + 32 * j);
                        sum.add(load256(scratch + 128 * p + 32 * j), x, j);
                        x_sum.add(ones, x, j);
                    }
                    sum.end_part(i);
                    x_sum.end_part(i++);
                    ++p;
                } while (p < parts && ternary_block_scale(Type::TQ1_0, row, p) == d);
                total += double(d) * (sum.total() - x_sum.total());
            }
            a.y[t * a.rows + r] = float(total) / a.step[t] * a.scale;
        }
    }
}

constexpr int kL = TernaryVec::kLanes;

inline void put_codes(uint8_t* tile, int64_t at, int lane, __m256i codes) {
    alignas(32) uint32_t words[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(words), codes);
    auto* out = reinterpret_cast<uint32_t*>(tile) + at / 4 * kL + lane;
    for (int i = 0; i < 8; ++i) out[i * kL] = words[i];
}

// Integer sums of code * q over columns [c0, c1) for kL rows and N tokens.
template <int N>
inline void ternary_products(const LinearArgs& a, const uint8_t* code, int64_t t, int64_t c0, int64_t c1,
                             TernaryVec::Int* out) {
    TernaryVec::Products part[N];
    const int8_t* q = a.q + t * a.cols;
    for (int64_t c = c0; c < c1; c += 128) {
#pragma GCC unroll 4
        for (int i = 0; i < 128; i += 4) {
            const auto w = TernaryVec::load(code + (c + i) * kL);
#pragma GCC unroll 8
            for (int n = 0; n < N; ++n) part[n].add(w, q + n * a.cols + c + i);
        }
        for (int n = 0; n < N; ++n) part[n].end_part();
    }
    for (int n = 0; n < N; ++n) out[n] = part[n].total();
}

// Rows whose blocks all have one scale, in whole tiles; others go row by row through `decode`.
template <int N>
void ternary_tile(const LinearArgs& a, const uint8_t* code, const float* scale, int64_t r, int rows, int64_t t) {
    TernaryVec::Int sum[N];
    ternary_products<N>(a, code, t, 0, a.cols, sum);
    for (int n = 0; n < N; ++n) {
        alignas(64) int32_t all[kL];
        TernaryVec::store_int(all, sum[n]);
        for (int i = 0; i < rows; ++i) {
            const double total = double(scale[i]) * (all[i] - a.sums[t + n]);
            a.y[(t + n) * a.rows + r + i] = float(total) / a.step[t + n] * a.scale;
        }
    }
}

// Codes of one row into the tile; returns whether all its blocks have the same scale.
template <Type kType>
bool fill_ternary(const LinearArgs& a, const uint8_t* row, int lane, uint8_t* tile, float& scale) {
    bool same = true;
    uint16_t first = 0;
    for (int64_t p = 0; p < a.cols / 128; ++p) {
        if constexpr (kType == Type::TQ1_0) {
            uint8_t code[128];
            unpack_ternary(kType, row, p, code);
            for (int i = 0; i < 4; ++i) put_codes(tile, 128 * p + 32 * i, lane, load256(code + 32 * i));
        } else if constexpr (kType == Type::TQ2_0) {
            const __m256i bytes = load256(FormatTQ2_0::part(row, p));
            for (int i = 0; i < 4; ++i)
                put_codes(tile, 128 * p + 32 * i, lane, FormatTQ2_0::quarter(bytes, i));
        } else {
            const __m256i bytes = load256(FormatI2_S::part(row, p));
            for (int i = 0; i < 4; ++i)
                put_codes(tile, 128 * p + 32 * i, lane, FormatI2_S::quarter(bytes, i));
        }
        if constexpr (kType != Type::I2_S) {
            const uint8_t* d = row + p / 2 * kBlocks[int(kType)].bytes + kBlocks[int(kType)].bytes - 2;
            if (p == 0) first = read<uint16_t>(d);
            same = same && read<uint16_t>(d) == first;
        }
    }
    scale = kType == Type::I2_S ? 1.0f : half_to_float(first);
    return same;
}

template <Type kType, LinearKernel kDecode>
void prefill_ternary(const LinearArgs& a, int64_t r0, int64_t r1, uint8_t* scratch) {
    for (int64_t r = r0; r < r1; r += kL) {
        const int rows = int(r1 - r < kL ? r1 - r : kL);
        float scale[kL];
        bool same = true;
        for (int lane = 0; lane < kL; ++lane)
            same &= fill_ternary<kType>(a, a.weight + (r + (lane < rows ? lane : 0)) * a.row_bytes, lane,
                                        scratch, scale[lane]);
        if (!same) {
            kDecode(a, r, r + rows, scratch);
            continue;
        }
        int64_t t = 0;
        for (; t + TernaryVec::kTokens <= a.tokens; t += TernaryVec::kTokens)
            ternary_tile<TernaryVec::kTokens>(a, scratch, scale, r, rows, t);
        for (; t < a.tokens; ++t) ternary_tile<1>(a, scratch, scale, r, rows, t);
    }
}
// The kernels of these encodings in the tables of *k*.
inline void fill_ternary_tables(Kernels& k) {
    k.decode[int(Type::I2_S)] = decode_ternary<FormatI2_S>;
    k.decode[int(Type::TQ2_0)] = decode_ternary<FormatTQ2_0>;
    k.decode[int(Type::TQ1_0)] = decode_tq1_0;
    k.prefill[int(Type::I2_S)] = prefill_ternary<Type::I2_S, decode_ternary<FormatI2_S>>;
    k.prefill[int(Type::TQ2_0)] = prefill_ternary<Type::TQ2_0, decode_ternary<FormatTQ2_0>>;
    k.prefill[int(Type::TQ1_0)] = prefill_ternary<Type::TQ1_0, decode_tq1_0>;
}

}  // namespace
}  // namespace bitnet
