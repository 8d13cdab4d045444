// Ternary weights times int8 activations on tiles of 16 rows; see ternary/layout.hpp.
//
// Few tokens: the codes stay packed, and a digit of every byte of a line is isolated in place. More
// tokens: the codes of some tiles are unpacked to bytes once and multiplied with several tokens per
// load. Sums are integers, so it is the same result either way.
//
// The including file defines `Acc`, the vectors and products of its instruction set, and for each
// layout a `Code`: how its lines are multiplied and unpacked.
#pragma once

#include <type_traits>

#include "ternary/layout.hpp"

namespace bitnet {
namespace {

// The sums of one tile and one token: of int32, and of double where blocks have scales.
template <bool kBlocks>
struct Total {
    typename Acc::Ints sum = Acc::zero();
    void add(typename Acc::Ints products, const LinearArgs&, const uint8_t*, int64_t, int64_t) { sum = products; }
    void store(const LinearArgs& a, int64_t r, int64_t t) const {
        Acc::store(a, r, t, Acc::to_float(Acc::minus(sum, a.sums[t])));
    }
};

template <>
struct Total<true> {
    typename Acc::Doubles sum = Acc::zero_double();
    void add(typename Acc::Ints products, const LinearArgs& a, const uint8_t* scales, int64_t t, int64_t c) {
        const int32_t x_sum = Acc::sum_block(a.q + t * a.cols + c);
        sum = Acc::add_scaled(sum, Acc::minus(products, x_sum), scales + c / kTernaryBlock * kTernaryRows * 4);
    }
    void store(const LinearArgs& a, int64_t r, int64_t t) const { Acc::store(a, r, t, Acc::to_float(sum)); }
};

// The lines of the tile that row *r* starts.
template <class Code>
const uint8_t* tile_of(const LinearArgs& a, int64_t r) {
    return a.weight + r / kTernaryRows * (a.cols / Code::kStep * 64);
}

// One tile times tokens t .. t + N - 1, codes packed.
template <class Code, bool kBlocks, int N>
void packed_tile(const LinearArgs& a, int64_t r, int64_t t) {
    const uint8_t* codes = tile_of<Code>(a, r);
    const uint8_t* scales = kBlocks ? ternary_scales(a, r) : nullptr;
    Total<kBlocks> total[N];
    const int64_t run = kBlocks ? kTernaryBlock : a.cols;
    for (int64_t c = 0; c < a.cols; c += run) {
        typename Acc::Ints sum[N];
        Code::template packed<N>(a, codes, t, c, c + run, sum);
        for (int n = 0; n < N; ++n) total[n].add(sum[n], a, scales, t + n, c);
    }
    for (int n = 0; n < N; ++n) total[n].store(a, r, t + n);
}

// G tiles, unpacked to bytes (cols / 4, G, 16, 4), times tokens t .. t + N - 1.
template <bool kBlocks, int G, int N>
void unpacked_tiles(const LinearArgs& a, const uint8_t* bytes, int64_t r, int64_t t) {
    Total<kBlocks> total[G][N];
    const int64_t run = kBlocks ? kTernaryBlock : a.cols;
    for (int64_t c = 0; c < a.cols; c += run) {
        typename Acc::Ints sum[G][N];
        Acc::template unpacked<G, N>(a, bytes, t, c, c + run, sum);
        for (int g = 0; g < G; ++g)
            for (int n = 0; n < N; ++n)
                total[g][n].add(sum[g][n], a, kBlocks ? ternary_scales(a, r + kTernaryRows * g) : nullptr, t + n, c);
    }
    for (int g = 0; g < G; ++g)
        for (int n = 0; n < N; ++n) total[g][n].store(a, r + kTernaryRows * g, t + n);
}

template <class Code, bool kBlocks, int G>
void many_tokens(const LinearArgs& a, int64_t r, uint8_t* bytes) {
    for (int g = 0; g < G; ++g) Code::unpack(tile_of<Code>(a, r + kTernaryRows * g), a.cols, bytes + 64 * g, 64 * G);
    int64_t t = 0;
    for (; t + Acc::kTokens <= a.tokens; t += Acc::kTokens) unpacked_tiles<kBlocks, G, Acc::kTokens>(a, bytes, r, t);
    if (t > 0 && t + 1 < a.tokens) unpacked_tiles<kBlocks, G, Acc::kTokens>(a, bytes, r, a.tokens - Acc::kTokens), t = a.tokens;
    for (; t + 2 <= a.tokens; t += 2) unpacked_tiles<kBlocks, G, 2>(a, bytes, r, t);
    if (t < a.tokens) unpacked_tiles<kBlocks, G, 1>(a, bytes, r, t);
}

template <class Code, bool kBlocks>
void ternary_linear(const LinearArgs& a, int64_t r0, int64_t r1, uint8_t* scratch) {
    if (a.tokens > Code::kPackedTokens) {
        int64_t r = r0;
        const auto each = [&](auto tiles) {
            constexpr int kRows = kTernaryRows * tiles;
            for (; r + kRows - kTernaryRows < r1; r += kRows) many_tokens<Code, kBlocks, tiles>(a, r, scratch);
        };
        each(std::integral_constant<int, Acc::kTiles>());
        if constexpr (Acc::kTiles > 2) each(std::integral_constant<int, 2>());
        if constexpr (Acc::kTiles > 1) each(std::integral_constant<int, 1>());
        return;
    }
    for (int64_t r = r0; r < r1; r += kTernaryRows) {
        int64_t t = 0;
        if constexpr (Code::kPackedAtOnce >= 8)
            for (; t + 8 <= a.tokens; t += 8) packed_tile<Code, kBlocks, 8>(a, r, t);
        if constexpr (Code::kPackedAtOnce >= 4)
            for (; t + 4 <= a.tokens; t += 4) packed_tile<Code, kBlocks, 4>(a, r, t);
        for (; t + 2 <= a.tokens; t += 2) packed_tile<Code, kBlocks, 2>(a, r, t);
        if (t < a.tokens) packed_tile<Code, kBlocks, 1>(a, r, t);
    }
}

template <class Code, bool kBlocks>
void use(Kernels& k, Type type) {
    k.decode[int(type)] = k.prefill[int(type)] = ternary_linear<Code, kBlocks>;
}

}  // namespace
}  // namespace bitnet
