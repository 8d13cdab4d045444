// NEON with products of matrices of bytes (Armv8.6, i8mm): smmla multiplies two tokens x 8 columns
// with 8 columns x two rows. Batches of more than kDecodeTokens tokens go through it; all other
// kernels are those of neon_dotprod.
//
// A register of sums is [t0 r0, t0 r1, t1 r0, t1 r1] for tokens t and rows r, and stays so until a
// row is complete: rounding steps and scales are repeated to match. The sums are exact integers, as
// at every other level.
#include "isa/neon.hpp"

namespace bitnet {
namespace {

struct Vec : Neon {
    static constexpr bool kSignedCodes = false;  // unpack_pairs subtracts their offset
};

constexpr int kTokens = 4;  // two pairs
// Pairs of rows of a tile, and those of half a tile, whose sums of floats fit the registers.
constexpr int kPairs = kTileRows / 2, kHalf = kPairs / 2;

}  // namespace
}  // namespace bitnet

#include "ops/tile_groups.hpp"
#include "ternary/products.hpp"

namespace bitnet {
namespace {

// *left* and *right* hold four columns each of four rows, those of a row together; the columns of
// *right* follow those of *left*. Stores them as two registers of 8 columns of a pair of rows.
inline void store_pairs(uint8_t* out, uint8x16_t left, uint8x16_t right) {
    const uint32x4_t a = vreinterpretq_u32_u8(left), b = vreinterpretq_u32_u8(right);
    vst1q_u8(out, vreinterpretq_u8_u32(vzip1q_u32(a, b)));
    vst1q_u8(out + 16, vreinterpretq_u8_u32(vzip2q_u32(a, b)));
}

// 16 columns of two tokens as two registers of 8.
inline void load_tokens(const int8_t* first, const int8_t* second, int8x16_t (&out)[2]) {
    const int64x2_t a = vreinterpretq_s64_s8(vld1q_s8(first)),
                    b = vreinterpretq_s64_s8(vld1q_s8(second));
    out[0] = vreinterpretq_s8_s64(vzip1q_s64(a, b));
    out[1] = vreinterpretq_s8_s64(vzip2q_s64(a, b));
}

// A factor for each token of a pair, in the order of its sums.
inline float32x4_t for_pair(float first, float second) {
    return vcombine_f32(vdup_n_f32(first), vdup_n_f32(second));
}

// From the sums *a* and *b* of two pairs of rows, each times two tokens: the four sums of the first
// token or, if *second*, of the second.
inline int32x4_t four_rows(int32x4_t a, int32x4_t b, int second) {
    const int64x2_t left = vreinterpretq_s64_s32(a), right = vreinterpretq_s64_s32(b);
    return vreinterpretq_s32_s64(second ? vzip2q_s64(left, right) : vzip1q_s64(left, right));
}
inline float32x4_t four_rows(float32x4_t a, float32x4_t b, int second) {
    return vreinterpretq_f32_s32(
        four_rows(vreinterpretq_s32_f32(a), vreinterpretq_s32_f32(b), second));
}

// 32 columns of a tile: codes without their offset (4, 8 pairs of rows, 2, 8 columns), then scales
// (of each half where they differ) and minima, [r0, r1, r0, r1] for each pair of rows.
template <bool kHalves, bool kMin>
struct PairedGroup {
    static constexpr int kLine = 16 * kPairs, kScales = kHalves ? 2 : 1;
    static constexpr int kBytes = kLine * (4 + kScales + (kMin ? 1 : 0));
    // Without the constant part of scratch_bytes, 4096, so that a tile of any width fits.
    static_assert(scratch_bytes(32) >= kBytes + 4096, "a tile does not fit the scratch memory");
    const uint8_t* at;
    int8x16_t codes(int step, int pair) const {
        return vreinterpretq_s8_u8(vld1q_u8(at + kLine * step + 16 * pair));
    }
    float32x4_t scale(int pair, int half) const { return floats(4 + half % kScales, pair); }
    float32x4_t min(int pair) const { return floats(4 + kScales, pair); }
    float32x4_t floats(int line, int pair) const {
        return vreinterpretq_f32_u8(vld1q_u8(at + kLine * line + 16 * pair));
    }
};

template <Type kType>
using Paired = PairedGroup<Codes<kType>::kHalves, Codes<kType>::kMin>;

// Unpacks the tile that begins at *block* into PairedGroups.
template <Type kType>
void unpack_pairs(const uint8_t* block, int64_t cols, uint8_t* out) {
    using Paired = bitnet::Paired<kType>;
    constexpr TileLayout kLayout = tile_layout(kType);
    const uint8x16_t offset = vdupq_n_u8(uint8_t(Codes<kType>::kOffset));
    const auto put = [](uint8_t* to, const Lanes& rows) {
        for (const float32x4_t four : {rows.low, rows.high}) {
            vst1q_f32(reinterpret_cast<float*>(to),
                      vcombine_f32(vget_low_f32(four), vget_low_f32(four)));
            vst1q_f32(reinterpret_cast<float*>(to + 16),
                      vcombine_f32(vget_high_f32(four), vget_high_f32(four)));
            to += 32;
        }
    };
    for (int64_t b = 0; b < cols / (32 * kLayout.groups); ++b, block += kLayout.block()) {
        const Scales<kType> scales[2] = {Scales<kType>(block, 0), Scales<kType>(block, 1)};
        for (int j = 0; j < kLayout.groups; ++j, out += Paired::kBytes) {
            const PackedGroup<kType, 2> group{block + kLayout.header + j * kLayout.unit(), 0, j,
                                              scales};
            for (int v = 0; v < 2; ++v) {
                for (int step = 0; step < 4; ++step) {
                    const Neon::Int left = group.codes(2 * step, v),
                                    right = group.codes(2 * step + 1, v);
                    uint8_t* to = out + Paired::kLine * step + 64 * v;
                    store_pairs(to, vsubq_u8(left.low, offset), vsubq_u8(right.low, offset));
                    store_pairs(to + 32, vsubq_u8(left.high, offset), vsubq_u8(right.high, offset));
                }
                for (int half = 0; half < Paired::kScales; ++half)
                    put(out + Paired::kLine * (4 + half) + 64 * v, group.scale(v, half));
                if constexpr (Codes<kType>::kMin)
                    put(out + Paired::kLine * (4 + Paired::kScales) + 64 * v, group.min(v));
            }
        }
    }
}

// Half a tile, from its pair of rows *first* on, times tokens t .. t + 3; sums are added as by
// add_group (ops/tile_products.hpp).
template <bool kHalves, bool kMin>
void half_tile(const LinearArgs& a, const uint8_t* tile, int64_t r, int first, int64_t t) {
    using Group = PairedGroup<kHalves, kMin>;
    const int64_t stride = block_inputs(a.cols);
    const BlockInput* x = a.inputs + t * stride;
    float32x4_t sum[2][kHalf];
    for (auto& pair : sum)
        for (float32x4_t& v : pair) v = vdupq_n_f32(0.0f);
    for (int64_t g = 0; g < a.cols / 32; ++g, ++x, tile += Group::kBytes) {
        const Group group{tile};
        float32x4_t scaled[2][kHalf];
        BITNET_UNROLL(2) for (int half = 0; half < 2; ++half) {
            // Separates the halves: GCC 12 otherwise begins the second one first, and spills.
            __asm__ volatile("" : : : "memory");
            int32x4_t part[2][kHalf];
            int8x16_t q[2][2];
            BITNET_UNROLL(2) for (int p = 0; p < 2; ++p) {
                load_tokens(x[2 * p * stride].q + 16 * half, x[(2 * p + 1) * stride].q + 16 * half,
                            q[p]);
                for (int32x4_t& v : part[p]) v = vdupq_n_s32(0);
            }
            BITNET_UNROLL(2)
            for (int step = 0; step < 2; ++step) BITNET_UNROLL(4) for (int i = 0; i < kHalf; ++i) {
                    const int8x16_t w = group.codes(2 * half + step, first + i);
                    BITNET_UNROLL(2)
                    for (int p = 0; p < 2; ++p) part[p][i] = vmmlaq_s32(part[p][i], q[p][step], w);
                }
            BITNET_UNROLL(2) for (int p = 0; p < 2; ++p) {
                const float32x4_t rounding =
                    for_pair(x[2 * p * stride].step[half], x[(2 * p + 1) * stride].step[half]);
                BITNET_UNROLL(4) for (int i = 0; i < kHalf; ++i) {
                    const float32x4_t total = vcvtq_f32_s32(part[p][i]),
                                      scale = group.scale(first + i, half);
                    if constexpr (kHalves)
                        sum[p][i] = vfmaq_f32(sum[p][i], vmulq_f32(total, rounding), scale);
                    else if (half == 0)
                        scaled[p][i] = vmulq_f32(total, rounding);
                    else
                        sum[p][i] =
                            vfmaq_f32(sum[p][i], vfmaq_f32(scaled[p][i], total, rounding), scale);
                }
            }
        }
        if constexpr (kMin) BITNET_UNROLL(2) for (int p = 0; p < 2; ++p) {
                const float32x4_t inputs =
                    for_pair(x[2 * p * stride].sum, x[(2 * p + 1) * stride].sum);
                BITNET_UNROLL(4)
                for (int i = 0; i < kHalf; ++i)
                    sum[p][i] = vfmaq_f32(sum[p][i], inputs, group.min(first + i));
            }
    }
    const int rows = int(a.rows - r < kTileRows ? a.rows - r : kTileRows);
    for (int n = 0; n < kTokens; ++n) {
        const auto& pair = sum[n / 2];
        store_rows(a.y + (t + n) * a.rows + r, first / kHalf, rows,
                   {four_rows(pair[0], pair[1], n % 2), four_rows(pair[2], pair[3], n % 2)});
    }
}

// Multiplies the tile at row r with the tokens from t on, too few for smmla, as neon_dotprod does.
void remaining(const LinearArgs& a, int64_t r, int64_t t, uint8_t* scratch) {
    const int64_t end = r + kTileRows < a.rows ? r + kTileRows : a.rows;
    if (t < a.tokens)
        neon_dotprod_kernels().prefill[int(a.type)](a.of_tokens(t, a.tokens), r, end, scratch);
}

template <Type kType>
void linear_block(const LinearArgs& a, int64_t r0, int64_t r1, uint8_t* scratch) {
    // A BlockInput has 64 bytes.
    const int64_t whole = a.tokens / kTokens * kTokens,
                  step = tokens_per_pass(a.tokens, 64 * block_inputs(a.cols), kTokens);
    for (int64_t t0 = 0; t0 < whole; t0 += step) {
        const int64_t t1 = t0 + step < whole ? t0 + step : whole;
        for (int64_t r = r0; r < r1; r += kTileRows) {
            unpack_pairs<kType>(a.weight + r * a.row_bytes, a.cols, scratch);
            for (int64_t t = t0; t < t1; t += kTokens)
                for (const int first : {0, kHalf})
                    half_tile<Codes<kType>::kHalves, Codes<kType>::kMin>(a, scratch, r, first, t);
        }
    }
    for (int64_t r = r0; r < r1; r += kTileRows) remaining(a, r, whole, scratch);
}

// A tile of two bits per weight as bytes (cols / 8, 8 pairs of rows, 2, 8 columns).
void unpack_ternary(const uint8_t* codes, int64_t cols, uint8_t* out) {
    for (int64_t c = 0; c < cols; c += kTernaryStep, codes += 64, out += 32 * kPairs)
        for (int v = 0; v < kVecs; ++v) {
            Neon::Int field[4];
            Fields<2, 1>::isolate_all(Neon::load(codes + kVecBytes * v), field);
            for (int half = 0; half < 2; ++half) {
                uint8_t* to = out + 16 * kPairs * half + 64 * v;
                store_pairs(to, field[2 * half].low, field[2 * half + 1].low);
                store_pairs(to + 32, field[2 * half].high, field[2 * half + 1].high);
            }
        }
}

// The unpacked tile of row r times tokens t .. t + 3.
void ternary_tokens(const LinearArgs& a, const uint8_t* tile, int64_t r, int64_t t) {
    const int8_t* x = a.q + t * a.cols;
    int32x4_t sum[2][kPairs];
    for (auto& pair : sum)
        for (int32x4_t& v : pair) v = vdupq_n_s32(0);
    for (int64_t c = 0; c < a.cols; c += kTernaryStep, x += kTernaryStep, tile += 32 * kPairs) {
        int8x16_t q[2][2];
        for (int p = 0; p < 2; ++p) load_tokens(x + 2 * p * a.cols, x + (2 * p + 1) * a.cols, q[p]);
        BITNET_UNROLL(2)
        for (int step = 0; step < 2; ++step) BITNET_UNROLL(8) for (int i = 0; i < kPairs; ++i) {
                const int8x16_t w = vreinterpretq_s8_u8(vld1q_u8(tile + 16 * (kPairs * step + i)));
                BITNET_UNROLL(2)
                for (int p = 0; p < 2; ++p) sum[p][i] = vmmlaq_s32(sum[p][i], q[p][step], w);
            }
    }
    for (int n = 0; n < kTokens; ++n)
        for (int v = 0; v < kVecs; ++v) {
            const auto four = [&](int i) {
                return Neon::bytes(four_rows(sum[n / 2][i], sum[n / 2][i + 1], n % 2));
            };
            const Neon::Int rows = Neon::minus({four(4 * v), four(4 * v + 2)}, a.sums[t + n]);
            store_ternary(a, r, v, t + n, Neon::to_float(rows));
        }
}

void linear_ternary(const LinearArgs& a, int64_t r0, int64_t r1, uint8_t* scratch) {
    const int64_t whole = a.tokens / kTokens * kTokens;
    for (int64_t r = r0; r < r1; r += kTernaryRows) {
        unpack_ternary(a.weight + r / kTernaryRows * ternary_tile_bytes(a.type, a.cols), a.cols,
                       scratch);
        for (int64_t t = 0; t < whole; t += kTokens) ternary_tokens(a, scratch, r, t);
        remaining(a, r, whole, scratch);
    }
}

}  // namespace

const Kernels& neon_i8mm_kernels() {
    static const Kernels table = [] {
        Kernels k = neon_dotprod_kernels();
        k.name = "neon_i8mm";
        each_block_type([&](auto type) { k.prefill[int(type.value)] = linear_block<type.value>; });
        k.prefill[int(Type::Ternary)] = linear_ternary;
        return k;
    }();
    return table;
}

}  // namespace bitnet
