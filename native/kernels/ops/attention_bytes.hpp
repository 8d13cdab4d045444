// Attention over bytes of keys and values, with a step for each 32 elements: products of ops/attention.hpp's tiles.
#pragma once

#include "ops/attention_tiles.hpp"
#include "ops/quad_sums.hpp"

namespace bitnet {
namespace {

// How 32 elements of a vector become bytes: *step* has the upper 16 bits of a float32, none less than the largest
// magnitude over 127. What is not finite has no codes: zeros with a NaN step carry it to the result.
struct ByteCoding {
    float scale, step;

    ByteCoding(const float* x, int64_t n) {
        const float size = max_abs(x, n);
        const bool finite = size <= 1e16f, zero = !finite || size < 1e-18f;
        step = !finite ? NAN : zero ? 0.0f : bits_to_float((float_to_bits(size / 127.0f) + 0xffff) & 0xffff0000);
        scale = zero ? 0.0f : 1.0f / step;
    }
    // Codes of *n* elements and zeros behind them, 32 in all.
    void encode(const float* x, int64_t n, int8_t* codes) const {
        std::fill_n(codes, kByteGroup, int8_t(0));
        if (scale == 0.0f) return;
        for (int64_t i = 0; i < n; ++i) codes[i] = int8_t(int32_t(round_half_even(x[i] * scale)));
    }
};

// One layer's page of one head's keys, or values.
struct BytePage {
    const uint8_t* codes;
    const uint16_t* steps;  // (groups, 64)
    BytePage(const int16_t* page, int64_t head, int64_t dim)
        : codes(reinterpret_cast<const uint8_t*>(page + head * head_words(dim, KvType::q8))),
          steps(reinterpret_cast<const uint16_t*>(codes + kKeyBlock * kByteGroup * byte_groups(dim))) {}
};

// What a code of each position's weight is multiplied with, and what a code of a group of values stands for.
struct ValueScale {
    alignas(64) float of_key[kKeyBlock];
    float unit;

    // Of the positions that are seen; the others have a zero.
    void set(const uint16_t* steps, int first, int last) {
        alignas(64) uint16_t seen[kKeyBlock] = {};
        std::copy(steps + first, steps + last, seen + first);
        set(seen);
    }
    void set(const uint16_t* steps) {
        constexpr int kWidth = Lanes::kWidth, kParts = kLanes / kWidth;
        Lanes its[kKeyBlock / kWidth], most[kParts], sums[kParts];
        for (int i = 0; i < kKeyBlock; i += kWidth) {
            const Lanes of_step = its[i / kWidth] = Lanes::upper(steps + i);
            Lanes &top = most[i / kWidth % kParts], &sum = sums[i / kWidth % kParts];
            top = i < kLanes ? of_step : Lanes::larger(of_step, top), sum = i < kLanes ? of_step : sum + of_step;
        }
        const float largest = Sixteen(most).largest(), nan_or_not = Sixteen(sums).sum() * 0.0f;
        const float scale = largest > 0.0f ? kByteWeights / largest : 0.0f;
        for (int i = 0; i < kKeyBlock; i += kWidth) (its[i / kWidth] * Lanes::set(scale)).store(of_key + i);
        unit = largest / kByteWeights + nan_or_not;
    }
};

// Weights of one row, and the lanes of their sum.
inline void weights_of(float top, const float* score, float* weights, Parts& sum) {
    constexpr int kWidth = Lanes::kWidth, kParts = kLanes / kWidth;
    Parts sums;
    for (int i = 0; i < kKeyBlock / kWidth; ++i) {
        const Lanes weight = power(Lanes::load(score + i * kWidth) - Lanes::set(top));
        weight.store(weights + i * kWidth);
        sums[i % kParts] = i < kParts ? weight : sums[i % kParts] + weight;
    }
    for (int i = 0; i < kParts; ++i) sum[i] = sums[i];
}

template <bool kFetch>
struct QuadProducts {
    static constexpr int kRows = kByteRows, kRest = kByteRows, kTogether = 1;
    using Page = BytePage;
    using Weight = float;
    using Weights = Weight[kKeyBlock];

    // int16 of a query: its codes, and for each group its step and -128 times the sum of its codes.
    static int64_t row_words(int64_t dim) { return byte_groups(dim) * (kByteGroup / 2 + 4); }
    static int64_t page_floats(int64_t) { return 0; }

    int64_t dim, groups;
    QuadProducts(int64_t head_dim, float*) : dim(head_dim), groups(byte_groups(head_dim)) {}

    void take_page(BytePage, BytePage) const {}

    // A tile of N rows: codes (quads, N, 4), steps and starts of sums (groups, N).
    template <int N>
    struct Tile {
        int8_t* codes;
        float* step;
        int32_t* start;
        Tile(int16_t* memory, int64_t groups)
            : codes(reinterpret_cast<int8_t*>(memory)), step(reinterpret_cast<float*>(codes + N * kByteGroup * groups)),
              start(reinterpret_cast<int32_t*>(step + N * groups)) {}
    };

    template <int N>
    void take(const float* x, float scale, int i, int16_t*, int16_t* memory, float*) const {
        const Tile<N> tile(memory, groups);
        for (int64_t g = 0; g < groups; ++g) {
            const int64_t count = std::min<int64_t>(kByteGroup, dim - g * kByteGroup);
            const ByteCoding coding(x + g * kByteGroup, count);
            int8_t codes[kByteGroup];
            coding.encode(x + g * kByteGroup, count, codes);
            int32_t sum = 0;
            for (const int8_t code : codes) sum += code;
            for (int quad = 0; quad < kByteGroup / 4; ++quad)
                std::memcpy(tile.codes + ((g * kByteGroup / 4 + quad) * N + i) * 4, codes + 4 * quad, 4);
            tile.step[g * N + i] = coding.step * scale, tile.start[g * N + i] = -128 * sum;
        }
    }

    template <int N, int>
    void score(int16_t* memory, const float*, BytePage keys, const uint8_t* soon, int first, int last,
               float (*score)[kKeyBlock]) const {
        constexpr int kCount = N <= kFewByteRows ? kFewQuads : 1, kStep = kCount * Lanes::kWidth;
        if constexpr (kFetch)  // steps
            for (int64_t g = 0; g < groups; ++g) fetch(soon + (kByteGroup * groups + 2 * g) * kKeyBlock);
        for (int at = first / kStep * kStep; at < last; at += kStep)
            score_keys<N, kCount>(Tile<N>(memory, groups), keys, soon + at * kByteGroup * groups, at, score);
    }

    template <int N>
    static void weigh(const QueryRow* rows, const float* of_page, BytePage, float (*score)[kKeyBlock], Weights* weights,
                      float* sums, float* steps) {
        Parts lanes[whole_eights(N)];
        for (auto& of_row : lanes) zero(of_row);
        for (int n = 0; n < N; ++n) {
            if (rows[n].sees()) weights_of(of_page[n], score[n], weights[n], lanes[n]), steps[n] = 1.0f;
            else std::fill_n(weights[n], kKeyBlock, 0.0f);
        }
        fold_rows<N, true>(lanes, sums);
    }

    template <int N, int>
    void add(const QueryRow* rows, BytePage values, const uint8_t* soon, int first, int last, const Weights* weights,
             float* acc) const {
        constexpr int kCount = N <= kFewByteRows ? kFewQuads : 1;
        ValueScale whole, own;
        WeightCodes codes[N];
        float factor[N];
        for (int64_t g = 0; g < groups; ++g) {
            bool set = false;
            for (int n = 0; n < N; ++n) {
                ValueScale* scale = &whole;
                const uint16_t* steps = values.steps + g * kKeyBlock;
                if (rows[n].first > 0 || rows[n].last < kKeyBlock) (scale = &own)->set(steps, rows[n].first, rows[n].last);
                else if (!set) whole.set(steps), set = true;
                codes[n].set(weights[n], scale->of_key);
                factor[n] = rows[n].factor * scale->unit;
            }
            for (int64_t d = g * kByteGroup; d < std::min(dim, (g + 1) * kByteGroup); d += kCount * Lanes::kWidth)
                add_vectors<N, kCount>(rows, factor, values.codes, soon, d, first & ~3, (last + 3) & ~3, codes, acc);
        }
    }

private:
    template <int N, int kCount>
    void score_keys(const Tile<N>& tile, BytePage keys, const uint8_t* soon, int at, float (*score)[kKeyBlock]) const {
        constexpr int kWidth = Lanes::kWidth;
        Lanes total[N][kCount];
        const uint8_t* from = keys.codes + 4 * at;
        const int8_t* query = tile.codes;
        for (int64_t g = 0; g < groups; ++g) {
            KeySums sum[N][kCount];
            for (int n = 0; n < N; ++n)
                for (int i = 0; i < kCount; ++i) sum[n][i].start(tile.start[g * N + n]);
            for (int quad = 0; quad < kByteGroup / 4; ++quad, from += 4 * kKeyBlock, query += 4 * N) {
                if constexpr (kFetch)
                    for (int i = 0; i < 4 * kCount * kWidth; i += 128) fetch(soon + i);
                soon += 4 * kCount * kWidth;
                Quads k[kCount];
                for (int i = 0; i < kCount; ++i) k[i] = Quads::keys(from + 4 * i * kWidth);
                for (int n = 0; n < N; ++n)
                    for (int i = 0; i < kCount; ++i) sum[n][i].add(k[i], query + 4 * n);
            }
            for (int i = 0; i < kCount; ++i) {
                const Lanes steps = Lanes::upper(keys.steps + g * kKeyBlock + at + i * kWidth);
                for (int n = 0; n < N; ++n) {
                    const Lanes part = sum[n][i].numbers() * Lanes::set(tile.step[g * N + n]) * steps;
                    total[n][i] = g == 0 ? part : total[n][i] + part;
                }
            }
        }
        for (int n = 0; n < N; ++n)
            for (int i = 0; i < kCount; ++i) total[n][i].store(score[n] + at + i * kWidth);
    }

    // acc = acc * before + sum of codes * factor, of kCount registers of elements from *d* on and keys [first, last).
    template <int N, int kCount>
    void add_vectors(const QueryRow* rows, const float* factor, const uint8_t* values, const uint8_t* soon, int64_t d,
                     int first, int last, const WeightCodes* codes, float* acc) const {
        constexpr int kWidth = Lanes::kWidth;
        const int64_t line = 4 * kByteGroup * groups;
        if constexpr (kFetch) fetch(soon + 16 * line + d / kByteGroup * 2 * kKeyBlock);  // steps
        ValueSums sum[N][kCount][kDigits];
        for (auto quad = unsigned(first) / 4; quad < unsigned(last) / 4; ++quad) {
            const int64_t at = quad * line + 4 * d;
            if constexpr (kFetch)
                for (int i = 0; i < 4 * kCount * kWidth; i += 128) fetch(soon + at + i);
            Quads v[kCount];
            for (int i = 0; i < kCount; ++i) v[i] = Quads::values(values + at + 4 * i * kWidth);
            for (int n = 0; n < N; ++n)
                for (int i = 0; i < kCount; ++i)
                    for (int digit = 0; digit < kDigits; ++digit) sum[n][i][digit].add(digit, v[i], codes[n], quad);
        }
        alignas(64) float sums[N][kCount * kWidth];
        for (int n = 0; n < N; ++n)
            for (int i = 0; i < kCount; ++i) ValueSums::numbers(sum[n][i]).store(sums[n] + i * kWidth);
        for (int n = 0; n < N; ++n) {
            if (!rows[n].sees()) continue;
            float* to = acc + n * dim + d;
            int64_t i = 0;
            for (const int64_t count = std::min<int64_t>(kCount * kWidth, dim - d); i < count; i += kWidth)
                if (i + kWidth <= count) rows[n].add(Lanes::load(sums[n] + i), factor[n], to + i);
                else
                    for (int64_t j = i; j < count; ++j) to[j] = to[j] * rows[n].before + sums[n][j] * factor[n];
        }
    }
};

// One position's key or value, (dim,), as bytes into place *slot* of its head's page.
inline void store_bytes(const float* x, int64_t dim, int64_t slot, bool key, int16_t* page) {
    const int64_t groups = byte_groups(dim);
    auto* to = reinterpret_cast<uint8_t*>(page);
    auto* steps = reinterpret_cast<uint16_t*>(to + kKeyBlock * kByteGroup * groups);
    for (int64_t g = 0; g < groups; ++g) {
        const int64_t count = std::min<int64_t>(kByteGroup, dim - g * kByteGroup);
        const ByteCoding coding(x + g * kByteGroup, count);
        int8_t codes[kByteGroup];
        coding.encode(x + g * kByteGroup, count, codes);
        for (int64_t j = 0; j < kByteGroup; ++j) {
            const int64_t d = g * kByteGroup + j;
            if (key) to[d / 4 * 4 * kKeyBlock + 4 * slot + d % 4] = uint8_t(codes[j] + 128);
            else to[slot / 4 * 4 * kByteGroup * groups + 4 * d + slot % 4] = uint8_t(codes[j]);
        }
        steps[g * kKeyBlock + slot] = uint16_t(float_to_bits(coding.step) >> 16);
    }
}

}  // namespace
}  // namespace bitnet
