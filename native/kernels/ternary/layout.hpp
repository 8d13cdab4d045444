// Layout of ternary weights in memory, the same for every encoding of a file: 16 rows together, in
// lines of 64 bytes.
//
// A tile is 16 rows, as lines one after the other. Byte 4 r + k of a line holds columns k, 4 + k,
// 8 + k, ... of row r, each as a digit that is the weight's code, weight + 1. So one register holds
// four neighbouring columns of every row once a digit of all bytes is isolated, and no sum crosses
// lanes. Rows and columns behind the last one are filled up with zero weights.
//
//   Ternary, TernaryBlocks   16 columns: four fields of two bits, the first in the lowest
//   TernaryDense             20 columns: five digits, worth 1, 3, 9, 28 and 84
//
// 28 instead of 27, since it is a multiple of four: the upper six bits of a byte give byte / 28,
// that is, its last two digits (84 is 3 x 28). The upper four bits, the index of a register's table
// of 16 bytes, leave two candidates for byte / 28, between which one comparison decides.
//
// TernaryBlocks has in addition, behind the codes of all tiles, a float32 for every 256 columns of
// a row: (tiles, cols / 256, 16).
#pragma once

#include "isa/kernels.hpp"

namespace bitnet {

constexpr int kTernaryRows = 16;  // rows of a tile
constexpr int kTernaryStep = 16;  // columns in a line of 64 bytes: two bits per weight
constexpr int kDenseStep = 20;    // columns in a line of TernaryDense
constexpr int kDensePlaces[] = {1, 3, 9, 28, 84};
// Two sums of 84 times a code of up to 2 times an input of up to 127, each over a fifth of the
// columns, fit 32 bits together.
constexpr int64_t kDenseCols = 1 << 17;
// Sums of 64 times a code of up to 2 times an input of up to 127, over a quarter of the columns,
// fit 32 bits.
constexpr int64_t kTernaryCols = 1 << 19;
constexpr int kTernaryBlock = 256;  // columns that share a scale in TernaryBlocks

constexpr int64_t ternary_tiles(int64_t rows) { return (rows + kTernaryRows - 1) / kTernaryRows; }
constexpr int ternary_step(Type type) {
    return type == Type::TernaryDense ? kDenseStep : kTernaryStep;
}
// The most columns of a matrix; those of TernaryBlocks are summed 256 at a time.
constexpr int64_t most_ternary_cols(Type type) {
    if (type == Type::TernaryDense) return kDenseCols;
    return type == Type::Ternary ? kTernaryCols : INT64_MAX;
}
constexpr int64_t ternary_tile_bytes(Type type, int64_t cols) {
    return cols / ternary_step(type) * 64;
}
constexpr int64_t ternary_code_bytes(Type type, int64_t rows, int64_t cols) {
    return ternary_tiles(rows) * ternary_tile_bytes(type, cols);
}

// Encodings that a ternary matrix can be packed from. Rows are one after the other except in
// packed_u8.
enum class TernarySource : int {
    codes,      // int8 -1, 0, +1
    i2_s,       // bitnet.cpp on x86: 128 weights in 32 bytes, the first 32 in the highest bits
    tq2_0,      // llama.cpp: 256 weights in 64 bytes, then a scale
    tq1_0,      // llama.cpp: 256 weights in 52 bytes in base 3, then a scale
    packed_u8,  // transformers: byte row r holds rows r, r + rows / 4, ... from the lowest bits up
    iq2_bn,  // ik_llama.cpp: a row scale, then 64 weights in 16 bytes, the first in the lowest bits
    kCount
};

// Bytes that *rows* x *cols* weights take in *source*; 0 if *source* cannot hold such a matrix.
constexpr int64_t ternary_source_bytes(TernarySource source, int64_t rows, int64_t cols) {
    switch (source) {
        case TernarySource::codes:
            return rows * cols;
        case TernarySource::i2_s:
            return cols % 128 ? 0 : rows * cols / 4;
        case TernarySource::tq2_0:
            return cols % 256 ? 0 : rows * cols / 256 * 66;
        case TernarySource::tq1_0:
            return cols % 256 ? 0 : rows * cols / 256 * 54;
        case TernarySource::packed_u8:
            return rows % 4 ? 0 : rows / 4 * cols;
        case TernarySource::iq2_bn:
            return cols % 64 ? 0 : rows * (4 + cols / 4);
        default:
            return 0;
    }
}

// Packs a matrix of *inputs* columns into tiles of *cols* columns, a multiple of ternary_step(type)
// that is not smaller; columns from *inputs* on become zero weights. *out* has
// ternary_code_bytes(type, rows, cols) bytes. Returns false if a weight was not ternary: a code was
// 3, or, in `codes`, not one of -1, 0 and 1.
bool pack_ternary(TernarySource source, const uint8_t* data, int64_t rows, int64_t inputs,
                  Type type, int64_t cols, uint8_t* out);

// Row *r* of a packed matrix of *rows* x *cols* as float32.
void unpack_ternary_row(Type type, const uint8_t* weight, int64_t rows, int64_t cols, int64_t r,
                        float scale, float* out);

// Each instruction set compiles its own copy: no unit may run code of another's flags.
namespace {

// Scales of the tile that row *r* is in, (cols / 256, 16).
[[maybe_unused]] inline const uint8_t* ternary_scales(const LinearArgs& a, int64_t r) {
    return a.weight + ternary_code_bytes(Type::TernaryBlocks, a.rows, a.cols) +
           r / kTernaryRows * (a.cols / kTernaryBlock) * kTernaryRows * 4;
}

// Code of column *c* in row *lane* of a tile.
[[maybe_unused]] inline int ternary_code(Type type, const uint8_t* tile, int64_t c, int64_t lane) {
    const int64_t step = ternary_step(type), within = c % step, digit = within / 4;
    const int byte = tile[c / step * 64 + 4 * lane + within % 4];
    if (type != Type::TernaryDense) return byte >> (2 * digit) & 3;
    const int low = byte % 28, group = byte / 28;
    return digit < 3 ? low / kDensePlaces[digit] % 3 : group / (digit == 3 ? 1 : 3) % 3;
}

// Where the activations of tokens t .. t + N - 1 begin.
template <int N>
struct Inputs {
    const int8_t* at[N];
    Inputs(const LinearArgs& a, int64_t t) {
        for (int n = 0; n < N; ++n) at[n] = a.q + (t + n) * a.cols;
    }
    const int8_t* operator[](int n) const { return at[n]; }
};

// Packs the first *cols* columns of a tile with two bits per weight as a tile of TernaryDense. No
// byte of a word overflows, so eight bytes are packed at once.
[[maybe_unused]] inline void make_dense(const uint8_t* tile, int64_t cols, uint8_t* out) {
    for (int64_t line = 0; line < cols / kDenseStep; ++line)
        for (int i = 0; i < 64; i += 8) {
            const auto digit = [&](int64_t d) {
                const int64_t at = 5 * line + d;  // group of four columns
                return read<uint64_t>(tile + at / 4 * 64 + i) >> (2 * (at % 4)) &
                       0x0303030303030303;
            };
            const uint64_t bytes =
                digit(0) + 3 * (digit(1) + 3 * digit(2)) + 28 * (digit(3) + 3 * digit(4));
            std::memcpy(out + 64 * line + i, &bytes, 8);
        }
}

}  // namespace

// ---- scales per group of columns
//
// Weights (code - 1) * scale, with a float16 scale per group of 64 or 128 columns of a row and
// floats as inputs: Q1_0, Q2_0, PQ2_0 and PTQ1_0 in tiles of 16 rows.
//
// A tile is its scales, (groups, 16) float16, and lines of 64 bytes. A block is eight lines, which
// have a run of 32 columns for each digit of a byte. Byte 4 r + k of line i holds, as digit f,
// column 32 f + 4 i + k of row r of the block. So one register holds four neighbouring columns of
// every row once a digit is isolated, as in the tiles above, and the products of one digit in the
// eight lines add up to the sum of a run, whose inputs share a step.
//
//   two bits   4 runs: digit f is worth 4^f
//   one bit    8 runs: digit f is worth 2^f, and is half of its code, which is 0 or 2
//   dense      5 runs: digits are worth 1, 3, 9, 28 and 84, as in TernaryDense; no code 3
//
// Rows behind the last one and groups behind the last column have the scale 0.

constexpr int kRun = 32;      // columns whose inputs share a step
constexpr int kRunLines = 8;  // lines of a block
constexpr int kBlockBytes = kRunLines * 64;

constexpr int group_runs(Type type) {  // runs that share a scale
    return encoding(in_rows(type)).weights / kRun;
}
constexpr bool is_one_bit(Type type) { return type == Type::Q1_0_R16; }
constexpr bool is_dense(Type type) { return type == Type::PTQ1_0_R16; }
constexpr int64_t groups_of(Type type, int64_t cols) {
    const int64_t group = kRun * group_runs(type);
    return (cols + group - 1) / group;
}
constexpr int64_t group_scale_bytes(Type type, int64_t cols) {
    return groups_of(type, cols) * kTernaryRows * 2;
}
// Bytes of a row's share of a tile.
constexpr int64_t group_row_bytes(Type type, int64_t cols) {
    return cols / encoding(type).weights * encoding(type).bytes + groups_of(type, cols) * 2;
}

// Packs a matrix of *inputs* columns in *source*, an encoding in rows, into tiles of
// tiled_cols(source, inputs) columns.
void pack_groups(Type source, const uint8_t* weight, int64_t rows, int64_t inputs, uint8_t* out);

// Row *r* of a packed matrix as float32.
void unpack_group_row(Type type, const uint8_t* weight, int64_t cols, int64_t r, float* out);

// Each instruction set compiles its own copy: no unit may run code of another's flags.
namespace {

// Code of column *c* in row *lane* of the lines of a tile.
[[maybe_unused]] inline int group_code(Type type, const uint8_t* lines, int64_t c, int64_t lane) {
    const int step = encoding(type).weights;
    const int64_t within = c % step, f = within / kRun, i = within % kRun / 4;
    const int byte = lines[c / step * kBlockBytes + 64 * i + 4 * lane + within % 4];
    if (is_one_bit(type)) return 2 * (byte >> f & 1);
    if (!is_dense(type)) return byte >> (2 * f) & 3;
    return f < 3 ? byte % 28 / kDensePlaces[f] % 3 : byte / 28 / (f == 3 ? 1 : 3) % 3;
}

}  // namespace

}  // namespace bitnet
