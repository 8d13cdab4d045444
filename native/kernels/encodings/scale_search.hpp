// Searches for the scale, or scale and minimum, of a group of weights.
//
// A group x with weights w becomes codes c. The error of a scale s is sum w (x - s c)^2. For given
// codes the best scale is sum(w x c) / sum(w c c), and what it gains is sum(w x c)^2 / sum(w c c).
// So a search tries step widths, rounds to codes, and compares gains (fit_symmetric), errors
// (fit_positive, fit_affine), or changes one code at a time (improve_codes). The order of every sum
// and product is ggml's (ggml-quants.c), so that the same candidate wins.
#pragma once

#include <algorithm>
#include <climits>
#include <cmath>

#include "encodings/blocks.hpp"

namespace bitnet {
// Each instruction set compiles its own copy: no unit may run code of another's flags.
namespace {

constexpr int kSuper = 256;  // weights of a block of the K types
// A group whose largest magnitude is below it becomes zeros.
constexpr float kGroupEpsilon = 1e-15f;

// Nearest integer, ties to even; beyond 2^22 the wrong number that ggml's nearest_int gives, too.
// 12582912 is 1.5 * 2^23: adding it shifts the fraction out.
inline int nearest(float v) { return int(float_to_bits(v + 12582912.0f) & 0x7fffff) - 0x400000; }

inline int clamp_code(int code, int low, int high) { return std::max(low, std::min(high, code)); }

// The weight with the largest magnitude; the first one, if several have it.
inline float extreme(const float* x, int n) {
    float size = 0.0f, value = 0.0f;
    for (int i = 0; i < n; ++i)
        if (std::fabs(x[i]) > size) {
            size = std::fabs(x[i]);
            value = x[i];
        }
    return value;
}

inline float sum_of_squares(const float* x, int64_t n) {
    float sum = 0.0f;
    for (int64_t i = 0; i < n; ++i) sum += x[i] * x[i];
    return sum;
}

// Sums of w x c and w c c over a group with codes c.
struct Fit {
    float xc = 0.0f, cc = 0.0f;
    void add(float x, float w, float c) {
        xc += w * x * c;
        cc += w * c * c;
    }
    // The sums without one weight.
    Fit without(float x, float w, float c) const { return {xc - w * x * c, cc - w * c * c}; }
    float scale() const { return xc / cc; }
};

// Finds *codes* from -half to half - 1, which are stored plus *half*, and returns their scale.
inline float fit_symmetric(const float* x, const float* w, int n, int half, int8_t* codes) {
    const float largest = extreme(x, n);
    if (std::fabs(largest) < kGroupEpsilon) {
        std::fill(codes, codes + n, int8_t(0));
        return 0.0f;
    }
    const auto code = [&](float inverse, int i) {
        return clamp_code(nearest(inverse * x[i]), -half, half - 1);
    };
    const auto fit_of = [&](float inverse) {
        Fit fit;
        for (int i = 0; i < n; ++i) fit.add(x[i], w[i], float(code(inverse, i)));
        return fit;
    };
    float best_inverse = float(-half) / largest;
    Fit fit = fit_of(best_inverse);
    float scale = fit.cc != 0.0f ? fit.scale() : 0.0f;
    float gain = scale * fit.xc;
    for (int i = -9; i <= 9; ++i) {
        if (i == 0) continue;
        const float inverse = -(float(half) + 0.1f * float(i)) / largest;
        fit = fit_of(inverse);
        if (fit.cc > 0.0f && fit.xc * fit.xc > gain * fit.cc) {
            best_inverse = inverse;
            scale = fit.scale();
            gain = scale * fit.xc;
        }
    }
    for (int i = 0; i < n; ++i) codes[i] = int8_t(half + code(best_inverse, i));
    return scale;
}

// Changes single codes, within *low* .. *high*, in at most five rounds, as long as that makes the
// gain of *fit* larger. If *others_need_scale*, it skips a code if the others alone have no scale.
template <class Code>
inline void improve_codes(const float* x, const float* w, int n, int low, int high,
                          bool others_need_scale, Code* codes, Fit& fit) {
    bool changed = true;
    for (int round = 0; round < 5 && changed; ++round) {
        changed = false;
        for (int i = 0; i < n; ++i) {
            Fit other = fit.without(x[i], w[i], float(codes[i]));
            if (!(other.xc > 0.0f) || (others_need_scale && !(other.cc > 0.0f))) continue;
            const int code = clamp_code(nearest(x[i] * other.cc / other.xc), low, high);
            if (code == codes[i]) continue;
            other.add(x[i], w[i], float(code));
            if (other.cc > 0.0f && other.xc * other.xc * fit.cc > fit.xc * fit.xc * other.cc) {
                codes[i] = Code(code);
                fit = other;
                changed = true;
            }
        }
    }
}

// As fit_symmetric, but from one step width, whose codes are then improved one at a time.
inline float fit_symmetric_stepwise(const float* x, const float* w, int n, int half,
                                    int8_t* codes) {
    const float largest = extreme(x, n);
    if (std::fabs(largest) < kGroupEpsilon) {
        std::fill(codes, codes + n, int8_t(0));
        return 0.0f;
    }
    const float inverse = float(-half) / largest;
    Fit fit;
    for (int i = 0; i < n; ++i) {
        codes[i] = int8_t(clamp_code(nearest(inverse * x[i]), -half, half - 1));
        fit.add(x[i], w[i], float(codes[i]));
    }
    improve_codes(x, w, n, -half, half - 1, false, codes, fit);
    for (int i = 0; i < n; ++i) codes[i] = int8_t(codes[i] + half);
    return fit.cc > 0.0f ? fit.scale() : 0.0f;
}

// Finds *codes* from 0 to *top* of numbers that are not negative, and returns their scale.
inline float fit_positive(const float* x, const float* w, int n, int top, uint8_t* codes) {
    float largest = 0.0f;
    for (int i = 0; i < n; ++i) largest = largest > x[i] ? largest : x[i];
    if (largest < kGroupEpsilon) {
        std::fill(codes, codes + n, uint8_t(0));
        return 0.0f;
    }
    const auto error_of = [&](float inverse, auto&& code) {
        const float scale = 1.0f / inverse;
        float error = 0.0f;
        for (int i = 0; i < n; ++i) {
            const float difference = x[i] - scale * float(code(nearest(inverse * x[i])));
            error += w[i] * difference * difference;
        }
        return error;
    };
    const auto limited = [&](int code) { return std::min(top, code); };
    float best_inverse = float(top) / largest;
    // As in ggml, codes of the first try are not limited to *top*.
    float least = error_of(best_inverse, [](int code) { return uint8_t(code); });
    for (int i = -4; i <= 4; ++i) {
        if (i == 0) continue;
        const float inverse = (0.1f * float(i) + float(top)) / largest;
        const float error = error_of(inverse, limited);
        if (error < least) {
            least = error;
            best_inverse = inverse;
        }
    }
    Fit fit;
    for (int i = 0; i < n; ++i) {
        const int code = limited(nearest(best_inverse * x[i]));
        codes[i] = uint8_t(code);
        fit.add(x[i], w[i], float(code));
    }
    improve_codes(x, w, n, INT_MIN, top, true, codes, fit);
    return fit.cc > 0.0f ? fit.scale() : 0.0f;
}

// Step widths that fit_affine tries: range / (top + first + step * i), i from 0 to steps.
struct AffineSearch {
    float first, step;
    int steps;
    bool absolute;  // errors count by their magnitude instead of their square
    bool bounded;   // numbers are limited before they are rounded: nearest() fails for large ones
};

// Finds *codes* from 0 to *top* and a *minimum* of at most 0, and returns the scale: x is about
// scale * code + minimum.
inline float fit_affine(const AffineSearch& search, const float* x, const float* w, int n, int top,
                        uint8_t* codes, float& minimum) {
    float low = x[0], high = x[0], sum_w = w[0], sum_x = sum_w * x[0];
    for (int i = 1; i < n; ++i) {
        if (x[i] < low) low = x[i];
        if (x[i] > high) high = x[i];
        sum_w += w[i];
        sum_x += w[i] * x[i];
    }
    if (low > 0.0f) low = 0.0f;
    minimum = low;
    if (high <= low) {
        std::fill(codes, codes + n, uint8_t(0));
        return 0.0f;
    }
    const auto round = [&](float inverse, bool bounded, uint8_t* out) {
        for (int i = 0; i < n; ++i) {
            const float v = inverse * (x[i] - minimum);
            out[i] = bounded ? uint8_t(v > 0.0f ? nearest(v < float(top) ? v : float(top)) : 0)
                             : uint8_t(clamp_code(nearest(v), 0, top));
        }
    };
    const auto error_of = [&](float scale, float offset, const uint8_t* codes) {
        float error = 0.0f;
        for (int i = 0; i < n; ++i) {
            const float difference = scale * float(codes[i]) + offset - x[i];
            error += w[i] * (search.absolute ? std::fabs(difference) : difference * difference);
        }
        return error;
    };
    const float inverse = float(top) / (high - low);
    float scale = 1.0f / inverse;
    round(inverse, false, codes);
    float least = error_of(scale, minimum, codes);
    uint8_t tried[32];
    for (int step = 0; step <= search.steps; ++step) {
        // As in ggml, *minimum* is that of the best fit so far, and not the least weight.
        round((search.first + search.step * float(step) + float(top)) / (high - minimum),
              search.bounded, tried);
        float sum_c = 0.0f, sum_cc = 0.0f, sum_xc = 0.0f;
        for (int i = 0; i < n; ++i) {
            const float c = float(tried[i]), wc = w[i] * c;
            sum_c += wc;
            sum_cc += wc * c;
            sum_xc += wc * x[i];
        }
        const float determinant = sum_w * sum_cc - sum_c * sum_c;
        if (!(determinant > 0.0f)) continue;
        float tried_scale = (sum_w * sum_xc - sum_x * sum_c) / determinant;
        float tried_minimum = (sum_cc * sum_x - sum_c * sum_xc) / determinant;
        if (tried_minimum > 0.0f) {
            tried_minimum = 0.0f;
            tried_scale = sum_xc / sum_cc;
        }
        const float error = error_of(tried_scale, tried_minimum, tried);
        if (error < least) {
            std::copy(tried, tried + n, codes);
            least = error;
            scale = tried_scale;
            minimum = tried_minimum;
        }
    }
    return scale;
}

}  // namespace
}  // namespace bitnet
