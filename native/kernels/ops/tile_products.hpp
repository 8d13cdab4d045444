// Products with tiles of 16 interleaved rows. One template over the number of tokens is used for
// both decode and prefill, so the additions for a row and a token have the same order in both.
//
// The including file defines `prefetch_line` and `Vec`, the vectors of its instruction set, of
// which one or two cover a tile, with numbers that suit its registers:
//   kTokens, kFloatTokens  tokens multiplied at once, at most, with block encodings and with floats
//   kWholeTokens           most tokens for which the sums of a whole tile fit
//   kUnpackFrom            tokens from which on tiles are unpacked first; 0: never
#pragma once

#include "ops/tile_groups.hpp"

namespace bitnet {
// Each instruction set compiles its own copy: no unit may run code of another's flags.
namespace {

constexpr int64_t kAhead = 4096;  // bytes; the prefetcher of the hardware stops at page ends

// Prefetches the lines that are kAhead bytes after those of [p, p + bytes).
inline void prefetch_lines(const uint8_t* p, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64) prefetch_line(p + kAhead + i);
}

// Adds the products of 32 columns of V vectors of rows with N tokens to *sum*. C is the CodeForm of
// the weights; *group* holds them, packed or unpacked (ops/tile_groups.hpp). *stride* is the
// distance from the inputs of one token to those of the next.
template <class C, int V, int N, class Group>
inline void add_group(const Group& group, const BlockInput* x, int64_t stride, Lanes (*sum)[N]) {
    Lanes scaled[V][N];
    BITNET_UNROLL(2) for (int half = 0; half < 2; ++half) {
        typename Vec::template Sum<C::kMax, C::kOffset, C::kSigned> part[V][N];
        BITNET_UNROLL(8)
        for (int n = 0; n < N; ++n)
            for (int v = 0; v < V; ++v) part[v][n].start(x[n * stride], half);
        BITNET_UNROLL(4) for (int i = 0; i < 4; ++i) {
            Vec::Int w[V];
            BITNET_UNROLL(2) for (int v = 0; v < V; ++v) w[v] = group.codes(4 * half + i, v);
            BITNET_UNROLL(8)
            for (int n = 0; n < N; ++n) BITNET_UNROLL(2)
            for (int v = 0; v < V; ++v) part[v][n].add(w[v], x[n * stride].q + 16 * half, i);
        }
        BITNET_UNROLL(2) for (int v = 0; v < V; ++v) {
            [[maybe_unused]] const auto scale = group.scale(v, half);
            BITNET_UNROLL(8) for (int n = 0; n < N; ++n) {
                const auto step = Lanes::set(x[n * stride].step[half]);
                const Lanes total = Vec::to_float(part[v][n].total());
                if constexpr (C::kHalves)
                    sum[v][n] = Lanes::fma(total * step, scale, sum[v][n]);
                else if (half == 0)
                    scaled[v][n] = total * step;
                else
                    sum[v][n] = Lanes::fma(Lanes::fma(total, step, scaled[v][n]), scale, sum[v][n]);
            }
        }
    }
    if constexpr (C::kMin) {
        BITNET_UNROLL(2) for (int v = 0; v < V; ++v) {
            const auto min = group.min(v);
            BITNET_UNROLL(8)
            for (int n = 0; n < N; ++n)
                sum[v][n] = Lanes::fma(Lanes::set(x[n * stride].sum), min, sum[v][n]);
        }
    }
}

// Writes *sum*, of vectors first .. first+V-1 of the tile at row r and of tokens t .. t+N-1, to y.
template <int V, int N>
inline void store_tile(const LinearArgs& a, int64_t r, int first, int64_t t,
                       const Lanes (&sum)[V][N]) {
    const int rows = int(a.rows - r < kTileRows ? a.rows - r : kTileRows);
    for (int v = 0; v < V; ++v)
        for (int n = 0; n < N; ++n)
            store_rows(a.y + (t + n) * a.rows + r, first + v, rows, sum[v][n]);
}

// Multiplies vectors first .. first+V-1 of the tile at row r, in a block encoding, with tokens t ..
// t+N-1.
template <Type kType, int V, int N>
void block_tile(const LinearArgs& a, int64_t r, int first, int64_t t) {
    constexpr TileLayout kLayout = tile_layout(kType);
    const uint8_t* block = a.weight + r * a.row_bytes;
    const int64_t stride = block_inputs(a.cols), blocks = a.cols / (32 * kLayout.groups);
    const BlockInput* x = a.inputs + t * stride;
    const bool ahead = t == 0 && first == 0;  // later tokens find the tile in the caches
    Lanes sum[V][N];
    for (int v = 0; v < V; ++v)
        for (int n = 0; n < N; ++n) sum[v][n] = Lanes::set(0.0f);
    for (int64_t b = 0; b < blocks; ++b, block += kLayout.block()) {
        const Scales<kType> scales[2] = {Scales<kType>(block, first),
                                         Scales<kType>(block, first + V - 1)};
        if (ahead) prefetch_lines(block, kLayout.header);
        for (int j = 0; j < kLayout.groups; ++j, x += 1) {
            const uint8_t* unit = block + kLayout.header + j * kLayout.unit();
            if (ahead) prefetch_lines(unit, kLayout.unit());
            add_group<Codes<kType>, V, N>(PackedGroup<kType, V>{unit, first, j, scales}, x, stride,
                                          sum);
        }
    }
    store_tile(a, r, first, t, sum);
}

// Multiplies the whole tile at row r with tokens t .. t+N-1, one vector at a time if the sums of
// all vectors do not fit in the registers.
template <Type kType, int N>
inline void block_tokens(const LinearArgs& a, int64_t r, int64_t t) {
    if constexpr (N > Vec::kWholeTokens) {
        for (int v = 0; v < kVecs; ++v) block_tile<kType, 1, N>(a, r, v, t);
    } else {
        block_tile<kType, kVecs, N>(a, r, 0, t);
    }
}

// Multiplies the tile at row r, unpacked to *tile*, with tokens t .. t+N-1. Types that have the
// same CodeForm share this function.
template <class C, int N>
void unpacked_tile(const LinearArgs& a, const uint8_t* tile, int64_t r, int64_t t) {
    const int64_t stride = block_inputs(a.cols);
    const BlockInput* x = a.inputs + t * stride;
    Lanes sum[kVecs][N];
    for (int v = 0; v < kVecs; ++v)
        for (int n = 0; n < N; ++n) sum[v][n] = Lanes::set(0.0f);
    for (int64_t g = 0; g < a.cols / 32; ++g, ++x, tile += UnpackedGroup<C>::kBytes)
        add_group<C, kVecs, N>(UnpackedGroup<C>{tile}, x, stride, sum);
    store_tile(a, r, 0, t, sum);
}

// A LinearKernel of a block encoding: kN tokens at a time, and 4, 2 and 1 of the rest.
template <Type kType>
void linear_block(const LinearArgs& a, int64_t r0, int64_t r1, [[maybe_unused]] uint8_t* scratch) {
    constexpr int kN = Vec::kTokens;
    const int64_t token_bytes = int64_t(sizeof(BlockInput)) * block_inputs(a.cols);
    const int64_t step = tokens_per_pass(a.tokens, token_bytes, kN);
    for (int64_t t0 = 0; t0 < a.tokens; t0 += step) {
        const int64_t t1 = t0 + step < a.tokens ? t0 + step : a.tokens;
        for (int64_t r = r0; r < r1; r += kTileRows) {
            int64_t t = t0;
            // Unpacked once, if there are enough tokens for that (docs/architecture/kernels.md).
            if constexpr (Vec::kUnpackFrom > 0) {
                if (t1 - t0 >= Vec::kUnpackFrom) {
                    unpack_tile<kType>(a.weight + r * a.row_bytes, a.cols, scratch);
                    for (; t + kN <= t1; t += kN) unpacked_tile<Codes<kType>, kN>(a, scratch, r, t);
                }
            }
            for (; t + kN <= t1; t += kN) block_tokens<kType, kN>(a, r, t);
            if (kN > 4 && t + 4 <= t1) {
                block_tokens<kType, 4>(a, r, t);
                t += 4;
            }
            if (t + 2 <= t1) {
                block_tokens<kType, 2>(a, r, t);
                t += 2;
            }
            if (t < t1) block_tokens<kType, 1>(a, r, t);
        }
    }
}

// Vector v of a column of 16 weights as float32.
template <Type kType>
inline Lanes tile_column(const uint8_t* column, int v) {
    if constexpr (kType == Type::F32_R16)
        return Lanes::load(column + 4 * Lanes::kWidth * v);
    else if constexpr (kType == Type::F16_R16)
        return Lanes::halves(column + 2 * Lanes::kWidth * v);
    else
        return Lanes::upper(column + 2 * Lanes::kWidth * v);
}

// Adds the products of one column of V vectors of rows with N tokens to *sum*, one of the two
// chains of kernels.hpp.
template <Type kType, int V, int N>
inline void add_column(const uint8_t* column, int first, const float* x, int64_t stride,
                       Lanes (*sum)[N]) {
    BITNET_UNROLL(2) for (int v = 0; v < V; ++v) {
        const auto w = tile_column<kType>(column, first + v);
        BITNET_UNROLL(8)
        for (int n = 0; n < N; ++n) sum[v][n] = Lanes::fma(w, Lanes::set(x[n * stride]), sum[v][n]);
    }
}

// Multiplies vectors first .. first+V-1 of the tile of floats at row r with tokens t .. t+N-1.
template <Type kType, int V, int N>
void float_tile(const LinearArgs& a, int64_t r, int first, int64_t t) {
    constexpr int64_t kColumn = kTileRows * encoding(kType).bytes;
    const uint8_t* tile = a.weight + r * a.row_bytes;
    const float* x = a.x + t * a.cols;
    Lanes total[V][N];
    for (int v = 0; v < V; ++v)
        for (int n = 0; n < N; ++n) total[v][n] = Lanes::set(0.0f);
    for (int64_t begin = 0; begin < a.cols; begin += kFloatRun) {
        const int64_t end = begin + kFloatRun < a.cols ? begin + kFloatRun : a.cols;
        Lanes even[V][N], odd[V][N];
        for (int v = 0; v < V; ++v)
            for (int n = 0; n < N; ++n) even[v][n] = odd[v][n] = Lanes::set(0.0f);
        int64_t k = begin;
        for (; k + 2 <= end; k += 2) {
            if (t == 0) prefetch_lines(tile + k * kColumn, 2 * kColumn);
            add_column<kType, V, N>(tile + k * kColumn, first, x + k, a.cols, even);
            add_column<kType, V, N>(tile + (k + 1) * kColumn, first, x + k + 1, a.cols, odd);
        }
        if (k < end) add_column<kType, V, N>(tile + k * kColumn, first, x + k, a.cols, even);
        for (int v = 0; v < V; ++v)
            for (int n = 0; n < N; ++n) total[v][n] = total[v][n] + (even[v][n] + odd[v][n]);
    }
    store_tile(a, r, first, t, total);
}

// A LinearKernel of tiles of floats.
template <Type kType>
void linear_float(const LinearArgs& a, int64_t r0, int64_t r1, uint8_t*) {
    constexpr int kN = Vec::kFloatTokens;
    const int64_t step = tokens_per_pass(a.tokens, int64_t(sizeof(float)) * a.cols, kN);
    for (int64_t t0 = 0; t0 < a.tokens; t0 += step) {
        const int64_t t1 = t0 + step < a.tokens ? t0 + step : a.tokens;
        for (int64_t r = r0; r < r1; r += kTileRows) {
            int64_t t = t0;
            for (; t + kN <= t1; t += kN) float_tile<kType, kVecs, kN>(a, r, 0, t);
            for (; t + 2 <= t1; t += 2) float_tile<kType, kVecs, 2>(a, r, 0, t);
            if (t < t1) float_tile<kType, kVecs, 1>(a, r, 0, t);
        }
    }
}

// Fills in the products of every block encoding with interleaved rows.
[[maybe_unused]] void add_block_linear(Kernels& k) {
    each_block_type([&](auto type) {
        k.decode[int(type.value)] = k.prefill[int(type.value)] = linear_block<type.value>;
    });
}

// The same, and those of F32_R16, F16_R16 and BF16_R16, the types before Q8_0_R16.
[[maybe_unused]] void add_tiled_linear(Kernels& k) {
    each_type<Type::F32_R16, Type::Q8_0_R16>([&](auto type) {
        k.decode[int(type.value)] = k.prefill[int(type.value)] = linear_float<type.value>;
    });
    add_block_linear(k);
}

}  // namespace
}  // namespace bitnet
