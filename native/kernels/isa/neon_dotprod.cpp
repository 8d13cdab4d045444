// NEON with dot products (Armv8.2): sdot adds four products of signed bytes to 32 bits at once.
#define BITNET_NEON
#include "isa/neon.hpp"
#include "ops/row_ops.hpp"

namespace bitnet {
namespace {
using Vec = Neon;
}
}  // namespace bitnet

#include "head/level.hpp"
#include "ops/tile_products.hpp"
#include "ternary/products.hpp"

namespace bitnet {
namespace {

void sixth_neon(const uint8_t* row, int64_t cols, const HeadInput& x, float* sum, float* error) {
    const uint8_t* norms = row + sizeof(float);
    const uint8_t* bits = row + head_bits(cols);
    const uint8x16_t one = vdupq_n_u8(1);
    float32x4_t total = vdupq_n_f32(0.0f);
    float32x4_t bound = vdupq_n_f32(0.0f);  // of what the bits leave out
    for (int64_t g = 0; g < head_groups(cols); ++g)
        for (int half = 0; half < 2; ++half) {
            const uint8x16_t word = vld1q_u8(bits + g * kHeadGroupBytes + 16 * half);
            int32x4_t high = vdupq_n_s32(0);
            int32x4_t low = vdupq_n_s32(0);
            BITNET_UNROLL(8) for (int i = 0; i < 8; ++i) {
                const int8x16_t bit = vreinterpretq_s8_u8(vandq_u8(shift_bytes(word, -i), one));
                const auto at = size_t((8 * g + i) * kHeadGroupBytes + 16 * half);
                high = vdotq_s32(high, bit, vld1q_s8(&x.sixth_high[at]));
                low = vdotq_s32(low, bit, vld1q_s8(&x.sixth_low[at]));
            }
            const auto lane = size_t(8 * g + 4 * half);
            const int32x4_t doubled = vaddq_s32(vshlq_n_s32(high, 8), vshlq_n_s32(low, 1));
            const float32x4_t centred =
                vcvtq_f32_s32(vsubq_s32(doubled, vld1q_s32(&x.sixth_middle[lane])));
            total = vfmaq_f32(total, centred, vld1q_f32(&x.sixth_step[lane]));
        }
    for (int64_t b = 0; b < head_blocks(cols); b += 8) {  // x.norm has zeros after the last block
        const uint16x8_t counts = vmovl_u8(vld1_u8(norms + b));
        const float32x4_t first = vcvtq_f32_u32(vmovl_u16(vget_low_u16(counts)));
        const float32x4_t second = vcvtq_f32_u32(vmovl_high_u16(counts));
        bound = vfmaq_f32(bound, first, vld1q_f32(&x.norm[size_t(b)]));
        bound = vfmaq_f32(bound, second, vld1q_f32(&x.norm[size_t(b + 4)]));
    }
    *sum = vaddvq_f32(total);
    *error = vaddvq_f32(bound);
}

}  // namespace

const Kernels& neon_dotprod_kernels() {
    static const Kernels table = [] {
        Kernels k = scalar_kernels();
        k.name = "neon_dotprod";
        add_row_ops(k);
        add_tiled_linear(k);
        add_fields(k);
        k.exact_head = {head_tile, sixth_neon, pack_tile};
        return k;
    }();
    return table;
}

}  // namespace bitnet
