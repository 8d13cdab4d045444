// Encodings with the rows of a matrix interleaved 16 by 16 (*_R16), which the fast kernels read.
//
// A tile is 16 rows (missing ones are zeros), so that one register holds the same four columns of
// 16 rows and no sum crosses lanes. It has as many bytes as the rows in the file; those of Q4_K
// have 2.8 % more, those of Q5_K 2.3 % and those of IQ4_XS 1.5 %, because 6-bit scales become
// bytes. With r the row in its tile:
//
//   F32 F16 BF16   column by column: weight [r]
//   Q*_0 Q*_1      per 32 columns: scale f16 [r], minimum f16 [r] (Q*_1), high bits, codes
//   Q4_K Q5_K      per 256: d f16 [r], dmin f16 [r], scales u8 [8][r], minima u8 [8][r],
//                  then per 32: high bits (Q5_K), codes
//   Q6_K           per 256: d f16 [r], scales s8 [8][2][r], then per 32: high bits, codes
//   MXFP4          per 32: power u8 [r], codes
//   IQ4_NL         per 32: scale f16 [r], codes
//   IQ4_XS         per 256: d f16 [r], scales s8 [8][r], then per 32: codes
//
//   codes          4 x 64 bytes: byte b of dword r of line i has column 4i + b in its low four bits
//                  and column 16 + 4i + b in the high ones.
//                  Q8_0: 8 x 64 bytes, code + 128 of column 4i + b
//   high bits      Q5: 64 bytes, bit j of byte b of dword r belongs to column 4j + b.
//                  Q6: 2 x 64, bits 2j, 2j + 1 of line h to column 16h + 4j + b
#pragma once

#include <type_traits>
#include <utility>

#include "encodings/blocks.hpp"

namespace bitnet {

constexpr int kTileRows = 16;

// Sizes in bytes of the parts of a tile's block, which has *groups* times 32 columns: the header of
// the block, and high bits and codes of each group. *offset* is what kernels subtract from unsigned
// codes; to the entries of a table of codes they add it, so that these are unsigned, too.
struct TileLayout {
    int groups, header, high, codes, offset;
    constexpr int unit() const { return high + codes; }
    constexpr int block() const { return header + groups * unit(); }
};

// Sizes of headers, by what they hold for each row: a power of two; a float16; two of them; a
// float16 and eight or sixteen bytes; two and sixteen bytes.
constexpr int kPowers = 16, kScales = 32, kScalesAndMinima = 64, kByteScales = 160,
              kHalfByteScales = 288, kByteScalesAndMinima = 320;
// Sizes of high bits, by their number for each weight.
constexpr int kNoHighBits = 0, kOneHighBit = 64, kTwoHighBits = 128;

constexpr TileLayout tile_layout(Type type) {
    switch (type) {
        case Type::Q8_0_R16:
            return {1, kScales, kNoHighBits, 512, 128};
        case Type::Q4_0_R16:
            return {1, kScales, kNoHighBits, 256, 8};
        case Type::Q4_1_R16:
            return {1, kScalesAndMinima, kNoHighBits, 256, 0};
        case Type::Q5_0_R16:
            return {1, kScales, kOneHighBit, 256, 16};
        case Type::Q5_1_R16:
            return {1, kScalesAndMinima, kOneHighBit, 256, 0};
        case Type::Q4_K_R16:
            return {8, kByteScalesAndMinima, kNoHighBits, 256, 0};
        case Type::Q5_K_R16:
            return {8, kByteScalesAndMinima, kOneHighBit, 256, 0};
        case Type::Q6_K_R16:
            return {8, kHalfByteScales, kTwoHighBits, 256, 32};
        case Type::MXFP4_R16:
            return {1, kPowers, kNoHighBits, 256, 16};
        case Type::IQ4_NL_R16:
            return {1, kScales, kNoHighBits, 256, 128};
        case Type::IQ4_XS_R16:
            return {8, kByteScales, kNoHighBits, 256, 128};
        default:
            return {1, 0, 0, 0, 0};
    }
}

// Logarithm to base 2 of *power*, a power of two; 0 for 0. Every TileLayout::offset is a power of
// two or 0.
constexpr int log2_of(int power) { return power <= 1 ? 0 : 1 + log2_of(power / 2); }

constexpr bool tile_sizes_agree() {
    for (int t = int(Type::Q8_0_R16); t <= int(Type::IQ4_XS_R16); ++t)
        if (tile_layout(Type(t)).block() != kTileRows * kEncodings[t].bytes) return false;
    return true;
}
static_assert(tile_sizes_agree(), "tile layout");

// Packs rows of a file into tiles, on all threads. *out* has
// weight_bytes(tiled(type), rows, tiled_cols(type, cols)) bytes.
void pack_rows(Type type, const uint8_t* weight, int64_t rows, int64_t cols, uint8_t* out);

// Each instruction set compiles its own copy: no unit may run code of another's flags.
namespace {

template <Type kFirst, class Add, int... kNext>
void each_from(Add add, std::integer_sequence<int, kNext...>) {
    (add(std::integral_constant<Type, Type(kNext + int(kFirst))>()), ...);
}

// Calls *add* with every type from kFirst to the one before kEnd, as a constant:
// linear_block<type.value>.
template <Type kFirst, Type kEnd, class Add>
void each_type(Add add) {
    each_from<kFirst>(add, std::make_integer_sequence<int, int(kEnd) - int(kFirst)>());
}

// The same for every block encoding with interleaved rows.
template <class Add>
void each_block_type(Add add) {
    each_type<Type::Q8_0_R16, Type::Q1_0_R16>(add);
}

// Code of column *c*, 0 .. 31, of row *lane* of a group whose high bits and codes begin at *unit*.
[[maybe_unused]] inline int tile_code(Type type, const TileLayout& layout, const uint8_t* unit,
                                      int lane, int c) {
    const int j = c / 4, byte = 4 * lane + c % 4;
    if (type == Type::Q8_0_R16) return int(unit[64 * j + byte]) - layout.offset;
    const int both = unit[layout.high + 64 * (j % 4) + byte];
    int code = j < 4 ? both & 15 : both >> 4;
    if (has_table(type)) return code_table(type).code[code];
    if (layout.high == kOneHighBit) code |= ((unit[byte] >> j) & 1) << 4;
    if (layout.high == kTwoHighBits)
        code |= ((unit[64 * (j / 4) + byte] >> (2 * (j % 4))) & 3) << 4;
    return code - layout.offset;
}

// Group *g* of row *lane* of a tile in a block encoding. This is the specification.
[[maybe_unused]] inline void unpack_tile_group(Type type, const uint8_t* tile, int lane, int64_t g,
                                               Group& out) {
    const TileLayout layout = tile_layout(type);
    const uint8_t* block = tile + g / layout.groups * layout.block();
    const int j = int(g % layout.groups);
    const uint8_t* unit = block + layout.header + j * layout.unit();
    for (int c = 0; c < 32; ++c) out.code[c] = int8_t(tile_code(type, layout, unit, lane, c));
    const float d =
        layout.header == kPowers ? half_power(block[lane]) : read_half(block + 2 * lane);
    out.scale[0] = out.scale[1] = d;
    out.min = 0.0f;
    if (layout.header == kScalesAndMinima) out.min = read_half(block + 32 + 2 * lane);
    if (layout.header == kByteScalesAndMinima) {
        out.scale[0] = out.scale[1] = d * float(block[64 + 16 * j + lane]);
        out.min = -(read_half(block + 32 + 2 * lane) * float(block[192 + 16 * j + lane]));
    }
    if (layout.header == kByteScales)
        out.scale[0] = out.scale[1] = d * float(read<int8_t>(block + 32 + 16 * j + lane));
    if (layout.header == kHalfByteScales)
        for (int i = 0; i < 2; ++i)
            out.scale[i] = d * float(read<int8_t>(block + 32 + 32 * j + 16 * i + lane));
}

// Weight *column* of row *lane* of a tile of floats.
[[maybe_unused]] inline float tile_float(Type type, const uint8_t* tile, int lane, int64_t column) {
    const int64_t at = kTileRows * column + lane;
    if (type == Type::F32_R16) return read<float>(tile + 4 * at);
    return type == Type::F16_R16 ? read_half(tile + 2 * at)
                                 : bf16_to_float(read<uint16_t>(tile + 2 * at));
}

}  // namespace
}  // namespace bitnet
