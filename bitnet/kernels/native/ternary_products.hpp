// Ternary weights times int8 activations on tiles of 16 rows; see ternary_layout.hpp.
//
// Few tokens: the codes stay packed. A mask leaves one two-bit field of every byte, which is its code
// times 1, 4, 16 or 64, so each field is summed up on its own and the sums are shifted in the end.
// More tokens: the codes of some tiles are unpacked to bytes once and multiplied with several tokens
// per load. Sums are integers, so it is the same result either way.
//
// The including file defines `Acc`, the vectors and products of its instruction set.
#pragma once

#include "ternary_layout.hpp"

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

// One tile times tokens t .. t + N - 1, codes packed.
template <bool kBlocks, int N>
void packed_tile(const LinearArgs& a, int64_t r, int64_t t) {
    const uint8_t* codes = a.weight + r / kTernaryRows * a.cols * 4;
    const uint8_t* scales = kBlocks ? ternary_scales(a, r) : nullptr;
    Total<kBlocks> total[N];
    const int64_t run = kBlocks ? kTernaryBlock : a.cols;
    for (int64_t c = 0; c < a.cols; c += run) {
        typename Acc::Ints sum[N];
        Acc::template packed<N>(a, codes, t, c, c + run, sum);
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

template <bool kBlocks, int G>
void many_tokens(const LinearArgs& a, int64_t r, uint8_t* bytes) {
    for (int g = 0; g < G; ++g) Acc::unpack(a.weight + (r / kTernaryRows + g) * a.cols * 4, a.cols, bytes + 64 * g, 64 * G);
    int64_t t = 0;
    for (; t + Acc::kTokens <= a.tokens; t += Acc::kTokens) unpacked_tiles<kBlocks, G, Acc::kTokens>(a, bytes, r, t);
    for (; t + 2 <= a.tokens; t += 2) unpacked_tiles<kBlocks, G, 2>(a, bytes, r, t);
    if (t < a.tokens) unpacked_tiles<kBlocks, G, 1>(a, bytes, r, t);
}

template <bool kBlocks>
void ternary_linear(const LinearArgs& a, int64_t r0, int64_t r1, uint8_t* scratch) {
    if (a.tokens > Acc::kPackedTokens) {
        int64_t r = r0;
        for (; r + kTernaryRows * (Acc::kTiles - 1) < r1; r += kTernaryRows * Acc::kTiles)
            many_tokens<kBlocks, Acc::kTiles>(a, r, scratch);
        for (; r < r1; r += kTernaryRows) many_tokens<kBlocks, 1>(a, r, scratch);
        return;
    }
    for (int64_t r = r0; r < r1; r += kTernaryRows) {
        int64_t t = 0;
        if constexpr (Acc::kPackedAtOnce >= 8)
            for (; t + 8 <= a.tokens; t += 8) packed_tile<kBlocks, 8>(a, r, t);
        if constexpr (Acc::kPackedAtOnce >= 4)
            for (; t + 4 <= a.tokens; t += 4) packed_tile<kBlocks, 4>(a, r, t);
        for (; t + 2 <= a.tokens; t += 2) packed_tile<kBlocks, 2>(a, r, t);
        if (t < a.tokens) packed_tile<kBlocks, 1>(a, r, t);
    }
}

inline void fill_ternary_tables(Kernels& k) {
    k.decode[int(Type::Ternary)] = k.prefill[int(Type::Ternary)] = ternary_linear<false>;
    k.decode[int(Type::TernaryBlocks)] = k.prefill[int(Type::TernaryBlocks)] = ternary_linear<true>;
}

}  // namespace
}  // namespace bitnet
