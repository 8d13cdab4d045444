// AMX: tdpbssd multiplies 16 tokens x 64 columns with 64 columns x 16 rows, all of them signed
// bytes. Intel's processors for servers have it since 2023. Batches of more than kDecodeTokens
// tokens go through it; all other kernels are those of AVX-512.
//
// A tile of weights, unpacked to bytes, consists of lines of 64 bytes with four columns of each of
// 16 rows; these lines are the rows of a right-hand tile. A row of a left-hand tile is loaded from
// the activations of a token. The sums are exact integers, as at every other level.

#include "isa/avx512_dense.hpp"

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

// Configures the tiles of this thread, and releases them at the end, so that the system does not
// have to save them any longer. The instructions are written in assembly because the macros of GCC
// 12 say too little about memory: that ldtilecfg reads 8 of its 64 bytes, and tileloadd none, so
// the compiler may drop stores before them, or move these behind them.
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
        __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2"
                         :
                         : "r"(from), "r"(stride), "i"(kTile)
                         : "memory");
    }
    template <int kTile>
    static void store(void* to, int64_t stride) {
        __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)"
                         :
                         : "r"(to), "r"(stride), "i"(kTile)
                         : "memory");
    }
    // kSum [m][n] += kLeft [m][4 k + i] * kRight [k][4 n + i] over k and i.
    template <int kSum, int kLeft, int kRight>
    static void multiply() {
        __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0"
                         :
                         : "i"(kSum), "i"(kLeft), "i"(kRight));
    }
};

constexpr int kTokens = 16;   // of a tile
constexpr int kColumns = 64;  // of a tile of ternary products
// Activations that stay in the second cache, which has 2 MB where there is AMX.
constexpr int64_t kTernaryInputBytes = 1 << 20;

// int32 of 16 tokens x 16 rows, as a tile is stored.
struct alignas(64) Sums {
    int32_t at[kTokens][kTileRows];
    __m512i token(int n) const { return _mm512_load_si512(at[n]); }
};

// For each half of 32 columns: a tile of sums, one of tokens and one of weights.
constexpr TileShapes block_shapes() {
    TileShapes shapes;
    for (const int half : {0, 1}) {
        shapes.set(half, kTokens, 64);
        shapes.set(2 + half, kTokens, 16);
        shapes.set(4 + half, 4, 64);
    }
    return shapes;
}

// Subtracts the offset of codes, so that sums do not have to be corrected.
template <Type kType>
struct Signed {
    __m512i operator()(__m512i codes) const {
        return _mm512_sub_epi8(codes, _mm512_set1_epi8(char(Codes<kType>::kOffset)));
    }
};
// CodeForm of such codes.
template <Type kType>
using SignedForm = CodeForm<0, 0, true, Codes<kType>::kHalves, Codes<kType>::kMin>;

// Products of 32 columns with 16 tokens from *x* on, summed over each half of the columns.
inline void multiply_group(const uint8_t* codes, const BlockInput* x, int64_t stride, Sums* out) {
    Tiles::zero<0>();
    Tiles::zero<1>();
    Tiles::load<2>(x->q, int64_t(sizeof *x) * stride);
    Tiles::load<3>(x->q + 16, int64_t(sizeof *x) * stride);
    Tiles::load<4>(codes, 64);
    Tiles::load<5>(codes + 4 * 64, 64);
    Tiles::multiply<0, 2, 4>();
    Tiles::multiply<1, 3, 5>();
    Tiles::store<0>(out[0].at, 64);
    Tiles::store<1>(out[1].at, 64);
}

// Adds these products to *sum* as add_group does (ops/tile_products.hpp).
template <class C>
inline void add_products(const UnpackedGroup<C>& group, const Sums* products, const BlockInput* x,
                         int64_t stride, Lanes (&sum)[kTokens]) {
    const Lanes scale = group.scale(0, 0), second_scale = group.scale(0, 1);
    Lanes min = scale;  // not used without minima
    if constexpr (C::kMin) min = group.min(0);
    BITNET_UNROLL(16) for (int n = 0; n < kTokens; ++n, x += stride) {
        const Lanes second = Vec::to_float(products[1].token(n)), step = Lanes::set(x->step[1]);
        const Lanes first = Vec::to_float(products[0].token(n)) * Lanes::set(x->step[0]);
        if constexpr (C::kHalves)
            sum[n] = Lanes::fma(second * step, second_scale, Lanes::fma(first, scale, sum[n]));
        else
            sum[n] = Lanes::fma(Lanes::fma(second, step, first), scale, sum[n]);
        if constexpr (C::kMin) sum[n] = Lanes::fma(Lanes::set(x->sum), min, sum[n]);
    }
}

// The unpacked tile of row r times tokens t .. t + 15. The tiles are one group of columns ahead of
// the vectors, so that neither waits for the other.
template <class C>
void sixteen_tokens(const LinearArgs& a, const uint8_t* tile, int64_t r, int64_t t) {
    using Unpacked = UnpackedGroup<C>;
    const int64_t stride = block_inputs(a.cols), groups = a.cols / 32;
    const BlockInput* x = a.inputs + t * stride;
    Sums products[2][2];
    Lanes sum[kTokens];
    BITNET_UNROLL(16) for (int n = 0; n < kTokens; ++n) sum[n] = Lanes::set(0.0f);
    multiply_group(tile, x, stride, products[0]);
    for (int64_t g = 0; g < groups; ++g, ++x, tile += Unpacked::kBytes) {
        if (g + 1 < groups)
            multiply_group(tile + Unpacked::kBytes, x + 1, stride, products[(g + 1) % 2]);
        add_products<C>(Unpacked{tile}, products[g % 2], x, stride, sum);
    }
    BITNET_UNROLL(16)
    for (int n = 0; n < kTokens; ++n)
        store_rows(a.y + (t + n) * a.rows + r, 0, rows_of(a, r), sum[n]);
}

// The last tokens of a pass may not fill a tile. Up to eight of them are multiplied with AVX-512;
// more become a whole tile with some tokens before them, which are multiplied twice. By the counts
// of instructions (docs/architecture/kernels.md) a tile takes as long as eight tokens with AVX-512.
template <Type kType>
void linear_block(const LinearArgs& a, int64_t r0, int64_t r1, uint8_t* scratch) {
    const LinearKernel without_tiles = avx512_vnni_kernels().prefill[int(kType)];
    if (a.tokens < kTokens) return without_tiles(a, r0, r1, scratch);
    static constexpr TileShapes kShapes = block_shapes();
    const Tiles tiles(kShapes);
    // A BlockInput has 64 bytes.
    const int64_t step = tokens_per_pass(a.tokens, 64 * block_inputs(a.cols), kTokens);
    for (int64_t t0 = 0; t0 < a.tokens; t0 += step) {
        const int64_t t1 = t0 + step < a.tokens ? t0 + step : a.tokens;
        for (int64_t r = r0; r < r1; r += kTileRows) {
            unpack_tile<kType>(a.weight + r * a.row_bytes, a.cols, scratch, Signed<kType>());
            int64_t t = t0;
            for (; t + kTokens <= t1; t += kTokens)
                sixteen_tokens<SignedForm<kType>>(a, scratch, r, t);
            if (t1 - t > kTokens / 2)
                sixteen_tokens<SignedForm<kType>>(a, scratch, r, t1 - kTokens);
            else if (t < t1)
                without_tiles(a.of_tokens(t, t1), r, r + kTileRows < r1 ? r + kTileRows : r1,
                              scratch);
        }
    }
}

// Adds the products of 64 columns of 16 N tokens and 16 G rows to tiles 0 .. 3: tile 2 n + g has
// the nth 16 tokens and the gth 16 rows.
template <int G, int N>
inline void multiply_columns(const int8_t* const (&x)[2], int64_t cols, const uint8_t* lines) {
    Tiles::load<6>(lines, 64 * G);
    if constexpr (G > 1) Tiles::load<7>(lines + 64, 64 * G);
    Tiles::load<4>(x[0], cols);
    Tiles::multiply<0, 4, 6>();
    if constexpr (G > 1) Tiles::multiply<1, 4, 7>();
    if constexpr (N > 1) {
        Tiles::load<5>(x[1], cols);
        Tiles::multiply<2, 5, 6>();
        if constexpr (G > 1) Tiles::multiply<3, 5, 7>();
    }
}

// G tiles of rows, as *lines* of bytes (cols / 4, G, 16, 4) and 16 more for the last columns, times
// 16 tokens from t[0] on, and, if N is 2, 16 from t[1] on.
template <int G, int N>
void ternary_tokens(const LinearArgs& a, const uint8_t* lines, int64_t r, const int64_t (&t)[2]) {
    const int8_t* x[2] = {a.q + t[0] * a.cols, a.q + t[1] * a.cols};
    Tiles::zero<0>();
    Tiles::zero<1>();
    Tiles::zero<2>();
    Tiles::zero<3>();
    int64_t c = 0;
    for (; c + kColumns <= a.cols; c += kColumns) {
        multiply_columns<G, N>(x, a.cols, lines + c / 4 * 64 * G);
        x[0] += kColumns;
        x[1] += kColumns;
    }
    if (c < a.cols) {
        for (const int8_t*& from : x) from += a.cols - c - kColumns;
        multiply_columns<G, N>(x, a.cols, lines + a.cols / 4 * 64 * G);
    }
    Sums sums[4];
    Tiles::store<0>(sums[0].at, 64);
    if constexpr (G > 1) Tiles::store<1>(sums[1].at, 64);
    if constexpr (N > 1) Tiles::store<2>(sums[2].at, 64);
    if constexpr (N > 1 && G > 1) Tiles::store<3>(sums[3].at, 64);
    for (int i = 0; i < N; ++i)
        for (int g = 0; g < G; ++g)
            for (int n = 0; n < kTokens; ++n) {
                const int64_t token = t[i] + n;
                const __m512i sum = Vec::minus(sums[2 * i + g].token(n), a.sums[token]);
                store_ternary(a, r + kTileRows * g, 0, token, Vec::to_float(sum));
            }
}

// Unpacks the lines of G tiles from row r on. Last columns that do not fill a tile of 64 get a tile
// that begins before them, with zeros for the columns that other tiles have.
template <class Product, int G>
void unpack_tiles(const LinearArgs& a, int64_t r, uint8_t* lines) {
    for (int g = 0; g < G; ++g) Product::unpack(a, r + kTernaryRows * g, lines + 64 * g, 64 * G);
    if (a.cols % kColumns == 0) return;
    const int64_t line = 64 * G, left = a.cols % kColumns / 4 * line;
    uint8_t* end = lines + a.cols / 4 * line;
    std::memset(end, 0, size_t(kColumns / 4 * line - left));
    std::memcpy(end + kColumns / 4 * line - left, end - left, size_t(left));
}

// Multiplies G tiles from row r on with tokens t0 .. t1 - 1. Last tokens that do not fill a tile
// are multiplied with some before them, which are multiplied twice.
template <class Product, int G>
void ternary_rows(const LinearArgs& a, int64_t r, int64_t t0, int64_t t1, uint8_t* lines) {
    unpack_tiles<Product, G>(a, r, lines);
    const auto start = [&](int64_t t) { return t + kTokens <= a.tokens ? t : a.tokens - kTokens; };
    int64_t t = t0;
    for (; t + kTokens < t1; t += 2 * kTokens)
        ternary_tokens<G, 2>(a, lines, r, {start(t), start(t + kTokens)});
    if (t < t1) ternary_tokens<G, 1>(a, lines, r, {start(t), start(t)});
}

template <class Product>
void linear_ternary(const LinearArgs& a, int64_t r0, int64_t r1, uint8_t* scratch) {
    if (a.tokens < kTokens || a.cols < kColumns)
        return avx512_vnni_kernels().prefill[int(a.type)](a, r0, r1, scratch);
    const Tiles tiles(kFullTiles);
    const int64_t step = tokens_per_pass(a.tokens, a.cols, 2 * kTokens, kTernaryInputBytes);
    for (int64_t t0 = 0; t0 < a.tokens; t0 += step) {
        const int64_t t1 = t0 + step < a.tokens ? t0 + step : a.tokens;
        int64_t r = r0;
        for (; r + kTernaryRows < r1; r += 2 * kTernaryRows)
            ternary_rows<Product, 2>(a, r, t0, t1, scratch);
        if (r < r1) ternary_rows<Product, 1>(a, r, t0, t1, scratch);
    }
}
static_assert(scratch_bytes(kColumns) >= 2 * (16 * kColumns + 1024),
              "two tiles of rows do not fit the scratch memory");

}  // namespace

const Kernels& amx_kernels() {
    static const Kernels table = [] {
        Kernels k = avx512_vnni_kernels();
        k.name = "amx";
        each_block_type([&](auto type) { k.prefill[int(type.value)] = linear_block<type.value>; });
        k.prefill[int(Type::Ternary)] = linear_ternary<TernaryProduct<FieldCode<2>, false>>;
        k.prefill[int(Type::TernaryDense)] = linear_ternary<TernaryProduct<Dense, false>>;
        return k;
    }();
    return table;
}

}  // namespace bitnet
