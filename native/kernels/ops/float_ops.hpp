// Norms, rope, gates: plain loops, built once per instruction set.
//
// Sums run in kLanes partial sums that are added in a fixed order, and contraction to fused
// multiply-add is off, so every instruction set gives the same bits.
#pragma once

#include "ops/elementary.hpp"
#include "isa/kernels.hpp"

namespace bitnet {
// Each instruction set compiles its own copy: no unit may run code of another's flags.
namespace {

constexpr int kLanes = 16;

// Sum of kLanes numbers, which it overwrites. Each step adds numbers at half the distance of the
// step before, so the tree of additions is the same at any vector width.
inline float sum_lanes(float* lane) {
    for (int n = kLanes / 2; n > 0; n /= 2)
        for (int i = 0; i < n; ++i) lane[i] += lane[i + n];
    return lane[0];
}

// Sum of value(i) over i in [0, n).
template <class F>
inline float sum_over(int64_t n, F value) {
    float lane[kLanes] = {};
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes)
        for (int j = 0; j < kLanes; ++j) lane[j] += value(i + j);
    for (int64_t j = 0; j < n - i; ++j) lane[j] += value(i + j);
    return sum_lanes(lane);
}

// Largest magnitude of *n* numbers; NaN if one is NaN.
inline float max_abs(const float* x, int64_t n) {
    uint32_t lane[kLanes] = {};  // magnitudes of floats are ordered as their bits are, NaN on top
    int64_t i = 0;
    const auto take = [&](int j, float f) {
        const uint32_t m = float_to_bits(f) & 0x7fffffff;
        lane[j] = lane[j] > m ? lane[j] : m;
    };
    for (; i + kLanes <= n; i += kLanes)
        for (int j = 0; j < kLanes; ++j) take(j, x[i + j]);
    for (int j = 0; i < n; ++i, ++j) take(j, x[i]);
    const auto fold = [&](int n) {  // not in a loop over n, which GCC does not unroll
        for (int j = 0; j < n; ++j) lane[j] = lane[j] > lane[j + n] ? lane[j] : lane[j + n];
    };
    fold(8);
    fold(4);
    fold(2);
    fold(1);
    return bits_to_float(lane[0]);
}

inline void put_group(const Group& group, float* out) {
    for (int i = 0; i < 32; ++i) out[i] = group.scale[i / 16] * float(group.code[i]) + group.min;
}

inline void dequantize(Type type, const uint8_t* weight, int64_t r, int64_t cols, float* out) {
    const Encoding& size = encoding(type);
    const int64_t stride = cols / size.weights * size.bytes;
    if (is_tiled(type)) {
        const uint8_t* tile = weight + (r - r % kTileRows) * stride;
        const int lane = int(r % kTileRows);
        if (is_float(type)) {
            for (int64_t i = 0; i < cols; ++i) out[i] = tile_float(type, tile, lane, i);
            return;
        }
        for (int64_t g = 0; g < cols / 32; ++g) {
            Group group;
            unpack_tile_group(type, tile, lane, g, group);
            put_group(group, out + 32 * g);
        }
        return;
    }
    const uint8_t* row = weight + r * stride;
    if (type == Type::F32) {
        std::memcpy(out, row, size_t(cols) * 4);
    } else if (type == Type::F16) {
        for (int64_t i = 0; i < cols; ++i) out[i] = read_half(row + 2 * i);
    } else if (type == Type::BF16) {
        for (int64_t i = 0; i < cols; ++i) out[i] = bf16_to_float(read<uint16_t>(row + 2 * i));
    } else {
        Group group;
        for (int64_t g = 0; g < cols / 32; ++g) {
            unpack_group(type, row, g, group);
            put_group(group, out + 32 * g);
        }
    }
}

inline void rms_norm(const float* x, const float* weight, int64_t cols, float eps, float* out) {
    const float mean = sum_over(cols, [&](int64_t i) { return x[i] * x[i]; }) / float(cols);
    const float s = 1.0f / std::sqrt(mean + eps);
    for (int64_t i = 0; i < cols; ++i) out[i] = x[i] * s * weight[i];
}

inline void rope(const RopeArgs& a, int64_t t0, int64_t t1) {
    const int64_t n = a.rotated / 2;
    for (int64_t t = t0; t < t1; ++t) {
        const float *c = a.cos + t * n, *s = a.sin + t * n;
        for (int64_t h = 0; h < a.heads; ++h) {
            const float* x = a.x + (t * a.heads + h) * a.head_dim;
            float* out = a.out + (t * a.heads + h) * a.head_dim;
            const int64_t stride = a.half ? 1 : 2, second = a.half ? n : 1;
            for (int64_t i = 0; i < n; ++i) {
                const float p = x[i * stride], q = x[i * stride + second];
                out[i * stride] = p * c[i] - q * s[i];
                out[i * stride + second] = p * s[i] + q * c[i];
            }
            for (int64_t i = a.rotated; i < a.head_dim; ++i) out[i] = x[i];
        }
    }
}

void softcap(const float* x, int64_t n, float cap, float* out) {
    for (int64_t i = 0; i < n; ++i) {
        const float e = exp_fast(2.0f * x[i] / cap);
        out[i] = cap * (1.0f - 2.0f / (e + 1.0f));  // tanh(z) = 1 - 2 / (e^(2z) + 1)
    }
}

template <class F>
inline void map_pairs(const float* __restrict a, const float* __restrict b, int64_t n,
                      float* __restrict out, F value) {
    for (int64_t i = 0; i < n; ++i) out[i] = value(a[i], b[i]);
}

// log(1 + e^x); beyond 40 it is x in float64.
inline double softplus(double x) { return x > 40 ? x : std::log1p(std::exp(x)); }

inline void gate(Gate kind, const float* gates, const float* ups, int64_t n, float* out) {
    const auto each = [&](auto value) { map_pairs(gates, ups, n, out, value); };
    // 7 is the limit of the models that clamp (kernels/instructions.py).
    const auto clamped = [&](float slope, float offset) {
        each([=](float g, float u) {
            const float x = g > 7.0f ? 7.0f : g, y = u > 7.0f ? 7.0f : u < -7.0f ? -7.0f : u;
            return x / (1.0f + exp_fast(-slope * x)) * (y + offset);
        });
    };
    switch (kind) {
        case Gate::silu:
            return each([](float g, float u) { return g / (1.0f + exp_fast(-g)) * u; });
        case Gate::gelu_tanh:
            // (1 + tanh(z)) / 2 = 1 / (1 + e^(-2z)), with z = sqrt(2 / pi) (g + 0.044715 g^3).
            return each([](float g, float u) {
                return g / (1.0f + exp_fast(-(1.5957691216f * (g + 0.044715f * g * g * g)))) * u;
            });
        case Gate::gelu:
            return each([](float g, float u) { return g * normal_share(g) * u; });
        case Gate::gelu_quick:
            return each([](float g, float u) { return g / (1.0f + exp_fast(-1.702f * g)) * u; });
        case Gate::relu2:
            return each(
                [](float g, float u) { return (g < 0.0f ? 0.0f : g) * (g < 0.0f ? 0.0f : g) * u; });
        case Gate::relu:
            return each([](float g, float u) { return (g < 0.0f ? 0.0f : g) * u; });
        case Gate::identity:
            return each([](float g, float u) { return g * u; });
        case Gate::sigmoid:
            return each([](float g, float u) { return u / (1.0f + exp_fast(-g)); });
        case Gate::softplus:
            return each([](float g, float u) { return float(softplus(double(g))) * u; });
        case Gate::tanh:
            return each([](float g, float u) { return float(std::tanh(double(g))) * u; });
        case Gate::silu_clamped:
            return clamped(1.0f, 0.0f);
        case Gate::swiglu_oai:
            return clamped(1.702f, 1.0f);
    }
}

}  // namespace
}  // namespace bitnet
