// Packs rows as they are in a file into tiles of 16 (encodings/tiles.hpp, ternary/layout.hpp), as
// fast as memory is read.
//
// The including file defines `transpose_lines` and `planes`, and with BITNET_F16C also
// `transpose_halves`. `transpose_lines` makes four lines of dwords, one of each row, from 16 bytes
// of each of 16 rows; `transpose_halves` makes eight half lines of words from them; `planes` writes
// the first bytes of the 16 dwords of a line, then the second, third and fourth ones. All other
// code is plain loops over the dwords of lines.
#pragma once

#include "ternary/layout.hpp"

namespace bitnet {
// Each instruction set compiles its own copy: no unit may run code of another's flags.
namespace {

using RowPointers = const uint8_t* const*;

#if !defined(BITNET_F16C)
inline void transpose_halves(RowPointers rows, int64_t at, uint8_t* out) {
    for (int i = 0; i < 8; ++i)
        for (int r = 0; r < kTileRows; ++r)
            std::memcpy(out + 32 * i + 2 * r, rows[r] + at + 2 * i, 2);
}
#endif

// kCount dwords of each row, from byte *from* on: `at[i]` is dword i of all rows.
template <int kCount>
struct Lines {
    static_assert(kCount % 4 == 0, "16 bytes of a row at once");
    alignas(64) uint32_t at[kCount][kTileRows];
    Lines(RowPointers rows, int64_t from) {
        for (int i = 0; i < kCount; i += 4)
            transpose_lines(rows, from + 4 * i, reinterpret_cast<uint8_t*>(at[i]));
    }
};

// Writes a line to *out*: dword(r) for each row.
template <class Dword>
inline void put_line(uint8_t* out, Dword dword) {
    uint32_t line[kTileRows];
    for (int r = 0; r < kTileRows; ++r) line[r] = dword(r);
    std::memcpy(out, line, sizeof line);
}

// Writes the codes of 32 columns, four bits each, as four lines. They are in the eight dwords *q*
// of each row, from bit *shift* of each byte on.
inline void put_halves(uint8_t* codes, const uint32_t (*q)[kTileRows], int shift) {
    for (int i = 0; i < 4; ++i)
        put_line(codes + 64 * i, [&](int r) {
            return ((q[i][r] >> shift) & 0x0f0f0f0fu) | ((q[4 + i][r] >> shift) & 0x0f0f0f0fu) << 4;
        });
}

// Writes 16 bits, from bit *shift* on, of the dword of each row.
inline void put_16_bits(uint8_t* out, const uint32_t* dwords, int shift) {
    uint16_t halves[kTileRows];
    for (int r = 0; r < kTileRows; ++r) halves[r] = uint16_t(dwords[r] >> shift);
    std::memcpy(out, halves, sizeof halves);
}

// Packs a block of 32 columns, which begins at byte *at* of each row.
template <Type kType>
inline void gather_32(RowPointers rows, int64_t at, uint8_t* out) {
    constexpr TileLayout kLayout = tile_layout(kType);
    constexpr int kHeader = kLayout.header / kTileRows;  // bytes of a row
    for (int r = 0; r < kTileRows; ++r)
        for (int i = 0; i < kHeader; i += 2)
            std::memcpy(out + 16 * i + (kHeader == 1 ? r : 2 * r), rows[r] + at + i,
                        kHeader == 1 ? 1 : 2);
    at += kHeader;
    out += kLayout.header;
    if constexpr (kLayout.high) {
        uint32_t high[kTileRows];
        for (int r = 0; r < kTileRows; ++r) high[r] = read<uint32_t>(rows[r] + at);
        put_line(out, [&](int r) {
            uint32_t dword = 0;
            // The product moves bit i of four to byte i.
            for (int j = 0; j < 8; ++j)
                dword |= (((high[r] >> (4 * j)) & 15) * 0x00204081u & 0x01010101u) << j;
            return dword;
        });
        at += 4;
        out += kLayout.high;
    }
    for (int i = 0; i < kLayout.codes / 256; ++i) transpose_lines(rows, at + 16 * i, out + 256 * i);
    if constexpr (kType == Type::Q8_0_R16)
        for (int i = 0; i < kLayout.codes; ++i) out[i] ^= 0x80;
}

// Packs a block of 256 columns of Q4_K or Q5_K.
template <Type kType>
inline void gather_k(RowPointers rows, int64_t at, uint8_t* out) {
    constexpr TileLayout kLayout = tile_layout(kType);
    const Lines<4> head(rows, at);
    put_16_bits(out, head.at[0], 0);
    put_16_bits(out + 32, head.at[0], 16);
    alignas(64) uint8_t line[64];
    for (int i = 0; i < 2; ++i) {  // scales, then minima
        const auto *low = head.at[1 + i], *high = head.at[3];
        put_line(line, [&](int r) { return low[r] & 0x3f3f3f3fu; });
        planes(line, out + 64 + 128 * i);
        put_line(line, [&](int r) {
            return ((high[r] >> (4 * i)) & 0x0f0f0f0fu) | ((low[r] >> 2) & 0x30303030u);
        });
        planes(line, out + 128 + 128 * i);
    }
    out += kLayout.header;
    at += 16;
    if constexpr (kLayout.high) {
        const Lines<8> high(rows, at);
        for (int j = 0; j < 8; ++j)
            put_line(out + j * kLayout.unit(), [&](int r) {
                uint32_t dword = 0;
                for (int i = 0; i < 8; ++i) dword |= ((high.at[i][r] >> j) & 0x01010101u) << i;
                return dword;
            });
        at += 32;
    }
    for (int j = 0; j < 8; j += 2, at += 32, out += 2 * kLayout.unit()) {
        const Lines<8> q(rows, at);
        put_halves(out + kLayout.high, q.at, 0);
        put_halves(out + kLayout.unit() + kLayout.high, q.at, 4);
    }
}

inline void gather_q6_k(RowPointers rows, int64_t at, uint8_t* out) {
    constexpr TileLayout kLayout = tile_layout(Type::Q6_K_R16);
    for (int r = 0; r < kTileRows; ++r) std::memcpy(out + 2 * r, rows[r] + at + 208, 2);
    const Lines<4> scales(rows, at + 192);
    for (int i = 0; i < 4; ++i)
        planes(reinterpret_cast<const uint8_t*>(scales.at[i]), out + 32 + 64 * i);
    out += kLayout.header;
    for (int half = 0; half < 2; ++half) {
        const Lines<16> low(rows, at + 64 * half);
        const Lines<8> high(rows, at + 128 + 32 * half);
        for (int quarter = 0; quarter < 4; ++quarter, out += kLayout.unit()) {
            for (int h = 0; h < 2; ++h)
                put_line(out + 64 * h, [&](int r) {
                    uint32_t dword = 0;
                    for (int i = 0; i < 4; ++i)
                        dword |= ((high.at[4 * h + i][r] >> (2 * quarter)) & 0x03030303u)
                                 << (2 * i);
                    return dword;
                });
            put_halves(out + kLayout.high, low.at + 8 * (quarter % 2), 4 * (quarter / 2));
        }
    }
}

inline void gather_iq4_xs(RowPointers rows, int64_t at, uint8_t* out) {
    constexpr TileLayout kLayout = tile_layout(Type::IQ4_XS_R16);
    const Lines<4> head(rows, at);
    put_16_bits(out, head.at[0], 0);
    for (int j = 0; j < 8; ++j)
        for (int r = 0; r < kTileRows; ++r) {
            const uint32_t low = (head.at[1][r] >> (4 * j)) & 15,
                           high = (head.at[0][r] >> (16 + 2 * j)) & 3;
            out[32 + kTileRows * j + r] = uint8_t((low | high << 4) - 32);
        }
    for (int j = 0; j < 8; ++j)
        transpose_lines(rows, at + 8 + 16 * j, out + kLayout.header + j * kLayout.unit());
}

// Packs floats column by column.
template <Type kType>
inline void gather_floats(RowPointers rows, int64_t cols, uint8_t* tile) {
    constexpr int kSize = encoding(kType).bytes, kAtOnce = 16 / kSize;
    int64_t c = 0;
    for (; c + kAtOnce <= cols; c += kAtOnce, tile += 16 * kTileRows) {
        if constexpr (kSize == 4)
            transpose_lines(rows, kSize * c, tile);
        else
            transpose_halves(rows, kSize * c, tile);
    }
    for (; c < cols; ++c, tile += kSize * kTileRows)
        for (int r = 0; r < kTileRows; ++r)
            std::memcpy(tile + kSize * r, rows[r] + kSize * c, kSize);
}

template <Type kType>
inline void gather_blocks(RowPointers rows, int64_t cols, uint8_t* tile) {
    constexpr Encoding kFrom = encoding(in_rows(kType));
    for (int64_t b = 0; b < cols / kFrom.weights; ++b, tile += tile_layout(kType).block()) {
        const int64_t at = b * kFrom.bytes;
        if constexpr (kType == Type::Q6_K_R16)
            gather_q6_k(rows, at, tile);
        else if constexpr (kType == Type::IQ4_XS_R16)
            gather_iq4_xs(rows, at, tile);
        else if constexpr (kFrom.weights == 256)
            gather_k<kType>(rows, at, tile);
        else
            gather_32<kType>(rows, at, tile);
    }
}

// `Kernels::gather`.
void gather_tile(Type type, RowPointers rows, int64_t cols, uint8_t* tile) {
    if (type == Type::F32) return gather_floats<Type::F32>(rows, cols, tile);
    if (is_float(type)) return gather_floats<Type::F16>(rows, cols, tile);
    each_block_type([&](auto block_type) {
        if (block_type.value == tiled(type)) gather_blocks<block_type.value>(rows, cols, tile);
    });
}

// *a* becomes its bits in *mask* with those of *b* above them; *b* becomes the other bits of both,
// those of *a* below.
template <int kShift>
inline void exchange(uint32_t& a, uint32_t& b, uint32_t mask) {
    const uint32_t low = (a & mask) | (b & mask) << kShift;
    b = ((a >> kShift) & mask) | (b & ~mask);
    a = low;
}

// `Kernels::pack_two_bits`: fields f of the bytes k of four words of a row become the four fields
// of byte k of word f. In I2_S the first 32 columns are in the highest bits.
bool pack_two_bits(TernarySource source, RowPointers rows, int64_t cols, uint8_t* out) {
    const bool i2_s = source == TernarySource::i2_s;
    uint32_t threes[kTernaryRows] = {};
    for (int64_t p = 0; p < cols / 128; ++p, out += 8 * 64)
        for (int half = 0; half < 2; ++half) {
            const Lines<4> words(rows, (i2_s ? 32 * p : p / 2 * 66 + p % 2 * 32) + 16 * half);
            uint32_t field[4][kTernaryRows];
            for (int r = 0; r < kTernaryRows; ++r) {
                uint32_t w[4];
                for (int i = 0; i < 4; ++i) {
                    w[i] = words.at[i][r];
                    threes[r] |= w[i] & (w[i] >> 1);
                }
                exchange<4>(w[0], w[2], 0x0f0f0f0fu);
                exchange<4>(w[1], w[3], 0x0f0f0f0fu);
                exchange<2>(w[0], w[1], 0x33333333u);
                exchange<2>(w[2], w[3], 0x33333333u);
                for (int f = 0; f < 4; ++f) field[f][r] = w[f];
            }
            for (int f = 0; f < 4; ++f)
                std::memcpy(out + 64 * (2 * f + half), field[i2_s ? 3 - f : f], 64);
        }
    uint32_t bad = 0;
    for (const uint32_t bits : threes) bad |= bits & 0x55555555u;
    return bad != 0;
}

}  // namespace
}  // namespace bitnet
