// Ternary kernels of AVX-512 VNNI and VBMI for five weights per byte.
#include "isa/avx512_dense.hpp"

namespace bitnet {

void add_avx512_vbmi_ternary(Kernels&);

void add_avx512_vbmi_ternary(Kernels& k) {
    use<TernaryProduct<Dense, false>>(k, Type::TernaryDense);
    use<GroupProduct<Dense>>(k, Type::PTQ1_0_R16);
    // With vpermb, which looks up the five weights of a byte. Without it, dense tiles were slower
    // or were not measured.
    k.dense_pays = true;
}

}  // namespace bitnet
