#include "ops/delta.hpp"

#include <cmath>
#include <cstring>

#include "ops/elementary.hpp"
#include "system/thread_pool.hpp"

namespace bitnet {
namespace {

constexpr double kLeastLength = 1e-6;  // added to squared lengths, as in the models' training

// *x* over its length and times *scale*, (key_dim).
void normalize(const float* x, int64_t n, double scale, float* out) {
    double squares = 0;
    for (int64_t i = 0; i < n; ++i) squares += double(x[i]) * double(x[i]);
    const float by = float(scale / std::sqrt(squares + kLeastLength));
    for (int64_t i = 0; i < n; ++i) out[i] = x[i] * by;
}

double softplus(double x) { return x > 40 ? x : std::log1p(std::exp(x)); }

}  // namespace

void convolve_channels(const ConvolveArgs& a, int64_t c0, int64_t c1) {
    const int64_t before = a.width - 1;
    const auto input = [&](int64_t t) {
        return t < before ? a.state + t * a.channels : a.x + (t - before) * a.channels;
    };
    for (int64_t t = 0; t < a.tokens; ++t) {
        float* __restrict out = a.out + t * a.channels;
        std::memset(out + c0, 0, size_t(c1 - c0) * sizeof(float));
        for (int64_t j = 0; j < a.width; ++j) {
            const float* __restrict x = input(t + j);
            for (int64_t c = c0; c < c1; ++c) out[c] += a.weight[c * a.width + j] * x[c];
        }
        for (int64_t c = c0; c < c1; ++c) out[c] = out[c] / (1.0f + exp_fast(-out[c]));
    }
    for (int64_t t = 0; t < before; ++t)
        std::memmove(a.state + t * a.channels + c0, input(a.tokens + t) + c0, size_t(c1 - c0) * sizeof(float));
}

void delta_rule(const DeltaArgs& args, int64_t head) {
    const int64_t dk = args.key_dim, dv = args.value_dim, repeats = args.heads / args.key_heads;
    const int64_t key_head = args.grouped ? head / repeats : head % args.key_heads;
    float* __restrict q = reinterpret_cast<float*>(thread_scratch(size_t(2 * dk + dv) * sizeof(float)));
    float *__restrict k = q + dk, *__restrict change = q + 2 * dk;
    float* state = args.state + head * dk * dv;
    for (int64_t t = 0; t < args.tokens; ++t) {
        const int64_t key = (t * args.key_heads + key_head) * dk, value = (t * args.heads + head) * dv;
        normalize(args.q + key, dk, 1.0 / std::sqrt(double(dk)), q);
        normalize(args.k + key, dk, 1.0, k);
        const double step = softplus(double(args.alpha[t * args.heads + head]) + double(args.dt[head]));
        const float decay = float(std::exp(double(args.a[head]) * step));
        const float rate = float(1.0 / (1.0 + std::exp(-double(args.beta[t * args.heads + head]))));
        std::memset(change, 0, size_t(dv) * sizeof(float));
        for (int64_t i = 0; i < dk; ++i) {
            float* __restrict row = state + i * dv;
            for (int64_t j = 0; j < dv; ++j) {
                row[j] *= decay;
                change[j] += row[j] * k[i];
            }
        }
        const float* v = args.v + value;
        for (int64_t j = 0; j < dv; ++j) change[j] = rate * (v[j] - change[j]);
        float* __restrict out = args.out + value;
        std::memset(out, 0, size_t(dv) * sizeof(float));
        for (int64_t i = 0; i < dk; ++i) {
            float* __restrict row = state + i * dv;
            for (int64_t j = 0; j < dv; ++j) {
                row[j] += k[i] * change[j];
                out[j] += row[j] * q[i];
            }
        }
    }
}

}  // namespace bitnet
