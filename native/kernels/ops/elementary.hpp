// Exponentials, the normal distribution, sines and cosines from additions, products and quotients
// alone: the same bits with every compiler and C library.
#pragma once

#include "encodings/blocks.hpp"

namespace bitnet {
// Each instruction set compiles its own copy: no unit may run code of another's flags.
namespace {

// Nearest integer, halves to even, for |x| < 2^22: adding 1.5 * 2^23 shifts the fraction out.
[[maybe_unused]] inline float round_half_even(float x) { return (x + 12582912.0f) - 12582912.0f; }

// e^x within 2 ulp (Cephes' polynomial), with |x| clamped to 87, so that the result is a normal
// float; NaN stays. The bits are compared and clamped: around a comparison of floats, GCC computes
// the results of both sides, one of them with subnormals.
[[maybe_unused]] inline float exp_fast(float x) {
    const uint32_t bits = float_to_bits(x), magnitude = bits & 0x7fffffff;
    const uint32_t clamped =
        magnitude < 0x42ae0000 || magnitude > 0x7f800000 ? magnitude : 0x42ae0000;
    x = bits_to_float((bits & 0x80000000) | clamped);
    const float n = round_half_even(x * 1.44269504f);
    const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    // 2^n from the low bits of the rounding constant plus n.
    const uint32_t exponent = (float_to_bits(n + 12582912.0f) - 0x4b400000u + 127u) << 23;
    return p * bits_to_float(exponent);
}

// Coefficients of normal_share (minimax; exact to 1e-7 at 0).
constexpr float kNormal[] = {-5.906894803e-02f, 2.845748961e-01f,  -4.871997833e-01f,
                             2.780670226e-01f,  -2.662556991e-02f, 2.026868314e-01f,
                             2.431037724e-01f,  2.823753059e-01f,  2.820864320e-01f};
// Share of the normal distribution below *x*, (1 + erf(x / sqrt(2))) / 2, with an error of at most
// 4e-7 of the smaller one of this share and the share above. It is e^(-x^2 / 2) times a polynomial
// of 1 / (1 + |x| / sqrt(8)). NaN stays.
[[maybe_unused]] inline float normal_share(float x) {
    const float t = 1.0f / (1.0f + 0.353553391f * (x < 0.0f ? -x : x));
    float p = kNormal[0];
    for (int i = 1; i < 9; ++i) p = p * t + kNormal[i];
    const float beyond = 0.5f * p * t * exp_fast(-0.5f * x * x);
    return x < 0.0f ? beyond : 1.0f - beyond;
}

// Coefficients of 2^r for |r| <= 1/2, that of r^5 first, within 2e-7 of it (minimax, exact at 0).
constexpr float kPower[] = {1.326472731e-3f, 9.671512991e-3f, 5.550733581e-2f,
                            2.402224243e-1f, 6.931470037e-1f, 1.0f};
constexpr float kLeastPower = -100.0f;

// 2^x for the weights of a softmax, x not above 0: exactly 0 below 2^-100. NaN stays if its last
// nine bits, which are shifted into the exponent, are 0. They are in `NAN`, and in what operations
// make of it and of infinities.
[[maybe_unused]] inline float power_or_zero(float x) {
    const float clamped = x < kLeastPower ? kLeastPower : x, n = clamped + 12582912.0f,
                r = clamped - (n - 12582912.0f);
    float p = kPower[0];
    for (int i = 1; i < 6; ++i) p = p * r + kPower[i];
    return x < kLeastPower ? 0.0f : bits_to_float(float_to_bits(p) + (float_to_bits(n) << 23));
}

// Sine and cosine within a unit of the last place of a double, for angles below 2^20 times pi/2;
// larger ones lose digits in their reduction.
[[maybe_unused]] inline void sine_and_cosine(double angle, double& sine, double& cosine) {
    // pi/2 in parts of 33 bits (fdlibm), so that products with a multiple below 2^20 are exact.
    constexpr double kFirst = 1.57079632673412561417e+00, kSecond = 6.07710050630396597660e-11,
                     kThird = 2.02226624871116645580e-21, kInverse = 6.36619772367581382433e-01;
    constexpr double kRound = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to a whole number
    const double n = (angle * kInverse + kRound) - kRound;
    const double r = ((angle - n * kFirst) - n * kSecond) - n * kThird;
    const double z = r * r;
    // Minimax polynomials on [-pi/4, pi/4] (fdlibm).
    double s = 1.58969099521155010221e-10;
    s = s * z - 2.50507602534068634195e-08;
    s = s * z + 2.75573137070700676789e-06;
    s = s * z - 1.98412698298579493134e-04;
    s = s * z + 8.33333333332248946124e-03;
    s = s * z - 1.66666666666666324348e-01;
    s = s * z * r + r;
    double c = -1.13596475577881948265e-11;
    c = c * z + 2.08757232129817482790e-09;
    c = c * z - 2.75573143513906633035e-07;
    c = c * z + 2.48015872894767294178e-05;
    c = c * z - 1.38888888888741095749e-03;
    c = c * z + 4.16666666666666019037e-02;
    c = 1.0 - (0.5 * z - c * z * z);
    const auto quarter = static_cast<long long>(n) & 3;
    sine = quarter & 1 ? c : s;
    cosine = quarter & 1 ? s : c;
    if (quarter & 2) sine = -sine;
    if (quarter == 1 || quarter == 2) cosine = -cosine;
}

}  // namespace
}  // namespace bitnet
