// Attention by codes of 16 bits, built once per instruction set.
//
// Queries, keys, weights and values are int16 codes, so their products and sums are exact integers:
// blocking by queries, keys and elements is free, and every instruction set gives the same bits. What
// follows a sum of integers is float32 without fused operations, in the order written here.
#pragma once

#include "ops/attention_bytes.hpp"
#include "ops/attention_tiles.hpp"
#include "ops/pair_sums.hpp"

namespace bitnet {
namespace {

// Rows (queries of one head each) and registers of keys or elements of a tile, whose sums are held: of many rows, and
// of few, as in decode. NEON's sums take two registers each.
#if defined(__AVX512F__)
constexpr int kManyRows = 8, kFewRows = 4;
#elif defined(BITNET_F16C)
constexpr int kManyRows = 6, kFewRows = 2;
#elif defined(BITNET_NEON)
constexpr int kManyRows = 3, kFewRows = 1;
#else
constexpr int kManyRows = 1, kFewRows = 1;
#endif
constexpr int kManyVectors = 2, kFewVectors = 4;
constexpr int64_t kFetchRows = 2 * kFewRows;  // up to which the cache, in memory, is waited for

inline void fetch_steps(const int16_t* codes, int64_t dim) {
    for (int line = 0; line < 4; line += 2) fetch(codes + kKeyBlock * even(dim) + 32 * line);
}

// How a vector becomes int16 codes: *size*, its length or its largest magnitude, becomes *range*. What is not finite has
// no codes: zeros with a NaN step carry it to the result.
struct Coding {
    float scale, step;

    Coding(float size, float range) {
        const bool finite = size <= 1e18f, zero = !finite || size < 1e-18f;
        scale = zero ? 0.0f : range / size;
        step = !finite ? NAN : zero ? 0.0f : size / range;
    }

    // Of a query or a key: any part of their product is below 2^31.
    static Coding of_length(const float* x, int64_t n) {
        return {std::sqrt(sum_over(n, [&](int64_t i) { return x[i] * x[i]; })), kCodeRange};
    }
    // Of a value: any sum of them, times codes of weights, is below 2^31.
    static Coding of_largest(const float* x, int64_t n) { return {max_abs(x, n), kValueRange}; }

    void encode(const float* x, int64_t n, int16_t* codes) const {
        if (scale == 0.0f) std::fill_n(codes, n, int16_t(0));
        else
            for (int64_t i = 0; i < n; ++i) codes[i] = int16_t(int32_t(round_half_even(x[i] * scale)));
    }
};

// Codes of a query; returns its step times *scale*.
inline float encode_query(const float* x, int64_t dim, float scale, int16_t* codes) {
    const Coding coding = Coding::of_length(x, dim);
    codes[even(dim) - 1] = 0;
    coding.encode(x, dim, codes);
    return coding.step * scale;
}

// One layer's page of one head's keys, or values.
struct CachePage {
    const int16_t* codes;
    const float* steps;
    CachePage(const int16_t* page, int64_t head, int64_t dim)
        : codes(page + head * head_words(dim, KvType::f16)), steps(reinterpret_cast<const float*>(codes + kKeyBlock * even(dim))) {}
};

// score[n] of keys [at, at + kVectors * kWidth): products with row n of *q*, (even(dim) / 2, N) pairs, in units of
// step[n] and the steps of the keys. What lies at *soon* is fetched meanwhile.
template <int N, int kVectors, bool kFetch>
void score_keys(const int16_t* q, const float* step, CachePage keys, const int16_t* soon, int64_t dim, int at,
                float (*score)[kKeyBlock]) {
    constexpr int kWidth = Lanes::kWidth;
    PairSums sum[N][kVectors];
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n)
#pragma GCC unroll 8
        for (int i = 0; i < kVectors; ++i) sum[n][i].start();
    const int16_t* from = keys.codes + 2 * at;
    if constexpr (kFetch) fetch_steps(soon, dim);
    for (int64_t d = 0; d < dim; d += 2, from += 2 * kKeyBlock, q += 2 * N) {
        if constexpr (kFetch) fetch(soon + d * kKeyBlock), fetch(soon + (d + 1) * kKeyBlock);
        PairSums::Pairs k[kVectors];
#pragma GCC unroll 8
        for (int i = 0; i < kVectors; ++i) k[i] = PairSums::load(from + 2 * i * kWidth);
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) {
            const PairSums::Pairs x = PairSums::broadcast(q + 2 * n);
#pragma GCC unroll 8
            for (int i = 0; i < kVectors; ++i) sum[n][i].add(k[i], x);
        }
    }
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n)
#pragma GCC unroll 8
        for (int i = 0; i < kVectors; ++i) {
            const Lanes steps = Lanes::load(keys.steps + at + i * kWidth);
            (sum[n][i].numbers() * Lanes::set(step[n]) * steps).store(score[n] + at + i * kWidth);
        }
}

// Weights of one row, and those times the steps of the values, which *score* becomes: the lanes of the sum of the first, and
// of the sum and the largest of the second.
inline void weigh_row(float top, const float* steps, float* score, Parts& sum, Parts& of_parts, Parts& largest) {
    constexpr int kWidth = Lanes::kWidth, kParts = kLanes / kWidth;
    Parts weights, parts, most;
    for (int i = 0; i < kKeyBlock / kWidth; ++i) {
        const Lanes its = Lanes::load(score + i * kWidth), weight = power(its - Lanes::set(top));
        // Of what is hidden the step may be anything. One that is seen and NaN counts, however small its weight is.
        const Lanes part = weight * Lanes::load(steps + i * kWidth).unless_below(its, -FLT_MAX);
        part.store(score + i * kWidth);
        const int lane = i % kParts;
        weights[lane] = i < kParts ? weight : weights[lane] + weight;
        parts[lane] = i < kParts ? part : parts[lane] + part;
        most[lane] = i < kParts ? part : Lanes::larger(part, most[lane]);
    }
    for (int i = 0; i < kParts; ++i) sum[i] = weights[i], of_parts[i] = parts[i], largest[i] = most[i];
}

// acc = acc * before + sum of codes * factor, of kCount registers of elements from *d* on and keys [first, last), even.
template <int N, int kCount, bool kFetch>
void add_vectors(const QueryRow* rows, const int16_t* values, const int16_t* soon, int64_t dim, int64_t d, int first, int last,
                 const int16_t (*codes)[kKeyBlock], float* acc) {
    constexpr int kWidth = Lanes::kWidth;
    PairSums sum[N][kCount];
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n)
#pragma GCC unroll 8
        for (int i = 0; i < kCount; ++i) sum[n][i].start();
    values += first * even(dim) + 2 * d;
    if constexpr (kFetch) fetch_steps(soon, dim);
    for (int key = first; key < last; key += 2, values += 2 * even(dim)) {
        if constexpr (kFetch)  // in order, which these values are not read in
            for (int i = 0; i < 2 * kCount * kWidth; i += 64) fetch(soon + d * kKeyBlock + key * kCount * kWidth + i);
        PairSums::Pairs v[kCount];
#pragma GCC unroll 8
        for (int i = 0; i < kCount; ++i) v[i] = PairSums::load(values + 2 * i * kWidth);
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) {
            const PairSums::Pairs w = PairSums::broadcast(codes[n] + key);
#pragma GCC unroll 8
            for (int i = 0; i < kCount; ++i) sum[n][i].add(v[i], w);
        }
    }
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
        if (!rows[n].sees()) continue;
#pragma GCC unroll 8
        for (int i = 0; i < kCount; ++i) rows[n].add(sum[n][i].numbers(), rows[n].factor, acc + n * dim + d + i * kWidth);
    }
}

// The same of the elements that do not fill a register.
template <int N>
void add_rest(const QueryRow* rows, const int16_t* values, int64_t dim, int64_t d, const int16_t (*codes)[kKeyBlock], float* acc) {
    for (; d < dim; ++d)
        for (int n = 0; n < N; ++n) {
            if (!rows[n].sees()) continue;
            uint32_t sum = 0;
            for (int key = rows[n].first; key < rows[n].last; ++key)
                sum += uint32_t(int32_t(codes[n][key]) * values[(key & ~1) * even(dim) + 2 * d + (key & 1)]);
            acc[n * dim + d] = acc[n * dim + d] * rows[n].before + float(int32_t(sum)) * rows[n].factor;
        }
}

// How a tile of up to kMost rows is multiplied: here in registers, with a page's codes where they lie. A level may have
// another way for many rows (isa/amx_attention.hpp).
template <int kMost, int kVectors, bool kFetch>
struct VectorProducts {
    static constexpr int kRows = kMost, kRest = kManyRows, kTogether = kFetch ? 1 : 4;
    using Page = CachePage;
    using Weight = int16_t;
    using Weights = Weight[kKeyBlock];

    // int16 of a query's codes, and floats for those of a page.
    static int64_t row_words(int64_t dim) { return even(dim); }
    static int64_t page_floats(int64_t) { return 0; }

    int64_t dim;
    VectorProducts(int64_t head_dim, float*) : dim(head_dim) {}

    // Called for each page, before its products.
    void take_page(CachePage, CachePage) const {}

    // Query *x* becomes row *i* of N of a tile.
    template <int N>
    void take(const float* x, float scale, int i, int16_t* codes, int16_t* tile, float* step) const {
        *step = encode_query(x, dim, scale, codes);
        pack<N>(codes, i, tile);
    }

    template <int N>
    void pack(const int16_t* codes, int i, int16_t* tile) const {
        for (int64_t d = 0; d < dim; d += 2) std::memcpy(tile + d * N + 2 * i, codes + d, 4);
    }

    // Scores of M tiles and of keys [first, last), and maybe some around them: keys that are in the first cache are
    // multiplied with all tiles. What is at *soon* is fetched meanwhile.
    template <int N, int M>
    void score(const int16_t* tile, const float* step, CachePage keys, const int16_t* soon, int first, int last,
               float (*score)[kKeyBlock]) const {
        constexpr int kStep = kVectors * Lanes::kWidth;
        const int begin = first / kStep * kStep;
        for (int at = begin; at < last; at += kStep)
            for (int n = 0; n < M * N; n += N)
                if (kFetch && at == begin) score_keys<N, kVectors, kFetch>(tile, step, keys, soon, dim, at, score);
                else score_keys<N, kVectors, false>(tile + n * even(dim), step + n, keys, nullptr, dim, at, score + n);
    }

    // Codes of the weights times the steps of the values. Their sum, or the largest where it says less, keeps every sum of
    // values below 2^31.
    template <int N>
    static void weigh(const QueryRow* rows, const float* of_page, CachePage values, float (*score)[kKeyBlock], Weights* codes,
                      float* sums, float* steps) {
        constexpr int kWholeRows = whole_eights(N);
        alignas(64) float of_parts[kWholeRows] = {}, largest[kWholeRows] = {}, scales[kWholeRows];
        Parts weights[kWholeRows], parts[kWholeRows], most[kWholeRows];
        for (int n = 0; n < kWholeRows; ++n)
            if (n < N && rows[n].sees()) weigh_row(of_page[n], values.steps, score[n], weights[n], parts[n], most[n]);
            else zero(weights[n]), zero(parts[n]), zero(most[n]);
        fold_rows<N, true>(weights, sums), fold_rows<N, true>(parts, of_parts), fold_rows<N, false>(most, largest);
        for (int n = 0; n < kWholeRows; ++n) {
            const float by_sum = of_parts[n] / kWeightSum, by_largest = largest[n] / kCodeRange;
            steps[n] = by_largest > by_sum ? by_largest : by_sum;
            scales[n] = steps[n] > 1e-30f ? 1.0f / steps[n] : 0.0f;
        }
        for (int n = 0; n < N; ++n) {
            if (!rows[n].sees()) std::fill_n(codes[n], kKeyBlock, int16_t(0));
            else
                for (int i = 0; i < kKeyBlock; i += 2 * Lanes::kWidth) {
                    const auto scaled = [&](int at) { return Lanes::load(score[n] + at) * Lanes::set(scales[n]); };
                    Lanes::round_to(scaled(i), scaled(i + Lanes::kWidth), codes[n] + i);
                }
        }
    }

    // acc = acc * before + sum of codes * factor, over keys [first, last).
    template <int N, int M>
    void add(const QueryRow* rows, CachePage page, const int16_t* soon, int first, int last, const Weights* codes,
             float* acc) const {
        const int16_t* values = page.codes;
        constexpr int kWidth = Lanes::kWidth, kStep = kVectors * kWidth;
        first &= ~1, last = (last + 1) & ~1;
        int64_t d = 0;
        for (; d + kStep <= dim; d += kStep)
            for (int n = 0; n < M * N; n += N)
                add_vectors<N, kVectors, kFetch>(rows + n, values, soon, dim, d, first, last, codes + n, acc + n * dim);
        for (; d + kWidth <= dim; d += kWidth)
            for (int n = 0; n < M * N; n += N)
                add_vectors<N, 1, false>(rows + n, values, soon, dim, d, first, last, codes + n, acc + n * dim);
        add_rest<M * N>(rows, values, dim, d, codes, acc);
    }
};
using ManyProducts = VectorProducts<kManyRows, kManyVectors, false>;
using FewProducts = VectorProducts<kFewRows, kFewVectors, true>;

inline void attend(const AttentionArgs& a, int64_t kv_head, int64_t t0, int64_t t1, int64_t first, int64_t last,
                   float* partial, float* scratch) {
    const bool many = (t1 - t0) * (a.heads / a.kv_heads) > kFetchRows;
    const auto way = a.kv_type == KvType::q8 ? many ? attend_with<QuadProducts<false>> : attend_with<QuadProducts<true>>
                                             : many ? attend_with<ManyProducts> : attend_with<FewProducts>;
    way(a, kv_head, t0, t1, first, last, partial, scratch);
}

// One position's key or value, (dim,), into place *slot* of its head's page. A pair of keys' codes are neighbouring
// elements, one of values' neighbouring positions.
inline void store_pairs(const float* x, int64_t dim, int64_t slot, bool key, int16_t* to) {
    alignas(64) int16_t codes[kLanes];
    const Coding coding = key ? Coding::of_length(x, dim) : Coding::of_largest(x, dim);
    for (int64_t d = 0; d < dim; d += kLanes) {
        const int64_t n = std::min<int64_t>(kLanes, dim - d);
        coding.encode(x + d, n, codes);
        if (key)
            for (int64_t i = 0; i < n; ++i) to[(d + i) / 2 * 2 * kKeyBlock + 2 * slot + i % 2] = codes[i];
        else
            for (int64_t i = 0; i < n; ++i) to[slot / 2 * 2 * even(dim) + 2 * (d + i) + slot % 2] = codes[i];
    }
    if (dim % 2 != 0) to[key ? (dim - 1) * kKeyBlock + 2 * slot + 1 : slot / 2 * 2 * even(dim) + 2 * dim + slot % 2] = 0;
    std::memcpy(to + kKeyBlock * even(dim) + 2 * slot, &coding.step, sizeof(float));
}

inline void store_position(const float* k, const float* v, KvType type, int64_t kv_heads, int64_t dim, int64_t slot,
                           int16_t* page) {
    const auto store = type == KvType::q8 ? store_bytes : store_pairs;
    const int64_t words = head_words(dim, type);
    for (int64_t h = 0; h < kv_heads; ++h)
        store(k + h * dim, dim, slot, true, page + h * words), store(v + h * dim, dim, slot, false, page + (kv_heads + h) * words);
}

}  // namespace
}  // namespace bitnet
