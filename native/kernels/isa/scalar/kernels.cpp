// The specification: one row and one token at a time, on any processor.
#include <algorithm>

#include "ops/matrix_rows.hpp"
#include "ops/row_ops.hpp"

namespace bitnet {
namespace {

// Weight *i* of a row of floats.
float row_float(Type type, const uint8_t* row, int64_t i) {
    if (type == Type::F32) return read<float>(row + 4 * i);
    return type == Type::F16 ? read_half(row + 2 * i) : bf16_to_float(read<uint16_t>(row + 2 * i));
}

float dot_float(const LinearArgs& a, int64_t r, int64_t t) {
    const float* x = a.x + t * a.cols;
    const int lane = int(r % kTileRows);
    const uint8_t* row = a.weight + (is_tiled(a.type) ? r - lane : r) * a.row_bytes;
    float total = 0.0f;
    for (int64_t begin = 0; begin < a.cols; begin += kFloatRun) {
        float sum[2] = {0.0f, 0.0f};
        for (int64_t i = begin; i < std::min(a.cols, begin + kFloatRun); ++i)
            sum[i % 2] += (is_tiled(a.type) ? tile_float(a.type, row, lane, i) : row_float(a.type, row, i)) * x[i];
        total += sum[0] + sum[1];
    }
    return total;
}

float dot_block(const LinearArgs& a, int64_t r, int64_t t) {
    const int lane = int(r % kTileRows);
    const uint8_t* row = a.weight + (is_tiled(a.type) ? r - lane : r) * a.row_bytes;
    float sum = 0.0f;
    Group group;
    for (int64_t g = 0; g < a.cols / 32; ++g) {
        if (is_tiled(a.type)) unpack_tile_group(a.type, row, lane, g, group);
        else unpack_group(a.type, row, g, group);
        const BlockInput& x = a.inputs[t * block_inputs(a.cols) + g];
        int32_t part[2] = {0, 0};
        for (int i = 0; i < 32; ++i) part[i / 16] += int32_t(group.code[i]) * x.q[i];
        const float first = float(part[0]) * x.step[0];
        if (a.type == Type::Q6_K || a.type == Type::Q6_K_R16) {
            sum = std::fma(first, group.scale[0], sum);
            sum = std::fma(float(part[1]) * x.step[1], group.scale[1], sum);
        } else {
            sum = std::fma(std::fma(float(part[1]), x.step[1], first), group.scale[0], sum);
            if (encoding(a.type).minimum) sum = std::fma(x.sum, group.min, sum);
        }
    }
    return sum;
}

template <float (*dot)(const LinearArgs&, int64_t, int64_t)>
void linear(const LinearArgs& a, int64_t r0, int64_t r1, uint8_t*) {
    for (int64_t r = r0; r < r1; ++r)
        for (int64_t t = 0; t < a.tokens; ++t) a.y[t * a.rows + r] = dot(a, r, t);
}

constexpr LinearKernel kFloat = linear<dot_float>, kBlock = linear<dot_block>;

}  // namespace

const Kernels& scalar_kernels() {
    static const Kernels table = [] {
        Kernels k{};
        k.name = "scalar";
        for (int i = 0; i < kTypes; ++i) k.decode[i] = k.prefill[i] = is_float(Type(i)) ? kFloat : kBlock;
        add_row_ops(k);
        add_scalar_ternary(k);
        add_scalar_groups(k);
        add_scalar_head(k);
        k.gather = pack_tile;
        return k;
    }();
    return table;
}

}  // namespace bitnet
