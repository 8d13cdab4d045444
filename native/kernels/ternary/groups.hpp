// Weights (code - 1) * scale, with a float16 scale per group of 64 or 128 columns of a row and floats as inputs:
// Q1_0, Q2_0, PQ2_0 and PTQ1_0 in tiles of 16 rows.
//
// A tile is its scales, (groups, 16) float16, and lines of 64 bytes. Eight lines, a block, are as many runs of 32
// columns as a byte has digits. Byte 4 r + k of line i holds, as digit f, column 32 f + 4 i + k of row r of the
// block. So one register holds four neighbouring columns of every row once a digit is isolated, as in
// ternary/layout.hpp, and the products of a digit in eight lines are the sum of a run, whose inputs share a step.
//
//   two bits   4 runs: digit f is worth 4^f
//   one bit    8 runs: 2^f; a bit is half of its code, which is 0 or 2
//   dense      5 runs: 1, 3, 9, 28 and 84, as in TernaryDense; code 3 has no place
//
// Rows behind the last one and groups behind the last column have the scale 0.
#pragma once

#include "ternary/layout.hpp"

namespace bitnet {

constexpr int kRun = 32;        // columns whose inputs share a step
constexpr int kRunLines = 8;    // lines of a block
constexpr int kBlockBytes = kRunLines * 64;

constexpr int runs_of(Type type) { return encoding(type).weights / kRun; }  // of a block
constexpr int group_runs(Type type) {                                       // that share a scale
    return encoding(Type(int(type) - int(Type::F32_R16))).weights / kRun;
}
constexpr bool is_one_bit(Type type) { return type == Type::Q1_0_R16; }
constexpr bool is_dense(Type type) { return type == Type::PTQ1_0_R16; }
constexpr int64_t groups_of(Type type, int64_t cols) {
    const int64_t group = kRun * group_runs(type);
    return (cols + group - 1) / group;
}
constexpr int64_t group_scale_bytes(Type type, int64_t cols) { return groups_of(type, cols) * kTernaryRows * 2; }
constexpr int64_t group_row_bytes(Type type, int64_t cols) {
    return cols / encoding(type).weights * encoding(type).bytes + groups_of(type, cols) * 2;
}

// Packs rows of *source*, an encoding in rows, of *inputs* columns as tiles of tiled_cols(source, inputs).
void pack_groups(Type source, const uint8_t* weight, int64_t rows, int64_t inputs, uint8_t* out);

// Row *r* of a packed matrix as float32.
void unpack_group_row(Type type, const uint8_t* weight, int64_t cols, int64_t r, float* out);

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
