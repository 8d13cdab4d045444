// Ternary weights in memory, whatever encoding the file has: two bits per weight, 16 rows together.
//
// A tile is 16 rows; 16 columns of it are 64 bytes. Byte 4 r + k holds columns k, 4 + k, 8 + k and
// 12 + k of row r, the first in the lowest bits, as weight + 1. So one register holds four
// neighbouring columns of every row after a mask, and no sum crosses lanes. Rows behind the last one
// are filled up with zero weights. TernaryBlocks has in addition, behind the codes of all tiles, a
// float32 for every 256 columns of a row: (tiles, cols / 256, 16).
#pragma once

#include "kernels.hpp"

namespace bitnet {

constexpr int kTernaryRows = 16;     // rows of a tile
constexpr int kTernaryStep = 16;     // columns in 64 bytes of a tile
constexpr int kTernaryBlock = 256;   // columns that share a scale in TernaryBlocks

constexpr int64_t ternary_tiles(int64_t rows) { return (rows + kTernaryRows - 1) / kTernaryRows; }
constexpr int64_t ternary_code_bytes(int64_t rows, int64_t cols) { return ternary_tiles(rows) * cols * 4; }

// What a ternary matrix may be packed from. Rows are one after the other except in packed_u8.
enum class TernarySource : int {
    codes,      // int8 -1, 0, +1
    i2_s,       // bitnet.cpp on x86: 128 weights in 32 bytes, the first 32 on top
    tq2_0,      // llama.cpp: 256 weights in 64 bytes, then a scale
    tq1_0,      // llama.cpp: 256 weights in 52 bytes in base 3, then a scale
    packed_u8,  // transformers: byte row r holds rows r, r + rows / 4, ... from the lowest bits up
    iq2_bn,     // ik_llama.cpp: a row scale, then 64 weights in 16 bytes, the first 16 lowest
    kCount
};

// Bytes that *rows* x *cols* weights take in *source*, 0 when they cannot be that.
constexpr int64_t ternary_source_bytes(TernarySource source, int64_t rows, int64_t cols) {
    switch (source) {
        case TernarySource::codes: return rows * cols;
        case TernarySource::i2_s: return cols % 128 ? 0 : rows * cols / 4;
        case TernarySource::tq2_0: return cols % 256 ? 0 : rows * cols / 256 * 66;
        case TernarySource::tq1_0: return cols % 256 ? 0 : rows * cols / 256 * 54;
        case TernarySource::packed_u8: return rows % 4 ? 0 : rows / 4 * cols;
        case TernarySource::iq2_bn: return cols % 64 ? 0 : rows * (4 + cols / 4);
        default: return 0;
    }
}

// Packs a matrix of *inputs* columns into tiles of *cols*, a multiple of kTernaryStep that is no
// smaller; the rest is zero weights. *out* has ternary_code_bytes(rows, cols) bytes. False: a code
// was 3, or not one of -1, 0 and 1.
bool pack_ternary(TernarySource source, const uint8_t* data, int64_t rows, int64_t inputs, int64_t cols, uint8_t* out);

// A tile of 16 whole rows of i2_s or tq2_0; returns whether a code is 3.
using TilePacker = bool (*)(TernarySource source, const uint8_t* rows, int64_t cols, uint8_t* out);
#if defined(BITNET_X86)
bool pack_two_bit_avx2(TernarySource source, const uint8_t* rows, int64_t cols, uint8_t* out);
#endif

// Row *r* of a packed matrix of *rows* x *cols* as float32.
void unpack_ternary_row(Type type, const uint8_t* weight, int64_t rows, int64_t cols, int64_t r, float scale, float* out);

namespace {

// Scales of the tile that row *r* starts, (cols / 256, 16).
[[maybe_unused]] inline const uint8_t* ternary_scales(const LinearArgs& a, int64_t r) {
    return a.weight + ternary_code_bytes(a.rows, a.cols) + r / kTernaryRows * (a.cols / kTernaryBlock) * kTernaryRows * 4;
}

}  // namespace
}  // namespace bitnet
