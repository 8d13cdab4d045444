// Encodings with a scale per group of columns into the tiles of ternary/groups.hpp, and rows of them back.
#include "ternary/groups.hpp"

#include <algorithm>

#include "system/split.hpp"

namespace bitnet {
namespace {

// Row *lane* of a tile from a row of the file; *lines* are those of the tile. Groups behind *inputs* have the scale 0.
void put_row(Type source, const uint8_t* row, int64_t inputs, int64_t cols, int lane, uint8_t* lines) {
    const Type type = tiled(source);
    const int runs = runs_of(type), halved = is_one_bit(type) ? 1 : 0;
    uint8_t* codes = thread_scratch(size_t(cols));
    for (int64_t g = 0; g < inputs / kRun; ++g) unpack_codes(source, row, g, codes + kRun * g);
    std::fill(codes + inputs, codes + cols, uint8_t(1 - halved));
    for (int64_t c = 0; c < cols; c += kRun * runs, lines += kBlockBytes)
        for (int i = 0; i < kRunLines; i += 2) {
            uint64_t words = 0;  // two lines' bytes of this row; no byte of the sum overflows
            for (int f = 0; f < runs; ++f)
                words += uint64_t(digit_place(type, f)) * (read<uint64_t>(codes + c + kRun * f + 4 * i) >> halved);
            const uint32_t two[2] = {uint32_t(words), uint32_t(words >> 32)};
            std::memcpy(lines + 64 * i + 4 * lane, &two[0], 4), std::memcpy(lines + 64 * (i + 1) + 4 * lane, &two[1], 4);
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
