// Attention of many rows by tiles of bytes. A code of 16 bits is 256 high + low, a byte with a sign and one without, so
// a product is 65536 high high + 256 (high low + low high) + low low, modulo 2^32, and sums of codes are below 2^31.
//
// Left-hand tiles are 16 rows x 64 elements of queries, or x 64 weights of keys. Right-hand ones are made of a page once
// for all rows of a unit of work: a line has four elements of each of 16 keys, or four keys of each of 16 elements. A
// page has two of them side by side, so two of its lines become one of high and one of low bytes.
#pragma once

#include "isa/amx_tiles.hpp"
#include "ops/attention.hpp"

namespace bitnet {
namespace {

constexpr int kDepth = 64;         // codes that a tile sums over
constexpr int kTileBytes = 1024;
constexpr int kBoth = 2 * kTileBytes;  // a tile of high bytes, and one of low bytes behind it
static_assert(kDepth == kKeyBlock, "the weights of a page's keys fill a tile");

// Which bytes of two registers of codes are their high and their low ones: in order, for a row of a left-hand tile, or
// two codes of each register in turns, for a line of a right-hand one.
struct alignas(64) Places {
    uint8_t high[64] = {}, low[64] = {};
    constexpr explicit Places(bool line) {
        for (int i = 0; i < 64; ++i) {
            low[i] = uint8_t(line ? i % 4 / 2 * 64 + i / 4 * 4 + i % 2 * 2 : 2 * i);
            high[i] = uint8_t(low[i] + 1);
        }
    }
};
constexpr Places kRow(false), kLine(true);

inline void split(const Places& places, __m512i first, __m512i second, uint8_t* to) {
    _mm512_store_si512(to, _mm512_permutex2var_epi8(first, _mm512_load_si512(places.high), second));
    _mm512_store_si512(to + kTileBytes, _mm512_permutex2var_epi8(first, _mm512_load_si512(places.low), second));
}

// A page's pairs of codes, (lines, width, 2), as tiles, (lines / 32, groups), of 16 columns each; zeros where there are
// no lines.
inline void split_page(const int16_t* pairs, int64_t lines, int64_t width, int64_t groups, uint8_t* tiles) {
    for (int64_t line = 0; line < (lines + 31) / 32 * 32; line += 2)
        for (int64_t g = 0; g < groups; ++g) {
            const auto load = [&](int64_t at) {
                return at < lines ? _mm512_loadu_si512(pairs + 2 * (at * width + 16 * g)) : _mm512_setzero_si512();
            };
            split(kLine, load(line), load(line + 1), tiles + (line / 32 * groups + g) * kBoth + line / 2 % 16 * 64);
        }
}

// Sums of 16 rows x 16 columns: of each pair of bytes in a tile of its own, so that no product waits for the one before.
struct ByteProducts {
    alignas(64) int32_t sums[4][16][16];

    static void start() {
        Tiles::zero<0>(), Tiles::zero<1>(), Tiles::zero<2>(), Tiles::zero<3>();
    }
    static void load_left(const uint8_t* left) {
        Tiles::load<4>(left, 64), Tiles::load<5>(left + kTileBytes, 64);
    }
    static void multiply(const uint8_t* right) {
        Tiles::load<6>(right, 64), Tiles::load<7>(right + kTileBytes, 64);
        Tiles::multiply<0, 4, 6>();
        Tiles::multiply_unsigned_right<1, 4, 7>();
        Tiles::multiply_unsigned_left<2, 5, 6>();
        Tiles::multiply_unsigned<3, 5, 7>();
    }
    void finish() {
        Tiles::store<0>(sums[0], 64), Tiles::store<1>(sums[1], 64), Tiles::store<2>(sums[2], 64), Tiles::store<3>(sums[3], 64);
    }
    // Sums of products of codes, of one row.
    Lanes row(int n) const {
        const auto sum = [&](int i) { return _mm512_load_si512(sums[i][n]); };
        const __m512i middle = _mm512_add_epi32(sum(1), sum(2));
        const __m512i upper = _mm512_add_epi32(_mm512_slli_epi32(sum(0), 8), middle);
        return {_mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(upper, 8), sum(3)))};
    }
};

// Tiles of 16 rows; rows that do not fill one are multiplied in registers.
class TileProducts : ManyProducts<PairForm> {
    using Vectors = ManyProducts<PairForm>;

public:
    static constexpr int kRows = 16, kTogether = 1;
    using Vectors::kRest, Vectors::kUnits, Vectors::weigh, Vectors::Page, Vectors::Weights;
    static int64_t row_words(int64_t dim) { return whole_tiles(dim); }
    static int64_t page_floats(int64_t dim) { return kKeyBlock * whole_tiles(dim); }

    TileProducts(int64_t head_dim, float* page)
        : Vectors(head_dim, page), keys_(reinterpret_cast<uint8_t*>(page)), values_(keys_ + 2 * kKeyBlock * whole_tiles(dim)) {}

    void take_page(Page keys, Page values) const {
        split_page(keys.codes, width / 2, kKeyBlock, kKeyBlock / 16, keys_);
        split_page(values.codes, kKeyBlock / 2, width, width / 16, values_);
    }

    template <int N>
    void take(const float* x, float scale, int i, float* spare, int16_t* tile, float& step, int32_t& start) {
        if constexpr (N < kRows) return Vectors::take<N>(x, scale, i, spare, tile, step, start);
        const int16_t* codes = encode(x, scale, spare, step, start);
        const auto load = [&](int64_t d) {
            const int64_t left = std::clamp<int64_t>(width - d, 0, 32);
            return _mm512_maskz_loadu_epi16(__mmask32((uint64_t(1) << left) - 1), codes + d);
        };
        auto* row = reinterpret_cast<uint8_t*>(tile) + 64 * i;
        for (int64_t d = 0; d < width; d += kDepth, row += kBoth) split(kRow, load(d), load(d + 32), row);
    }

    template <int N, int>
    void score(const int16_t* tile, const float* step, const int32_t* start, Page keys, const int16_t* soon, int first, int last,
               float (*score)[kKeyBlock]) const {
        if constexpr (N < kRows) return Vectors::score<N, 1>(tile, step, start, keys, soon, first, last, score);
        ByteProducts products;
        for (int at = first / 16 * 16; at < last; at += 16) {
            const auto* left = reinterpret_cast<const uint8_t*>(tile);
            const uint8_t* right = keys_ + at / 16 * kBoth;
            products.start();
            for (int64_t d = 0; d < width; d += kDepth, left += kBoth, right += kKeyBlock / 16 * kBoth) {
                products.load_left(left);
                products.multiply(right);
            }
            products.finish();
            const Lanes steps = Lanes::load(keys.steps + at);
            for (int n = 0; n < N; ++n) (products.row(n) * Lanes::set(step[n]) * steps).store(score[n] + at);
        }
    }

    template <int N, int>
    void add(const QueryRow* rows, Page page, const int16_t* soon, int first, int last, const Weights* codes, float* acc) const {
        if constexpr (N < kRows) return Vectors::add<N, 1>(rows, page, soon, first, last, codes, acc);
        alignas(64) uint8_t left[kBoth];
        for (int n = 0; n < N; ++n) split(kRow, _mm512_load_si512(codes[n].code), _mm512_load_si512(codes[n].code + 32), left + 64 * n);
        ByteProducts products;
        products.load_left(left);
        for (int64_t d = 0; d < width; d += 16) {
            products.start();
            products.multiply(values_ + d / 16 * kBoth);
            products.finish();
            for (int n = 0; n < N; ++n)
                if (rows[n].sees()) rows[n].add(products.row(n), acc + n * width + d);
        }
    }

private:
    uint8_t *keys_, *values_;  // a page's tiles
    const Tiles tiles_{kFullTiles};
};

void attend_by_tiles(const AttentionArgs& a, int64_t kv_head, int64_t t0, int64_t t1, int64_t first, int64_t last,
                     float* partial, float* scratch) {
    const bool many = a.kv_type == KvType::f16 && (t1 - t0) * (a.heads / a.kv_heads) >= TileProducts::kRows;
    (many ? attend_with<TileProducts> : avx512_vnni_kernels().attend)(a, kv_head, t0, t1, first, last, partial, scratch);
}

}  // namespace
}  // namespace bitnet
