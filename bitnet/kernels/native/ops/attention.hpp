// Attention of a few queries over a stretch of the cache, built once per instruction set.
//
// Keys lie transposed in a page, so a register holds one element of neighbouring keys and a score is
// a sum over elements in order; values are added key by key. Neither order depends on how many
// queries are computed together, and so neither do the bits. Many queries share what is read: a page
// is made float32 once, and a tile of queries holds its sums in registers.
#pragma once

#include <type_traits>

#include "ops/lanes.hpp"
#include "ops/partial_attention.hpp"

namespace bitnet {
namespace {

// Rows (queries of one head each) and registers of keys or elements of a tile: of a page that was made
// float32 for many rows, and of one in the cache for a few.
#if defined(__AVX512F__)
constexpr int kManyRows = 8, kFewRows = 4;
#elif defined(BITNET_F16C) || defined(BITNET_NEON)
constexpr int kManyRows = 6, kFewRows = 2;
#else
constexpr int kManyRows = 1, kFewRows = 1;
#endif
constexpr int kManyVectors = 2, kFewVectors = 4;
constexpr int64_t kDirectRows = 2 * kFewRows;  // up to which converting a page costs more than it saves

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

// The same rounding as Lanes::add_product.
inline float add_product(float a, float b, float c) {
#if defined(BITNET_F16C) || defined(BITNET_NEON)
    return std::fma(a, b, c);
#else
    return a * b + c;
#endif
}

inline float to_float(float f) { return f; }
inline float to_float(uint16_t h) { return half_to_float(h); }

// Sum of weighted values of a row, the keys of the page at hand it sees, and by how much the sum is too large now.
struct QueryRow {
    float* acc;
    int first, last;
    float rescale;
};

// Tiles over a page as float32, and over one in the cache.
template <class T>
struct Tile {
    static constexpr bool kDirect = sizeof(T) == sizeof(uint16_t);
    static constexpr int kVectors = kDirect ? kFewVectors : kManyVectors, kRows = kDirect ? kFewRows : kManyRows;
};

// score[n] = row n of *q*, (dim, N), times keys [at, at + kVectors * kWidth) of *keys*, (dim, kKeyBlock).
// What lies at *soon* is fetched meanwhile, kKeyBlock f16 for each element.
template <int N, bool kFetch, class T>
void score_keys(const float* q, const T* keys, const uint16_t* soon, int64_t dim, int at, float (*score)[kKeyBlock]) {
    constexpr int kVectors = Tile<T>::kVectors;
    Lanes sum[N][kVectors];
    for (int n = 0; n < N; ++n)
        for (Lanes& s : sum[n]) s = Lanes::set(0.0f);
    keys += at;
    for (int64_t d = 0; d < dim; ++d, keys += kKeyBlock, q += N) {
        if constexpr (kFetch) fetch(soon + d * kKeyBlock);
        Lanes k[kVectors];
        for (int i = 0; i < kVectors; ++i) k[i] = Lanes::load(keys + i * Lanes::kWidth);
        for (int n = 0; n < N; ++n) {
            const Lanes x = Lanes::set(q[n]);
            for (int i = 0; i < kVectors; ++i) sum[n][i].add_product(k[i], x);
        }
    }
    for (int n = 0; n < N; ++n)
        for (int i = 0; i < kVectors; ++i) sum[n][i].store(score[n] + at + i * Lanes::kWidth);
}

// Scores of the keys from *first* to *last* at least.
template <int N, class T>
void score_page(const float* q, const T* keys, const uint16_t* soon, int64_t dim, int first, int last,
                float (*score)[kKeyBlock]) {
    constexpr int kStep = Tile<T>::kVectors * Lanes::kWidth;
    for (int at = first / kStep * kStep; at < last; at += kStep, soon = nullptr)
        if (Tile<T>::kDirect && soon) score_keys<N, true>(q, keys, soon, dim, at, score);
        else score_keys<N, false>(q, keys, soon, dim, at, score);
}

// Scores of one row become those of the keys it sees, scaled; returns the largest, or *top*.
inline float scale_scores(const AttentionArgs& a, int first, int last, float top, float* score) {
    constexpr int kWidth = Lanes::kWidth, kParts = kLanes / kWidth;
    for (int i = 0; i < kKeyBlock; i += kWidth) (Lanes::load(score + i) * Lanes::set(a.scale)).store(score + i);
    if (a.softcap > 0.0f) softcap(score, kKeyBlock, a.softcap, score);
    for (int i = 0; i < first; ++i) score[i] = -INFINITY;
    for (int i = last; i < kKeyBlock; ++i) score[i] = -INFINITY;
    Lanes part[kParts];
    for (int i = 0; i < kParts; ++i) part[i] = Lanes::load(score + i * kWidth);
    for (int i = kLanes; i < kKeyBlock; i += kWidth) {
        Lanes& most = part[i / kWidth % kParts];
        most = Lanes::larger(Lanes::load(score + i), most);
    }
    const float largest = Sixteen(part).largest();
    return largest > top ? largest : top;
}

// Scores of one row become weights; returns their sum.
inline float weigh(float top, float* score) {
    constexpr int kWidth = Lanes::kWidth, kParts = kLanes / kWidth;
    Lanes part[kParts];
    for (int i = 0; i < kKeyBlock; i += kWidth) {
        const Lanes weight = exp_or_zero(Lanes::load(score + i) - Lanes::set(top));
        weight.store(score + i);
        Lanes& sum = part[i / kWidth % kParts];
        sum = i < kLanes ? weight : sum + weight;
    }
    return Sixteen(part).sum();
}

// All rows step by step, so that none waits for what another one does last.
template <int N>
void weigh_rows(const AttentionArgs& a, QueryRow* rows, float* top, float* sum, float (*score)[kKeyBlock]) {
    static_assert(N <= Lanes::kWidth, "a register has room for all rows");
    float before[Lanes::kWidth] = {}, after[Lanes::kWidth] = {};
    const auto sees = [&](int n) { return rows[n].first < rows[n].last; };
    for (int n = 0; n < N; ++n)
        if (sees(n)) before[n] = top[n], after[n] = top[n] = scale_scores(a, rows[n].first, rows[n].last, top[n], score[n]);
    exp_or_zero(Lanes::load(before) - Lanes::load(after)).store(before);
    for (int n = 0; n < N; ++n)
        if (sees(n)) rows[n].rescale = before[n], sum[n] = sum[n] * before[n] + weigh(top[n], score[n]);
}

// acc = acc * rescale + sum of weight * value, of kCount vectors from element *d* on and keys [first, last).
template <int N, int kCount, bool kFetch, class T>
void add_vectors(const QueryRow* rows, const T* values, const uint16_t* soon, int64_t dim, int64_t d, int first, int last,
                 const float (*weight)[kKeyBlock]) {
    Lanes acc[N][kCount];
    for (int n = 0; n < N; ++n)
        for (int i = 0; i < kCount; ++i)
            acc[n][i] = Lanes::load(rows[n].acc + d + i * Lanes::kWidth) * Lanes::set(rows[n].rescale);
    values += first * dim + d;
    for (int key = first; key < last; ++key, values += dim) {
        if constexpr (kFetch) fetch(soon + key * dim + d);
        Lanes v[kCount];
        for (int i = 0; i < kCount; ++i) v[i] = Lanes::load(values + i * Lanes::kWidth);
        for (int n = 0; n < N; ++n) {
            const Lanes w = Lanes::set(weight[n][key]);
            for (int i = 0; i < kCount; ++i) acc[n][i].add_product(v[i], w);
        }
    }
    for (int n = 0; n < N; ++n)
        for (int i = 0; i < kCount; ++i) acc[n][i].store(rows[n].acc + d + i * Lanes::kWidth);
}

template <int N, bool kFetch, class T>
void add_values(const QueryRow* rows, const T* values, const uint16_t* soon, int64_t dim, int first, int last,
                const float (*weight)[kKeyBlock]) {
    constexpr int kVectors = Tile<T>::kVectors, kStep = kVectors * Lanes::kWidth;
    int64_t d = 0;
    for (; d + kStep <= dim; d += kStep) add_vectors<N, kVectors, kFetch>(rows, values, soon, dim, d, first, last, weight);
    for (; d + Lanes::kWidth <= dim; d += Lanes::kWidth)
        add_vectors<N, 1, false>(rows, values, soon, dim, d, first, last, weight);
    for (; d < dim; ++d)
        for (int n = 0; n < N; ++n) {
            float sum = rows[n].acc[d] * rows[n].rescale;
            for (int key = first; key < last; ++key)
                sum = add_product(to_float(values[key * dim + d]), weight[n][key], sum);
            rows[n].acc[d] = sum;
        }
}

// Values of the keys that each row sees: those that all see are read once.
template <int N, class T>
void add_page(QueryRow* rows, const T* values, const uint16_t* soon, int64_t dim, const float (*weight)[kKeyBlock]) {
    int first = rows[0].first, last = rows[0].last;
    for (int n = 1; n < N; ++n) first = std::max(first, rows[n].first), last = std::min(last, rows[n].last);
    last = std::max(first, last);
    const auto alone = [&](int n, int from, int to) {
        if (from >= to) return;
        add_values<1, false>(rows + n, values, soon, dim, from, to, weight + n);
        rows[n].rescale = 1.0f;
    };
    for (int n = 0; n < N; ++n) alone(n, rows[n].first, std::min(rows[n].last, first));
    if (Tile<T>::kDirect && soon) add_values<N, true>(rows, values, soon, dim, first, last, weight);
    else add_values<N, false>(rows, values, soon, dim, first, last, weight);
    for (int n = 0; n < N; ++n) rows[n].rescale = 1.0f;
    for (int n = 0; n < N; ++n) alone(n, std::max(rows[n].first, last), rows[n].last);
}

// Calls body(rows, N) for a tile of *n* rows, N in 1 .. kMost.
template <int kMost, class F>
void with_rows(int64_t n, F&& body) {
    if constexpr (kMost == 1) body(std::integral_constant<int, 1>());
    else if (n >= kMost) body(std::integral_constant<int, kMost>());
    else with_rows<kMost - 1>(n, body);
}

// Queries [t0, t1) of the heads that share *kv_head*.
struct Block {
    const AttentionArgs& a;
    int64_t kv_head, t0, t1, group, rows;
    float* copy;                // keys or values of a page as float32
    float (*score)[kKeyBlock];  // of each row
    float* q;                   // (dim, N) of each tile

    Block(const AttentionArgs& args, int64_t head, int64_t from, int64_t to, float* scratch)
        : a(args), kv_head(head), t0(from), t1(to), group(args.heads / args.kv_heads), rows((to - from) * group),
          copy(scratch), score(reinterpret_cast<float(*)[kKeyBlock]>(copy + kKeyBlock * args.head_dim)), q(score[rows]) {}

    // Calls body(r, N) for each tile of N rows from row r on.
    template <int kMost, class F>
    void tiles(F&& body) const {
        for (int64_t r = 0; r < rows;)
            with_rows<kMost>(rows - r, [&](auto n) {
                body(r, n);
                r += n;
            });
    }

    template <int kMost>
    void take_queries() const {
        tiles<kMost>([&](int64_t r, auto n) {
            for (int i = 0; i < n; ++i) {
                const int64_t t = t0 + (r + i) / group;
                const float* from = a.q + (t * a.heads + kv_head * group + (r + i) % group) * a.head_dim;
                for (int64_t d = 0; d < a.head_dim; ++d) q[r * a.head_dim + d * n + i] = from[d];
            }
        });
    }

    // Row *r* before a page, and what it sees of those that begin at *base*.
    QueryRow see(const PartialAttention& part, int64_t r, int64_t base) const {
        const int64_t t = t0 + r / group;
        return {part.acc + r * a.head_dim, int(std::clamp<int64_t>(a.first_key(t) - base, 0, kKeyBlock)),
                int(std::clamp<int64_t>(a.start + t + 1 - base, 0, kKeyBlock)), 1.0f};
    }

    // *from*, a page's keys or values, as it is or as float32.
    template <class T>
    const T* as(const uint16_t* from) const {
        if constexpr (Tile<T>::kDirect) return from;
        else {
            for (int64_t i = 0; i < a.head_dim * kKeyBlock; i += Lanes::kWidth) Lanes::load(from + i).store(copy + i);
            return copy;
        }
    }

    // Keys and values of the page that begins at *base*; *next* are the keys that are seen after it.
    template <class T>
    void attend_page(const uint16_t* keys, const uint16_t* values, const uint16_t* next, int64_t base,
                     const PartialAttention& part) const {
        const int64_t dim = a.head_dim;
        const bool whole = base >= a.first_key(t1 - 1) && base + kKeyBlock <= a.start + t0 + 1;
        const T* at = as<T>(keys);
        tiles<Tile<T>::kRows>([&](int64_t r, auto n) {
            // Later rows see no fewer keys and begin no earlier.
            const int first = whole ? 0 : see(part, r, base).first, last = whole ? kKeyBlock : see(part, r + n - 1, base).last;
            score_page<n>(q + r * dim, at, r == 0 ? values : nullptr, dim, first, last, score + r);
        });
        at = as<T>(values);
        tiles<Tile<T>::kRows>([&](int64_t r, auto n) {
            QueryRow row[n];
            for (int i = 0; i < n; ++i)
                row[i] = whole ? QueryRow{part.acc + (r + i) * dim, 0, kKeyBlock, 1.0f} : see(part, r + i, base);
            weigh_rows<n>(a, row, part.top + r, part.sum + r, score + r);
            add_page<n>(row, at, r == 0 ? next : nullptr, dim, score + r);
        });
    }

    // The pages of one split.
    void attend_split(int64_t split, const PartialAttention& part) const {
        const int64_t dim = a.head_dim;
        std::fill_n(part.acc, rows * dim, 0.0f), std::fill_n(part.top, rows, -INFINITY), std::fill_n(part.sum, rows, 0.0f);
        for (int64_t p = split * kSplitPages; p < (split + 1) * kSplitPages; ++p) {
            const int64_t base = p * kKeyBlock;
            if (base >= a.start + t1) break;
            if (base + kKeyBlock <= a.first_key(t0)) continue;
            const int64_t offset = a.layer_offset + kv_head * dim * kKeyBlock;
            const uint16_t *keys = a.pages[p] + offset, *values = keys + a.kv_heads * dim * kKeyBlock;
            const uint16_t* next = base + kKeyBlock >= a.start + t1 ? keys : a.pages[p + 1] + offset;
            if (rows <= kDirectRows) attend_page<uint16_t>(keys, values, next, base, part);
            else attend_page<float>(keys, values, next, base, part);
        }
    }
};

// Queries [t0, t1) of the heads that share *kv_head*, over the keys of splits [first, last).
void attend(const AttentionArgs& a, int64_t kv_head, int64_t t0, int64_t t1, int64_t first, int64_t last, float* partial,
            float* scratch) {
    const Block block(a, kv_head, t0, t1, scratch);
    const int64_t rows = block.rows;
    const PartialAttention seen(partial, rows, a.head_dim), more(block.q + rows * a.head_dim, rows, a.head_dim);
    if (rows <= kDirectRows) block.take_queries<kFewRows>();
    else block.take_queries<kManyRows>();
    block.attend_split(first, seen);
    for (int64_t split = first + 1; split < last; ++split) {
        block.attend_split(split, more);
        merge(seen, more, rows, a.head_dim);
    }
}

// One position's key and value, (kv_heads, dim) each, into place *slot* of a page.
void store_position(const float* k, const float* v, int64_t kv_heads, int64_t dim, int64_t slot, uint16_t* page) {
    alignas(64) uint16_t half[16];
    const auto to_halves = [&](const float* x, int64_t n) {
#if defined(BITNET_F16C)
        if (n == 16) {
            for (int i = 0; i < 16; i += 8)
                _mm_store_si128(reinterpret_cast<__m128i*>(half + i),
                                _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
            return;
        }
#elif defined(BITNET_NEON)
        if (n == 16) {
            for (int i = 0; i < 16; i += 4) vst1_u16(half + i, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(x + i))));
            return;
        }
#endif
        for (int64_t i = 0; i < n; ++i) half[i] = float_to_half(x[i]);
    };
    for (int64_t h = 0; h < kv_heads; ++h) {
        uint16_t* keys = page + h * dim * kKeyBlock + slot;
        uint16_t* values = page + (kv_heads + h) * dim * kKeyBlock + slot * dim;
        for (int64_t d = 0; d < dim; d += 16) {
            const int64_t n = dim - d < 16 ? dim - d : 16;
            to_halves(k + h * dim + d, n);
            for (int64_t i = 0; i < n; ++i) keys[(d + i) * kKeyBlock] = half[i];
            to_halves(v + h * dim + d, n);
            std::memcpy(values + d, half, size_t(n) * 2);
        }
    }
}

}  // namespace
}  // namespace bitnet
