// Products with tiles of 16 interleaved rows. One template over the number of tokens does decode and
// prefill, so the order of additions of a row and a token is the same in both.
//
// The including file defines `Vec`, the vectors of its instruction set, of which one or two cover a
// tile, and `prefetch_line`.
#pragma once

#include <utility>

#include "isa/kernels.hpp"

namespace bitnet {
namespace {

constexpr int kVecs = kTileRows / Vec::kLanes;  // vectors a tile is wide
constexpr int64_t kInputBytes = 384 << 10;      // activations that stay in the second cache
constexpr int64_t kAhead = 4096;                // bytes; the hardware prefetcher stops at page ends

inline void prefetch_lines(const uint8_t* p, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64) prefetch_line(p + kAhead + i);
}

// Vector *v* of four neighbouring columns, 4j .. 4j+3, of the rows of a tile.
template <Type kType>
inline typename Vec::Int tile_codes(const uint8_t* unit, int j, int v) {
    constexpr TileLayout kLayout = tile_layout(kType);
    const uint8_t* lanes = unit + 4 * Vec::kLanes * v;
    if constexpr (kType == Type::Q8_0_R16) {
        const auto codes = Vec::load(lanes + 64 * j);
        return Vec::kSignedCodes ? Vec::flip(codes) : codes;
    } else {
        const auto both = Vec::load(lanes + kLayout.high + 64 * (j % 4));
        const auto low = Vec::and_bytes(j < 4 ? both : Vec::shift_right(both, 4), 0x0f);
        if constexpr (kLayout.high == 0) return low;
        if constexpr (kLayout.high == 64)
            return Vec::or_masked(low, Vec::shift(Vec::load(lanes), 4 - j), 0x10);
        return Vec::or_masked(low, Vec::shift(Vec::load(lanes + 64 * (j / 4)), 4 - 2 * (j % 4)), 0x30);
    }
}

// Largest code, what is subtracted from codes in integers, and whether codes are s8.
template <Type kType>
struct Codes {
    static constexpr bool kEight = kType == Type::Q8_0_R16;
    static constexpr bool kSigned = kEight && Vec::kSignedCodes;
    static constexpr int kMax = kEight ? (kSigned ? 128 : 255) : tile_layout(kType).high == 0 ? 15
                                : tile_layout(kType).high == 64 ? 31 : 63;
    static constexpr int kOffset = kSigned ? 0 : tile_layout(kType).offset;
    static constexpr bool kHalves = kType == Type::Q6_K_R16, kMin = encoding(kType).minimum;
};

// Scales and minima of a block for one vector of rows; `of` those of its group j.
template <Type kType>
struct Scales {
    typename Vec::Float d, dmin;
    const uint8_t* bytes;
    explicit Scales(const uint8_t* block, int v) : d(Vec::load_half(block + 2 * Vec::kLanes * v)), dmin(d) {
        constexpr int kHeader = tile_layout(kType).header;
        bytes = block + (kHeader == 288 ? 32 : 64) + Vec::kLanes * v;
        if constexpr (Codes<kType>::kMin) dmin = Vec::load_half(block + 32 + 2 * Vec::kLanes * v);
        if constexpr (kHeader == 320) dmin = Vec::negated(dmin);
    }
    typename Vec::Float scale(int j, int half) const {
        if constexpr (tile_layout(kType).header == 320) return Vec::mul(d, Vec::load_u8(bytes + 16 * j));
        else if constexpr (Codes<kType>::kHalves) return Vec::mul(d, Vec::load_s8(bytes + 32 * j + 16 * half));
        else return d;
    }
    typename Vec::Float min(int j) const {
        if constexpr (tile_layout(kType).header == 320) return Vec::mul(dmin, Vec::load_u8(bytes + 128 + 16 * j));
        else return dmin;
    }
};

// Group *j* of a block as it lies in a tile, for V vectors of rows from *first* on.
template <Type kType, int V>
struct PackedGroup {
    const uint8_t* unit;
    int first, j;
    const Scales<kType>* scales;
    typename Vec::Int codes(int i, int v) const { return tile_codes<kType>(unit, i, first + v); }
    typename Vec::Float scale(int v, int half) const { return scales[v].scale(j, half); }
    typename Vec::Float min(int v) const { return scales[v].min(j); }
};

// The same of a whole tile, computed once for many tokens: 8 x 64 codes, scales as floats (of each half
// where they differ), minima as floats.
template <Type kType>
struct UnpackedGroup {
    static constexpr int kScales = Codes<kType>::kHalves ? 2 : 1;
    static constexpr int kBytes = 64 * (8 + kScales + (Codes<kType>::kMin ? 1 : 0));
    static_assert(scratch_bytes(32) >= kBytes + 4096, "a tile does not fit the scratch memory");
    const uint8_t* at;
    static constexpr int codes_at(int i, int v) { return 64 * i + 4 * Vec::kLanes * v; }
    static constexpr int scale_at(int v, int half) { return codes_at(8 + half % kScales, v); }
    static constexpr int min_at(int v) { return codes_at(8 + kScales, v); }
    typename Vec::Int codes(int i, int v) const { return Vec::load(at + codes_at(i, v)); }
    typename Vec::Float scale(int v, int half) const { return Vec::load_float(at + scale_at(v, half)); }
    typename Vec::Float min(int v) const { return Vec::load_float(at + min_at(v)); }
};

// 32 columns of V vectors of rows times N tokens.
template <Type kType, int V, int N, class Group>
inline void add_group(const Group& group, const BlockInput* x, int64_t stride, typename Vec::Float (*sum)[N]) {
    using C = Codes<kType>;
    typename Vec::Float scaled[V][N];
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
        typename Vec::template Products<C::kMax, C::kOffset, C::kSigned> part[V][N];
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n)
            for (int v = 0; v < V; ++v) part[v][n].start(x[n * stride], half);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            typename Vec::Int w[V];
#pragma GCC unroll 2
            for (int v = 0; v < V; ++v) w[v] = group.codes(4 * half + i, v);
#pragma GCC unroll 8
            for (int n = 0; n < N; ++n)
#pragma GCC unroll 2
                for (int v = 0; v < V; ++v) part[v][n].add(w[v], x[n * stride].q + 16 * half + 4 * i, i);
        }
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) {
            [[maybe_unused]] const auto scale = group.scale(v, half);
#pragma GCC unroll 8
            for (int n = 0; n < N; ++n) {
                const auto step = Vec::set(x[n * stride].step[half]);
                if constexpr (C::kHalves) sum[v][n] = Vec::fma(Vec::mul(part[v][n].total(), step), scale, sum[v][n]);
                else if (half == 0) scaled[v][n] = Vec::mul(part[v][n].total(), step);
                else sum[v][n] = Vec::fma(Vec::fma(part[v][n].total(), step, scaled[v][n]), scale, sum[v][n]);
            }
        }
    }
    if constexpr (C::kMin)
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) {
            const auto min = group.min(v);
#pragma GCC unroll 8
            for (int n = 0; n < N; ++n) sum[v][n] = Vec::fma(Vec::set(x[n * stride].sum), min, sum[v][n]);
        }
}

// *rows* floats of a tile's vector *v* to their places.
inline void store_rows(float* y, int v, int rows, typename Vec::Float value) {
    const int begin = Vec::kLanes * v;
    if (rows >= begin + Vec::kLanes) return Vec::store(y + begin, value);
    alignas(64) float all[Vec::kLanes];
    Vec::store(all, value);
    for (int i = begin; i < rows; ++i) y[i] = all[i - begin];
}

// The sums of V vectors of rows of the tile at row r and of tokens t .. t+N-1.
template <int V, int N>
inline void store_tile(const LinearArgs& a, int64_t r, int first, int64_t t, const typename Vec::Float (&sum)[V][N]) {
    const int rows = int(a.rows - r < kTileRows ? a.rows - r : kTileRows);
    for (int v = 0; v < V; ++v)
        for (int n = 0; n < N; ++n) store_rows(a.y + (t + n) * a.rows + r, first + v, rows, sum[v][n]);
}

// Vectors first .. first+V-1 of the tile at row r times tokens t .. t+N-1.
template <Type kType, int V, int N>
void block_tile(const LinearArgs& a, int64_t r, int first, int64_t t) {
    constexpr TileLayout kLayout = tile_layout(kType);
    const uint8_t* block = a.weight + r * a.row_bytes;
    const int64_t stride = block_inputs(a.cols), blocks = a.cols / (32 * kLayout.groups);
    const BlockInput* x = a.inputs + t * stride;
    typename Vec::Float sum[V][N];
    for (int v = 0; v < V; ++v)
        for (int n = 0; n < N; ++n) sum[v][n] = Vec::zero_float();
    for (int64_t b = 0; b < blocks; ++b, block += kLayout.block()) {
        const Scales<kType> scales[2] = {Scales<kType>(block, first), Scales<kType>(block, first + V - 1)};
        if constexpr (N == 1) prefetch_lines(block, kLayout.header);
        for (int j = 0; j < kLayout.groups; ++j, x += 1) {
            const uint8_t* unit = block + kLayout.header + j * kLayout.unit();
            if constexpr (N == 1) prefetch_lines(unit, kLayout.unit());
            add_group<kType, V, N>(PackedGroup<kType, V>{unit, first, j, scales}, x, stride, sum);
        }
    }
    store_tile(a, r, first, t, sum);
}

template <Type kType, int N>
inline void block_tokens(const LinearArgs& a, int64_t r, int64_t t) {
    if constexpr (N > Vec::kWholeTokens) {
        for (int v = 0; v < kVecs; ++v) block_tile<kType, 1, N>(a, r, v, t);
    } else {
        block_tile<kType, kVecs, N>(a, r, 0, t);
    }
}

template <Type kType>
void unpack_tile(const uint8_t* block, int64_t cols, uint8_t* out) {
    using Unpacked = UnpackedGroup<kType>;
    constexpr TileLayout kLayout = tile_layout(kType);
    for (int64_t b = 0; b < cols / (32 * kLayout.groups); ++b, block += kLayout.block()) {
        const Scales<kType> scales[2] = {Scales<kType>(block, 0), Scales<kType>(block, kVecs - 1)};
        for (int j = 0; j < kLayout.groups; ++j, out += Unpacked::kBytes) {
            const PackedGroup<kType, kVecs> group{block + kLayout.header + j * kLayout.unit(), 0, j, scales};
            const auto put = [&](int at, typename Vec::Float f) { Vec::store(reinterpret_cast<float*>(out + at), f); };
#pragma GCC unroll 2
            for (int v = 0; v < kVecs; ++v) {
#pragma GCC unroll 8
                for (int i = 0; i < 8; ++i) Vec::store(out + Unpacked::codes_at(i, v), group.codes(i, v));
                for (int half = 0; half < Unpacked::kScales; ++half) put(Unpacked::scale_at(v, half), group.scale(v, half));
                if constexpr (Codes<kType>::kMin) put(Unpacked::min_at(v), group.min(v));
            }
        }
    }
}

// The unpacked tile of row r times tokens t .. t+N-1.
template <Type kType, int N>
void unpacked_tile(const LinearArgs& a, const uint8_t* tile, int64_t r, int64_t t) {
    const int64_t stride = block_inputs(a.cols);
    const BlockInput* x = a.inputs + t * stride;
    typename Vec::Float sum[kVecs][N];
    for (int v = 0; v < kVecs; ++v)
        for (int n = 0; n < N; ++n) sum[v][n] = Vec::zero_float();
    for (int64_t g = 0; g < a.cols / 32; ++g, ++x, tile += UnpackedGroup<kType>::kBytes)
        add_group<kType, kVecs, N>(UnpackedGroup<kType>{tile}, x, stride, sum);
    store_tile(a, r, 0, t, sum);
}

// Tokens that are multiplied with all tiles before the next: as many as fit, in even shares.
constexpr int64_t tokens_per_pass(int64_t tokens, int64_t token_bytes, int64_t multiple) {
    const int64_t whole = kInputBytes / token_bytes / multiple * multiple, fitting = whole > 0 ? whole : multiple;
    const int64_t passes = (tokens + fitting - 1) / fitting, share = (tokens + passes - 1) / passes;
    return (share + multiple - 1) / multiple * multiple;
}

template <Type kType>
void linear_block(const LinearArgs& a, int64_t r0, int64_t r1, [[maybe_unused]] uint8_t* scratch) {
    constexpr int kN = Vec::kTokens;
    const int64_t step = tokens_per_pass(a.tokens, 64 * block_inputs(a.cols), kN);
    for (int64_t t0 = 0; t0 < a.tokens; t0 += step) {
        const int64_t t1 = t0 + step < a.tokens ? t0 + step : a.tokens;
        for (int64_t r = r0; r < r1; r += kTileRows) {
            int64_t t = t0;
            if constexpr (Vec::kUnpackFrom > 0)
                if (t1 - t0 >= Vec::kUnpackFrom) {
                    unpack_tile<kType>(a.weight + r * a.row_bytes, a.cols, scratch);
                    for (; t + kN <= t1; t += kN) unpacked_tile<kType, kN>(a, scratch, r, t);
                }
            for (; t + kN <= t1; t += kN) block_tokens<kType, kN>(a, r, t);
            if (kN > 4 && t + 4 <= t1) block_tokens<kType, 4>(a, r, t), t += 4;
            if (t + 2 <= t1) block_tokens<kType, 2>(a, r, t), t += 2;
            if (t < t1) block_tokens<kType, 1>(a, r, t);
        }
    }
}

template <Type kType>
inline typename Vec::Float tile_column(const uint8_t* column, int v) {
    if constexpr (kType == Type::F32_R16) return Vec::load_float(column + 4 * Vec::kLanes * v);
    else if constexpr (kType == Type::F16_R16) return Vec::load_half(column + 2 * Vec::kLanes * v);
    else return Vec::load_bf16(column + 2 * Vec::kLanes * v);
}

// One column of V vectors of rows times N tokens, into one of the two chains.
template <Type kType, int V, int N>
inline void add_column(const uint8_t* column, int first, const float* x, int64_t stride,
                       typename Vec::Float (*sum)[N]) {
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
        const auto w = tile_column<kType>(column, first + v);
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) sum[v][n] = Vec::fma(w, Vec::set(x[n * stride]), sum[v][n]);
    }
}

// Vectors first .. first+V-1 of the tile at row r times tokens t .. t+N-1.
template <Type kType, int V, int N>
void float_tile(const LinearArgs& a, int64_t r, int first, int64_t t) {
    constexpr int64_t kColumn = kTileRows * encoding(kType).bytes;
    const uint8_t* tile = a.weight + r * a.row_bytes;
    const float* x = a.x + t * a.cols;
    typename Vec::Float total[V][N];
    for (int v = 0; v < V; ++v)
        for (int n = 0; n < N; ++n) total[v][n] = Vec::zero_float();
    for (int64_t begin = 0; begin < a.cols; begin += kFloatRun) {
        const int64_t end = begin + kFloatRun < a.cols ? begin + kFloatRun : a.cols;
        typename Vec::Float even[V][N], odd[V][N];
        for (int v = 0; v < V; ++v)
            for (int n = 0; n < N; ++n) even[v][n] = odd[v][n] = Vec::zero_float();
        int64_t k = begin;
        for (; k + 2 <= end; k += 2) {
            if constexpr (N == 1) prefetch_lines(tile + k * kColumn, 2 * kColumn);
            add_column<kType, V, N>(tile + k * kColumn, first, x + k, a.cols, even);
            add_column<kType, V, N>(tile + (k + 1) * kColumn, first, x + k + 1, a.cols, odd);
        }
        if (k < end) add_column<kType, V, N>(tile + k * kColumn, first, x + k, a.cols, even);
        for (int v = 0; v < V; ++v)
            for (int n = 0; n < N; ++n) total[v][n] = Vec::add(total[v][n], Vec::add(even[v][n], odd[v][n]));
    }
    store_tile(a, r, first, t, total);
}

template <Type kType>
void linear_float(const LinearArgs& a, int64_t r0, int64_t r1, uint8_t*) {
    constexpr int kN = Vec::kFloatTokens;
    const int64_t step = tokens_per_pass(a.tokens, 4 * a.cols, kN);
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

template <Type kType>
constexpr LinearKernel tiled_kernel() {
    if constexpr (is_float(kType)) return linear_float<kType>;
    else return linear_block<kType>;
}

constexpr Type after(Type type, int n) { return Type(int(type) + n); }

// The types from kFirst on.
template <Type kFirst, int... kNext>
void add_tiled(Kernels& k, std::integer_sequence<int, kNext...>) {
    ((k.decode[int(kFirst) + kNext] = k.prefill[int(kFirst) + kNext] = tiled_kernel<after(kFirst, kNext)>()), ...);
}

// Every block encoding with interleaved rows.
[[maybe_unused]] void add_block_linear(Kernels& k) {
    add_tiled<Type::Q8_0_R16>(k, std::make_integer_sequence<int, int(Type::Ternary) - int(Type::Q8_0_R16)>());
}

// Those of floats, too.
[[maybe_unused]] void add_tiled_linear(Kernels& k) {
    add_tiled<Type::F32_R16>(k, std::make_integer_sequence<int, int(Type::Q8_0_R16) - int(Type::F32_R16)>());
    add_block_linear(k);
}

}  // namespace
}  // namespace bitnet
