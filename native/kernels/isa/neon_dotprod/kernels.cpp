// NEON with dot products (Armv8.2): sdot adds four products of signed bytes to 32 bits at once.
#define BITNET_NEON
#include "isa/vectors_neon.hpp"
#include "ops/row_ops.hpp"

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

const Kernels& neon_dotprod_kernels() {
    static const Kernels table = [] {
        Kernels k = scalar_kernels();
        k.name = "neon_dotprod";
        add_row_ops(k);
        add_tiled_linear(k);
        add_neon_dotprod_ternary(k);
        add_neon_dotprod_head(k);
        k.gather = gather_tile<pack_tile>;
        return k;
    }();
    return table;
}

}  // namespace bitnet
