// Prefill: many activation rows. A tile of Vec::kLanes weight rows is unpacked once, interleaved so
// that one register holds four neighbouring codes of every row, and multiplied with all tokens;
// no sum crosses lanes. The including file defines `Vec`, the vector type of its instruction set.
#pragma once

#include "formats_x86.hpp"

namespace bitnet {
namespace {

constexpr int kL = Vec::kLanes;

// The weights of a tile: code (cols/4, kL, 4) bytes, scale and min (groups, kL).
struct Tile {
    uint8_t* code;
    float *scale, *min;
    Tile(uint8_t* scratch, int64_t cols)
        : code(scratch), scale(reinterpret_cast<float*>(scratch + kL * cols)), min(scale + kL * (cols / 16)) {}
};

inline void put_codes(uint8_t* tile, int64_t at, int lane, __m256i codes) {
    alignas(32) uint32_t words[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(words), codes);
    auto* out = reinterpret_cast<uint32_t*>(tile) + at / 4 * kL + lane;
    for (int i = 0; i < 8; ++i) out[i * kL] = words[i];
}

template <class F>
void fill_tile(const LinearArgs& a, const uint8_t* row, int lane, const Tile& tile) {
    const int64_t groups = a.cols / 32;
    const __m256i flip = _mm256_set1_epi8(F::kSigned && Vec::kSignedOffset ? char(0x80) : 0);
    for (int64_t g = 0; g < groups; ++g)
        put_codes(tile.code, 32 * g, lane, _mm256_xor_si256(F::codes(row, g), flip));
    int64_t g = 0;
    for (; g + 8 <= groups; g += 8) {
        const Scales scales = F::scales(row, g);
        alignas(32) float s[8], m[8];
        _mm256_store_ps(s, scales.s);
        _mm256_store_ps(m, F::kHalves ? scales.second : scales.m);
        for (int j = 0; j < 8; ++j) {
            if constexpr (F::kHalves) {
                tile.scale[(2 * (g + j)) * kL + lane] = s[j];
                tile.scale[(2 * (g + j) + 1) * kL + lane] = m[j];
            } else {
                tile.scale[(g + j) * kL + lane] = s[j];
                tile.min[(g + j) * kL + lane] = m[j];
            }
        }
    }
    if constexpr (F::kBlock == 32)
        for (; g < groups; ++g) F::scale(row, g, tile.scale[g * kL + lane], tile.min[g * kL + lane]);
}

inline void store_tile_row(float* y, typename Vec::Float v, int rows) {
    if (rows == kL) {
        Vec::store(y, v);
        return;
    }
    alignas(64) float all[kL];
    Vec::store(all, v);
    for (int i = 0; i < rows; ++i) y[i] = all[i];
}

// kL rows times N tokens. An offset of the codes is taken off in integers before scaling.
template <class F, int N>
void block_tile(const LinearArgs& a, const Tile& tile, int64_t r, int rows, int64_t t) {
    constexpr bool kHasMin = !F::kSigned && F::kOffset == 0;
    constexpr int kOffset = F::kSigned ? Vec::kSignedOffset : F::kOffset;
    const int64_t groups = a.cols / 32;
    typename Vec::Float sum[N];
    for (int n = 0; n < N; ++n) sum[n] = Vec::zero_float();
    for (int64_t g = 0; g < groups; ++g) {
        typename Vec::Float scaled[N];
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
            typename Vec::template Products<F::kMax, F::kSigned> part[N];
            if constexpr (kOffset != 0)
                for (int n = 0; n < N; ++n)
                    part[n].start(-kOffset * a.sums[(t + n) * 2 * groups + 2 * g + half]);
            const uint8_t* code = tile.code + (2 * g + half) * 16 * kL;
            const int8_t* q = a.q + t * a.cols + 32 * g + 16 * half;
#pragma GCC unroll 4
            for (int i = 0; i < 4; ++i) {
                const auto w = Vec::load(code + 4 * kL * i);
#pragma GCC unroll 8
                for (int n = 0; n < N; ++n) part[n].add(w, q + n * a.cols + 4 * i, i);
            }
            const float* step = a.step + (2 * t + half) * groups + g;
            if constexpr (F::kHalves) {
                const auto scale = Vec::load_float(tile.scale + (2 * g + half) * kL);
                for (int n = 0; n < N; ++n)
                    sum[n] = Vec::fma(Vec::mul(part[n].total(), Vec::set(step[2 * n * groups])), scale, sum[n]);
            } else {
                for (int n = 0; n < N; ++n) {
                    const auto x_step = Vec::set(step[2 * n * groups]);
                    scaled[n] = half ? Vec::fma(part[n].total(), x_step, scaled[n]) : Vec::mul(part[n].total(), x_step);
                }
            }
        }
        if constexpr (!F::kHalves) {
            const auto scale = Vec::load_float(tile.scale + g * kL);
            for (int n = 0; n < N; ++n) sum[n] = Vec::fma(scaled[n], scale, sum[n]);
        }
        if constexpr (kHasMin) {
            const auto min = Vec::load_float(tile.min + g * kL);
            for (int n = 0; n < N; ++n)
                sum[n] = Vec::fma(Vec::set(a.sum32[(t + n) * groups + g]), min, sum[n]);
        }
    }
    for (int n = 0; n < N; ++n) store_tile_row(a.y + (t + n) * a.rows + r, sum[n], rows);
}

template <class F>
void prefill_block(const LinearArgs& a, int64_t r0, int64_t r1, uint8_t* scratch) {
    const Tile tile(scratch, a.cols);
    for (int64_t r = r0; r < r1; r += kL) {
        const int rows = int(r1 - r < kL ? r1 - r : kL);
        for (int lane = 0; lane < kL; ++lane)
            fill_tile<F>(a, a.weight + (r + (lane < rows ? lane : 0)) * a.row_bytes, lane, tile);
        int64_t t = 0;
        for (; t + Vec::kTokens <= a.tokens; t += Vec::kTokens) block_tile<F, Vec::kTokens>(a, tile, r, rows, t);
        for (; t < a.tokens; ++t) block_tile<F, 1>(a, tile, r, rows, t);
    }
}

// kL rows times N tokens of float weights, interleaved (cols, kL).
template <int N>
void float_tile(const LinearArgs& a, const float* w, int64_t r, int rows, int64_t t) {
    typename Vec::Float sum[N];
    for (int n = 0; n < N; ++n) sum[n] = Vec::zero_float();
    const float* x = a.x + t * a.cols;
    for (int64_t k = 0; k < a.cols; ++k) {
        const auto column = Vec::load_float(w + k * kL);
#pragma GCC unroll 16
        for (int n = 0; n < N; ++n) sum[n] = Vec::fma(Vec::set(x[n * a.cols + k]), column, sum[n]);
    }
    for (int n = 0; n < N; ++n) store_tile_row(a.y + (t + n) * a.rows + r, sum[n], rows);
}

template <Type kType>
void prefill_float(const LinearArgs& a, int64_t r0, int64_t r1, uint8_t* scratch) {
    auto* tile = reinterpret_cast<float*>(scratch);
    for (int64_t r = r0; r < r1; r += kL) {
        const int rows = int(r1 - r < kL ? r1 - r : kL);
        for (int lane = 0; lane < kL; ++lane) {
            const uint8_t* row = a.weight + (r + (lane < rows ? lane : 0)) * a.row_bytes;
            int64_t k = 0;
            for (; k + 8 <= a.cols; k += 8) {
                alignas(32) float eight[8];
                _mm256_store_ps(eight, load_floats(kType, row, k));
                for (int i = 0; i < 8; ++i) tile[(k + i) * kL + lane] = eight[i];
            }
            for (; k < a.cols; ++k)
                tile[k * kL + lane] = kType == Type::F32   ? read<float>(row + 4 * k)
                                      : kType == Type::F16 ? one_half(row + 2 * k)
                                                           : bf16_to_float(read<uint16_t>(row + 2 * k));
        }
        int64_t t = 0;
        for (; t + Vec::kFloatTokens <= a.tokens; t += Vec::kFloatTokens)
            float_tile<Vec::kFloatTokens>(a, tile, r, rows, t);
        for (; t < a.tokens; ++t) float_tile<1>(a, tile, r, rows, t);
    }
}

}  // namespace
}  // namespace bitnet

// The entries of the two linear tables of `Kernels` for float and block encodings, in the order of `Type`.
#define BITNET_X86_LINEAR                                                                             \
    {decode_float<Type::F32>,   decode_float<Type::F16>,   decode_float<Type::BF16>,                  \
     decode_block<FormatQ8_0>,  decode_block<FormatQ4_0>,  decode_block<FormatQ4_1>,                  \
     decode_block<FormatQ5_0>,  decode_block<FormatQ5_1>,  decode_block<FormatQ4_K>,                  \
     decode_block<FormatQ5_K>,  decode_block<FormatQ6_K>},                                            \
    {                                                                                                 \
        prefill_float<Type::F32>, prefill_float<Type::F16>, prefill_float<Type::BF16>,                \
            prefill_block<FormatQ8_0>, prefill_block<FormatQ4_0>, prefill_block<FormatQ4_1>,          \
            prefill_block<FormatQ5_0>, prefill_block<FormatQ5_1>, prefill_block<FormatQ4_K>,          \
            prefill_block<FormatQ5_K>, prefill_block<FormatQ6_K>                                      \
    }
