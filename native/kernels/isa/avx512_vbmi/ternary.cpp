// Ternary kernels of AVX-512 VNNI and VBMI for five weights per byte.
#include "ternary/dense_avx512.hpp"

#include "ternary/group_products.hpp"
#include "ternary/products.hpp"

namespace bitnet {

void add_avx512_vbmi_ternary(Kernels&);

void add_avx512_vbmi_ternary(Kernels& k) {
    use<Dense, false>(k, Type::TernaryDense);
    use_groups<DenseRuns, Type::PTQ1_0_R16>(k);
}

}  // namespace bitnet
