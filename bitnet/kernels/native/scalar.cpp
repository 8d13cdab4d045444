// The specification: one row and one token at a time, on any processor.
#include "float_ops.hpp"
#include "kernels.hpp"

namespace bitnet {
namespace {

float dot_float(const LinearArgs& a, const uint8_t* row, int64_t t) {
    const float* x = a.x + t * a.cols;
    switch (a.type) {
        case Type::F32: return sum_over(a.cols, [&](int64_t i) { return read<float>(row + 4 * i) * x[i]; });
        case Type::F16: return sum_over(a.cols, [&](int64_t i) { return read_half(row + 2 * i) * x[i]; });
        default:
            return sum_over(a.cols, [&](int64_t i) { return bf16_to_float(read<uint16_t>(row + 2 * i)) * x[i]; });
    }
}

float dot_block(const LinearArgs& a, const uint8_t* row, int64_t t) {
    const int64_t groups = a.cols / 32;
    float sum = 0.0f;
    Group group;
    for (int64_t g = 0; g < groups; ++g) {
        unpack_group(a.type, row, g, group);
        const int8_t* q = a.q + t * a.cols + 32 * g;
        int32_t part[2] = {0, 0};
        for (int i = 0; i < 32; ++i) part[i / 16] += int32_t(group.code[i]) * q[i];
        const float* step = a.step + 2 * t * groups + g;
        sum += group.scale[0] * (float(part[0]) * step[0]) + group.scale[1] * (float(part[1]) * step[groups]);
        sum += group.min * a.sum32[t * groups + g];
    }
    return sum;
}

float dot_ternary(const LinearArgs& a, const uint8_t* row, int64_t t) {
    const int8_t* q = a.q + t * a.cols;
    uint8_t code[128];
    int32_t run = 0;
    float run_scale = 0.0f;
    double total = 0.0;
    for (int64_t p = 0; p < a.cols / 128; ++p) {
        unpack_ternary(a.type, row, p, code);
        const float d = a.type == Type::I2_S ? 1.0f : ternary_block_scale(a.type, row, p);
        if (d != run_scale) {
            total += double(run_scale) * run;
            run = 0;
            run_scale = d;
        }
        for (int i = 0; i < 128; ++i) run += (int32_t(code[i]) - 1) * q[128 * p + i];
    }
    total += double(run_scale) * run;
    return float(total) / a.step[t] * a.scale;
}

template <float (*dot)(const LinearArgs&, const uint8_t*, int64_t)>
void linear(const LinearArgs& a, int64_t r0, int64_t r1, uint8_t*) {
    for (int64_t r = r0; r < r1; ++r)
        for (int64_t t = 0; t < a.tokens; ++t) a.y[t * a.rows + r] = dot(a, a.weight + r * a.row_bytes, t);
}

constexpr LinearKernel kFloat = linear<dot_float>, kBlock = linear<dot_block>, kTernary = linear<dot_ternary>;

}  // namespace

const Kernels& scalar_kernels() {
    static const Kernels table = {
        "scalar",
        {kFloat, kFloat, kFloat, kBlock, kBlock, kBlock, kBlock, kBlock, kBlock, kBlock, kBlock, kTernary, kTernary, kTernary},
        {kFloat, kFloat, kFloat, kBlock, kBlock, kBlock, kBlock, kBlock, kBlock, kBlock, kBlock, kTernary, kTernary, kTernary},
        quantize_block, quantize_ternary, dequantize, rms_norm, layer_norm, rope, gate, attention};
    return table;
}

}  // namespace bitnet
