// Weights with a scale per group of columns times int8 activations, on the tiles of ternary/groups.hpp.
//
// Few tokens: the codes stay packed, and each digit of a block is multiplied with the inputs of its run. More
// tokens: the codes of some tiles are unpacked to bytes once. Sums of a run are integers, and they are scaled and
// added in the order of the columns, so it is the same result either way.
//
// The including file defines `Acc` as for ternary/products.hpp, and for each layout a `Code`: how the lines of a
// block are multiplied and unpacked.
#pragma once

#include "ternary/groups.hpp"

namespace bitnet {
namespace {

// The result of N tokens and the rows of a tile, as far as its runs were added.
template <int kShared, int N>
struct GroupSums {
    typename Acc::Floats part[N], y[N];
    const uint8_t* scales;
    int64_t runs;

    GroupSums(const LinearArgs& a, const uint8_t* tile) : scales(tile), runs(a.cols / kRun) {
        for (int n = 0; n < N; ++n) part[n] = y[n] = Acc::zero_floats();
    }
    // *products* of run *run* and tokens t .. t + N - 1. *ends*: it is the last of its group.
    void add(const LinearArgs& a, int64_t t, int64_t run, const typename Acc::Ints (&products)[N], bool ends) {
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) {
            const int64_t at = (t + n) * runs + run;
            part[n] = Acc::add_scaled(part[n], Acc::to_float(Acc::minus(products[n], a.sums[at])), a.step[at]);
        }
        if (!ends) return;
        const typename Acc::Floats scale = Acc::load_halves(scales + run / kShared * kTernaryRows * 2);
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) {
            y[n] = Acc::add_scaled(y[n], part[n], scale);
            part[n] = Acc::zero_floats();
        }
    }
    void store(const LinearArgs& a, int64_t r, int64_t t) const {
        for (int n = 0; n < N; ++n) Acc::put(a, r, t + n, y[n]);
    }
};

template <class Code, int kShared>
bool ends_group(const LinearArgs& a, int64_t block, int f) {
    if constexpr (Code::kRuns % kShared == 0) return f % kShared == kShared - 1;
    const int64_t run = block * Code::kRuns + f;
    return run % kShared == kShared - 1 || run == a.cols / kRun - 1;
}

// One tile times tokens t .. t + N - 1, codes packed.
template <class Code, int kShared, int N>
void packed_groups(const LinearArgs& a, const uint8_t* tile, const uint8_t* lines, int64_t r, int64_t t) {
    GroupSums<kShared, N> sums(a, tile);
    const int64_t blocks = a.cols / (kRun * Code::kRuns);
    for (int64_t b = 0; b < blocks; ++b) {
        typename Acc::Ints products[Code::kRuns][N];
        Code::template block<N>(a, lines + b * kBlockBytes, t, b * Code::kRuns * kRun, products);
#pragma GCC unroll 8
        for (int f = 0; f < Code::kRuns; ++f)
            sums.add(a, t, b * Code::kRuns + f, products[f], ends_group<Code, kShared>(a, b, f));
    }
    sums.store(a, r, t);
}

// G tiles, unpacked to bytes (cols / 4, G, 16, 4), times tokens t .. t + N - 1.
template <int kShared, int G, int N>
void unpacked_groups(const LinearArgs& a, const uint8_t* bytes, const uint8_t* tile, int64_t tile_bytes, int64_t r, int64_t t) {
    const int64_t runs = a.cols / kRun;
    typename Acc::Floats y[G][N];
    for (int g = 0; g < G; ++g)
        for (int n = 0; n < N; ++n) y[g][n] = Acc::zero_floats();
    for (int64_t first = 0; first < runs; first += kShared) {
        const int64_t end = first + kShared < runs ? first + kShared : runs;
        typename Acc::Floats part[G][N];
        for (int g = 0; g < G; ++g)
            for (int n = 0; n < N; ++n) part[g][n] = Acc::zero_floats();
        for (int64_t run = first; run < end; ++run) {
            typename Acc::Ints products[G][N];
            Acc::template unpacked<G, N>(a, bytes, t, run * kRun, (run + 1) * kRun, products);
#pragma GCC unroll 8
            for (int n = 0; n < N; ++n) {
                const int64_t at = (t + n) * runs + run;
#pragma GCC unroll 2
                for (int g = 0; g < G; ++g)
                    part[g][n] = Acc::add_scaled(part[g][n], Acc::to_float(Acc::minus(products[g][n], a.sums[at])), a.step[at]);
            }
        }
        for (int g = 0; g < G; ++g) {
            const typename Acc::Floats scale = Acc::load_halves(tile + g * tile_bytes + first / kShared * kTernaryRows * 2);
            for (int n = 0; n < N; ++n) y[g][n] = Acc::add_scaled(y[g][n], part[g][n], scale);
        }
    }
    for (int g = 0; g < G; ++g)
        for (int n = 0; n < N; ++n) Acc::put(a, r + kTernaryRows * g, t + n, y[g][n]);
}

template <class Code, int kShared, int G>
void many_tokens_groups(const LinearArgs& a, int64_t r, int64_t scale_bytes, uint8_t* bytes) {
    const int64_t tile_bytes = kTernaryRows * a.row_bytes;
    const uint8_t* tile = a.weight + r * a.row_bytes;
    for (int g = 0; g < G; ++g)
        for (int64_t b = 0; b < a.cols / (kRun * Code::kRuns); ++b)
            Code::unpack(tile + g * tile_bytes + scale_bytes + b * kBlockBytes,
                         bytes + (b * Code::kRuns * kRunLines * G + g) * 64, 64 * G);
    int64_t t = 0;
    for (; t + Acc::kGroupTokens <= a.tokens; t += Acc::kGroupTokens)
        unpacked_groups<kShared, G, Acc::kGroupTokens>(a, bytes, tile, tile_bytes, r, t);
    for (; t + 2 <= a.tokens; t += 2) unpacked_groups<kShared, G, 2>(a, bytes, tile, tile_bytes, r, t);
    if (t < a.tokens) unpacked_groups<kShared, G, 1>(a, bytes, tile, tile_bytes, r, t);
}

template <class Code, int kShared>
void group_linear(const LinearArgs& a, int64_t r0, int64_t r1, uint8_t* scratch) {
    const int64_t scale_bytes = group_scale_bytes(a.type, a.cols);
    int64_t r = r0;
    if (a.tokens > Code::kPackedTokens) {
        for (; r + kTernaryRows * (Acc::kGroupTiles - 1) < r1; r += kTernaryRows * Acc::kGroupTiles)
            many_tokens_groups<Code, kShared, Acc::kGroupTiles>(a, r, scale_bytes, scratch);
        for (; r < r1; r += kTernaryRows) many_tokens_groups<Code, kShared, 1>(a, r, scale_bytes, scratch);
        return;
    }
    for (; r < r1; r += kTernaryRows) {
        const uint8_t *tile = a.weight + r * a.row_bytes, *lines = tile + scale_bytes;
        int64_t t = 0;
        if constexpr (Code::kPackedAtOnce >= 4)
            for (; t + 4 <= a.tokens; t += 4) packed_groups<Code, kShared, 4>(a, tile, lines, r, t);
        for (; t + 2 <= a.tokens; t += 2) packed_groups<Code, kShared, 2>(a, tile, lines, r, t);
        if (t < a.tokens) packed_groups<Code, kShared, 1>(a, tile, lines, r, t);
    }
}

template <class Code, Type kType>
void use_groups(Kernels& k) {
    k.decode[int(kType)] = k.prefill[int(kType)] = group_linear<Code, group_runs(kType)>;
}

template <class One, class Two>
[[maybe_unused]] void use_whole_bits(Kernels& k) {
    use_groups<One, Type::Q1_0_R16>(k);
    use_groups<Two, Type::Q2_0_R16>(k);
    use_groups<Two, Type::PQ2_0_R16>(k);
}

}  // namespace
}  // namespace bitnet
