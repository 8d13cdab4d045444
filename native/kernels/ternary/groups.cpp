// Encodings with a scale per group of columns into the tiles of ternary/groups.hpp, and rows of them back.
#include "ternary/groups.hpp"

#include <algorithm>

#include "system/split.hpp"

namespace bitnet {
namespace {

constexpr int64_t kDenseGroup = 128;  // columns of a group of PTQ1_0
constexpr uint8_t kNoBits[4] = {};    // runs of zero weights, which no scale belongs to
constexpr uint8_t kNoFields[8] = {0x55, 0x55, 0x55, 0x55, 0x55, 0x55, 0x55, 0x55};

// Four bytes of four fields of two bits as a matrix, transposed.
uint32_t transpose_fields(uint32_t x) {
    uint32_t swapped = (x ^ (x >> 6)) & 0x00cc00cc;
    x ^= swapped ^ (swapped << 6);
    swapped = (x ^ (x >> 12)) & 0x0000f0f0;
    return x ^ swapped ^ (swapped << 12);
}

// Eight bytes as a matrix of bits, transposed.
uint64_t transpose_bits(uint64_t x) {
    uint64_t swapped = (x ^ (x >> 7)) & 0x00aa00aa00aa00aa;
    x ^= swapped ^ (swapped << 7);
    swapped = (x ^ (x >> 14)) & 0x0000cccc0000cccc;
    x ^= swapped ^ (swapped << 14);
    swapped = (x ^ (x >> 28)) & 0x00000000f0f0f0f0;
    return x ^ swapped ^ (swapped << 28);
}

void put_word(uint8_t* line, int lane, uint64_t word) {
    const auto bytes = uint32_t(word);
    std::memcpy(line + 4 * lane, &bytes, 4);
}

// Row *lane* of a block from the codes of its runs as a file has them: four or eight to a byte, in turn.
void put_fields(const uint8_t* const* run, int lane, uint8_t* block) {
    for (int i = 0; i < kRunLines; ++i) {
        uint32_t word = 0;
        for (int f = 0; f < 4; ++f) word |= uint32_t(run[f][i]) << (8 * f);
        put_word(block + 64 * i, lane, transpose_fields(word));
    }
}

void put_bits(const uint8_t* const* run, int lane, uint8_t* block) {
    for (int i = 0; i < kRunLines; i += 2) {
        uint64_t words = 0;
        for (int f = 0; f < 8; ++f) words |= uint64_t(run[f][i / 2]) << (8 * f);
        words = transpose_bits(words);
        put_word(block + 64 * i, lane, words);
        put_word(block + 64 * (i + 1), lane, words >> 32);
    }
}

// The same from codes, one to a byte.
void put_dense(const uint8_t* codes, int lane, uint8_t* block) {
    for (int i = 0; i < kRunLines; i += 2) {
        uint64_t words = 0;  // no byte of the sum overflows
        for (int f = 0; f < 5; ++f) words += uint64_t(kDensePlaces[f]) * read<uint64_t>(codes + kRun * f + 4 * i);
        put_word(block + 64 * i, lane, words);
        put_word(block + 64 * (i + 1), lane, words >> 32);
    }
}

// All *digits* of kCount bytes of base 3, the first ones first; see base3_digits.
template <int kCount>
void unpack_base3(const uint8_t* bytes, int digits, uint8_t* code) {
    uint16_t rest[kCount];
    for (int i = 0; i < kCount; ++i) rest[i] = bytes[i];
    for (int n = 0; n < digits; ++n, code += kCount)
        for (int i = 0; i < kCount; ++i) {
            const auto tripled = uint16_t(rest[i] * 3);
            code[i] = uint8_t(tripled >> 8);
            rest[i] = tripled & 255;
        }
}

// Codes of a group of PTQ1_0: 80 in 16 bytes, 40 in 8 and 8 in 2.
void unpack_dense(const uint8_t* group, uint8_t* code) {
    unpack_base3<16>(group, 5, code);
    unpack_base3<8>(group + 16, 5, code + 80);
    unpack_base3<2>(group + 24, 4, code + 120);
}

// Row *lane* of a tile from a row of the file; *lines* are those of the tile.
void put_row(Type source, const uint8_t* row, int64_t inputs, int64_t cols, int lane, uint8_t* lines) {
    const Encoding& from = encoding(source);
    if (source == Type::PTQ1_0) {
        uint8_t* codes = thread_scratch(size_t(cols));
        for (int64_t c = 0; c < inputs; c += kDenseGroup) unpack_dense(row + c / kDenseGroup * from.bytes, codes + c);
        std::fill(codes + inputs, codes + cols, uint8_t(1));
        for (int64_t c = 0; c < cols; c += 5 * kRun, lines += kBlockBytes) put_dense(codes + c, lane, lines);
        return;
    }
    const bool bits = source == Type::Q1_0;
    const int runs = bits ? 8 : 4, run_bytes = kRun / runs, shared = from.weights / kRun;
    const uint8_t* run[8];
    for (int64_t first = 0; first < cols / kRun; first += runs, lines += kBlockBytes) {
        for (int f = 0; f < runs; ++f) {
            const int64_t group = (first + f) / shared, within = (first + f) % shared;
            run[f] = kRun * (first + f) < inputs ? row + group * from.bytes + 2 + within * run_bytes
                     : bits                      ? kNoBits
                                                 : kNoFields;
        }
        if (bits) put_bits(run, lane, lines);
        else put_fields(run, lane, lines);
    }
}

void pack_group_tile(Type source, const uint8_t* weight, int64_t rows, int64_t inputs, uint8_t* out) {
    const Type type = tiled(source);
    const Encoding& from = encoding(source);
    const int64_t cols = tiled_cols(source, inputs), groups = inputs / from.weights;
    const int64_t scales = group_scale_bytes(type, cols), where = source == Type::PTQ1_0 ? from.bytes - 2 : 0;
    std::memset(out, 0, size_t(scales));
    for (int lane = 0; lane < int(kTernaryRows); ++lane) {
        const uint8_t* row = weight + lane * groups * from.bytes;
        const int64_t filled = lane < rows ? inputs : 0;
        for (int64_t g = 0; g < filled / from.weights; ++g)
            std::memcpy(out + (g * kTernaryRows + lane) * 2, row + g * from.bytes + where, 2);
        put_row(source, row, filled, cols, lane, out + scales);
    }
}

}  // namespace

void pack_groups(Type source, const uint8_t* weight, int64_t rows, int64_t inputs, uint8_t* out) {
    const Encoding& from = encoding(source);
    const int64_t tile_bytes = kTernaryRows * group_row_bytes(tiled(source), tiled_cols(source, inputs));
    const int64_t row_bytes = inputs / from.weights * from.bytes, tiles = ternary_tiles(rows);
    Split(tiles, 1, rows * inputs < kSerialWork).run([&](int64_t t0, int64_t t1) {
        for (int64_t t = t0; t < t1; ++t) {
            const int64_t r = t * kTernaryRows, count = std::min<int64_t>(kTernaryRows, rows - r);
            pack_group_tile(source, weight + r * row_bytes, count, inputs, out + t * tile_bytes);
        }
    });
}

void unpack_group_row(Type type, const uint8_t* weight, int64_t cols, int64_t r, float* out) {
    const int64_t lane = r % kTernaryRows;
    const uint8_t* tile = weight + (r - lane) * group_row_bytes(type, cols);
    const uint8_t* lines = tile + group_scale_bytes(type, cols);
    for (int64_t c = 0; c < cols; ++c) {
        const float scale = read_half(tile + (c / (kRun * group_runs(type)) * kTernaryRows + lane) * 2);
        out[c] = scale * float(group_code(type, lines, c, lane) - 1);
    }
}

}  // namespace bitnet
