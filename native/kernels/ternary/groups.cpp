// Encodings with a scale per group of columns into the tiles of ternary/groups.hpp, and rows of them back.
#include "ternary/groups.hpp"

#include <algorithm>

#include "system/thread_pool.hpp"

namespace bitnet {
namespace {

constexpr int64_t kTilesPerPiece = 4;
constexpr uint64_t kOnes = 0x0101010101010101;

// What a code of run *f* of a block is worth in its byte; a code of one bit is halved.
int place_of(Type type, int f) { return is_dense(type) ? kDensePlaces[f] : 1 << (is_one_bit(type) ? f : 2 * f); }

// Row *lane* of a block: the words of its eight lines, from the codes of its runs.
void put_block(Type type, const uint8_t (*code)[kRun], int lane, uint8_t* block) {
    const int runs = runs_of(type);
    for (int i = 0; i < kRunLines; i += 2) {
        uint64_t pair = 0;
        for (int f = 0; f < runs; ++f) {
            const auto digits = read<uint64_t>(code[f] + 4 * i);  // no byte of the sum overflows
            pair += uint64_t(place_of(type, f)) * (is_one_bit(type) ? digits >> 1 & kOnes : digits);
        }
        std::memcpy(block + 64 * i + 4 * lane, &pair, 4);
        const auto second = uint32_t(pair >> 32);
        std::memcpy(block + 64 * (i + 1) + 4 * lane, &second, 4);
    }
}

void pack_group_tile(Type source, const uint8_t* weight, int64_t rows, int64_t inputs, uint8_t* out) {
    const Type type = tiled(source);
    const Encoding& from = encoding(source);
    const int64_t cols = tiled_cols(source, inputs), row_bytes = inputs / from.weights * from.bytes;
    const int64_t scales = group_scale_bytes(type, cols), last_run = inputs / kRun;
    const int runs = runs_of(type), shared = group_runs(type);
    uint8_t code[8][kRun];
    std::fill(out, out + scales, uint8_t(0));
    for (int64_t lane = 0; lane < kTernaryRows; ++lane) {
        const uint8_t* row = weight + lane * row_bytes;
        for (int64_t first = 0; first < cols / kRun; first += runs) {
            for (int f = 0; f < runs; ++f) {
                const int64_t run = first + f;
                if (lane >= rows || run >= last_run) {
                    std::fill(code[f], code[f] + kRun, uint8_t(1));
                    continue;
                }
                const uint16_t scale = float_to_half(unpack_codes(source, row, run, code[f]));
                if (run % shared == 0) std::memcpy(out + (run / shared * kTernaryRows + lane) * 2, &scale, 2);
            }
            put_block(type, code, int(lane), out + scales + first / runs * kBlockBytes);
        }
    }
}

}  // namespace

void pack_groups(Type source, const uint8_t* weight, int64_t rows, int64_t inputs, uint8_t* out) {
    const Encoding& from = encoding(source);
    const int64_t tile_bytes = kTernaryRows * group_row_bytes(tiled(source), tiled_cols(source, inputs));
    const int64_t row_bytes = inputs / from.weights * from.bytes, tiles = ternary_tiles(rows);
    parallel_for((tiles + kTilesPerPiece - 1) / kTilesPerPiece, [&](int64_t chunk) {
        for (int64_t t = chunk * kTilesPerPiece; t < std::min(tiles, (chunk + 1) * kTilesPerPiece); ++t) {
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
