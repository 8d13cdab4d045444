// Weight encodings: how many bytes hold how many weights, and what a group of them means.
//
// Layouts are ggml's (https://github.com/ggml-org/ggml, ggml-common.h); those of ternary weights
// are in ternary/layout.hpp. Everything here has internal linkage: files built for different
// instruction sets include it, and the linker must not merge their copies.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__FAST_MATH__) || defined(_M_FP_FAST)
#error "-ffast-math and /fp:fast change results: build without them"
#endif
#if defined(_MSC_VER) && !defined(__clang__)
#pragma fp_contract(off)
#endif

// Unrolls the loop that follows by *count*, so that arrays that it indexes stay in registers.
#if defined(__GNUC__)
#define BITNET_PRAGMA(text) _Pragma(#text)
#define BITNET_UNROLL(count) BITNET_PRAGMA(GCC unroll count)
#else
#define BITNET_UNROLL(count)
#endif

namespace bitnet {

enum class Type : int {
    F32,
    F16,
    BF16,
    Q8_0,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q4_K,
    Q5_K,
    Q6_K,
    MXFP4,
    IQ4_NL,
    IQ4_XS,  // MXFP4 to here: codes from a table
    Q1_0,
    Q2_0,
    PQ2_0,
    PTQ1_0,  // Q1_0 to here: weights (code - 1) * scale
    // 16 rows interleaved (tiles.hpp), in the order of those above.
    F32_R16,
    F16_R16,
    BF16_R16,
    Q8_0_R16,
    Q4_0_R16,
    Q4_1_R16,
    Q5_0_R16,
    Q5_1_R16,
    Q4_K_R16,
    Q5_K_R16,
    Q6_K_R16,
    MXFP4_R16,
    IQ4_NL_R16,
    IQ4_XS_R16,
    Q1_0_R16,
    Q2_0_R16,
    PQ2_0_R16,
    PTQ1_0_R16,  // Q1_0_R16 to here: ternary/layout.hpp
    Ternary,
    TernaryBlocks,
    TernaryDense,  // Ternary to here: ternary/layout.hpp
    kCount
};

constexpr int kTypes = int(Type::kCount);

// A block is *weights* weights in *bytes* bytes; a row is a whole number of blocks.
struct Encoding {
    const char* name;
    int weights, bytes;
    bool minimum = false;  // w = scale * code + min, rather than scale * code
};
constexpr Encoding kEncodings[kTypes] = {
    {"F32", 1, 4},
    {"F16", 1, 2},
    {"BF16", 1, 2},
    {"Q8_0", 32, 34},
    {"Q4_0", 32, 18},
    {"Q4_1", 32, 20, true},
    {"Q5_0", 32, 22},
    {"Q5_1", 32, 24, true},
    {"Q4_K", 256, 144, true},
    {"Q5_K", 256, 176, true},
    {"Q6_K", 256, 210},
    {"MXFP4", 32, 17},
    {"IQ4_NL", 32, 18},
    {"IQ4_XS", 256, 136},
    {"Q1_0", 128, 18},
    {"Q2_0", 64, 18},
    {"PQ2_0", 128, 34},
    {"PTQ1_0", 128, 28},
    {"F32_R16", 1, 4},
    {"F16_R16", 1, 2},
    {"BF16_R16", 1, 2},
    {"Q8_0_R16", 32, 34},
    {"Q4_0_R16", 32, 18},
    {"Q4_1_R16", 32, 20, true},
    {"Q5_0_R16", 32, 22},
    {"Q5_1_R16", 32, 24, true},
    {"Q4_K_R16", 256, 148, true},
    {"Q5_K_R16", 256, 180, true},
    {"Q6_K_R16", 256, 210},
    {"MXFP4_R16", 32, 17},
    {"IQ4_NL_R16", 32, 18},
    {"IQ4_XS_R16", 256, 138},
    // Blocks of codes; their scales come on top (row_bytes).
    {"Q1_0_R16", 256, 32},
    {"Q2_0_R16", 128, 32},
    {"PQ2_0_R16", 128, 32},
    {"PTQ1_0_R16", 160, 32},
    {"TERNARY", 16, 4},
    {"TERNARY_BLOCKS", 256, 68},
    {"TERNARY_DENSE", 20, 4},
};
constexpr const Encoding& encoding(Type t) { return kEncodings[int(t)]; }

constexpr bool is_tiled(Type t) { return t >= Type::F32_R16 && t <= Type::PTQ1_0_R16; }
// Tiles of weights of up to two bits whose inputs are rounded in runs of 32 columns.
constexpr bool is_grouped(Type t) { return t >= Type::Q1_0_R16 && t <= Type::PTQ1_0_R16; }
// The same in rows.
constexpr bool is_grouped_row(Type t) { return t >= Type::Q1_0 && t <= Type::PTQ1_0; }
constexpr bool is_float(Type t) {
    return t <= Type::BF16 || (t >= Type::F32_R16 && t <= Type::BF16_R16);
}
constexpr bool is_ternary(Type t) { return t >= Type::Ternary && t <= Type::TernaryDense; }
// True for encodings in rows, as in a file; `tiled` gives the one with interleaved rows.
constexpr bool can_tile(Type t) { return t <= Type::PTQ1_0; }
constexpr Type tiled(Type t) { return Type(int(t) + int(Type::F32_R16)); }
// The inverse of `tiled`.
constexpr Type in_rows(Type t) { return Type(int(t) - int(Type::F32_R16)); }
// *cols*, rounded up to whole blocks of a tile; the columns from *cols* on are zero weights.
constexpr int64_t tiled_cols(Type t, int64_t cols) {
    const int step = encoding(tiled(t)).weights;
    return is_grouped_row(t) ? (cols + step - 1) / step * step : cols;
}

struct BlockQ8_0 {
    uint16_t d;
    int8_t q[32];
};
struct BlockQ4_0 {
    uint16_t d;
    uint8_t q[16];
};
struct BlockQ4_1 {
    uint16_t d, m;
    uint8_t q[16];
};
struct BlockQ5_0 {
    uint16_t d;
    uint8_t high[4], q[16];
};
struct BlockQ5_1 {
    uint16_t d, m;
    uint8_t high[4], q[16];
};
struct BlockQ4_K {
    uint16_t d, dmin;
    uint8_t scales[12], q[128];
};
struct BlockQ5_K {
    uint16_t d, dmin;
    uint8_t scales[12], high[32], q[128];
};
struct BlockQ6_K {
    uint8_t low[128], high[64];
    int8_t scales[16];
    uint16_t d;
};
struct BlockMXFP4 {
    uint8_t power, q[16];
};
struct BlockIQ4_NL {
    uint16_t d;
    uint8_t q[16];
};
struct BlockIQ4_XS {
    uint16_t d, scales_high;
    uint8_t scales_low[4], q[128];
};

static_assert(sizeof(BlockQ8_0) == 34 && sizeof(BlockQ4_0) == 18 && sizeof(BlockQ4_1) == 20,
              "ggml layout");
static_assert(sizeof(BlockQ5_0) == 22 && sizeof(BlockQ5_1) == 24, "ggml layout");
static_assert(sizeof(BlockMXFP4) == 17 && sizeof(BlockIQ4_NL) == 18 && sizeof(BlockIQ4_XS) == 136,
              "ggml layout");
static_assert(sizeof(BlockQ4_K) == 144 && sizeof(BlockQ5_K) == 176 && sizeof(BlockQ6_K) == 210,
              "ggml layout");

// The codes of the sixteen values of four bits. Those of MXFP4 are twice the numbers of FP4 (E2M1),
// so that they are integers.
struct CodeTable {
    int8_t code[16];
};
constexpr CodeTable kFp4Codes = {{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}};
constexpr CodeTable kIq4Codes = {
    {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}};

constexpr bool has_table(Type t) {
    return (t >= Type::MXFP4 && t <= Type::IQ4_XS) ||
           (t >= Type::MXFP4_R16 && t <= Type::IQ4_XS_R16);
}
constexpr const CodeTable& code_table(Type t) {
    return t == Type::MXFP4 || t == Type::MXFP4_R16 ? kFp4Codes : kIq4Codes;
}

// Each instruction set compiles its own copy: no unit may run code of another's flags.
namespace {

[[maybe_unused]] inline float bits_to_float(uint32_t bits) {
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
}

[[maybe_unused]] inline uint32_t float_to_bits(float f) {
    uint32_t bits;
    std::memcpy(&bits, &f, 4);
    return bits;
}

[[maybe_unused]] inline float bf16_to_float(uint16_t h) { return bits_to_float(uint32_t(h) << 16); }

// IEEE half to single, exact, subnormals and NaN included.
[[maybe_unused]] inline float half_to_float(uint16_t h) {
    const uint32_t sign = uint32_t(h & 0x8000) << 16;
    const uint32_t magnitude = uint32_t(h & 0x7fff) << 13;
    if (magnitude < (0x0400u << 13))  // zero or subnormal: let the float unit normalise it
        return bits_to_float(sign | float_to_bits(float(h & 0x3ff) * 0x1p-24f));
    // The bias grows by 112, from 15 to 127; the exponent of infinity and NaN by 224, from 31 to
    // 255.
    const uint32_t exponent_shift = magnitude >= (0x7c00u << 13) ? 224u << 23 : 112u << 23;
    return bits_to_float(sign | (magnitude + exponent_shift));
}

// Half of 2^(power - 127), the scale of codes that are doubled. Two of these are too small for a
// normal float: the bits are the larger of (power - 1) << 23 and (power + 1) << 21.
[[maybe_unused]] inline float half_power(uint8_t power) {
    return bits_to_float(power < 2 ? 0x200000u << power : uint32_t(power - 1) << 23);
}

// Single to half, rounded to the nearest even; overflow becomes infinity.
[[maybe_unused]] inline uint16_t float_to_half(float f) {
    const uint32_t bits = float_to_bits(f);
    const uint32_t sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return uint16_t(sign | 0x7e00);
    if (magnitude >= 0x477ff000) return uint16_t(sign | 0x7c00);  // 65,520 rounds to infinity
    if (magnitude < 0x38800000)  // 2^-14, subnormal half: adding 0.5 rounds at its last bit
        return uint16_t(sign | (float_to_bits(bits_to_float(magnitude) + 0.5f) - 0x3f000000));
    return uint16_t(sign | ((magnitude - 0x38000000 + 0xfff + ((magnitude >> 13) & 1)) >> 13));
}

// The blocks in a file have no alignment, so headers are read with memcpy.
template <class T>
inline T read(const void* p) {
    T value;
    std::memcpy(&value, p, sizeof value);
    return value;
}

[[maybe_unused]] inline float read_half(const uint8_t* p) {
    return half_to_float(read<uint16_t>(p));
}

// 32 weights: w[i] = scale[i / 16] * code[i] + min.
struct Group {
    int8_t code[32];
    float scale[2];
    float min;
};

// The eight 6-bit scales and minima of Q4_K and Q5_K, unpacked from 12 bytes.
[[maybe_unused]] inline void unpack_k_scales(const uint8_t* packed, uint8_t* scale, uint8_t* min) {
    for (int i = 0; i < 4; ++i) {
        scale[i] = packed[i] & 63;
        min[i] = packed[4 + i] & 63;
        scale[4 + i] = uint8_t((packed[8 + i] & 15) | ((packed[i] >> 6) << 4));
        min[4 + i] = uint8_t((packed[8 + i] >> 4) | ((packed[4 + i] >> 6) << 4));
    }
}

// Scale *j* of the eight of IQ4_XS, six bits with a sign.
[[maybe_unused]] inline int8_t iq4_xs_scale(const uint8_t* block, int j) {
    const int low = (block[4 + j / 2] >> (4 * (j % 2))) & 15,
              high = (read<uint16_t>(block + 2) >> (2 * j)) & 3;
    return int8_t((low | high << 4) - 32);
}

// Group *j* of a block of Q4_K, for which *high* is null, or Q5_K.
[[maybe_unused]] inline void unpack_k(const uint8_t* block, int j, const uint8_t* high,
                                      const uint8_t* q, Group& out) {
    uint8_t scale[8], min[8];
    unpack_k_scales(block + 4, scale, min);
    for (int i = 0; i < 32; ++i) {
        const int nibble = (q[32 * (j / 2) + i] >> (4 * (j % 2))) & 15;
        out.code[i] = int8_t(nibble + (high ? ((high[i] >> j) & 1) << 4 : 0));
    }
    out.scale[0] = out.scale[1] = read_half(block) * float(scale[j]);
    out.min = -(read_half(block + 2) * float(min[j]));
}

// Digit *n* of each of *count* bytes. byte / 256 is a fraction in base 3, so a multiplication by
// 3^n, in eight bits, makes its digit *n* the first one.
[[maybe_unused]] inline void base3_digits(const uint8_t* bytes, int count, int n, uint8_t* out) {
    constexpr uint8_t kPower[5] = {1, 3, 9, 27, 81};
    const uint8_t power = kPower[n];
    for (int i = 0; i < count; ++i)
        out[i] = uint8_t((uint16_t(uint8_t(bytes[i] * power)) * 3) >> 8);
}

// 32 codes: the kFields fields of each byte, from the lowest bits up, times *factor*.
template <int kFields>
inline void fields_in_turn(const uint8_t* bytes, int factor, uint8_t* out) {
    constexpr int kBits = 8 / kFields;
    for (int i = 0; i < 32; ++i)
        out[i] = uint8_t(((bytes[i / kFields] >> (kBits * (i % kFields))) & ((1 << kBits) - 1)) *
                         factor);
}

// Codes of group *g* of a row in an encoding of weights (code - 1) * scale; returns the scale.
[[maybe_unused]] inline float unpack_codes(Type type, const uint8_t* row, int64_t g, uint8_t* out) {
    const Encoding& size = encoding(type);
    const uint8_t* block = row + g * 32 / size.weights * size.bytes;
    const int j = int(g % (size.weights / 32));
    const auto digits = [&](const uint8_t* bytes, int count, int from, int to, uint8_t* at) {
        for (int n = from; n < to; ++n, at += count) base3_digits(bytes, count, n, at);
    };
    switch (type) {
        case Type::Q1_0:
            fields_in_turn<8>(block + 2 + 4 * j, 2, out);
            return read_half(block);
        case Type::PTQ1_0:  // 80 weights in 16 bytes, 40 in 8 and 8 in 2
            if (j < 2)
                digits(block, 16, 2 * j, 2 * j + 2, out);
            else if (j == 2) {
                digits(block, 16, 4, 5, out);
                digits(block + 16, 8, 0, 2, out + 16);
            } else {
                digits(block + 16, 8, 2, 5, out);
                digits(block + 24, 2, 0, 4, out + 24);
            }
            return read_half(block + 26);
        default:
            fields_in_turn<4>(block + 2 + 8 * j, 1, out);
            return read_half(block);  // Q2_0, PQ2_0
    }
}

// Group *g* (weights 32g .. 32g+31) of a row in a block or grouped encoding. This is the
// specification.
[[maybe_unused]] inline void unpack_group(Type type, const uint8_t* row, int64_t g, Group& out) {
    const Encoding& size = encoding(type);
    const uint8_t* block = row + g * 32 / size.weights * size.bytes;
    out.min = 0.0f;
    if (is_grouped_row(type)) {
        uint8_t code[32];
        out.scale[0] = out.scale[1] = unpack_codes(type, row, g, code);
        for (int i = 0; i < 32; ++i) out.code[i] = int8_t(code[i] - 1);
        return;
    }
    const auto nibbles = [&](const uint8_t* q, uint32_t high, int offset) {
        for (int i = 0; i < 16; ++i) {
            out.code[i] = int8_t((q[i] & 15) + int((high >> i) & 1) * 16 - offset);
            out.code[16 + i] = int8_t((q[i] >> 4) + int((high >> (16 + i)) & 1) * 16 - offset);
        }
        out.scale[0] = out.scale[1] = read_half(block);
    };
    const auto from_table = [&](const uint8_t* q, float scale) {
        const CodeTable& table = code_table(type);
        for (int i = 0; i < 16; ++i) {
            out.code[i] = table.code[q[i] & 15];
            out.code[16 + i] = table.code[q[i] >> 4];
        }
        out.scale[0] = out.scale[1] = scale;
    };
    switch (type) {
        case Type::MXFP4:
            from_table(block + 1, half_power(block[0]));
            break;
        case Type::IQ4_NL:
            from_table(block + 2, read_half(block));
            break;
        case Type::IQ4_XS: {
            const int j = int(g % 8);
            from_table(block + 8 + 16 * j, read_half(block) * float(iq4_xs_scale(block, j)));
            break;
        }
        case Type::Q8_0:
            std::memcpy(out.code, block + 2, 32);
            out.scale[0] = out.scale[1] = read_half(block);
            break;
        case Type::Q4_0:
            nibbles(block + 2, 0, 8);
            break;
        case Type::Q5_0:
            nibbles(block + 6, read<uint32_t>(block + 2), 16);
            break;
        case Type::Q4_1:
            nibbles(block + 4, 0, 0);
            out.min = read_half(block + 2);
            break;
        case Type::Q5_1:
            nibbles(block + 8, read<uint32_t>(block + 4), 0);
            out.min = read_half(block + 2);
            break;
        case Type::Q4_K:
            unpack_k(block, int(g % 8), nullptr, block + 16, out);
            break;
        case Type::Q5_K:
            unpack_k(block, int(g % 8), block + 16, block + 48, out);
            break;
        case Type::Q6_K: {
            const int j = int(g % 8), half = j / 4, quarter = j % 4;
            const uint8_t* low = block + 64 * half + 32 * (quarter % 2);
            const uint8_t* high = block + 128 + 32 * half;
            for (int i = 0; i < 32; ++i) {
                const int nibble = (low[i] >> (4 * (quarter / 2))) & 15;
                out.code[i] = int8_t((nibble | (((high[i] >> (2 * quarter)) & 3) << 4)) - 32);
            }
            const float d = read_half(block + 208);
            for (int i = 0; i < 2; ++i)
                out.scale[i] = d * float(read<int8_t>(block + 192 + 2 * j + i));
            break;
        }
        default:
            out = {};
            break;  // neither a block nor a grouped encoding
    }
}

}  // namespace
}  // namespace bitnet
