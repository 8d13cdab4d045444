// Attention of a few queries over a stretch of the cache, built once per instruction set. `Products` are those of a tile of
// queries (ops/attention.hpp).
#pragma once

#include <cfloat>
#include <type_traits>

#include "ops/lanes.hpp"
#include "ops/partial_attention.hpp"

namespace bitnet {
namespace {

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

// What a row (a query of one head) sees of the page at hand, and what the page changes of it.
struct QueryRow {
    int first, last;
    float before, factor;  // of the sum so far, and of a sum of codes
    bool sees() const { return first < last; }

    // *sum* of codes to the sums so far, a register of them.
    void add(Lanes sum, float* acc) const {
        (Lanes::load(acc) * Lanes::set(before) + sum * Lanes::set(factor)).store(acc);
    }
};

// Scores of one row without those of keys it does not see, and the lanes of the largest.
inline void look(const AttentionArgs& a, const QueryRow& row, float octave, float* score, Parts& largest) {
    constexpr int kWidth = Lanes::kWidth, kParts = kLanes / kWidth;
    if (a.softcap > 0.0f) {
        softcap(score + row.first, row.last - row.first, a.softcap, score + row.first);
        for (int i = row.first; i < row.last; ++i) score[i] *= octave;
    }
    for (int i = 0; i < row.first; ++i) score[i] = -INFINITY;
    for (int i = row.last; i < kKeyBlock; ++i) score[i] = -INFINITY;
    Parts part;
    for (int i = 0; i < kParts; ++i) part[i] = Lanes::load(score + i * kWidth);
    for (int i = kLanes; i < kKeyBlock; i += kWidth) {
        Lanes& most = part[i / kWidth % kParts];
        most = Lanes::larger(Lanes::load(score + i), most);
    }
    for (int i = 0; i < kParts; ++i) largest[i] = part[i];
}

// The softmax of a tile's rows, step by step, so that none waits for what another one does last. What is one number of
// a row is computed for all of them at once.
template <class Products, int N>
void weigh_rows(const AttentionArgs& a, const Products& products, QueryRow* rows, typename Products::Page values, float* top,
                float* sum, float (*score)[kKeyBlock], typename Products::Weights* weights) {
    constexpr int kRows = whole_eights(N);
    constexpr float kUnits = Products::kUnits;
    alignas(64) float of_page[kRows] = {}, sums[kRows] = {}, steps[kRows] = {};
    Parts largest[kRows];
    for (int n = 0; n < kRows; ++n)
        if (n < N && rows[n].sees()) look(a, rows[n], kLog2E * kUnits, score[n], largest[n]);
        else zero(largest[n]);
    fold_rows<N, false>(largest, of_page);
    products.template weigh<N>(rows, of_page, values, score, weights, sums, steps);
    for (int n = 0; n < kRows; ++n) of_page[n] *= 1.0f / kUnits;
    alignas(64) float most[kRows] = {}, before[kRows] = {}, now[kRows] = {};
    for (int n = 0; n < N; ++n) before[n] = top[n];
    for (int n = 0; n < kRows; ++n) {
        most[n] = of_page[n] > before[n] ? of_page[n] : before[n];
        before[n] = power_or_zero(before[n] - most[n]), now[n] = power_or_zero(of_page[n] - most[n]);
    }
    for (int n = 0; n < N; ++n) {
        if (!rows[n].sees()) continue;
        top[n] = most[n], sum[n] = sum[n] * before[n] + sums[n] * now[n];
        rows[n].before = before[n], rows[n].factor = steps[n] * now[n];
    }
}

// Calls body(N) for a tile of *n* rows, N = kMost or in 1 .. kRest.
template <int kMost, int kRest, class F>
void with_rows(int64_t n, F&& body) {
    if constexpr (kMost == 1) body(std::integral_constant<int, 1>());
    else if (n >= kMost) body(std::integral_constant<int, kMost>());
    else with_rows<(kMost > kRest ? kRest : kMost - 1), kRest>(n, body);
}

// Queries [t0, t1) of the heads that share *kv_head*.
template <class Products>
struct Block {
    using Page = typename Products::Page;
    using Codes = decltype(Page::codes);
    const AttentionArgs& a;
    int64_t kv_head, t0, t1, group, rows;
    int16_t* q;  // row_words of each row, as the products of its tile take them
    float* page_codes;
    mutable Products products;
    float* step;     // of each row's query, times the scale
    int32_t* start;  // of each row's sums of products with keys
    float* rest;     // behind all

    Block(const AttentionArgs& args, int64_t head, int64_t from, int64_t to, float* scratch)
        : a(args), kv_head(head), t0(from), t1(to), group(args.heads / args.kv_heads), rows((to - from) * group),
          q(reinterpret_cast<int16_t*>(scratch)), page_codes(scratch + rows * Products::row_words(a.head_dim) / 2),
          products(a.head_dim, page_codes), step(page_codes + Products::page_floats(a.head_dim)),
          start(reinterpret_cast<int32_t*>(step + rows)), rest(step + 2 * rows) {}

    int16_t* codes_of(int64_t r) const { return q + r * Products::row_words(a.head_dim); }

    // Calls body(r, N) for each tile of N rows, the first one from row *r* on.
    template <class F>
    void tiles(int64_t r, F&& body) const {
        while (r < rows)
            with_rows<Products::kRows, Products::kRest>(rows - r, [&](auto n) {
                body(r, n);
                r += n;
            });
    }

    void take_queries() const {
        const int64_t dim = a.head_dim;
        // Scores are powers of two in the end.
        const float scale = a.softcap > 0.0f ? a.scale : a.scale * (kLog2E * Products::kUnits);
        tiles(0, [&](int64_t r, auto n) {
            for (int i = 0; i < n; ++i) {
                const int64_t t = t0 + (r + i) / group;
                const float* from = a.q + (t * a.heads + kv_head * group + (r + i) % group) * dim;
                products.template take<n>(from, scale, i, rest, codes_of(r), step[r + i], start[r + i]);
            }
        });
    }

    // What *count* rows from *r* on see of the page that begins at *base*.
    void see(int64_t r, int count, int64_t base, QueryRow* rows) const {
        int64_t t = t0 + r / group, end = (r / group + 1) * group;
        for (int n = 0; n < count; ++n) {
            if (r + n == end) ++t, end += group;
            rows[n] = {int(std::clamp<int64_t>(a.first_key(t) - base, 0, kKeyBlock)),
                       int(std::clamp<int64_t>(a.start + t + 1 - base, 0, kKeyBlock)), 1.0f, 0.0f};
        }
    }

    // M tiles of N rows over the page that begins at *base*. The values, and the keys that are seen *next*, are fetched
    // while what comes before them is read.
    template <int N, int M>
    void attend_page(int64_t r, Page keys, Page values, Codes next, int64_t base,
                     const PartialAttention& part) const {
        QueryRow row[M * N];
        see(r, M * N, base, row);
        // Later rows see no fewer keys and begin no earlier.
        const int first = row[0].first, last = row[M * N - 1].last;
        if (first >= last) return;
        alignas(64) float score[M * N][kKeyBlock];
        alignas(64) typename Products::Weights weights[M * N];
        products.template score<N, M>(codes_of(r), step + r, start + r, keys, values.codes, first, last, score);
        for (int n = 0; n < M * N; n += N)
            weigh_rows<Products, N>(a, products, row + n, values, part.top + r + n, part.sum + r + n, score + n, weights + n);
        products.template add<N, M>(row, values, next, first, last, weights, part.acc + r * code_width(a.head_dim));
    }

    // The pages of one split.
    void attend_split(int64_t split, const PartialAttention& part) const {
        const int64_t dim = a.head_dim;
        std::fill_n(part.acc, rows * code_width(dim), 0.0f), std::fill_n(part.top, rows, -INFINITY), std::fill_n(part.sum, rows, 0.0f);
        for (int64_t p = split * kSplitPages; p < (split + 1) * kSplitPages; ++p) {
            const int64_t base = p * kKeyBlock;
            if (base >= a.start + t1) break;
            if (base + kKeyBlock <= a.first_key(t0)) continue;
            const int16_t* page = a.pages[p] + a.layer_offset;
            const Page keys(page, kv_head, dim), values(page, a.kv_heads + kv_head, dim);
            const bool end = base + kKeyBlock >= a.start + t1;
            const Codes next = end ? keys.codes : Page(a.pages[p + 1] + a.layer_offset, kv_head, dim).codes;
            products.take_page(keys, values);
            constexpr int kRows = Products::kRows, kTogether = Products::kTogether;
            int64_t r = 0;
            if constexpr (kTogether > 1)
                for (; r + kRows * kTogether <= rows; r += kRows * kTogether)
                    attend_page<kRows, kTogether>(r, keys, values, next, base, part);
            tiles(r, [&](int64_t at, auto n) { attend_page<n, 1>(at, keys, values, next, base, part); });
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

}  // namespace
}  // namespace bitnet
