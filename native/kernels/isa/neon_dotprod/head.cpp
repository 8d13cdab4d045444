// The exact head with NEON dot products: the 16 rows of a tile are the lanes of four registers.
#include "head/pack.hpp"
#include "head/tile.hpp"
#include "isa/kernels.hpp"
#include "isa/simd_neon.hpp"

namespace bitnet {
namespace {

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

void add_neon_dotprod_head(Kernels& k) { k.exact_head = {tile_neon, sixth_neon, pack_tile}; }

}  // namespace bitnet
