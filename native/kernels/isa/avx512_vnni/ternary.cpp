// Ternary kernels of AVX-512 VNNI for two bits per weight.
#include "ternary/simd_avx512.hpp"

#include "isa/cpu.hpp"
#include "ternary/group_products.hpp"
#include "ternary/products.hpp"

namespace bitnet {

void add_avx512_vbmi_ternary(Kernels&);  // another folder

void add_avx512_vnni_ternary(Kernels& k) {
    add_avx2_ternary(k);  // TernaryDense, for processors without VBMI
    use<TwoBits, false>(k, Type::Ternary);
    use<TwoBits, true>(k, Type::TernaryBlocks);
    use_whole_bits<OneBitRuns, TwoBitRuns>(k);
    if (cpu_features().avx512_vbmi) add_avx512_vbmi_ternary(k);
}

}  // namespace bitnet
