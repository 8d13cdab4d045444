// Attention of a few queries over a stretch of the cache, built once per instruction set.
//
// Queries, keys, weights and values are int16 codes, so their products and sums are exact integers:
// blocking by queries, keys and elements is free, and every instruction set gives the same bits. What
// follows a sum of integers is float32 without fused operations, in the order written here.
#pragma once

#include <cfloat>
#include <type_traits>

#include "ops/pair_sums.hpp"
#include "ops/partial_attention.hpp"

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

// Two lines of the cache that are read soon: a page is too short for the hardware to see it coming.
inline void fetch(const void* at) {
    [[maybe_unused]] const auto* p = static_cast<const char*>(at);
#if defined(BITNET_F16C)
    _mm_prefetch(p, _MM_HINT_T1);
    _mm_prefetch(p + 64, _MM_HINT_T1);
#elif defined(BITNET_NEON)
    __builtin_prefetch(p);
    __builtin_prefetch(p + 64);
#endif
}

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

// One layer's page of one head's keys, or values.
struct CachePage {
    const int16_t* codes;
    const float* steps;
    CachePage(const int16_t* page, int64_t head, int64_t dim)
        : codes(page + head * head_words(dim)), steps(reinterpret_cast<const float*>(codes + kKeyBlock * even(dim))) {}
};

// What a row (a query of one head) sees of the page at hand, and what the page changes of it.
struct QueryRow {
    int first, last;
    float before, factor;  // of the sum so far, and of a sum of codes
    bool sees() const { return first < last; }

    // *sum* of codes to the sums so far, a register of them.
    void add(Lanes sum, float* acc) const { (Lanes::load(acc) * Lanes::set(before) + sum * Lanes::set(factor)).store(acc); }
};

// score[n] of keys [at, at + kVectors * kWidth): products with row n of *q*, (even(dim) / 2, N) pairs, in units of
// step[n] and the steps of the keys. What lies at *soon* is fetched meanwhile.
template <int N, int kVectors, bool kFetch>
void score_keys(const int16_t* q, const float* step, CachePage keys, const int16_t* soon, int64_t dim, int at,
                float (*score)[kKeyBlock]) {
    constexpr int kWidth = Lanes::kWidth;
    PairSums sum[N][kVectors];
    const int16_t* from = keys.codes + 2 * at;
    if constexpr (kFetch) fetch_steps(soon, dim);
    for (int64_t d = 0; d < dim; d += 2, from += 2 * kKeyBlock, q += 2 * N) {
        if constexpr (kFetch) fetch(soon + d * kKeyBlock), fetch(soon + (d + 1) * kKeyBlock);
        PairSums::Pairs k[kVectors];
        for (int i = 0; i < kVectors; ++i) k[i] = PairSums::load(from + 2 * i * kWidth);
        for (int n = 0; n < N; ++n) {
            const PairSums::Pairs x = PairSums::broadcast(q + 2 * n);
            for (int i = 0; i < kVectors; ++i) sum[n][i].add(k[i], x);
        }
    }
    for (int n = 0; n < N; ++n)
        for (int i = 0; i < kVectors; ++i) {
            const Lanes steps = Lanes::load(keys.steps + at + i * kWidth);
            (sum[n][i].numbers() * Lanes::set(step[n]) * steps).store(score[n] + at + i * kWidth);
        }
}

// Scores of one row without those of keys it does not see; returns the largest.
inline float look(const AttentionArgs& a, const QueryRow& row, float* score) {
    constexpr int kWidth = Lanes::kWidth, kParts = kLanes / kWidth;
    if (a.softcap > 0.0f) {
        softcap(score + row.first, row.last - row.first, a.softcap, score + row.first);
        for (int i = row.first; i < row.last; ++i) score[i] *= kLog2E;
    }
    for (int i = 0; i < row.first; ++i) score[i] = -INFINITY;
    for (int i = row.last; i < kKeyBlock; ++i) score[i] = -INFINITY;
    Lanes part[kParts];
    for (int i = 0; i < kParts; ++i) part[i] = Lanes::load(score + i * kWidth);
    for (int i = kLanes; i < kKeyBlock; i += kWidth) {
        Lanes& most = part[i / kWidth % kParts];
        most = Lanes::larger(Lanes::load(score + i), most);
    }
    return Sixteen(part).largest();
}

// Codes of one row's weights times the steps of the values: the sum of the weights, and what a code stands for. The
// codes' sum, or the largest where it says less, keeps every sum of values below 2^31.
struct Weighed {
    float sum, step;
};
inline Weighed weigh(float top, const float* steps, const float* score, int16_t* codes) {
    constexpr int kWidth = Lanes::kWidth, kParts = kLanes / kWidth, kCount = kKeyBlock / kWidth;
    Lanes part[kCount], weights[kParts], parts[kParts], most[kParts];
    for (int i = 0; i < kCount; ++i) {
        const Lanes its = Lanes::load(score + i * kWidth), x = its - Lanes::set(top), weight = power(x);
        // Of what is hidden the step may be anything. One that is seen and NaN counts, however small its weight is.
        const Lanes seen = Lanes::load(steps + i * kWidth).unless_below(its, -FLT_MAX);
        part[i] = weight.unless_below(x, kLeastPower) * seen;
        const int lane = i % kParts;
        weights[lane] = i < kParts ? weight : weights[lane] + weight;
        parts[lane] = i < kParts ? part[i] : parts[lane] + part[i];
        most[lane] = i < kParts ? part[i] : Lanes::larger(part[i], most[lane]);
    }
    const float by_sum = Sixteen(parts).sum() / kWeightSum, by_largest = Sixteen(most).largest() / kCodeRange;
    const float step = by_largest > by_sum ? by_largest : by_sum, scale = step > 1e-30f ? 1.0f / step : 0.0f;
    for (int i = 0; i < kCount; ++i) (part[i] * Lanes::set(scale)).round_to(codes + i * kWidth);
    return {Sixteen(weights).sum(), step};
}

// The softmax of a tile's rows, step by step, so that none waits for what another one does last.
template <int N>
void weigh_rows(const AttentionArgs& a, QueryRow* rows, const float* steps, float* top, float* sum, float (*score)[kKeyBlock],
                int16_t (*codes)[kKeyBlock]) {
    float of_page[N];
    Weighed found[N];
    for (int n = 0; n < N; ++n)
        if (rows[n].sees()) of_page[n] = look(a, rows[n], score[n]);
    for (int n = 0; n < N; ++n)
        if (rows[n].sees()) found[n] = weigh(of_page[n], steps, score[n], codes[n]);
        else std::fill_n(codes[n], kKeyBlock, int16_t(0));
    for (int n = 0; n < N; ++n) {
        if (!rows[n].sees()) continue;
        const float most = of_page[n] > top[n] ? of_page[n] : top[n];
        const float before = power_or_zero(top[n] - most), now = power_or_zero(of_page[n] - most);
        top[n] = most, sum[n] = sum[n] * before + found[n].sum * now;
        rows[n].before = before, rows[n].factor = found[n].step * now;
    }
}

// acc = acc * before + sum of codes * factor, of kCount registers of elements from *d* on and keys [first, last), even.
template <int N, int kCount, bool kFetch>
void add_vectors(const QueryRow* rows, const int16_t* values, const int16_t* soon, int64_t dim, int64_t d, int first, int last,
                 const int16_t (*codes)[kKeyBlock], float* acc) {
    constexpr int kWidth = Lanes::kWidth;
    PairSums sum[N][kCount];
    values += first * even(dim) + 2 * d;
    if constexpr (kFetch) fetch_steps(soon, dim);
    for (int key = first; key < last; key += 2, values += 2 * even(dim)) {
        if constexpr (kFetch)
            for (int i = 0; i < 2 * kCount * kWidth; i += 64) fetch(soon + key * even(dim) + 2 * d + i);
        PairSums::Pairs v[kCount];
        for (int i = 0; i < kCount; ++i) v[i] = PairSums::load(values + 2 * i * kWidth);
        for (int n = 0; n < N; ++n) {
            const PairSums::Pairs w = PairSums::broadcast(codes[n] + key);
            for (int i = 0; i < kCount; ++i) sum[n][i].add(v[i], w);
        }
    }
    for (int n = 0; n < N; ++n) {
        if (!rows[n].sees()) continue;
        for (int i = 0; i < kCount; ++i) rows[n].add(sum[n][i].numbers(), acc + n * dim + d + i * kWidth);
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
// another way for many rows (isa/amx/attention.cpp).
template <int kMost, int kVectors, bool kFetch>
struct VectorProducts {
    static constexpr int kRows = kMost;
    // int16 of a query's codes, and floats for those of a page.
    static int64_t row_words(int64_t dim) { return even(dim); }
    static int64_t page_floats(int64_t) { return 0; }

    int64_t dim;
    VectorProducts(int64_t head_dim, float*) : dim(head_dim) {}

    // Called for each page, before its products.
    void take_page(CachePage, CachePage) const {}

    // A query's codes become row *i* of N of a tile.
    template <int N>
    void pack(const int16_t* codes, int i, int16_t* tile) const {
        for (int64_t d = 0; d < dim; d += 2) std::memcpy(tile + d * N + 2 * i, codes + d, 4);
    }

    // Scores of keys [first, last), and maybe some around them. What is at *soon* is fetched meanwhile.
    template <int N>
    void score(const int16_t* tile, const float* step, CachePage keys, const int16_t* soon, int first, int last,
               float (*score)[kKeyBlock]) const {
        constexpr int kStep = kVectors * Lanes::kWidth;
        const int begin = first / kStep * kStep;
        for (int at = begin; at < last; at += kStep)
            if (kFetch && at == begin) score_keys<N, kVectors, kFetch>(tile, step, keys, soon, dim, at, score);
            else score_keys<N, kVectors, false>(tile, step, keys, nullptr, dim, at, score);
    }

    // acc = acc * before + sum of codes * factor, over keys [first, last).
    template <int N>
    void add(const QueryRow* rows, const int16_t* values, const int16_t* soon, int first, int last,
             const int16_t (*codes)[kKeyBlock], float* acc) const {
        constexpr int kWidth = Lanes::kWidth, kStep = kVectors * kWidth;
        first &= ~1, last = (last + 1) & ~1;
        int64_t d = 0;
        for (; d + kStep <= dim; d += kStep)
            add_vectors<N, kVectors, kFetch>(rows, values, soon, dim, d, first, last, codes, acc);
        for (; d + kWidth <= dim; d += kWidth) add_vectors<N, 1, false>(rows, values, soon, dim, d, first, last, codes, acc);
        add_rest<N>(rows, values, dim, d, codes, acc);
    }
};
using ManyProducts = VectorProducts<kManyRows, kManyVectors, false>;
using FewProducts = VectorProducts<kFewRows, kFewVectors, true>;

// Calls body(N) for a tile of *n* rows, N = kMost or in 1 .. kManyRows.
template <int kMost, class F>
void with_rows(int64_t n, F&& body) {
    if constexpr (kMost == 1) body(std::integral_constant<int, 1>());
    else if (n >= kMost) body(std::integral_constant<int, kMost>());
    else with_rows<(kMost > kManyRows ? kManyRows : kMost - 1)>(n, body);
}

// Queries [t0, t1) of the heads that share *kv_head*.
template <class Products>
struct Block {
    const AttentionArgs& a;
    int64_t kv_head, t0, t1, group, rows;
    int16_t* q;  // row_words of each row, as the products of its tile take them
    float* page_codes;
    Products products;
    float *step, *rest;  // of each row's query, times the scale; behind all

    Block(const AttentionArgs& args, int64_t head, int64_t from, int64_t to, float* scratch)
        : a(args), kv_head(head), t0(from), t1(to), group(args.heads / args.kv_heads), rows((to - from) * group),
          q(reinterpret_cast<int16_t*>(scratch)), page_codes(scratch + rows * Products::row_words(a.head_dim) / 2),
          products(a.head_dim, page_codes), step(page_codes + Products::page_floats(a.head_dim)), rest(step + rows) {}

    int16_t* codes_of(int64_t r) const { return q + r * Products::row_words(a.head_dim); }

    // Calls body(r, N) for each tile of N rows from row r on.
    template <class F>
    void tiles(F&& body) const {
        for (int64_t r = 0; r < rows;)
            with_rows<Products::kRows>(rows - r, [&](auto n) {
                body(r, n);
                r += n;
            });
    }

    void take_queries() const {
        const int64_t dim = a.head_dim;
        const float scale = a.softcap > 0.0f ? a.scale : a.scale * kLog2E;  // scores are powers of two in the end
        auto* codes = reinterpret_cast<int16_t*>(rest);
        codes[even(dim) - 1] = 0;
        tiles([&](int64_t r, auto n) {
            for (int i = 0; i < n; ++i) {
                const int64_t t = t0 + (r + i) / group;
                const float* from = a.q + (t * a.heads + kv_head * group + (r + i) % group) * dim;
                const Coding coding = Coding::of_length(from, dim);
                coding.encode(from, dim, codes);
                step[r + i] = coding.step * scale;
                products.template pack<n>(codes, i, codes_of(r));
            }
        });
    }

    // What row *r* sees of the page that begins at *base*.
    QueryRow see(int64_t r, int64_t base) const {
        const int64_t t = t0 + r / group;
        return {int(std::clamp<int64_t>(a.first_key(t) - base, 0, kKeyBlock)),
                int(std::clamp<int64_t>(a.start + t + 1 - base, 0, kKeyBlock)), 1.0f, 0.0f};
    }

    // A tile of N rows over the page that begins at *base*. The values, and the keys that are seen *next*, are fetched
    // while what comes before them is read.
    template <int N>
    void attend_page(int64_t r, CachePage keys, CachePage values, const int16_t* next, int64_t base,
                     const PartialAttention& part) const {
        QueryRow row[N];
        for (int n = 0; n < N; ++n) row[n] = see(r + n, base);
        // Later rows see no fewer keys and begin no earlier.
        const int first = row[0].first, last = row[N - 1].last;
        if (first >= last) return;
        alignas(64) float score[N][kKeyBlock];
        alignas(64) int16_t codes[N][kKeyBlock];
        products.template score<N>(codes_of(r), step + r, keys, values.codes, first, last, score);
        weigh_rows<N>(a, row, values.steps, part.top + r, part.sum + r, score, codes);
        products.template add<N>(row, values.codes, next, first, last, codes, part.acc + r * a.head_dim);
    }

    // The pages of one split.
    void attend_split(int64_t split, const PartialAttention& part) const {
        const int64_t dim = a.head_dim;
        std::fill_n(part.acc, rows * dim, 0.0f), std::fill_n(part.top, rows, -INFINITY), std::fill_n(part.sum, rows, 0.0f);
        for (int64_t p = split * kSplitPages; p < (split + 1) * kSplitPages; ++p) {
            const int64_t base = p * kKeyBlock;
            if (base >= a.start + t1) break;
            if (base + kKeyBlock <= a.first_key(t0)) continue;
            const int16_t* page = a.pages[p] + a.layer_offset;
            const CachePage keys(page, kv_head, dim), values(page, a.kv_heads + kv_head, dim);
            const bool end = base + kKeyBlock >= a.start + t1;
            const int16_t* next = end ? keys.codes : CachePage(a.pages[p + 1] + a.layer_offset, kv_head, dim).codes;
            products.take_page(keys, values);
            tiles([&](int64_t r, auto n) { attend_page<n>(r, keys, values, next, base, part); });
        }
    }
};

// Queries [t0, t1) of the heads that share *kv_head*, over the keys of splits [first, last).
template <class Products>
void attend_with(const AttentionArgs& a, int64_t kv_head, int64_t t0, int64_t t1, int64_t first, int64_t last, float* partial,
                 float* scratch) {
    const Block<Products> block(a, kv_head, t0, t1, scratch);
    const int64_t rows = block.rows;
    const PartialAttention seen(partial, rows, a.head_dim), more(block.rest, rows, a.head_dim);
    block.take_queries();
    block.attend_split(first, seen);
    for (int64_t split = first + 1; split < last; ++split) {
        block.attend_split(split, more);
        merge(seen, more, rows, a.head_dim);
    }
}

inline void attend(const AttentionArgs& a, int64_t kv_head, int64_t t0, int64_t t1, int64_t first, int64_t last,
                   float* partial, float* scratch) {
    const bool many = (t1 - t0) * (a.heads / a.kv_heads) > kFetchRows;
    (many ? attend_with<ManyProducts> : attend_with<FewProducts>)(a, kv_head, t0, t1, first, last, partial, scratch);
}

// One position's key and value, (kv_heads, dim) each, into place *slot* of a page.
inline void store_position(const float* k, const float* v, int64_t kv_heads, int64_t dim, int64_t slot, int16_t* page) {
    alignas(64) int16_t codes[kLanes];
    // A pair of keys' codes are neighbouring elements, one of values' neighbouring positions.
    const auto store = [&](const float* x, int64_t head, bool keys) {
        int16_t* to = page + head * head_words(dim);
        const Coding coding = keys ? Coding::of_length(x, dim) : Coding::of_largest(x, dim);
        for (int64_t d = 0; d < dim; d += kLanes) {
            const int64_t n = std::min<int64_t>(kLanes, dim - d);
            coding.encode(x + d, n, codes);
            if (keys)
                for (int64_t i = 0; i < n; ++i) to[(d + i) / 2 * 2 * kKeyBlock + 2 * slot + i % 2] = codes[i];
            else
                for (int64_t i = 0; i < n; ++i) to[slot / 2 * 2 * even(dim) + 2 * (d + i) + slot % 2] = codes[i];
        }
        if (dim % 2 != 0) to[keys ? (dim - 1) * kKeyBlock + 2 * slot + 1 : slot / 2 * 2 * even(dim) + 2 * dim + slot % 2] = 0;
        std::memcpy(to + kKeyBlock * even(dim) + 2 * slot, &coding.step, sizeof(float));
    };
    for (int64_t h = 0; h < kv_heads; ++h) store(k + h * dim, h, true), store(v + h * dim, kv_heads + h, false);
}

}  // namespace
}  // namespace bitnet
