// AVX-512 F, BW, DQ, VL and VNNI: vpdpbusd adds four products of bytes to 32 bits at once.
#define BITNET_F16C
#include "isa/vectors_avx512.hpp"
#include "ops/matrix_rows.hpp"
#include "ops/row_ops.hpp"

namespace bitnet {
namespace {

struct Vec : Avx512 {
    static constexpr bool kSignedCodes = false;  // vpdpbusd wants them unsigned

    template <int kMax, int kOffset, bool kSigned>
    struct Products {
        Int wide = _mm512_setzero_si512();
        void start(const BlockInput& x, int half) {
            if constexpr (kOffset != 0) wide = _mm512_slli_epi32(_mm512_set1_epi32(x.minus_q[half]), log2_of(kOffset));
        }
        void add(Int w, const int8_t* q, int) {
            wide = _mm512_dpbusd_epi32(wide, w, _mm512_set1_epi32(read<int>(q)));
        }
        Float total() const { return _mm512_cvtepi32_ps(wide); }
    };
};

}  // namespace
}  // namespace bitnet

#include "ops/quantize_x86.hpp"
#include "ops/tile_gather.hpp"
#include "ops/tile_products.hpp"

namespace bitnet {

const Kernels& avx512_vnni_kernels() {
    static const Kernels table = [] {
        Kernels k = scalar_kernels();
        k.name = "avx512_vnni";
        add_row_ops(k);
        add_tiled_linear(k);
        add_avx512_vnni_ternary(k);
        add_avx512_vnni_head(k);
        k.quantize_block = quantize_block_x86, k.quantize_ternary = quantize_ternary_x86, k.gather = gather_tile<gather_floats_x86>;
        return k;
    }();
    return table;
}

}  // namespace bitnet
