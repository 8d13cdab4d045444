// Attention of a few queries over a stretch of the cache, built once per instruction set.
//
// Keys lie transposed in a page, so a register holds one element of neighbouring keys and a score is
// a sum over elements in order; values are added key by key. Neither order depends on how many
// queries are computed together, and so neither do the bits.
#pragma once

#include <cmath>

#include "ops/float_ops.hpp"

namespace bitnet {
namespace {

#if defined(__AVX512F__)
struct Lanes {
    static constexpr int kWidth = 16, kRows = 4;  // queries computed together
    __m512 v;
    static Lanes zero() { return {_mm512_setzero_ps()}; }
    static Lanes set(float f) { return {_mm512_set1_ps(f)}; }
    static Lanes load(const float* p) { return {_mm512_loadu_ps(p)}; }
    static Lanes load(const uint16_t* p) {
        return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
    }
    Lanes times(Lanes other) const { return {_mm512_mul_ps(v, other.v)}; }
    void add_product(Lanes a, Lanes b) { v = _mm512_fmadd_ps(a.v, b.v, v); }
    void store(float* p) const { _mm512_storeu_ps(p, v); }
};
#elif defined(BITNET_F16C)
struct Lanes {
    static constexpr int kWidth = 8, kRows = 2;
    __m256 v;
    static Lanes zero() { return {_mm256_setzero_ps()}; }
    static Lanes set(float f) { return {_mm256_set1_ps(f)}; }
    static Lanes load(const float* p) { return {_mm256_loadu_ps(p)}; }
    static Lanes load(const uint16_t* p) {
        return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
    }
    Lanes times(Lanes other) const { return {_mm256_mul_ps(v, other.v)}; }
    void add_product(Lanes a, Lanes b) { v = _mm256_fmadd_ps(a.v, b.v, v); }
    void store(float* p) const { _mm256_storeu_ps(p, v); }
};
#elif defined(BITNET_NEON)
struct Lanes {
    static constexpr int kWidth = 8, kRows = 2;
    float32x4_t low, high;
    static Lanes zero() { return set(0.0f); }
    static Lanes set(float f) { return {vdupq_n_f32(f), vdupq_n_f32(f)}; }
    static Lanes load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
    static Lanes load(const uint16_t* p) {
        const float16x8_t halves = vreinterpretq_f16_u16(vld1q_u16(p));
        return {vcvt_f32_f16(vget_low_f16(halves)), vcvt_high_f32_f16(halves)};
    }
    Lanes times(Lanes other) const { return {vmulq_f32(low, other.low), vmulq_f32(high, other.high)}; }
    void add_product(Lanes a, Lanes b) { low = vfmaq_f32(low, a.low, b.low), high = vfmaq_f32(high, a.high, b.high); }
    void store(float* p) const { vst1q_f32(p, low), vst1q_f32(p + 4, high); }
};
#else
struct Lanes {
    static constexpr int kWidth = 8, kRows = 1;
    float v[8];
    static Lanes zero() { return set(0.0f); }
    static Lanes set(float f) { return {{f, f, f, f, f, f, f, f}}; }
    static Lanes load(const float* p) {
        Lanes out;
        for (int i = 0; i < 8; ++i) out.v[i] = p[i];
        return out;
    }
    static Lanes load(const uint16_t* p) {
        Lanes out;
        for (int i = 0; i < 8; ++i) out.v[i] = half_to_float(p[i]);
        return out;
    }
    Lanes times(const Lanes& other) const {
        Lanes out;
        for (int i = 0; i < 8; ++i) out.v[i] = v[i] * other.v[i];
        return out;
    }
    void add_product(const Lanes& a, const Lanes& b) {
        for (int i = 0; i < 8; ++i) v[i] += a.v[i] * b.v[i];
    }
    void store(float* p) const {
        for (int i = 0; i < 8; ++i) p[i] = v[i];
    }
};
#endif

// Two lines of the cache that are read soon: a page is too short for the hardware to see it coming.
inline void fetch(const uint16_t* p) {
#if defined(BITNET_F16C)
    _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(p + 32), _MM_HINT_T0);
#elif defined(BITNET_NEON)
    __builtin_prefetch(p);
    __builtin_prefetch(p + 32);
#else
    (void)p;
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

// One query head: what it has seen so far and which keys of the page at hand it sees.
struct QueryRow {
    const float* q;
    float *acc, *top, *sum;  // sum of weighted values, largest score, sum of weights
    int first, last;
    float rescale;
};

constexpr int kVectors = 4;

// score[n] = q of row n times each key; *keys* is (dim, kKeyBlock). The values behind are fetched.
template <int N, bool kFetch>
void score_keys(const QueryRow* rows, const uint16_t* keys, const uint16_t* values, int64_t dim,
                float (*score)[kKeyBlock]) {
    constexpr int kStep = kVectors * Lanes::kWidth;
    for (int at = 0; at < kKeyBlock; at += kStep) {
        Lanes sum[N][kVectors];
        for (int n = 0; n < N; ++n)
            for (Lanes& s : sum[n]) s = Lanes::zero();
        for (int64_t d = 0; d < dim; ++d) {
            if (kFetch && at == 0) fetch(values + d * kKeyBlock);
            Lanes k[kVectors];
            for (int i = 0; i < kVectors; ++i) k[i] = Lanes::load(keys + d * kKeyBlock + at + i * Lanes::kWidth);
            for (int n = 0; n < N; ++n) {
                const Lanes q = Lanes::set(rows[n].q[d]);
                for (int i = 0; i < kVectors; ++i) sum[n][i].add_product(k[i], q);
            }
        }
        for (int n = 0; n < N; ++n)
            for (int i = 0; i < kVectors; ++i) sum[n][i].store(score[n] + at + i * Lanes::kWidth);
    }
}

// Scores of one row become weights; what it has seen is to be rescaled by row.rescale.
inline void weigh(const AttentionArgs& a, QueryRow& row, float* score) {
    for (int i = 0; i < kKeyBlock; ++i) score[i] *= a.scale;
    if (a.softcap > 0.0f) softcap(score, kKeyBlock, a.softcap, score);
    for (int i = 0; i < row.first; ++i) score[i] = -INFINITY;
    for (int i = row.last; i < kKeyBlock; ++i) score[i] = -INFINITY;
    float largest[kLanes];
    for (int j = 0; j < kLanes; ++j) largest[j] = score[j];
    for (int i = kLanes; i < kKeyBlock; i += kLanes)
        for (int j = 0; j < kLanes; ++j) largest[j] = score[i + j] > largest[j] ? score[i + j] : largest[j];
    float top = *row.top;
    for (const float s : largest) top = s > top ? s : top;
    for (int i = 0; i < kKeyBlock; ++i) score[i] = exp_or_zero(score[i] - top);
    row.rescale = *row.top == top ? 1.0f : exp_or_zero(*row.top - top);
    *row.sum = *row.sum * row.rescale + sum_over(kKeyBlock, [&](int64_t i) { return score[i]; });
    *row.top = top;
}

// acc = acc * rescale + sum of weight * value, of kCount vectors from element *d* on.
template <int N, int kCount, bool kFetch>
void add_vectors(const QueryRow* rows, const uint16_t* values, const uint16_t* next, int64_t dim, int64_t d,
                 const float (*weight)[kKeyBlock]) {
    Lanes acc[N][kCount];
    for (int n = 0; n < N; ++n)
        for (int i = 0; i < kCount; ++i)
            acc[n][i] = Lanes::load(rows[n].acc + d + i * Lanes::kWidth).times(Lanes::set(rows[n].rescale));
    for (int key = rows[0].first; key < rows[0].last; ++key) {
        if (kFetch) fetch(next + key * dim + d);
        Lanes v[kCount];
        for (int i = 0; i < kCount; ++i) v[i] = Lanes::load(values + key * dim + d + i * Lanes::kWidth);
        for (int n = 0; n < N; ++n) {
            const Lanes w = Lanes::set(weight[n][key]);
            for (int i = 0; i < kCount; ++i) acc[n][i].add_product(v[i], w);
        }
    }
    for (int n = 0; n < N; ++n)
        for (int i = 0; i < kCount; ++i) acc[n][i].store(rows[n].acc + d + i * Lanes::kWidth);
}

// The rows see the same keys; *values* is (kKeyBlock, dim). The *next* page's keys are fetched.
template <int N, bool kFetch>
void add_values(const QueryRow* rows, const uint16_t* values, const uint16_t* next, int64_t dim,
                const float (*weight)[kKeyBlock]) {
    int64_t d = 0;
    for (; d + kVectors * Lanes::kWidth <= dim; d += kVectors * Lanes::kWidth)
        add_vectors<N, kVectors, kFetch>(rows, values, next, dim, d, weight);
    for (; d + Lanes::kWidth <= dim; d += Lanes::kWidth)
        add_vectors<N, 1, false>(rows, values, next, dim, d, weight);
    for (; d < dim; ++d)
        for (int n = 0; n < N; ++n) {
            float sum = rows[n].acc[d] * rows[n].rescale;
            for (int key = rows[n].first; key < rows[n].last; ++key)
                sum = add_product(half_to_float(values[key * dim + d]), weight[n][key], sum);
            rows[n].acc[d] = sum;
        }
}

// A page of the cache: keys and values of one head, and the keys that are seen after them.
struct HeadPage {
    const uint16_t *keys, *values, *next;
};

template <int N, bool kFetch>
void attend_rows(const AttentionArgs& a, QueryRow* rows, const HeadPage& page) {
    alignas(64) float score[N][kKeyBlock];
    score_keys<N, kFetch>(rows, page.keys, page.values, a.head_dim, score);
    bool same = true;
    for (int n = 0; n < N; ++n) {
        weigh(a, rows[n], score[n]);
        same = same && rows[n].first == rows[0].first && rows[n].last == rows[0].last;
    }
    if (same) add_values<N, kFetch>(rows, page.values, page.next, a.head_dim, score);
    else
        for (int n = 0; n < N; ++n) add_values<1, false>(rows + n, page.values, page.next, a.head_dim, score + n);
}

template <bool kFetch>
void attend_rows(const AttentionArgs& a, QueryRow* rows, int n, const HeadPage& page) {
    static_assert(Lanes::kRows <= 4, "a case below for every number of rows");
    if (n == 1) return attend_rows<1, kFetch>(a, rows, page);
    if constexpr (Lanes::kRows >= 2)
        if (n == 2) return attend_rows<2, kFetch>(a, rows, page);
    if constexpr (Lanes::kRows >= 4) {
        if (n == 3) return attend_rows<3, kFetch>(a, rows, page);
        attend_rows<4, kFetch>(a, rows, page);
    }
}

// Queries [t0, t1) of the heads that share *kv_head*, over the keys of one split.
void attend(const AttentionArgs& a, int64_t kv_head, int64_t t0, int64_t t1, int64_t split, float* partial) {
    const int64_t group = a.heads / a.kv_heads, dim = a.head_dim, rows = (t1 - t0) * group;
    const PartialAttention part(partial, rows, dim);
    for (int64_t i = 0; i < rows * dim; ++i) part.acc[i] = 0.0f;
    for (int64_t i = 0; i < rows; ++i) part.top[i] = -INFINITY, part.sum[i] = 0.0f;
    for (int64_t page = split * kSplitPages; page < (split + 1) * kSplitPages; ++page) {
        const int64_t base = page * kKeyBlock;
        if (base >= a.start + t1) break;
        if (base + kKeyBlock <= a.first_key(t0)) continue;
        const int64_t offset = a.layer_offset + kv_head * dim * kKeyBlock;
        const bool last_page = base + kKeyBlock >= a.start + t1;
        const uint16_t* keys = a.pages[page] + offset;
        const HeadPage at{keys, keys + a.kv_heads * dim * kKeyBlock, last_page ? keys : a.pages[page + 1] + offset};
        bool fetched = false;
        QueryRow together[Lanes::kRows];
        int n = 0;
        for (int64_t r = 0; r < rows; ++r) {
            const int64_t t = t0 + r / group, first = a.first_key(t) - base, last = a.start + t + 1 - base;
            if (first < kKeyBlock && last > 0) {
                const float* q = a.q + (t * a.heads + kv_head * group + r % group) * dim;
                together[n++] = {q, part.acc + r * dim, part.top + r, part.sum + r, first > 0 ? int(first) : 0,
                                 last < kKeyBlock ? int(last) : kKeyBlock, 1.0f};
            }
            if (n == Lanes::kRows || (n > 0 && r == rows - 1)) {
                if (fetched) attend_rows<false>(a, together, n, at);
                else attend_rows<true>(a, together, n, at);
                fetched = true;
                n = 0;
            }
        }
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
