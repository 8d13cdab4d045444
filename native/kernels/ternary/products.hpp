// Products of weights of one or two bits, in tiles of 16 rows, with int8 activations: ternary
// weights, and those with a scale per group of columns. ternary/layout.hpp has the layouts of both.
//
// With few tokens the codes stay packed, and the digits of every byte of a line are isolated. With
// more tokens the codes of some tiles are unpacked to bytes once, and each load of them is
// multiplied with several tokens. Sums are integers until a run (with groups), a block or a row
// (ternary) is complete, and are then added in the order of the columns, so both ways give the same
// result.
//
// The including file defines `Vec`, with numbers that suit its registers:
//   kPackedTokens, kRunTokens     most tokens for which codes stay packed (ternary, with groups)
//   kPackedAtOnce                 tokens of a pass over packed codes (ternary)
//   kTernaryTokens, kGroupTokens  tokens per pass over unpacked codes (ternary, with groups)
//   kTernaryTiles, kGroupTiles    tiles of such a pass
//   kInputs, kUnrolledColumns     columns of a step over unpacked codes, and steps unrolled
//   places(tokens), kRunPlaces    places of a byte in which digits are multiplied (see Fields)
//   kRunsTogether                 all digits of a byte are isolated at once
//   kDepth                        pairs of products that fit a sum; 0: any number
#pragma once

#include "ops/tile_groups.hpp"
#include "ternary/layout.hpp"

namespace bitnet {
// Each instruction set compiles its own copy: no unit may run code of another's flags.
namespace {

// How many bytes ahead lines are prefetched, for ternary weights and for those with groups.
constexpr int64_t kPrefetchLines = 512, kPrefetchRuns = 1024;
using TileSums = Vec::Int[kVecs];  // a sum for each row of a tile

// The digits of bytes with fields of kBits bits. Field f is moved down only to the place of field
// f % kPlaces, and is multiplied there as 2^place times its code, which saves shifts. Each place
// has a sum of its own, which `total` divides by 2^place. kTogether digits are isolated before they
// are multiplied: all by `isolate_all`, or one at a time by `isolate`.
template <int kBits, int kPlaces>
struct Fields {
    static constexpr int kDigits = 8 / kBits, kSums = kPlaces,
                         kTogether = Vec::kRunsTogether ? kDigits : 1;
    // A single bit is moved one place higher, because its code is 0 or 2; in place 7 that would
    // leave the byte, so 6 is the last place.
    static constexpr int place(int f) {
        return kBits == 2 ? f % kPlaces * 2 : f % kPlaces < 6 ? f % kPlaces : 6;
    }
    static constexpr int kLargest = 1 << place(kPlaces - 1);  // largest factor on a code up to 2

    static Vec::Int isolate(Vec::Int bytes, int f) {
        return Vec::and_bytes(Vec::shift(bytes, place(f) - kBits * f + 2 - kBits),
                              (kBits == 2 ? 3 : 2) << place(f));
    }
    static void isolate_all(Vec::Int bytes, Vec::Int* out) {
        BITNET_UNROLL(8) for (int f = 0; f < kDigits; ++f) out[f] = isolate(bytes, f);
    }
    static Vec::Int total(const Vec::Sum<> (&sums)[kSums]) {
        Vec::Int all = sums[0].total();
        BITNET_UNROLL(4)
        for (int i = 1; i < kSums; ++i)
            all = Vec::add(all, Vec::over_power(sums[i].total(), place(i)));
        return all;
    }
};

// How the digits of a byte are isolated: for N tokens at once, for sums of runs, and as bytes.
template <int kBits>
struct FieldCode {
    template <int N>
    using Digits = Fields<kBits, Vec::places(N)>;
    using Runs = Fields<kBits, (kBits == 1 ? 2 : 1) * Vec::kRunPlaces>;
    using Bytes = Fields<kBits, 1>;
};

// End of the columns from *from* on whose products one sum of `Vec` can add up: *most* of them, or
// all up to *end* if it can add up any number.
inline int64_t part_end(int64_t from, int64_t end, int64_t most) {
    return Vec::kDepth == 0 || from + most > end ? end : from + most;
}

// Sums, out[g][n], of the products of G tiles, unpacked to *bytes* (cols / 4, G, 16, 4), with
// tokens t .. t + N - 1 over columns [c0, c1).
template <int G, int N>
inline void unpacked_sums(const LinearArgs& a, const uint8_t* bytes, int64_t t, int64_t c0,
                          int64_t c1, TileSums (*out)[N]) {
    const Inputs<N> q(a, t);
    for (int g = 0; g < G; ++g)
        for (int n = 0; n < N; ++n)
            for (int v = 0; v < kVecs; ++v) out[g][n][v] = Vec::zero();
    for (int64_t from = c0, to; from < c1; from = to) {
        to = part_end(from, c1, 4 * Vec::kDepth);
        Vec::Sum<> sum[G][N][kVecs];
        BITNET_UNROLL(3)
        for (int g = 0; g < G; ++g) BITNET_UNROLL(8)
        for (int n = 0; n < N; ++n)
            BITNET_UNROLL(2) for (int v = 0; v < kVecs; ++v) sum[g][n][v].start();
        BITNET_UNROLL(Vec::kUnrolledColumns)
        for (int64_t c = from; c < to; c += Vec::kInputs)
            BITNET_UNROLL(4) for (int i = 0; i < Vec::kInputs / 4; ++i) {
                Vec::Int w[G][kVecs];
                BITNET_UNROLL(3)
                for (int g = 0; g < G; ++g) BITNET_UNROLL(2)
                for (int v = 0; v < kVecs; ++v)
                    w[g][v] = Vec::load(bytes + ((c / 4 + i) * G + g) * 64 + kVecBytes * v);
                BITNET_UNROLL(8)
                for (int n = 0; n < N; ++n) BITNET_UNROLL(3)
                for (int g = 0; g < G; ++g) BITNET_UNROLL(2)
                for (int v = 0; v < kVecs; ++v) sum[g][n][v].add(w[g][v], q[n] + c, i);
            }
        BITNET_UNROLL(3)
        for (int g = 0; g < G; ++g) BITNET_UNROLL(8)
        for (int n = 0; n < N; ++n) BITNET_UNROLL(2)
        for (int v = 0; v < kVecs; ++v) out[g][n][v] = Vec::add(out[g][n][v], sum[g][n][v].total());
    }
}

// Unpacks the codes of *count* lines to bytes, (cols / 4, 16, 4), with *stride* bytes from one line
// of *out* to the next. If kRuns, the lines are those of blocks, whose digits are runs of columns.
template <class Digits, bool kRuns>
void unpack_lines(const uint8_t* lines, int64_t count, uint8_t* out, int64_t stride) {
    for (int64_t line = 0; line < count; ++line) BITNET_UNROLL(2) for (int v = 0; v < kVecs; ++v) {
            Vec::Int digit[Digits::kDigits];
            Digits::isolate_all(Vec::load(lines + 64 * line + kVecBytes * v), digit);
            BITNET_UNROLL(8) for (int d = 0; d < Digits::kDigits; ++d) {
                const int64_t at =
                    kRuns ? (line / kRunLines * Digits::kDigits + d) * kRunLines + line % kRunLines
                          : line * Digits::kDigits + d;
                Vec::store(out + at * stride + kVecBytes * v, digit[d]);
            }
        }
}

// ---- ternary weights

// The sums of a token and a tile: one over all columns, or, if kBlocks, scaled ones of blocks.
template <bool kBlocks>
struct Total {
    TileSums sum;
    // Called once, with the sums over all columns.
    void add(const TileSums& products, const LinearArgs&, const uint8_t*, int64_t, int64_t) {
        for (int v = 0; v < kVecs; ++v) sum[v] = products[v];
    }
    Lanes number(const LinearArgs& a, int v, int64_t t) const {
        return Vec::to_float(Vec::minus(sum[v], a.sums[t]));
    }
};

template <>
struct Total<true> {
    Vec::Double sum[kVecs];
    Total() {
        for (Vec::Double& part : sum) part = Vec::zero_double();
    }
    void add(const TileSums& products, const LinearArgs& a, const uint8_t* scales, int64_t t,
             int64_t c) {
        const int32_t x_sum = Vec::sum_bytes(a.q + t * a.cols + c, kTernaryBlock);
        scales += c / kTernaryBlock * kTernaryRows * 4;
        for (int v = 0; v < kVecs; ++v)
            sum[v] = Vec::add_scaled(sum[v], Vec::minus(products[v], x_sum),
                                     Lanes::load(scales + kVecBytes * v));
    }
    Lanes number(const LinearArgs&, int v, int64_t) const { return Vec::to_float(sum[v]); }
};

// Number of rows of the matrix in the tile at row *r*.
inline int rows_of(const LinearArgs& a, int64_t r) {
    return int(a.rows - r < kTileRows ? a.rows - r : kTileRows);
}

// Writes to y vector *v* of the rows of the tile at row *r*, for token *t*, whose sums are *sum*.
// A step is the factor by which the input became integers.
inline void store_ternary(const LinearArgs& a, int64_t r, int v, int64_t t, Lanes sum) {
    store_rows(a.y + t * a.rows + r, v, rows_of(a, r),
               sum / Lanes::set(a.step[t]) * Lanes::set(a.scale));
}

template <class Code, bool kBlocks>
struct TernaryProduct {
    static constexpr int kPackedTokens = Vec::kPackedTokens, kPackedAtOnce = Vec::kPackedAtOnce;
    static constexpr int kTokens = Vec::kTernaryTokens, kTiles = Vec::kTernaryTiles;
    using Bytes = typename Code::Bytes;
    static constexpr int kStep = 4 * Bytes::kDigits;

    // The lines of the tile that row *r* starts.
    static const uint8_t* tile(const LinearArgs& a, int64_t r) {
        return a.weight + r / kTernaryRows * (a.cols / kStep * 64);
    }

    static void unpack(const LinearArgs& a, int64_t r, uint8_t* out, int64_t stride) {
        unpack_lines<Bytes, false>(tile(a, r), a.cols / kStep, out, stride);
    }

    // Sums of the products of a tile with tokens t .. t + N - 1 over columns [c0, c1).
    template <class Digits, int N>
    static void packed_sums(const LinearArgs& a, const uint8_t* codes, int64_t t, int64_t c0,
                            int64_t c1, TileSums (&out)[N]) {
        constexpr int kDigits = Digits::kDigits, kSums = Digits::kSums;
        const Inputs<N> q(a, t);
        for (int n = 0; n < N; ++n)
            for (int v = 0; v < kVecs; ++v) out[n][v] = Vec::zero();
        for (int64_t from = c0, to; from < c1; from = to) {
            // A line adds kDigits / kSums pairs of products to each sum, each of them up to
            // kLargest times as large as one of the first digit.
            to = part_end(from, c1, Vec::kDepth / (kDigits / kSums * Digits::kLargest) * kStep);
            Vec::Sum<> sum[N][kVecs][kSums];
            BITNET_UNROLL(8)
            for (int n = 0; n < N; ++n) BITNET_UNROLL(2)
            for (int v = 0; v < kVecs; ++v)
                BITNET_UNROLL(5) for (int i = 0; i < kSums; ++i) sum[n][v][i].start();
            const uint8_t* line = codes + from / kStep * 64;
            for (int64_t c = from; c < to; c += kStep, line += 64) {
                prefetch_line(line + kPrefetchLines);
                BITNET_UNROLL(2) for (int v = 0; v < kVecs; ++v) {
                    Vec::Int digit[kDigits];
                    Digits::isolate_all(Vec::load(line + kVecBytes * v), digit);
                    BITNET_UNROLL(5)
                    for (int d = 0; d < kDigits; ++d) BITNET_UNROLL(8)
                    for (int n = 0; n < N; ++n) sum[n][v][d % kSums].add(digit[d], q[n] + c, d);
                }
            }
            BITNET_UNROLL(8)
            for (int n = 0; n < N; ++n) BITNET_UNROLL(2)
            for (int v = 0; v < kVecs; ++v)
                out[n][v] = Vec::add(out[n][v], Digits::total(sum[n][v]));
        }
    }

    // Multiplies the tile at row *r* with tokens t .. t + N - 1, codes packed.
    template <int N>
    static void packed(const LinearArgs& a, int64_t r, int64_t t) {
        const uint8_t* scales = kBlocks ? ternary_scales(a, r) : nullptr;
        const int64_t run = kBlocks ? kTernaryBlock : a.cols;
        Total<kBlocks> total[N];
        for (int64_t c = 0; c < a.cols; c += run) {
            TileSums sum[N];
            packed_sums<typename Code::template Digits<N>>(a, tile(a, r), t, c, c + run, sum);
            for (int n = 0; n < N; ++n) total[n].add(sum[n], a, scales, t + n, c);
        }
        store(a, r, t, total);
    }

    // Multiplies the G tiles from row *r* on, unpacked to *bytes*, with tokens t .. t + N - 1.
    template <int G, int N>
    static void unpacked(const LinearArgs& a, const uint8_t* bytes, int64_t r, int64_t t) {
        const int64_t run = kBlocks ? kTernaryBlock : a.cols;
        Total<kBlocks> total[G][N];
        for (int64_t c = 0; c < a.cols; c += run) {
            TileSums sum[G][N];
            unpacked_sums<G, N>(a, bytes, t, c, c + run, sum);
            for (int g = 0; g < G; ++g)
                for (int n = 0; n < N; ++n)
                    total[g][n].add(sum[g][n], a,
                                    kBlocks ? ternary_scales(a, r + kTernaryRows * g) : nullptr,
                                    t + n, c);
        }
        for (int g = 0; g < G; ++g) store(a, r + kTernaryRows * g, t, total[g]);
    }

    template <int N>
    static void store(const LinearArgs& a, int64_t r, int64_t t, const Total<kBlocks> (&total)[N]) {
        for (int n = 0; n < N; ++n)
            for (int v = 0; v < kVecs; ++v)
                store_ternary(a, r, v, t + n, total[n].number(a, v, t + n));
    }
};

// ---- weights with a scale per group of columns

// The results of N tokens and a tile: *y*, and *part*, the sum over the runs of the current group.
template <int N>
struct GroupSums {
    Lanes part[N][kVecs], y[N][kVecs];
    const uint8_t* scales;         // of the current group
    int64_t runs_per_group, last;  // runs that share a scale, and the last run of a row
    void start(const LinearArgs& a, int64_t r) {
        scales = a.weight + r * a.row_bytes;
        runs_per_group = group_runs(a.type);
        last = a.cols / kRun - 1;
        for (int n = 0; n < N; ++n)
            for (int v = 0; v < kVecs; ++v) part[n][v] = y[n][v] = Lanes::set(0.0f);
    }
    // Adds the *products* of run *run* with tokens t .. t + N - 1.
    void add(const LinearArgs& a, int64_t t, int64_t run, const TileSums (&products)[N]) {
        BITNET_UNROLL(8) for (int n = 0; n < N; ++n) {
            const int64_t at = (t + n) * (last + 1) + run;
            BITNET_UNROLL(2)
            for (int v = 0; v < kVecs; ++v)
                part[n][v] = Lanes::fma(Vec::to_float(Vec::minus(products[n][v], a.sums[at])),
                                        Lanes::set(a.step[at]), part[n][v]);
        }
        // *runs_per_group* is a power of two.
        if ((run & (runs_per_group - 1)) != runs_per_group - 1 && run != last) return;
        BITNET_UNROLL(2) for (int v = 0; v < kVecs; ++v) {
            const Lanes scale = Lanes::halves(scales + kVecBytes / 2 * v);
            BITNET_UNROLL(8) for (int n = 0; n < N; ++n) {
                y[n][v] = Lanes::fma(part[n][v], scale, y[n][v]);
                part[n][v] = Lanes::set(0.0f);
            }
        }
        scales += kTernaryRows * 2;
    }
    void store(const LinearArgs& a, int64_t r, int64_t t) const {
        for (int n = 0; n < N; ++n)
            for (int v = 0; v < kVecs; ++v)
                store_rows(a.y + (t + n) * a.rows + r, v, rows_of(a, r), y[n][v]);
    }
};

template <class Code>
struct GroupProduct {
    using Digits = typename Code::Runs;
    static constexpr int kRuns = Digits::kDigits, kTogether = Digits::kTogether;
    static constexpr int kPackedTokens = Vec::kRunTokens, kTokens = Vec::kGroupTokens,
                         kTiles = Vec::kGroupTiles;
    // Four only if the sums of all runs that are isolated together fit in 16 registers.
    static constexpr int kPackedAtOnce = kPackedTokens >= 4 && kTogether * 4 * kVecs <= 16 ? 4 : 2;
    static_assert(Vec::kDepth == 0 || kRunLines * Digits::kLargest <= Vec::kDepth,
                  "sums of a run overflow");

    static const uint8_t* lines_of(const LinearArgs& a, int64_t r) {
        return a.weight + r * a.row_bytes + group_scale_bytes(a.type, a.cols);
    }

    static void unpack(const LinearArgs& a, int64_t r, uint8_t* out, int64_t stride) {
        const int64_t count = a.cols / (kRun * kRuns) * kRunLines;
        unpack_lines<typename Code::Bytes, true>(lines_of(a, r), count, out, stride);
    }

    // Sums, out[run][n], of the runs of a block, which begins at column *c*.
    template <int N>
    static void block_sums(const LinearArgs& a, const uint8_t* lines, int64_t t, int64_t c,
                           TileSums (*out)[N]) {
        const Inputs<N> q(a, t);
        BITNET_UNROLL(8) for (int first = 0; first < kRuns; first += kTogether) {
            Vec::Sum<> sum[kTogether][N][kVecs];
            BITNET_UNROLL(8)
            for (int f = 0; f < kTogether; ++f) BITNET_UNROLL(4)
            for (int n = 0; n < N; ++n)
                BITNET_UNROLL(2) for (int v = 0; v < kVecs; ++v) sum[f][n][v].start();
            BITNET_UNROLL(8) for (int i = 0; i < kRunLines; ++i) {
                if (first == 0) prefetch_line(lines + 64 * i + kPrefetchRuns);
                BITNET_UNROLL(2) for (int v = 0; v < kVecs; ++v) {
                    const Vec::Int bytes = Vec::load(lines + 64 * i + kVecBytes * v);
                    Vec::Int digit[kTogether];
                    if constexpr (kTogether == 1)
                        digit[0] = Digits::isolate(bytes, first);
                    else
                        Digits::isolate_all(bytes, digit);
                    BITNET_UNROLL(8)
                    for (int f = 0; f < kTogether; ++f) BITNET_UNROLL(4)
                    for (int n = 0; n < N; ++n)
                        sum[f][n][v].add(digit[f], q[n] + c + kRun * (first + f) + 16 * (i / 4),
                                         i % 4);
                }
            }
            BITNET_UNROLL(8)
            for (int f = 0; f < kTogether; ++f) BITNET_UNROLL(4)
            for (int n = 0; n < N; ++n) BITNET_UNROLL(2)
            for (int v = 0; v < kVecs; ++v)
                out[first + f][n][v] =
                    Vec::over_power(sum[f][n][v].total(), Digits::place(first + f));
        }
    }

    template <int N>
    static void packed(const LinearArgs& a, int64_t r, int64_t t) {
        const uint8_t* lines = lines_of(a, r);
        GroupSums<N> sums;
        sums.start(a, r);
        for (int64_t run = 0; run <= sums.last; run += kRuns, lines += kBlockBytes) {
            TileSums products[kRuns][N];
            block_sums<N>(a, lines, t, run * kRun, products);
            BITNET_UNROLL(8) for (int f = 0; f < kRuns; ++f) sums.add(a, t, run + f, products[f]);
        }
        sums.store(a, r, t);
    }

    template <int G, int N>
    static void unpacked(const LinearArgs& a, const uint8_t* bytes, int64_t r, int64_t t) {
        GroupSums<N> sums[G];
        for (int g = 0; g < G; ++g) sums[g].start(a, r + kTernaryRows * g);
        for (int64_t run = 0; run <= sums[0].last; ++run) {
            TileSums products[G][N];
            unpacked_sums<G, N>(a, bytes, t, run * kRun, (run + 1) * kRun, products);
            BITNET_UNROLL(2) for (int g = 0; g < G; ++g) sums[g].add(a, t, run, products[g]);
        }
        for (int g = 0; g < G; ++g) sums[g].store(a, r + kTernaryRows * g, t);
    }
};

// ---- rows and tokens of either

// Multiplies a tile with the tokens from *t* on, N or fewer at a time, codes packed.
template <class Product, int N>
void packed_tokens(const LinearArgs& a, int64_t r, int64_t t) {
    for (; t + N <= a.tokens; t += N) Product::template packed<N>(a, r, t);
    if constexpr (N > 1) packed_tokens<Product, N / 2>(a, r, t);
}

// Multiplies G tiles with all tokens; if the tokens are fewer than a pass, with packed codes. The
// tokens behind the last whole pass are multiplied with some before them, which are multiplied
// twice; a single one is multiplied alone.
template <class Product, int G>
void many_tokens(const LinearArgs& a, int64_t r, uint8_t* bytes) {
    constexpr int kTokens = Product::kTokens;
    if (a.tokens < kTokens) {
        for (int g = 0; g < G; ++g) packed_tokens<Product, 2>(a, r + kTernaryRows * g, 0);
        return;
    }
    for (int g = 0; g < G; ++g) Product::unpack(a, r + kTernaryRows * g, bytes + 64 * g, 64 * G);
    int64_t t = 0;
    for (; t + kTokens <= a.tokens; t += kTokens)
        Product::template unpacked<G, kTokens>(a, bytes, r, t);
    if (t + 1 < a.tokens)
        Product::template unpacked<G, kTokens>(a, bytes, r, a.tokens - kTokens);
    else if (t < a.tokens)
        Product::template unpacked<G, 1>(a, bytes, r, t);
}

template <class Product>
void linear_of_digits(const LinearArgs& a, int64_t r0, int64_t r1, uint8_t* scratch) {
    constexpr int kTiles = Product::kTiles;
    int64_t r = r0;
    if (a.tokens > Product::kPackedTokens) {
        const auto each = [&](auto tiles) {
            constexpr int kRows = kTernaryRows * tiles;
            for (; r + kRows - kTernaryRows < r1; r += kRows)
                many_tokens<Product, tiles>(a, r, scratch);
        };
        each(std::integral_constant<int, kTiles>());
        if constexpr (kTiles > 2) each(std::integral_constant<int, 2>());
        if constexpr (kTiles > 1) each(std::integral_constant<int, 1>());
        return;
    }
    for (; r < r1; r += kTernaryRows) packed_tokens<Product, Product::kPackedAtOnce>(a, r, 0);
}

template <class Product>
void use(Kernels& k, Type type) {
    k.decode[int(type)] = k.prefill[int(type)] = linear_of_digits<Product>;
}

// Layouts of two bits and of one.
[[maybe_unused]] void add_fields(Kernels& k) {
    use<TernaryProduct<FieldCode<2>, false>>(k, Type::Ternary);
    use<TernaryProduct<FieldCode<2>, true>>(k, Type::TernaryBlocks);
    use<GroupProduct<FieldCode<1>>>(k, Type::Q1_0_R16);
    use<GroupProduct<FieldCode<2>>>(k, Type::Q2_0_R16);
    use<GroupProduct<FieldCode<2>>>(k, Type::PQ2_0_R16);
}

}  // namespace
}  // namespace bitnet
