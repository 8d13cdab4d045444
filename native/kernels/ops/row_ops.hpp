// The operations on rows of floats and the rounding of inputs, compiled with the flags and the
// `Lanes` of the including file.
#pragma once

#include "ops/attention.hpp"
#include "ops/elementary.hpp"
#include "ops/float_ops.hpp"
#include "ops/tile_gather.hpp"
#include "system/thread_pool.hpp"

namespace bitnet {
// Each instruction set compiles its own copy: no unit may run code of another's flags.
namespace {

// ---- inputs as int8

constexpr float kLargestInput = 3.4e38f;   // infinity and NaN are not below it
constexpr float kSmallestInput = 1e-30f;   // below it, all codes are 0
constexpr float kSmallestTernary = 1e-5f;  // the W1.58A8 models were trained with this bound

// Step of codes up to 127, and scale of inputs, whose largest magnitude is *top*. NaN and infinity
// have no int8 form: codes of 0 with a step of NaN make the result NaN.
struct Rounding {
    bool finite;
    float step, scale;
    explicit Rounding(float top) : finite(top <= kLargestInput) {
        const bool nonzero = finite && top >= kSmallestInput;
        step = nonzero ? top / 127.0f : finite ? 0.0f : NAN;
        scale = nonzero ? 127.0f / top : 0.0f;
    }
};

// Rounds 32 numbers, the first 16 times scale[0], the others times scale[1], to codes of at most
// 127: as int8 to *q*, and as int16 to *code*.
inline void round_32(const float* x, const float (&scale)[2], int8_t* q, int16_t (&code)[32]) {
    constexpr int kWidth = Lanes::kWidth;
    const auto scaled = [&](int at) { return Lanes::load(x + at) * Lanes::set(scale[at / 16]); };
    for (int i = 0; i < 32; i += 2 * kWidth)
        Lanes::round_to(scaled(i), scaled(i + kWidth), code + i);
    for (int i = 0; i < 32; ++i) q[i] = int8_t(code[i]);
}

inline int32_t sum_of(const int16_t (&code)[32]) {
    int32_t sum = 0;
    for (const int16_t c : code) sum += c;
    return sum;
}

inline void quantize_runs(const float* x, int64_t cols, int8_t* q, float* step, int32_t* sum) {
    for (; cols > 0; cols -= 32, x += 32, q += 32) {
        const Rounding rounding(max_abs(x, 32));
        alignas(64) int16_t code[32];
        round_32(x, {rounding.scale, rounding.scale}, q, code);
        if (!rounding.finite) std::memset(q, 0, 32);
        *sum++ = rounding.finite ? sum_of(code) : 0;
        *step++ = rounding.step;
    }
}

inline void quantize_block(const float* x, int64_t cols, BlockInput* out) {
    for (; cols > 0; cols -= 32, x += 32, ++out) {
        const Rounding halves[2] = {Rounding(max_abs(x, 16)), Rounding(max_abs(x + 16, 16))};
        alignas(64) int16_t code[32];
        round_32(x, {halves[0].scale, halves[1].scale}, out->q, code);
        for (int i = 0; i < 2; ++i) {
            if (!halves[i].finite) std::memset(out->q + 16 * i, 0, 16);
            // A word holds four sums of 16 bits of q + 128, which are unsigned bytes, so that no
            // sum carries into the next. At the end the lowest one is that of the columns 4k and
            // 4k + 1 of the half, the next that of 4k + 2 and 4k + 3, eight columns each.
            uint64_t words[2], sums = 0;
            std::memcpy(words, out->q + 16 * i, 16);
            for (uint64_t w : words) {
                w ^= 0x8080808080808080;
                sums += (w & 0xff00ff00ff00ff) + (w >> 8 & 0xff00ff00ff00ff);
            }
            sums += sums >> 32;
            for (int j = 0; j < 2; ++j)
                out->minus_pairs[i][j] = int16_t(8 * 128 - int(sums >> 16 * j & 0xffff));
            out->minus_q[i] = out->minus_pairs[i][0] + out->minus_pairs[i][1];
            out->step[i] = halves[i].step;
        }
        out->sum = out->step[0] * float(-out->minus_q[0]) + out->step[1] * float(-out->minus_q[1]);
    }
}

inline void quantize_ternary(const float* x, int64_t cols, int8_t* q, float* s, int32_t* sum) {
    const float top = max_abs(x, cols);
    *sum = 0;
    if (!(top <= kLargestInput)) {
        std::memset(q, 0, size_t(cols));
        *s = NAN;
        return;
    }
    *s = 127.0f / (top > kSmallestTernary ? top : kSmallestTernary);
    int64_t i = 0;
    alignas(64) int16_t code[32];
    for (; i + 32 <= cols; i += 32) {
        round_32(x + i, {*s, *s}, q + i, code);
        *sum += sum_of(code);
    }
    for (; i < cols; ++i) {
        q[i] = int8_t(round_half_even(x[i] * *s));
        *sum += q[i];
    }
}

// ---- layers with a state

constexpr int kStateColumns = 32;      // columns of a state that are updated together
constexpr double kLeastLength = 1e-6;  // added to squared lengths, as in the models' training

// Scales *x*, (n,), to the length *scale*.
inline void normalize(const float* x, int64_t n, double scale, float* out) {
    double squares = 0;
    for (int64_t i = 0; i < n; ++i) squares += double(x[i]) * double(x[i]);
    const float factor = float(scale / std::sqrt(squares + kLeastLength));
    for (int64_t i = 0; i < n; ++i) out[i] = x[i] * factor;
}

[[maybe_unused]] void convolve(const ConvolveArgs& a, int64_t c0, int64_t c1) {
    const int64_t before = a.width - 1;  // inputs in the state
    // The channels of input *t*, where inputs are counted from the oldest one in the state.
    const auto input = [&](int64_t t) {
        return t < before ? a.state + t * a.channels : a.x + (t - before) * a.channels;
    };
    for (int64_t t = 0; t < a.tokens; ++t) {
        float* __restrict out = a.out + t * a.channels;
        if (a.bias)
            std::memcpy(out + c0, a.bias + c0, size_t(c1 - c0) * sizeof(float));
        else
            std::memset(out + c0, 0, size_t(c1 - c0) * sizeof(float));
        for (int64_t j = 0; j < a.width; ++j) {
            const float* __restrict x = input(t + j);
            for (int64_t c = c0; c < c1; ++c) out[c] += a.weight[c * a.width + j] * x[c];
        }
        if (a.silu)
            for (int64_t c = c0; c < c1; ++c) out[c] = out[c] / (1.0f + exp_fast(-out[c]));
    }
    for (int64_t t = 0; t < before; ++t)
        std::memmove(a.state + t * a.channels + c0, input(a.tokens + t) + c0,
                     size_t(c1 - c0) * sizeof(float));
}

// Calls f(count, j) for columns [j, j + count) until all *columns* are covered. *count* is
// kStateColumns, and 1 for the last ones; it is a type, so that loops over it are unrolled.
template <class F>
void each_columns(int64_t columns, const F& f) {
    int64_t j = 0;
    for (; j + kStateColumns <= columns; j += kStateColumns)
        f(std::integral_constant<int, kStateColumns>(), j);
    for (; j < columns; ++j) f(std::integral_constant<int, 1>(), j);
}

// One position of the delta rule for N columns, from *state* on, of the state of one head: so few
// that they stay in the first cache between the two loops over its rows. Row i is multiplied by
// decay[i * decay_stride]; *beta* is already strength * sigmoid(beta).
template <int N>
void delta_columns(float* state, int64_t dk, int64_t dv, const float* q, const float* k,
                   const float* v, const float* decay, int64_t decay_stride, float beta,
                   float* out) {
    float change[N] = {}, sum[N] = {};
    for (int64_t i = 0; i < dk; ++i) {
        float* __restrict row = state + i * dv;
        const float row_decay = decay[i * decay_stride];
        for (int j = 0; j < N; ++j) {
            row[j] *= row_decay;
            change[j] += row[j] * k[i];
        }
    }
    for (int j = 0; j < N; ++j) change[j] = beta * (v[j] - change[j]);
    for (int64_t i = 0; i < dk; ++i) {
        float* __restrict row = state + i * dv;
        for (int j = 0; j < N; ++j) {
            row[j] += k[i] * change[j];
            sum[j] += row[j] * q[i];
        }
    }
    for (int j = 0; j < N; ++j) out[j] = sum[j];
}

[[maybe_unused]] void delta_rule(const DeltaArgs& args, int64_t head) {
    const int64_t dk = args.key_dim, dv = args.value_dim, repeats = args.heads / args.key_heads;
    const int64_t key_head = args.grouped ? head / repeats : head % args.key_heads;
    const int64_t decays = args.decays, decay_stride = decays > 1 ? 1 : 0;
    float* q = reinterpret_cast<float*>(thread_scratch(size_t(2 * dk + decays) * sizeof(float)));
    float* k = q + dk;
    float* decay = k + dk;
    float* state = args.state + head * dk * dv;
    for (int64_t t = 0; t < args.tokens; ++t) {
        const int64_t key = (t * args.key_heads + key_head) * dk,
                      value = (t * args.heads + head) * dv;
        normalize(args.q + key, dk, 1.0 / std::sqrt(double(dk)), q);
        normalize(args.k + key, dk, 1.0, k);
        const float* alpha = args.alpha + (t * args.heads + head) * decays;
        for (int64_t i = 0; i < decays; ++i) {
            const double step = double(alpha[i]) + double(args.dt[head * decays + i]);
            const double a = double(args.a[head]);
            const double logarithm = args.floor < 0.0f
                                         ? double(args.floor) / (1.0 + std::exp(-a * step))
                                         : a * softplus(step);
            decay[i] = float(std::exp(logarithm));
        }
        const double sigmoid = 1.0 / (1.0 + std::exp(-double(args.beta[t * args.heads + head])));
        const float beta = float(args.strength * sigmoid);
        each_columns(dv, [&](auto count, int64_t j) {
            delta_columns<count.value>(state + j, dk, dv, q, k, args.v + value + j, decay,
                                       decay_stride, beta, args.out + value + j);
        });
    }
}

// One position of the scan for N columns, from *state* on, of the state of one head. Row i is
// multiplied by decay[i * decay_stride].
template <int N>
void scan_columns(float* state, int64_t size, int64_t dim, const float* x, const float* b,
                  const float* c, const float* decay, int64_t decay_stride, float step, float skip,
                  float* out) {
    float scaled_x[N], sum[N] = {};
    for (int j = 0; j < N; ++j) scaled_x[j] = step * x[j];
    for (int64_t i = 0; i < size; ++i) {
        float* __restrict row = state + i * dim;
        const float row_decay = decay[i * decay_stride];
        for (int j = 0; j < N; ++j) {
            row[j] = row[j] * row_decay + b[i] * scaled_x[j];
            sum[j] += row[j] * c[i];
        }
    }
    for (int j = 0; j < N; ++j) out[j] = sum[j] + skip * x[j];
}

[[maybe_unused]] void selective_scan(const ScanArgs& args, int64_t head) {
    const int64_t dim = args.head_dim, size = args.state_size,
                  group = head / (args.heads / args.groups);
    const int64_t decays = args.decays, decay_stride = decays > 1 ? 1 : 0;
    float* decay = reinterpret_cast<float*>(thread_scratch(size_t(decays) * sizeof(float)));
    float* state = args.state + head * size * dim;
    for (int64_t t = 0; t < args.tokens; ++t) {
        const int64_t value = (t * args.heads + head) * dim, key = (t * args.groups + group) * size;
        const double step = softplus(double(args.dt[t * args.heads + head]) +
                                     double(args.bias ? args.bias[head] : 0));
        for (int64_t i = 0; i < decays; ++i)
            decay[i] = float(std::exp(double(args.a[head * decays + i]) * step));
        each_columns(dim, [&](auto count, int64_t j) {
            scan_columns<count.value>(state + j, size, dim, args.x + value + j, args.b + key,
                                      args.c + key, decay, decay_stride, float(step),
                                      args.skip[head], args.out + value + j);
        });
    }
}

// Fills in all members of *k* that are defined here or in the files included.
void add_row_ops(Kernels& k) {
    k.quantize_block = quantize_block;
    k.quantize_ternary = quantize_ternary;
    k.quantize_runs = quantize_runs;
    k.dequantize = dequantize;
#define BITNET_SET(op) k.op = op;
    BITNET_ROW_OPS(BITNET_SET)
#undef BITNET_SET
    k.attend = attend;
    k.store_position = store_position;
    k.gather = gather_tile;
    k.pack_two_bits = pack_two_bits;
    k.make_dense = make_dense;
}

}  // namespace
}  // namespace bitnet
