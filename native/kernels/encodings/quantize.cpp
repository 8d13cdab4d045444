// Rounding of rows of floats to blocks, with the bytes that llama-quantize writes on x86-64.
#include "ops/ops.hpp"

#include "encodings/scale_search.hpp"
#include "system/thread_pool.hpp"

namespace bitnet {
namespace {

// Encodings that are written here, but that no kernel reads.
struct BlockQ2_K {
    uint8_t scales[16], q[64];
    uint16_t d, dmin;
};
struct BlockQ3_K {
    uint8_t high[32], q[64], scales[12];
    uint16_t d;
};
static_assert(sizeof(BlockQ2_K) == 84 && sizeof(BlockQ3_K) == 110, "ggml layout");

// The integer part of *v*, or INT_MIN if that does not fit in an int, as x86-64 converts floats.
int truncate(float v) { return v > -2147483648.0f && v < 2147483648.0f ? int(v) : INT_MIN; }

// Weights of squared errors: importance times sqrt(mean square + x^2), so that large weights count
// more.
void weigh(const float* x, const float* importance, int n, float mean_square, float* w) {
    for (int i = 0; i < n; ++i) w[i] = importance[i] * std::sqrt(mean_square + x[i] * x[i]);
}

void weigh_by_square(const float* x, int n, float* w) {
    for (int i = 0; i < n; ++i) w[i] = x[i] * x[i];
}

float sum(const float* x, int n) {
    float total = 0.0f;
    for (int i = 0; i < n; ++i) total += x[i];
    return total;
}

// The first half of 32 codes in the low nibbles, the second in the high ones.
void pack_nibbles(const uint8_t* codes, uint8_t* q) {
    for (int i = 0; i < 16; ++i) q[i] = uint8_t((codes[i] & 15) | codes[16 + i] << 4);
}

// The fifth bits of 32 codes.
void pack_fifths(const uint8_t* codes, uint8_t* high) {
    uint32_t bits = 0;
    for (int i = 0; i < 32; ++i) bits |= uint32_t(codes[i] >> 4 & 1) << i;
    std::memcpy(high, &bits, 4);
}

// ---- 32 weights: a scale, or a scale and a minimum

// Codes 0 to 2 half - 1 of Q4_0 and Q5_0; returns the scale as float16.
uint16_t round_symmetric(const float* x, const float* importance, float mean_square, int half,
                         uint8_t* codes) {
    if (importance) {
        float w[32];
        int8_t fitted[32];
        weigh(x, importance, 32, mean_square, w);
        const float scale = fit_symmetric(x, w, 32, half, fitted);
        std::copy(fitted, fitted + 32, codes);
        return float_to_half(scale);
    }
    const float scale = extreme(x, 32) / float(-half),
                inverse = scale != 0.0f ? 1.0f / scale : 0.0f;
    const float middle = float(half) + 0.5f;
    for (int i = 0; i < 32; ++i)
        // By way of int8, as in ggml.
        codes[i] = uint8_t(std::min(2 * half - 1, int(int8_t(truncate(x[i] * inverse + middle)))));
    return float_to_half(scale);
}

// The search of fit_affine with an importance matrix.
constexpr AffineSearch kWeighted{-0.9f, 0.05f, 36, false, true};

// Codes 0 to *top* of Q4_1 and Q5_1, and their scale *d* and minimum *m* as float16.
void round_affine(const float* x, const float* importance, float mean_square, int top,
                  uint8_t* codes, uint16_t& d, uint16_t& m) {
    float low = x[0], scale;
    if (importance) {
        float w[32];
        weigh(x, importance, 32, mean_square, w);
        scale = fit_affine(kWeighted, x, w, 32, top, codes, low);
    } else {
        float high = x[0];
        for (int i = 1; i < 32; ++i) {
            low = x[i] < low ? x[i] : low;
            high = x[i] > high ? x[i] : high;
        }
        scale = (high - low) / float(top);
        const float inverse = scale != 0.0f ? 1.0f / scale : 0.0f;
        for (int i = 0; i < 32; ++i) {
            const int code = truncate((x[i] - low) * inverse + 0.5f);
            // As in ggml, which limits the codes of Q4_1, and not those of Q5_1.
            codes[i] = top == 15 ? uint8_t(std::min(top, int(int8_t(code)))) : uint8_t(code);
        }
    }
    d = float_to_half(scale);
    m = float_to_half(low);
}

template <class Block>
constexpr bool kHasFifths = std::is_same_v<Block, BlockQ5_0> || std::is_same_v<Block, BlockQ5_1>;
template <class Block>
constexpr int kTop = kHasFifths<Block> ? 31 : 15;

template <class Block>
void pack_codes(const uint8_t* codes, Block& block) {
    pack_nibbles(codes, block.q);
    if constexpr (kHasFifths<Block>) pack_fifths(codes, block.high);
}

template <class Block>  // Q4_0, Q5_0
void round_to_scale(const float* x, const float* importance, float mean_square, Block& block) {
    uint8_t codes[32];
    block.d = round_symmetric(x, importance, mean_square, (kTop<Block> + 1) / 2, codes);
    pack_codes(codes, block);
}

template <class Block>  // Q4_1, Q5_1
void round_to_scale_and_minimum(const float* x, const float* importance, float mean_square,
                                Block& block) {
    uint8_t codes[32];
    round_affine(x, importance, mean_square, kTop<Block>, codes, block.d, block.m);
    pack_codes(codes, block);
}

void round_q8_0(const float* x, const float*, float, BlockQ8_0& block) {
    const float scale = std::fabs(extreme(x, 32)) / 127.0f,
                inverse = scale != 0.0f ? 1.0f / scale : 0.0f;
    block.d = float_to_half(scale);
    for (int i = 0; i < 32; ++i) block.q[i] = int8_t(truncate(std::round(x[i] * inverse)));
}

void round_mxfp4(const float* x, const float*, float, BlockMXFP4& block) {
    const float largest = std::fabs(extreme(x, 32));
    // The bias of 127 minus 2: the largest FP4 number, 6, has the exponent 2.
    block.power =
        largest > 0.0f ? uint8_t(int(std::floor(float(std::log2(double(largest))))) + 125) : 0;
    const float scale = half_power(block.power);
    uint8_t codes[32];
    for (int i = 0; i < 32; ++i) {
        const auto error = [&](int code) {
            return std::fabs(float(kFp4Codes.code[code]) * scale - x[i]);
        };
        codes[i] = 0;
        for (int code = 1; code < 16; ++code)
            if (error(code) < error(codes[i])) codes[i] = uint8_t(code);
    }
    pack_nibbles(codes, block.q);
}

// ---- 256 weights with a scale and a minimum per group: Q2_K, Q4_K, Q5_K

struct AffineType {
    int group, top, scale_top;  // weights of a group; largest code of a weight, and of a scale
    AffineSearch plain;         // without an importance matrix
    float mean_squares;         // factor on the mean square that weigh() takes
};

// A block of 256 weights: codes of the weights, and of the scale and minimum of each group.
struct AffineSuper {
    uint8_t codes[kSuper], scales[16], mins[16];
    uint16_t d, dmin;
};

// Codes from 0 to *top* of numbers that are not negative; the largest of them becomes *top*.
// Returns the step as float16.
uint16_t round_by_largest(const float* x, int n, int top, uint8_t* codes) {
    float largest = 0.0f;
    for (int i = 0; i < n; ++i) largest = x[i] > largest ? x[i] : largest;
    const float inverse = largest > 0.0f ? float(top) / largest : 0.0f;
    for (int i = 0; i < n; ++i)
        codes[i] = uint8_t(std::min(top, int(uint8_t(nearest(inverse * x[i])))));
    return float_to_half(largest / float(top));
}

// Rounds a group again, by the scale *d* and minimum -*m* that are stored, to codes from *low* to
// *high*, minus *low*. Leaves them unchanged if the scale is 0.
template <class Code>
void round_again(const float* x, int n, float d, float m, int low, int high, Code* codes) {
    if (d == 0.0f) return;
    for (int i = 0; i < n; ++i)
        codes[i] = Code(clamp_code(nearest((x[i] + m) / d), low, high) - low);
}

// Rounds 256 weights: fits a scale and a minimum to each group, rounds these, and then, by the
// rounded ones, the weights again.
void round_super(const AffineType& type, const float* x, const float* importance,
                 AffineSuper& out) {
    const int group = type.group, groups = kSuper / group;
    const float mean_square =
        importance ? type.mean_squares * sum_of_squares(x, kSuper) / float(kSuper) : 0.0f;
    float scales[16], mins[16], weights[16], w[32];
    for (int g = 0; g < groups; ++g) {
        const float* part = x + g * group;
        if (importance) {
            weigh(part, importance + g * group, group, mean_square, w);
        } else {
            const float base =
                type.plain.absolute ? 0.0f : std::sqrt(sum_of_squares(part, group) / float(group));
            for (int i = 0; i < group; ++i) w[i] = base + std::fabs(part[i]);
        }
        weights[g] = sum(w, group);
        float minimum;
        scales[g] = fit_affine(importance ? kWeighted : type.plain, part, w, group, type.top,
                               out.codes + g * group, minimum);
        mins[g] = -minimum;
    }
    if (importance) {
        out.d = float_to_half(fit_positive(scales, weights, groups, type.scale_top, out.scales));
        out.dmin = float_to_half(fit_positive(mins, weights, groups, type.scale_top, out.mins));
    } else {
        out.d = round_by_largest(scales, groups, type.scale_top, out.scales);
        out.dmin = round_by_largest(mins, groups, type.scale_top, out.mins);
    }
    for (int g = 0; g < groups; ++g)
        round_again(x + g * group, group, half_to_float(out.d) * float(out.scales[g]),
                    half_to_float(out.dmin) * float(out.mins[g]), 0, type.top,
                    out.codes + g * group);
}

// The low two bits of 256 codes. A byte has those of four codes that are 32 apart.
void pack_pairs(const uint8_t* codes, uint8_t* q) {
    for (int half = 0; half < 2; ++half, codes += 128)
        for (int i = 0; i < 32; ++i)
            q[32 * half + i] = uint8_t((codes[i] & 3) | (codes[i + 32] & 3) << 2 |
                                       (codes[i + 64] & 3) << 4 | (codes[i + 96] & 3) << 6);
}

// Packs scales and minima of eight groups as unpack_k_scales unpacks them.
void pack_k_scales(const AffineSuper& super_block, uint8_t* packed) {
    for (int i = 0; i < 4; ++i) {
        packed[i] = uint8_t((super_block.scales[i] & 63) | super_block.scales[4 + i] >> 4 << 6);
        packed[4 + i] = uint8_t((super_block.mins[i] & 63) | super_block.mins[4 + i] >> 4 << 6);
        packed[8 + i] = uint8_t((super_block.scales[4 + i] & 15) | super_block.mins[4 + i] << 4);
    }
}

void round_q2_k(const float* x, const float* importance, float, BlockQ2_K& block) {
    constexpr AffineType kType{16, 3, 15, {-0.5f, 0.1f, 15, true, false}, 1.0f};
    AffineSuper super;
    round_super(kType, x, importance, super);
    for (int g = 0; g < 16; ++g) block.scales[g] = uint8_t(super.scales[g] | super.mins[g] << 4);
    pack_pairs(super.codes, block.q);
    block.d = super.d;
    block.dmin = super.dmin;
}

template <class Block>  // Q4_K, Q5_K
void round_k(const float* x, const float* importance, float, Block& block) {
    constexpr bool kFifths = std::is_same_v<Block, BlockQ5_K>;
    constexpr AffineSearch kPlain = kFifths ? AffineSearch{-0.5f, 0.1f, 15, false, false}
                                            : AffineSearch{-1.0f, 0.1f, 20, false, false};
    AffineSuper super;
    round_super({32, kFifths ? 31 : 15, 63, kPlain, 2.0f}, x, importance, super);
    block.d = super.d;
    block.dmin = super.dmin;
    pack_k_scales(super, block.scales);
    for (int j = 0; j < 4; ++j)
        for (int i = 0; i < 32; ++i)
            block.q[32 * j + i] =
                uint8_t((super.codes[64 * j + i] & 15) | super.codes[64 * j + 32 + i] << 4);
    if constexpr (kFifths)
        for (int i = 0; i < kSuper; ++i)
            block.high[i % 32] |= uint8_t((super.codes[i] >> 4) << (i / 32));
}

// ---- 256 weights with a signed scale per group of 16: Q3_K, Q6_K

// The scale with the largest magnitude, of 16.
float largest_scale(const float* scales) { return extreme(scales, 16); }

// Codes of the weights, codes plus 32 of the scales of their 16 groups, and *d*, the step of the
// scales, as float16.
void scales_of_q3_k(const float* x, const float* importance, int8_t* codes, int8_t* scale_codes,
                    uint16_t& d) {
    float scales[16], weights[16], w[16];
    const float mean_square = importance ? 2.0f * sum_of_squares(x, kSuper) / float(kSuper) : 0.0f;
    for (int g = 0; g < 16; ++g) {
        const float* part = x + 16 * g;
        if (importance) {
            weigh(part, importance + 16 * g, 16, mean_square, w);
            weights[g] = sum(w, 16);
            scales[g] = fit_symmetric(part, w, 16, 4, codes + 16 * g);
        } else {
            weigh_by_square(part, 16, w);
            scales[g] = fit_symmetric_stepwise(part, w, 16, 4, codes + 16 * g);
        }
    }
    if (importance) {
        d = float_to_half(fit_symmetric(scales, weights, 16, 32, scale_codes));
        return;
    }
    const float largest = largest_scale(scales), inverse = -32.0f / largest;
    for (int g = 0; g < 16; ++g)
        scale_codes[g] =
            largest != 0.0f ? int8_t(clamp_code(int8_t(nearest(inverse * scales[g])), -32, 31) + 32)
                            : 0;
    d = largest != 0.0f ? float_to_half(1.0f / inverse) : 0;
}

void round_q3_k(const float* x, const float* importance, float, BlockQ3_K& block) {
    int8_t codes[kSuper], scale_codes[16];
    scales_of_q3_k(x, importance, codes, scale_codes, block.d);
    for (int g = 0; g < 16; ++g) {
        const int code = scale_codes[g];
        block.scales[g % 8] |= uint8_t((code & 15) << (g < 8 ? 0 : 4));
        block.scales[8 + g % 4] |= uint8_t(code >> 4 << 2 * (g / 4));
        round_again(x + 16 * g, 16, half_to_float(block.d) * float(code - 32), 0.0f, -4, 3,
                    codes + 16 * g);
    }
    uint8_t low[kSuper];
    for (int i = 0; i < kSuper; ++i) {
        block.high[i % 32] |= uint8_t((codes[i] >> 2 & 1) << i / 32);
        low[i] = uint8_t(codes[i] & 3);
    }
    pack_pairs(low, block.q);
}

void round_q6_k(const float* x, const float* importance, float, BlockQ6_K& block) {
    int8_t codes[kSuper];
    float scales[16], w[16];
    for (int g = 0; g < 16; ++g) {
        weigh_by_square(x + 16 * g, 16, w);
        scales[g] =
            fit_symmetric(x + 16 * g, importance ? importance + 16 * g : w, 16, 32, codes + 16 * g);
    }
    const float largest = largest_scale(scales);
    if (std::fabs(largest) < kGroupEpsilon) return;
    const float inverse = -128.0f / largest;
    block.d = float_to_half(1.0f / inverse);
    for (int g = 0; g < 16; ++g) {
        block.scales[g] = int8_t(std::min(127, nearest(inverse * scales[g])));
        round_again(x + 16 * g, 16, half_to_float(block.d) * float(block.scales[g]), 0.0f, -32, 31,
                    codes + 16 * g);
    }
    for (int half = 0; half < 2; ++half)
        for (int i = 0; i < 32; ++i) {
            const int8_t* four = codes + 128 * half + i;  // 32 apart
            block.low[64 * half + i] = uint8_t((four[0] & 15) | four[64] << 4);
            block.low[64 * half + 32 + i] = uint8_t((four[32] & 15) | four[96] << 4);
            block.high[32 * half + i] = uint8_t(four[0] >> 4 | four[32] >> 4 << 2 |
                                                four[64] >> 4 << 4 | four[96] >> 4 << 6);
        }
}

// ---- 32 weights with one scale, whose codes stand for sixteen values at uneven distances: IQ4_NL;
// eight of these groups: IQ4_XS

// Code of the value nearest to *v*: the number of midpoints between neighbouring values that *v*
// reaches. Without branches, because a search of sixteen tries takes most of the time.
int nearest_uneven(float v) {
    int code = 0;
    for (int i = 1; i < 16; ++i)
        code += !(v - float(kIq4Codes.code[i - 1]) < float(kIq4Codes.code[i]) - v);
    return code;
}

// Scale of 32 weights; their codes follow from it (round_uneven).
float fit_uneven(const float* x, const float* importance, float mean_square) {
    const float largest = extreme(x, 32);
    if (std::fabs(largest) < kGroupEpsilon) return 0.0f;
    float w[32];
    if (importance)
        weigh(x, importance, 32, mean_square, w);
    else
        weigh_by_square(x, 32, w);
    const auto fit_of = [&](float inverse) {
        Fit fit;
        int codes[32];
        for (int i = 0; i < 32; ++i) codes[i] = nearest_uneven(inverse * x[i]);
        for (int i = 0; i < 32; ++i) {
            const float value = float(kIq4Codes.code[codes[i]]);
            fit.xc += w[i] * value * x[i];
            fit.cc += w[i] * value * value;
        }
        return fit;
    };
    Fit fit = fit_of(1.0f / (-largest / float(kIq4Codes.code[0])));
    float scale = fit.cc > 0.0f ? fit.scale() : 0.0f;
    float gain = scale * fit.xc;
    for (int i = -7; i <= 7; ++i) {
        fit = fit_of(float(i + kIq4Codes.code[0]) / largest);
        if (fit.cc > 0.0f && fit.xc * fit.xc > gain * fit.cc) {
            scale = fit.scale();
            gain = scale * fit.xc;
        }
    }
    return scale;
}

void round_uneven(const float* x, float scale, uint8_t* q) {
    const float inverse = scale != 0.0f ? 1.0f / scale : 0.0f;
    uint8_t codes[32];
    for (int i = 0; i < 32; ++i) codes[i] = uint8_t(nearest_uneven(inverse * x[i]));
    pack_nibbles(codes, q);
}

void round_iq4_nl(const float* x, const float* importance, float, BlockIQ4_NL& block) {
    const float scale = fit_uneven(x, importance, sum_of_squares(x, 32) * (2.0f / 32.0f));
    block.d = float_to_half(scale);
    round_uneven(x, scale, block.q);
}

void round_iq4_xs(const float* x, const float* importance, float, BlockIQ4_XS& block) {
    const float mean_square = sum_of_squares(x, kSuper) * (2.0f / float(kSuper));
    float scales[8];
    for (int g = 0; g < 8; ++g)
        scales[g] = fit_uneven(x + 32 * g, importance ? importance + 32 * g : nullptr, mean_square);
    const float d = -extreme(scales, 8) / 32.0f, inverse = d != 0.0f ? 1.0f / d : 0.0f;
    block.d = float_to_half(d);
    for (int g = 0; g < 8; ++g) {
        const int code = clamp_code(nearest(inverse * scales[g]), -32, 31);
        round_uneven(x + 32 * g, d * float(code), block.q + 16 * g);
        block.scales_low[g / 2] |= uint8_t(((code + 32) & 15) << 4 * (g % 2));
        block.scales_high = uint16_t(block.scales_high | (code + 32) >> 4 << 2 * g);
    }
}

// ---- rows

// A RowQuantizer that rounds each block with kRound(weights, importance, mean square of the row,
// block). The mean square is 0 without importance.
template <class Block, int kWeights, void (*kRound)(const float*, const float*, float, Block&)>
void round_row(const float* row, const float* importance, int64_t cols, uint8_t* out) {
    const float mean_square = importance ? sum_of_squares(row, cols) / float(cols) : 0.0f;
    for (int64_t i = 0; i < cols; i += kWeights, out += sizeof(Block)) {
        Block block{};
        kRound(row + i, importance ? importance + i : nullptr, mean_square, block);
        std::memcpy(out, &block, sizeof block);
    }
}

template <class Block, int kWeights, void (*kRound)(const float*, const float*, float, Block&)>
constexpr Quantizer quantizer(int ggml_id) {
    return {ggml_id, kWeights, int(sizeof(Block)), round_row<Block, kWeights, kRound>};
}

constexpr Quantizer kQuantizers[] = {
    quantizer<BlockQ4_0, 32, round_to_scale>(2),
    quantizer<BlockQ4_1, 32, round_to_scale_and_minimum>(3),
    quantizer<BlockQ5_0, 32, round_to_scale>(6),
    quantizer<BlockQ5_1, 32, round_to_scale_and_minimum>(7),
    quantizer<BlockQ8_0, 32, round_q8_0>(8),
    quantizer<BlockQ2_K, 256, round_q2_k>(10),
    quantizer<BlockQ3_K, 256, round_q3_k>(11),
    quantizer<BlockQ4_K, 256, round_k>(12),
    quantizer<BlockQ5_K, 256, round_k>(13),
    quantizer<BlockQ6_K, 256, round_q6_k>(14),
    quantizer<BlockIQ4_NL, 32, round_iq4_nl>(20),
    quantizer<BlockIQ4_XS, 256, round_iq4_xs>(23),
    quantizer<BlockMXFP4, 32, round_mxfp4>(39),
};

}  // namespace

const Quantizer* find_quantizer(int ggml_id) {
    for (const Quantizer& quantizer : kQuantizers)
        if (quantizer.ggml_id == ggml_id) return &quantizer;
    return nullptr;
}

void quantize_rows(const Quantizer& quantizer, const float* x, const float* importance,
                   int64_t rows, int64_t cols, uint8_t* out) {
    const int64_t row_bytes = cols / quantizer.weights * quantizer.bytes;
    Split(rows, 1, rows * cols < kSerialWork).run([&](int64_t first, int64_t end) {
        for (int64_t r = first; r < end; ++r)
            quantizer.row(x + r * cols, importance, cols, out + r * row_bytes);
    });
}

}  // namespace bitnet
