// The specification of the ternary kernels: one row and one token at a time, on any processor.
#include <initializer_list>

#include "ternary/layout.hpp"

namespace bitnet {
namespace {

// Sum of code * q over the columns [c, end) of row *r*.
int32_t dot(const LinearArgs& a, int64_t r, int64_t t, int64_t c, int64_t end) {
    const uint8_t* tile = a.weight + r / kTernaryRows * ternary_tile_bytes(a.type, a.cols);
    const int8_t* q = a.q + t * a.cols;
    int32_t sum = 0;
    for (; c < end; ++c) sum += (ternary_code(a.type, tile, c, r % kTernaryRows) - 1) * q[c];
    return sum;
}

void linear(const LinearArgs& a, int64_t r0, int64_t r1, uint8_t*) {
    for (int64_t r = r0; r < r1; ++r)
        for (int64_t t = 0; t < a.tokens; ++t)
            a.y[t * a.rows + r] = float(dot(a, r, t, 0, a.cols)) / a.step[t] * a.scale;
}

void linear_blocks(const LinearArgs& a, int64_t r0, int64_t r1, uint8_t*) {
    for (int64_t r = r0; r < r1; ++r) {
        const uint8_t* scales = ternary_scales(a, r) + 4 * (r % kTernaryRows);
        for (int64_t t = 0; t < a.tokens; ++t) {
            double sum = 0.0;
            for (int64_t c = 0; c < a.cols; c += kTernaryBlock) {
                const auto scale = read<float>(scales + c / kTernaryBlock * kTernaryRows * 4);
                sum += double(scale) * dot(a, r, t, c, c + kTernaryBlock);
            }
            a.y[t * a.rows + r] = float(sum) / a.step[t] * a.scale;
        }
    }
}

}  // namespace

void add_scalar_ternary(Kernels& k) {
    for (const Type type : {Type::Ternary, Type::TernaryDense}) k.decode[int(type)] = k.prefill[int(type)] = linear;
    k.decode[int(Type::TernaryBlocks)] = k.prefill[int(Type::TernaryBlocks)] = linear_blocks;
    k.pack_two_bits = pack_two_bits;
    k.make_dense = make_dense;
}

}  // namespace bitnet
