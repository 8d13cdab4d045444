// Repacking of rows as they are in files to tiles of 16.
#include "encodings/tiles.hpp"

#include <algorithm>
#include <vector>

#include "isa/dispatch.hpp"
#include "system/thread_pool.hpp"
#include "ternary/groups.hpp"

namespace bitnet {
namespace {

template <class T>
void pack_floats(const uint8_t* const* rows, int64_t cols, uint8_t* tile) {
    for (int64_t c = 0; c < cols; ++c)
        for (int r = 0; r < kTileRows; ++r)
            std::memcpy(tile + int64_t(sizeof(T)) * (kTileRows * c + r), rows[r] + int64_t(sizeof(T)) * c, sizeof(T));
}

}  // namespace

void pack_float_tile(Type type, const uint8_t* const* rows, int64_t cols, uint8_t* tile) {
    if (type == Type::F32) pack_floats<uint32_t>(rows, cols, tile);
    else pack_floats<uint16_t>(rows, cols, tile);
}

void pack_rows(Type type, const uint8_t* weight, int64_t rows, int64_t cols, uint8_t* out) {
    if (is_grouped_row(type)) return pack_groups(type, weight, rows, cols, out);
    const int64_t tiles = (rows + kTileRows - 1) / kTileRows, blocks = cols / encoding(type).weights;
    const int64_t row_bytes = blocks * encoding(type).bytes, tile_bytes = kTileRows * blocks * encoding(tiled(type)).bytes;
    const std::vector<uint8_t> zeros(rows % kTileRows ? size_t(row_bytes) : 0);
    constexpr int64_t kTilesPerChunk = 8;
    parallel_for((tiles + kTilesPerChunk - 1) / kTilesPerChunk, [&](int64_t chunk) {
        for (int64_t t = chunk * kTilesPerChunk; t < std::min(tiles, (chunk + 1) * kTilesPerChunk); ++t) {
            const uint8_t* its[kTileRows];
            for (int64_t i = 0; i < kTileRows; ++i) {
                const int64_t r = kTileRows * t + i;
                its[i] = r < rows ? weight + r * row_bytes : zeros.data();
            }
            detail::active().gather(type, its, cols, out + t * tile_bytes);
        }
    });
}

}  // namespace bitnet
