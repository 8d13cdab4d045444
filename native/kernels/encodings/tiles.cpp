// Repacking of rows as they are in files to tiles of 16.
#include "encodings/tiles.hpp"

#include <algorithm>
#include <vector>

#include "isa/dispatch.hpp"
#include "system/thread_pool.hpp"
#include "ternary/groups.hpp"

namespace bitnet {
namespace {

constexpr int64_t kLine = 4 * kTileRows;  // bytes of four columns of every row

template <class T>
void put(uint8_t* p, T value) {
    std::memcpy(p, &value, sizeof value);
}

void copy_half(uint8_t* to, const uint8_t* from) { put(to, read<uint16_t>(from)); }

// Bits 0..3 to bit 0 of bytes 0..3.
uint32_t spread(uint32_t bits) { return ((bits & 15) * 0x00204081u) & 0x01010101u; }

// 32 codes of one row whose low four bits are 16 bytes as Q4_0 has them, the fifth in *high*.
void put_nibbles(uint8_t* unit, int lane, const uint8_t* q) {
    for (int i = 0; i < 4; ++i) put(unit + kLine * i + 4 * lane, read<uint32_t>(q + 4 * i));
}

void put_fifth_bits(uint8_t* unit, int lane, uint32_t high) {
    uint32_t word = 0;
    for (int j = 0; j < 8; ++j) word |= spread(high >> (4 * j)) << j;
    put(unit + 4 * lane, word);
}

// 32 codes as 32 half bytes that follow each other, of which *shift* bits belong to others.
void put_half_bytes(uint8_t* unit, int lane, const uint8_t* q, int shift) {
    for (int i = 0; i < 4; ++i) {
        const uint32_t low = (read<uint32_t>(q + 4 * i) >> shift) & 0x0f0f0f0fu;
        const uint32_t high = (read<uint32_t>(q + 16 + 4 * i) >> shift) & 0x0f0f0f0fu;
        put(unit + kLine * i + 4 * lane, low | high << 4);
    }
}

void put_32(Type type, const uint8_t* block, uint8_t* out, int lane) {
    const TileLayout layout = tile_layout(tiled(type));
    uint8_t* codes = out + layout.header + layout.high;
    if (type == Type::MXFP4) {
        out[lane] = block[0];
        return put_nibbles(codes, lane, block + 1);
    }
    const bool has_min = layout.header == 64;
    copy_half(out + 2 * lane, block);
    if (has_min) copy_half(out + 32 + 2 * lane, block + 2);
    const uint8_t* q = block + (has_min ? 4 : 2);
    if (type == Type::Q8_0) {
        for (int i = 0; i < 8; ++i)
            put(codes + kLine * i + 4 * lane, read<uint32_t>(q + 4 * i) ^ 0x80808080u);
        return;
    }
    if (layout.high) {
        put_fifth_bits(out + layout.header, lane, read<uint32_t>(q));
        q += 4;
    }
    put_nibbles(codes, lane, q);
}

void put_k(Type type, const uint8_t* block, uint8_t* out, int lane) {
    const TileLayout layout = tile_layout(tiled(type));
    const uint8_t* q = block + (type == Type::Q4_K ? 16 : 48);
    uint8_t scale[8], min[8];
    unpack_k_scales(block + 4, scale, min);
    copy_half(out + 2 * lane, block);
    copy_half(out + 32 + 2 * lane, block + 2);
    for (int j = 0; j < 8; ++j) {
        out[64 + kTileRows * j + lane] = scale[j];
        out[192 + kTileRows * j + lane] = min[j];
        uint8_t* unit = out + layout.header + j * layout.unit();
        if (layout.high) {
            uint32_t word = 0;
            for (int i = 0; i < 8; ++i) word |= ((read<uint32_t>(block + 16 + 4 * i) >> j) & 0x01010101u) << i;
            put(unit + 4 * lane, word);
        }
        put_half_bytes(unit + layout.high, lane, q + 32 * (j / 2), 4 * (j % 2));
    }
}

void put_q6_k(const uint8_t* block, uint8_t* out, int lane) {
    const TileLayout layout = tile_layout(Type::Q6_K_R16);
    copy_half(out + 2 * lane, block + 208);
    for (int i = 0; i < 16; ++i) out[32 + kTileRows * i + lane] = block[192 + i];
    for (int j = 0; j < 8; ++j) {
        uint8_t* unit = out + layout.header + j * layout.unit();
        const int quarter = j % 4;
        const uint8_t *low = block + 64 * (j / 4) + 32 * (quarter % 2), *high = block + 128 + 32 * (j / 4);
        for (int half = 0; half < 2; ++half) {
            uint32_t word = 0;
            for (int i = 0; i < 4; ++i)
                word |= ((read<uint32_t>(high + 16 * half + 4 * i) >> (2 * quarter)) & 0x03030303u) << (2 * i);
            put(unit + kLine * half + 4 * lane, word);
        }
        put_half_bytes(unit + layout.high, lane, low, 4 * (quarter / 2));
    }
}

void put_iq4_xs(const uint8_t* block, uint8_t* out, int lane) {
    const TileLayout layout = tile_layout(Type::IQ4_XS_R16);
    copy_half(out + 2 * lane, block);
    for (int j = 0; j < 8; ++j) {
        out[32 + kTileRows * j + lane] = uint8_t(iq4_xs_scale(block, j));
        put_nibbles(out + layout.header + j * layout.unit(), lane, block + 8 + 16 * j);
    }
}

template <class T>
void pack_floats(const uint8_t* const* rows, int64_t cols, uint8_t* tile) {
    for (int64_t c = 0; c < cols; ++c)
        for (int r = 0; r < kTileRows; ++r)
            std::memcpy(tile + int64_t(sizeof(T)) * (kTileRows * c + r), rows[r] + int64_t(sizeof(T)) * c, sizeof(T));
}

}  // namespace

void pack_tile(Type type, const uint8_t* const* rows, int64_t cols, uint8_t* tile) {
    const Encoding& size = encoding(type);
    const int64_t block_bytes = kTileRows * encoding(tiled(type)).bytes;
    if (type == Type::F32) return pack_floats<uint32_t>(rows, cols, tile);
    if (is_float(type)) return pack_floats<uint16_t>(rows, cols, tile);
    for (int64_t b = 0; b < cols / size.weights; ++b)
        for (int lane = 0; lane < kTileRows; ++lane) {
            const uint8_t* from = rows[lane] + b * size.bytes;
            uint8_t* to = tile + b * block_bytes;
            if (type == Type::Q6_K) put_q6_k(from, to, lane);
            else if (type == Type::IQ4_XS) put_iq4_xs(from, to, lane);
            else if (size.weights == 256) put_k(type, from, to, lane);
            else put_32(type, from, to, lane);
        }
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
