// AVX-512 F, BW, DQ, VL and VNNI: vpdpbusd adds four products of bytes to 32 bits at once.
#define BITNET_F16C
#include "isa/avx512.hpp"
#include "isa/kernels.hpp"
#include "ops/row_ops.hpp"

namespace bitnet {
namespace {
using Vec = Avx512;
}
}  // namespace bitnet

#include "head/level.hpp"
#include "ops/tile_products.hpp"
#include "ternary/products.hpp"

namespace bitnet {

void add_avx512_vbmi_ternary(Kernels&);  // avx512_vbmi.cpp

const Kernels& avx512_vnni_kernels() {
    static const Kernels table = [] {
#if defined(BITNET_AVX2)
        Kernels k = avx2_kernels();  // TernaryDense and the like, for processors without VBMI
#else
        Kernels k = scalar_kernels();
#endif
        k.name = "avx512_vnni";
        add_row_ops(k);
        add_tiled_linear(k);
        add_fields(k);
#if defined(BITNET_AVX512_VBMI)
        if (cpu_features().avx512_vbmi) add_avx512_vbmi_ternary(k);
#endif
        k.exact_head = {head_tile, sixth_x86, pack_tile};
        return k;
    }();
    return table;
}

}  // namespace bitnet
