// NEON with dot products (Armv8.2): sdot adds four products of signed bytes to 32 bits at once.
#define BITNET_NEON
#include "head/pack.hpp"
#include "head/tile.hpp"
#include "isa/vectors_neon.hpp"
#include "ops/row_ops.hpp"
#include "ternary/vectors_neon.hpp"

namespace bitnet {
namespace {

struct Vec : Neon {
    static constexpr bool kSignedCodes = true;  // as sdot wants them

    template <int kMax, int kOffset, bool kSigned>
    struct Products {
        static_assert(kSigned || kMax <= 127, "codes are read as signed bytes");
        Wide wide = {vdupq_n_s32(0), vdupq_n_s32(0)};
        void start(const BlockInput& x, int half) {
            if constexpr (kOffset != 0) wide.low = wide.high = vshlq_n_s32(vdupq_n_s32(x.minus_q[half]), log2_of(kOffset));
        }
        // *q* are the activations of step *i* of four; all 16 are loaded once.
        void add(Int w, const int8_t* q, int i) {
            const int8x16_t x = vld1q_s8(q - 4 * i);
            wide.low = dot_lane(wide.low, vreinterpretq_s8_u8(w.low), x, i);
            wide.high = dot_lane(wide.high, vreinterpretq_s8_u8(w.high), x, i);
        }
        Float total() const { return {vcvtq_f32_s32(wide.low), vcvtq_f32_s32(wide.high)}; }
    };
};

}  // namespace
}  // namespace bitnet

#include "ops/tile_gather.hpp"
#include "ops/tile_products.hpp"

namespace bitnet {
namespace {

// Ternary: a tile is four registers of four rows each.
struct Acc : TernaryNeon {
    // Four tokens: 16 registers of sums, four of weights and four of activations.
    static constexpr int kTokens = 4, kGroupTokens = 4, kTiles = 1, kGroupTiles = 1;

    template <int G, int N>
    static void unpacked(const LinearArgs& a, const uint8_t* bytes, int64_t t, int64_t c0, int64_t c1, Ints (*out)[N]) {
        const Inputs<N> q(a, t);
        for (int n = 0; n < N; ++n) out[0][n] = zero();
        for (int64_t c = c0; c < c1; c += kTernaryStep) {
            int8x16_t x[N];
            for (int n = 0; n < N; ++n) x[n] = vld1q_s8(q[n] + c);
#pragma GCC unroll 4
            for (int f = 0; f < 4; ++f)
#pragma GCC unroll 4
                for (int i = 0; i < kRegisters; ++i) {
                    const int8x16_t w = vreinterpretq_s8_u8(vld1q_u8(bytes + 16 * c + 64 * f + 16 * i));
#pragma GCC unroll 4
                    for (int n = 0; n < N; ++n) out[0][n].part[i] = dot_lane(out[0][n].part[i], w, x[n], f);
                }
        }
    }
};
static_assert(Acc::kTiles == 1, "unpacked() multiplies one tile");

struct TwoBits {
    static constexpr int kStep = kTernaryStep, kPackedTokens = 8, kPackedAtOnce = 4, kPrefetch = 512;

    // One token: fields 1 and 2 are masked in place, four and 16 times their code, and have sums of
    // their own. More: fields are shifted down.
    template <int N>
    static void packed(const LinearArgs& a, const uint8_t* codes, int64_t t, int64_t c0, int64_t c1, Acc::Ints* out) {
        constexpr int kSums = N == 1 ? 3 : 1;
        const Inputs<N> q(a, t);
        Acc::Ints sum[N][kSums];
        for (int n = 0; n < N; ++n)
            for (Acc::Ints& s : sum[n]) s = Acc::zero();
        for (int64_t c = c0; c < c1; c += kTernaryStep) {
            prefetch_line(codes + 4 * c + kPrefetch);
            int8x16_t x[N];
            for (int n = 0; n < N; ++n) x[n] = vld1q_s8(q[n] + c);
#pragma GCC unroll 4
            for (int i = 0; i < kRegisters; ++i) {
                const uint8x16_t bytes = vld1q_u8(codes + 4 * c + 16 * i);
#pragma GCC unroll 4
                for (int f = 0; f < 4; ++f) {
                    const bool in_place = kSums == 3 && f < 3;
                    const uint8x16_t field = in_place ? vandq_u8(bytes, vdupq_n_u8(uint8_t(3 << (2 * f)))) : low_field(bytes, f);
#pragma GCC unroll 4
                    for (int n = 0; n < N; ++n) {
                        int32x4_t& to = sum[n][in_place ? f : 0].part[i];
                        to = dot_lane(to, vreinterpretq_s8_u8(field), x[n], f);
                    }
                }
            }
        }
        for (int n = 0; n < N; ++n) {
            out[n] = sum[n][0];
            if constexpr (kSums == 3)
                for (int i = 0; i < kRegisters; ++i) {
                    const int32x4_t four = vshrq_n_s32(sum[n][1].part[i], 2), sixteen = vshrq_n_s32(sum[n][2].part[i], 4);
                    out[n].part[i] = vaddq_s32(out[n].part[i], vaddq_s32(four, sixteen));
                }
        }
    }

    static void unpack(const uint8_t* codes, int64_t cols, uint8_t* out, int64_t stride) {
        for (int64_t i = 0; i < cols / 4; i += 4)
            for (int j = 0; j < kRegisters; ++j) {
                const uint8x16_t bytes = vld1q_u8(codes + 16 * i + 16 * j);
#pragma GCC unroll 4
                for (int f = 0; f < 4; ++f) vst1q_u8(out + (i + f) * stride + 16 * j, low_field(bytes, f));
            }
    }
};

// Codes of digit *f* of a byte, of two bits or of one.
template <int kDigits>
uint8x16_t run_codes(uint8x16_t bytes, int f) {
    if constexpr (kDigits == 4) return low_field(bytes, f);
    return vandq_u8(shift_bytes(bytes, 1 - f), vdupq_n_u8(2));
}

template <int kDigits>
struct FieldRuns {
    static constexpr int kRuns = kDigits, kPackedTokens = 4, kPackedAtOnce = 4;

    template <int N>
    static void block(const LinearArgs& a, const uint8_t* lines, int64_t t, int64_t c, Acc::Ints (*out)[N]) {
        const Inputs<N> q(a, t);
#pragma GCC unroll 8
        for (int f = 0; f < kRuns; ++f) {
            for (int n = 0; n < N; ++n) out[f][n] = Acc::zero();
#pragma GCC unroll 8
            for (int i = 0; i < kRunLines; ++i)
#pragma GCC unroll 4
                for (int j = 0; j < kRegisters; ++j) {
                    const auto codes = vreinterpretq_s8_u8(run_codes<kDigits>(vld1q_u8(lines + 64 * i + 16 * j), f));
#pragma GCC unroll 4
                    for (int n = 0; n < N; ++n) {
                        const int8x16_t x = vld1q_s8(q[n] + c + kRun * f + 16 * (i / 4));
                        out[f][n].part[j] = dot_lane(out[f][n].part[j], codes, x, i % 4);
                    }
                }
        }
    }

    static void unpack(const uint8_t* lines, uint8_t* out, int64_t stride) {
        for (int i = 0; i < kRunLines; ++i)
            for (int j = 0; j < kRegisters; ++j) {
                const uint8x16_t bytes = vld1q_u8(lines + 64 * i + 16 * j);
                for (int f = 0; f < kRuns; ++f)
                    vst1q_u8(out + (kRunLines * f + i) * stride + 16 * j, run_codes<kDigits>(bytes, f));
            }
    }
};

}  // namespace
}  // namespace bitnet

#include "ternary/group_products.hpp"
#include "ternary/products.hpp"

namespace bitnet {
namespace {

// The exact head: the 16 rows of a tile are the lanes of four registers.
// Sum of code * q over the 64 columns of a block for 4 rows, q in two digits of base 128.
inline int32x4_t block_product(const uint8_t* block, const int8_t* high, const int8_t* low) {
    const uint8x16_t nibble = vdupq_n_u8(15), bit = vdupq_n_u8(16);
    int32x4_t first = vdupq_n_s32(0), second = first;
    for (int half = 0; half < 2; ++half) {
        const uint8x16_t bits = vld1q_u8(block + 320 * half);
#pragma GCC unroll 2
        for (int quarter = 0; quarter < 2; ++quarter) {
            const int8x16_t coarse = vld1q_s8(high + 32 * half + 16 * quarter), fine = vld1q_s8(low + 32 * half + 16 * quarter);
#pragma GCC unroll 4
            for (int i = 0; i < 4; ++i) {
                const int g = 4 * quarter + i;
                const uint8x16_t pair = vld1q_u8(block + 320 * half + 64 * (1 + g / 2));
                const uint8x16_t nibbles = g % 2 ? vshrq_n_u8(pair, 4) : vandq_u8(pair, nibble);
                const uint8x16_t fifth = vandq_u8(shift_bytes(bits, 4 - g), bit);
                const int8x16_t codes = vreinterpretq_s8_u8(vorrq_u8(nibbles, fifth));
                first = dot_lane(first, codes, coarse, i);
                second = dot_lane(second, codes, fine, i);
            }
        }
    }
    return vaddq_s32(vshlq_n_s32(first, 7), second);
}

void tile_neon(const uint8_t* tile, int64_t blocks, const HeadInput& x, const float* step, const float* residual,
               const float* norm, float* approx, float* upper) {
    const uint8_t *norms = tile, *codes = tile + head_codes(blocks);
    float32x4_t sum[4], error[4];
    for (int i = 0; i < 4; ++i) sum[i] = error[i] = vdupq_n_f32(0.0f);
    for (int64_t b = 0; b < blocks; ++b) {
        const uint8_t* block = codes + b * kHeadBlockBytes;
        prefetch_block(block);
        const int32x4_t middle = vdupq_n_s32(x.middle[size_t(b)]);
        const uint8x16_t counts = vld1q_u8(norms + b * kHeadRows);
        const uint16x8_t wide[2] = {vmovl_u8(vget_low_u8(counts)), vmovl_high_u8(counts)};
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            const int32x4_t product = block_product(block + 16 * i, &x.high[size_t(b * kHeadBlock)],
                                                    &x.low[size_t(b * kHeadBlock)]);
            const int32x4_t centred = vsubq_s32(vshlq_n_s32(product, 1), middle);
            sum[i] = vfmaq_n_f32(sum[i], vcvtq_f32_s32(centred), x.step[size_t(b)]);
            const uint32x4_t left = i % 2 ? vmovl_high_u16(wide[i / 2]) : vmovl_u16(vget_low_u16(wide[i / 2]));
            error[i] = vfmaq_n_f32(error[i], vcvtq_f32_u32(left), x.norm[size_t(b)]);
        }
    }
    for (int i = 0; i < 4; ++i) {
        float values[4], errors[4];
        vst1q_f32(values, vmulq_f32(sum[i], vld1q_f32(step + 4 * i)));
        vst1q_f32(errors, vfmaq_f32(vmulq_n_f32(vld1q_f32(norm + 4 * i), x.slack), error[i], vld1q_f32(residual + 4 * i)));
        for (int r = 0; r < 4; ++r) finish_row(values[r], errors[r], approx[4 * i + r], upper[4 * i + r]);
    }
}

void sixth_neon(const uint8_t* row, int64_t cols, const HeadInput& x, float* sum, float* error) {
    const uint8_t *norms = row + sizeof(float), *bits = row + head_bits(cols);
    const uint8x16_t one = vdupq_n_u8(1);
    float32x4_t total = vdupq_n_f32(0.0f), left = total;
    for (int64_t g = 0; g < head_groups(cols); ++g)
        for (int half = 0; half < 2; ++half) {
            const uint8x16_t word = vld1q_u8(bits + g * kHeadGroupBytes + 16 * half);
            int32x4_t high = vdupq_n_s32(0), low = high;
#pragma GCC unroll 8
            for (int i = 0; i < 8; ++i) {
                const int8x16_t bit = vreinterpretq_s8_u8(vandq_u8(shift_bytes(word, -i), one));
                const auto at = size_t((8 * g + i) * kHeadGroupBytes + 16 * half);
                high = vdotq_s32(high, bit, vld1q_s8(&x.sixth_high[at]));
                low = vdotq_s32(low, bit, vld1q_s8(&x.sixth_low[at]));
            }
            const auto lane = size_t(8 * g + 4 * half);
            const int32x4_t doubled = vaddq_s32(vshlq_n_s32(high, 8), vshlq_n_s32(low, 1));
            const float32x4_t centred = vcvtq_f32_s32(vsubq_s32(doubled, vld1q_s32(&x.sixth_middle[lane])));
            total = vfmaq_f32(total, centred, vld1q_f32(&x.sixth_step[lane]));
        }
    for (int64_t b = 0; b < head_blocks(cols); b += 8) {  // beyond the norms the state has zeros
        const uint16x8_t counts = vmovl_u8(vld1_u8(norms + b));
        left = vfmaq_f32(left, vcvtq_f32_u32(vmovl_u16(vget_low_u16(counts))), vld1q_f32(&x.norm[size_t(b)]));
        left = vfmaq_f32(left, vcvtq_f32_u32(vmovl_high_u16(counts)), vld1q_f32(&x.norm[size_t(b + 4)]));
    }
    *sum = vaddvq_f32(total);
    *error = vaddvq_f32(left);
}

}  // namespace

const Kernels& neon_dotprod_kernels() {
    static const Kernels table = [] {
        Kernels k = scalar_kernels();
        k.name = "neon_dotprod";
        add_row_ops(k);
        add_tiled_linear(k);
        use<TwoBits, false>(k, Type::Ternary);
        use<TwoBits, true>(k, Type::TernaryBlocks);
        use_whole_bits<FieldRuns<8>, FieldRuns<4>>(k);
        k.exact_head = {tile_neon, sixth_neon, pack_tile};
        k.gather = gather_tile<pack_float_tile>;
        return k;
    }();
    return table;
}

}  // namespace bitnet
