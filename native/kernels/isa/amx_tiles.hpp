// The tile registers of AMX and the instructions that are used of them, one function each.
//
// They are written in assembly because the macros of GCC 12 say too little about memory: ldtilecfg is said to
// read 8 of its 64 bytes, tileloadd none at all, so stores before them may be dropped or moved behind them.
#pragma once

#include <cstdint>

namespace bitnet {
namespace {

// The shapes of the eight tiles, as ldtilecfg reads them.
struct TileShapes {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
    constexpr void set(int tile, int n, int bytes) {
        rows[tile] = uint8_t(n);
        row_bytes[tile] = uint16_t(bytes);
    }
};
static_assert(sizeof(TileShapes) == 64, "the operand of ldtilecfg");

constexpr TileShapes full_shapes() {
    TileShapes shapes;
    for (int tile = 0; tile < 8; ++tile) shapes.set(tile, 16, 64);
    return shapes;
}
constexpr TileShapes kFullTiles = full_shapes();

// Tiles of these shapes for the thread it lives in; without it the system need not save them.
class Tiles {
public:
    explicit Tiles(const TileShapes& shapes) { __asm__ volatile("ldtilecfg %0" : : "m"(shapes)); }
    ~Tiles() { __asm__ volatile("tilerelease"); }
    Tiles(const Tiles&) = delete;
    Tiles& operator=(const Tiles&) = delete;

    template <int kTile>
    static void zero() {
        __asm__ volatile("tilezero %%tmm%c0" : : "i"(kTile));
    }
    // Rows *stride* bytes apart.
    template <int kTile>
    static void load(const void* from, int64_t stride) {
        __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(kTile) : "memory");
    }
    template <int kTile>
    static void store(void* to, int64_t stride) {
        __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(kTile) : "memory");
    }
    // kSum [m][n] += kLeft [m][4 k + i] * kRight [k][4 n + i] over k and i; bytes with signs, and the same where those of
    // the right, of the left or of neither have signs.
    template <int kSum, int kLeft, int kRight>
    static void multiply() {
        __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kLeft), "i"(kRight));
    }
    template <int kSum, int kLeft, int kRight>
    static void multiply_unsigned_left() {
        __asm__ volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kLeft), "i"(kRight));
    }
    template <int kSum, int kLeft, int kRight>
    static void multiply_unsigned_right() {
        __asm__ volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kLeft), "i"(kRight));
    }
    template <int kSum, int kLeft, int kRight>
    static void multiply_unsigned() {
        __asm__ volatile("tdpbuud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kLeft), "i"(kRight));
    }
};

}  // namespace
}  // namespace bitnet
