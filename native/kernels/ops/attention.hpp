// Attention by codes of 16 or 8 bits, built once per instruction set.
//
// Queries, keys, weights and values are integers, so their products and sums are exact: blocking by queries, keys and
// elements is free, and every instruction set gives the same bits. What follows a sum of integers is float32 without fused
// operations, in the order written here.
#pragma once

#include <vector>

#include "ops/attention_tiles.hpp"
#include "ops/pair_sums.hpp"
#include "ops/quad_sums.hpp"

namespace bitnet {
namespace {

// How a vector becomes integers. What is not finite has no codes: zeros with a NaN step carry it to the result.
struct Coding {
    float scale, step;

    // *size*, the vector's length or largest magnitude, becomes *range*.
    Coding(float size, float range) {
        const bool finite = size <= 1e18f, zero = !finite || size < 1e-18f;
        scale = zero ? 0.0f : range / size;
        step = !finite ? NAN : zero ? 0.0f : size / range;
    }
    // The step has the upper 16 bits of a float32, none less than the largest magnitude over 127.
    explicit Coding(float largest) {
        const bool finite = largest <= 1e14f, zero = !finite || largest < 1e-18f;
        step = !finite ? NAN : zero ? 0.0f : bits_to_float((float_to_bits(largest / 127.0f) + 0xffff) & 0xffff0000);
        scale = zero ? 0.0f : 1.0f / step;
    }

    template <class Code>
    void encode(const float* x, int64_t n, Code* codes) const {
        std::fill(codes + n, codes + code_width(n), Code(0));
        if (scale == 0.0f) std::fill_n(codes, n, Code(0));
        else
            for (int64_t i = 0; i < n; ++i) codes[i] = Code(int32_t(round_half_even(x[i] * scale)));
    }
};

// One layer's page of one head's keys, or values.
template <class Form>
struct CachePage {
    const typename Form::Code* codes;
    const typename Form::Step* steps;
    CachePage(const int16_t* page, int64_t head, int64_t dim)
        : codes(reinterpret_cast<const typename Form::Code*>(page + head * head_words(dim, Form::kType))),
          steps(reinterpret_cast<const typename Form::Step*>(codes + kKeyBlock * code_width(dim))) {}
};

// Calls body(n) for each of N rows that sees something of a page; *other* for those, up to whole eights, that do not.
template <int N, class F, class G>
inline void each_row(const QueryRow* rows, F&& body, G&& other) {
    for (int n = 0; n < N; ++n)
        if (rows[n].sees()) body(n);
        else other(n);
    for (int n = N; n < whole_eights(N); ++n) other(n);
}

// Codes of 16 bits. Of a tile: rows (queries of one head each) and registers of keys or elements whose sums are held, of many
// rows, and of few, as in decode. NEON's sums take two registers each.
struct PairForm {
    static constexpr KvType kType = KvType::f16;
#if defined(__AVX512F__)
    static constexpr int kManyRows = 8, kManyVectors = 2, kFewRows = 4, kFewVectors = 4;
#elif defined(BITNET_F16C)
    static constexpr int kManyRows = 6, kManyVectors = 2, kFewRows = 2, kFewVectors = 4;
#elif defined(BITNET_NEON)
    static constexpr int kManyRows = 3, kManyVectors = 2, kFewRows = 1, kFewVectors = 4;
#else
    static constexpr int kManyRows = 1, kManyVectors = 2, kFewRows = 1, kFewVectors = 4;
#endif
    static constexpr int kEach = 2, kPageFloats = 0;
    static constexpr float kUnits = 1.0f;  // of scores, in a factor of two
    using Code = int16_t;
    using Step = float;
    using Keys = PairSums;
    using Values = PairSums;
    using Weights = PairCodes;
    using Page = CachePage<PairForm>;

    explicit PairForm(float*) {}
    static Lanes steps(const float* p) { return Lanes::load(p); }
    static Code stored(Code code, bool) { return code; }
    static int32_t start(const Code*, int64_t) { return 0; }
    static float factor(int64_t) { return 1.0f; }

    // Any part of a query's product with a key is below 2^31, and any sum of values, times codes of weights.
    static float encode(const float* x, int64_t dim, bool key, float*, Code* codes) {
        const Coding coding = key ? Coding(std::sqrt(sum_over(dim, [&](int64_t i) { return x[i] * x[i]; })), kCodeRange)
                                  : Coding(max_abs(x, dim), kValueRange);
        coding.encode(x, dim, codes);
        return coding.step;
    }

    // Called for each page, before its products.
    void take_page(Page, Page) {}

    // Codes of the weights times the steps of the values. Their sum, or the largest where it says less, keeps every sum of
    // values below 2^31.
    template <int N>
    static void weigh(const QueryRow* rows, const float* of_page, Page values, float (*score)[kKeyBlock], Weights* codes, float* sums,
                      float* steps) {
        constexpr int kWholeRows = whole_eights(N);
        alignas(64) float of_parts[kWholeRows] = {}, largest[kWholeRows] = {}, scales[kWholeRows];
        Parts weights[kWholeRows], parts[kWholeRows], most[kWholeRows];
        each_row<N>(
            rows, [&](int n) { weigh_row(of_page[n], values.steps, score[n], weights[n], parts[n], most[n]); },
            [&](int n) { zero(weights[n]), zero(parts[n]), zero(most[n]); });
        fold_rows<N, true>(weights, sums), fold_rows<N, true>(parts, of_parts), fold_rows<N, false>(most, largest);
        for (int n = 0; n < kWholeRows; ++n) {
            const float by_sum = of_parts[n] / kWeightSum, by_largest = largest[n] / kCodeRange;
            steps[n] = by_largest > by_sum ? by_largest : by_sum;
            scales[n] = steps[n] > 1e-30f ? 1.0f / steps[n] : 0.0f;
        }
        for (int n = 0; n < N; ++n) {
            if (!rows[n].sees()) std::fill_n(codes[n].code, kKeyBlock, int16_t(0));
            else
                for (int i = 0; i < kKeyBlock; i += 2 * Lanes::kWidth) {
                    const auto scaled = [&](int at) { return Lanes::load(score[n] + at) * Lanes::set(scales[n]); };
                    Lanes::round_to(scaled(i), scaled(i + Lanes::kWidth), codes[n].code + i);
                }
        }
    }

private:
    // Weights of one row, and those times the steps of the values, which *score* becomes: the lanes of the sum of the first,
    // and of the sum and the largest of the second.
    static void weigh_row(float top, const float* steps, float* score, Parts& sum, Parts& of_parts, Parts& largest) {
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
};

// Bytes of rotated vectors.
struct QuadForm {
    static constexpr KvType kType = KvType::q8;
#if defined(__AVX512F__)
    static constexpr int kManyRows = 8, kManyVectors = 2, kFewRows = 4, kFewVectors = 4;
#elif defined(BITNET_F16C) || defined(BITNET_NEON)
    static constexpr int kManyRows = 4, kManyVectors = 1, kFewRows = 2, kFewVectors = 2;
#else
    static constexpr int kManyRows = 1, kManyVectors = 1, kFewRows = 1, kFewVectors = 1;
#endif
    static constexpr int kEach = 4, kPageFloats = kKeyBlock / 2;
    static constexpr float kUnits = 2048.0f, kWhole = 32767.0f;
    static constexpr float kMost = 32640.0f;  // the largest code, 255, with seven bits behind the point
    using Code = uint8_t;
    using Step = uint16_t;
    using Keys = KeyQuads;
    using Values = ValueQuads;
    using Weights = QuadCodes;
    using Page = CachePage<QuadForm>;

    explicit QuadForm(float* page) : ratios(reinterpret_cast<int16_t*>(page)) {}
    static Lanes steps(const uint16_t* p) { return Lanes::upper(p); }
    static Code stored(Code code, bool key) { return Code(key ? code ^ 128 : code); }
    static float factor(int64_t dim) { return 1.0f / float(rotated_block(dim)); }
    // Keys are 128 more than they are.
    static int32_t start(const Code* query, int64_t width) {
        int32_t sum = 0;
        for (int64_t i = 0; i < width; ++i) sum += int8_t(query[i]);
        return -128 * sum;
    }

    float encode(const float* x, int64_t dim, bool, float* spare, Code* codes) {
        std::copy_n(x, dim, spare);
        rotate(spare, dim, spare + dim);
        const Coding coding(max_abs(spare, dim));
        coding.encode(spare, dim, reinterpret_cast<int8_t*>(codes));
        all_numbers = all_numbers && coding.step == coding.step;
        return coding.step;
    }

    void take_page(Page keys, Page values) {
        unit = ratios_of(values.steps, ratios);
        int most = 0;
        for (int i = 0; i < kKeyBlock; ++i) most = std::max(most, keys.steps[i] & 0x7fff);
        all_keys = most <= 0x7f80;
    }

    template <int N>
    void weigh(const QueryRow* rows, const float* of_page, Page values, float (*score)[kKeyBlock], Weights* codes, float* sums,
               float* steps) const {
        constexpr int kWholeRows = whole_eights(N);
        Parts lanes[kWholeRows], most[kWholeRows];
        alignas(64) int16_t own[kKeyBlock], parts[N][kKeyBlock];
        alignas(64) float largest[kWholeRows] = {};
        int shifts[kWholeRows], factors[kWholeRows];
        float own_unit = 0.0f;
        int own_first = -1, own_last = -1;
        const Power power;
        each_row<N>(
            rows,
            [&](int n) {
                const int first = rows[n].first, last = rows[n].last;
                const bool whole = first == 0 && last == kKeyBlock;
                if (!whole && (first != own_first || last != own_last)) {
                    uint16_t seen[kKeyBlock] = {};
                    std::copy(values.steps + first, values.steps + last, seen + first);
                    own_unit = ratios_of(seen, own), own_first = first, own_last = last;
                }
                weigh_row(power, of_page[n], score[n], whole ? ratios : own, parts[n], lanes[n], most[n]);
                steps[n] = whole ? unit : own_unit;
            },
            [&](int n) {
                zero(lanes[n]), zero(most[n]);
                if (n < N) std::fill_n(parts[n], kKeyBlock, int16_t(0));
            });
        fold_rows<N, true>(lanes, sums), fold_rows<N, false>(most, largest);
        for (int n = 0; n < kWholeRows; ++n) {
            sums[n] *= 1.0f / kWhole;
            const float top = largest[n] > 1.0f ? largest[n] : 1.0f;
            shifts[n] = int(142 - (float_to_bits(top) >> 23));  // to 16 bits
            const float doubled = bits_to_float(uint32_t(127 + shifts[n]) << 23);
            factors[n] = int32_t(kMost * 65536.0f / (top * doubled));
            steps[n] *= 128.0f * 65536.0f / (float(factors[n]) * doubled);
        }
        for (int n = 0; n < N; ++n) codes[n].set(parts[n], shifts[n], factors[n]);
        if (all_numbers && all_keys) return;
        for (int n = 0; n < N; ++n)  // integers lose what is not a number
            for (int i = rows[n].first; i < rows[n].last; ++i) sums[n] += score[n][i] * 0.0f;
    }

private:
    int16_t* ratios;  // of a page's values
    float unit = 0.0f;
    bool all_numbers = true, all_keys = true;

    // A page's steps of values as ratios of their largest one; returns what the product of the least weight and ratio stands for,
    // times a value's code.
    static float ratios_of(const uint16_t* steps, int16_t* ratios) {
        constexpr int kWidth = Lanes::kWidth, kParts = kLanes / kWidth;
        Lanes its[kKeyBlock / kWidth], most[kParts], sums[kParts];
        for (int i = 0; i < kKeyBlock; i += kWidth) {
            const Lanes of_step = its[i / kWidth] = Lanes::upper(steps + i);
            Lanes &top = most[i / kWidth % kParts], &sum = sums[i / kWidth % kParts];
            top = i < kLanes ? of_step : Lanes::larger(of_step, top), sum = i < kLanes ? of_step : sum + of_step;
        }
        const float largest = Sixteen(most).largest(), nan_or_not = Sixteen(sums).sum() * 0.0f;
        const Lanes scale = Lanes::set(largest > 0.0f ? kWhole / largest : 0.0f);
        for (int i = 0; i < kKeyBlock / kWidth; i += 2) Words::nearest(its[i] * scale, its[i + 1] * scale).store(ratios + i * kWidth);
        return largest * (32768.0f / kWhole / kWhole) + nan_or_not;
    }

    // 32,767 times 2^-x, x in 1 / 2,048: a cubic polynomial (1.4e-4), halved as the whole part says; 0 of the largest x.
    struct Power {
        Words half = Words::kept(1024), shift = Words::kept(16), whole = Words::kept(32767);
        Words first = Words::kept(22652), second = Words::kept(7545), third = Words::kept(1277);
        Words operator()(Words x) const {
            const Words f = x.fraction();
            return (whole - f * (first - f * (second - f * third))).halved((x - half) * shift);
        }
    };

    // What the values count for one row: weights times ratios. The lanes of the sum of the weights, and of the largest product.
    static void weigh_row(const Power& power, float top, const float* score, const int16_t* ratios, int16_t* parts, Parts& sum,
                          Parts& most) {
        constexpr int kWidth = Lanes::kWidth;
        constexpr int16_t kOne[2] = {1, 1};
        PairSums sums;
        sums.start();
        Words largest = Words::set(0);
        for (int i = 0; i < kKeyBlock; i += 2 * kWidth) {
            const auto below = [&](int at) { return Lanes::load(score + at) - Lanes::set(top); };
            const Words weight = power(Words::nearest(below(i), below(i + kWidth)).negative());
            weight.store(parts + i);
            sums.add(PairSums::load(parts + i), kOne);
            const Words part = weight * Words::load(ratios + i);
            part.store(parts + i), largest = Words::larger(largest, part);
        }
        zero(sum), zero(most);
        sum[0] = sums.numbers(), most[0] = largest.largest();
    }
};

// How a tile of up to kMost rows is multiplied: here in registers, with a page's codes where they lie. A level may have
// another way for many rows (isa/amx_attention.hpp).
template <class Form, int kMost, int kVectors, bool kFetch>
struct VectorProducts {
    static constexpr int kRows = kMost, kRest = Form::kManyRows, kTogether = kFetch ? 1 : 4;
    static constexpr float kUnits = Form::kUnits;
    using Page = CachePage<Form>;
    using Code = typename Form::Code;
    using Weights = typename Form::Weights;
    static constexpr int kEach = Form::kEach, kLine = 128 / sizeof(Code);  // codes that are fetched at once

    // int16 of a query's codes, and floats for what a page is changed to.
    static int64_t row_words(int64_t dim) { return code_width(dim) * int64_t(sizeof(Code)) / 2; }
    static int64_t page_floats(int64_t) { return Form::kPageFloats; }

    int64_t dim, width;
    Form form;
    VectorProducts(int64_t head_dim, float* page) : dim(head_dim), width(code_width(dim)), form(page) {}

    void take_page(Page keys, Page values) { form.take_page(keys, values); }

    // Query *x* becomes row *i* of N of a tile. *spare* has three vectors.
    template <int N>
    void take(const float* x, float scale, int i, float* spare, int16_t* tile, float& step, int32_t& start) {
        const Code* codes = encode(x, scale, spare, step, start);
        for (int64_t d = 0; d < width; d += kEach) std::memcpy(reinterpret_cast<Code*>(tile) + d * N + kEach * i, codes + d, 4);
    }
    const Code* encode(const float* x, float scale, float* spare, float& step, int32_t& start) {
        auto* codes = reinterpret_cast<Code*>(spare + 2 * dim);
        step = form.encode(x, dim, true, spare, codes) * (scale * Form::factor(dim));
        start = Form::start(codes, width);
        return codes;
    }

    // Scores of M tiles and of keys [first, last), and maybe some around them: keys that are in the first cache are
    // multiplied with all tiles. What is at *soon* is fetched meanwhile.
    template <int N, int M>
    void score(const int16_t* tile, const float* step, const int32_t* start, Page keys, const Code* soon, int first, int last,
               float (*score)[kKeyBlock]) const {
        constexpr int kStep = kVectors * Lanes::kWidth;
        const auto* q = reinterpret_cast<const Code*>(tile);
        int at = first / kStep * kStep;
        if constexpr (kFetch) score_keys<N, kFetch>(q, step, start, keys, soon, at, score), at += kStep;
        if constexpr (!kFetch || kStep < kKeyBlock)
            for (; at < last; at += kStep)
                for (int n = 0; n < M * N; n += N)
                    score_keys<N, false>(q + n * width, step + n, start + n, keys, nullptr, at, score + n);
    }

    template <int N>
    void weigh(const QueryRow* rows, const float* of_page, Page values, float (*score)[kKeyBlock], Weights* codes, float* sums,
               float* steps) const {
        form.template weigh<N>(rows, of_page, values, score, codes, sums, steps);
    }

    // acc = acc * before + sum of codes * factor, over keys [first, last).
    template <int N, int M>
    void add(const QueryRow* rows, Page values, const Code* soon, int first, int last, const Weights* codes, float* acc) const {
        constexpr int kWidth = Lanes::kWidth, kStep = kVectors * kWidth;
        first = first / kEach * kEach, last = (last + kEach - 1) / kEach * kEach;
        int64_t d = 0;
        for (; d + kStep <= width; d += kStep)
            for (int n = 0; n < M * N; n += N)
                add_vectors<N, kVectors, kFetch>(rows + n, values.codes, soon, d, first, last, codes + n, acc + n * width);
        for (; d < width; d += kWidth)
            for (int n = 0; n < M * N; n += N)
                add_vectors<N, 1, false>(rows + n, values.codes, soon, d, first, last, codes + n, acc + n * width);
    }

private:
    // score[n] of keys [at, at + kVectors * kWidth): products with row n of *q*, (width / kEach, N) of kEach codes, in units of
    // step[n] and the steps of the keys.
    template <int N, bool kAhead>
    void score_keys(const Code* q, const float* step, const int32_t* start, Page keys, const Code* soon, int at,
                    float (*score)[kKeyBlock]) const {
        constexpr int kWidth = Lanes::kWidth;
        using Sums = typename Form::Keys;
        Sums sum[N][kVectors];
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n)
#pragma GCC unroll 8
            for (int i = 0; i < kVectors; ++i) sum[n][i].start(start[n]);
        const Code* from = keys.codes + kEach * at;
        if constexpr (kAhead) fetch_steps(soon);
        for (int64_t d = 0; d < width; d += kEach, from += kEach * kKeyBlock, q += kEach * N) {
            if constexpr (kAhead) fetch(soon + d * kKeyBlock), fetch(soon + d * kKeyBlock + kLine);
            decltype(Sums::load(from)) k[kVectors];
#pragma GCC unroll 8
            for (int i = 0; i < kVectors; ++i) k[i] = Sums::load(from + kEach * i * kWidth);
#pragma GCC unroll 8
            for (int n = 0; n < N; ++n)
#pragma GCC unroll 8
                for (int i = 0; i < kVectors; ++i) sum[n][i].add(k[i], q + kEach * n);
        }
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n)
#pragma GCC unroll 8
            for (int i = 0; i < kVectors; ++i) {
                const Lanes steps = Form::steps(keys.steps + at + i * kWidth);
                (sum[n][i].numbers() * Lanes::set(step[n]) * steps).store(score[n] + at + i * kWidth);
            }
    }

    // The same of kCount registers of elements from *d* on and keys [first, last), whole kEach of them.
    template <int N, int kCount, bool kAhead>
    void add_vectors(const QueryRow* rows, const Code* values, const Code* soon, int64_t d, int first, int last, const Weights* codes,
                     float* acc) const {
        constexpr int kWidth = Lanes::kWidth;
        using Sums = typename Form::Values;
        Sums sum[N][kCount];
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n)
#pragma GCC unroll 8
            for (int i = 0; i < kCount; ++i) sum[n][i].start(codes[n]);
        values += first * width + kEach * d;
        if constexpr (kAhead) fetch_steps(soon);
        for (int key = first; key < last; key += kEach, values += kEach * width) {
            if constexpr (kAhead)  // in order, which these values are not read in
                for (int i = 0; i < kEach * kCount * kWidth; i += kLine) fetch(soon + d * kKeyBlock + key * kCount * kWidth + i);
            decltype(Sums::load(values)) v[kCount];
#pragma GCC unroll 8
            for (int i = 0; i < kCount; ++i) v[i] = Sums::load(values + kEach * i * kWidth);
#pragma GCC unroll 8
            for (int n = 0; n < N; ++n)
#pragma GCC unroll 8
                for (int i = 0; i < kCount; ++i) sum[n][i].add(v[i], codes[n].at(key));
        }
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) {
            if (!rows[n].sees()) continue;
#pragma GCC unroll 8
            for (int i = 0; i < kCount; ++i) rows[n].add(sum[n][i].numbers(), acc + n * width + d + i * kWidth);
        }
    }

    void fetch_steps(const Code* soon) const {
        for (int64_t i = 0; i < kKeyBlock * int64_t(sizeof(typename Form::Step) / sizeof(Code)); i += kLine) fetch(soon + kKeyBlock * width + i);
    }
};
template <class Form>
using ManyProducts = VectorProducts<Form, Form::kManyRows, Form::kManyVectors, false>;

template <class Form>
void attend_by(const AttentionArgs& a, int64_t kv_head, int64_t t0, int64_t t1, int64_t first, int64_t last, float* partial,
               float* scratch) {
    // Up to as many rows the cache, in memory, is waited for.
    const bool few = (t1 - t0) * (a.heads / a.kv_heads) <= 2 * Form::kFewRows;
    const auto way = few ? attend_with<VectorProducts<Form, Form::kFewRows, Form::kFewVectors, true>> : attend_with<ManyProducts<Form>>;
    way(a, kv_head, t0, t1, first, last, partial, scratch);
}

inline void attend(const AttentionArgs& a, int64_t kv_head, int64_t t0, int64_t t1, int64_t first, int64_t last, float* partial,
                   float* scratch) {
    (a.kv_type == KvType::q8 ? attend_by<QuadForm> : attend_by<PairForm>)(a, kv_head, t0, t1, first, last, partial, scratch);
}

// One position's keys and values, (kv_heads, dim) each, into place *slot* of a page. kEach codes of a key are neighbouring
// elements, those of values neighbouring positions.
template <class Form>
void store_as(const float* k, const float* v, int64_t kv_heads, int64_t dim, int64_t slot, int16_t* page) {
    using Code = typename Form::Code;
    using Step = typename Form::Step;
    constexpr int kEach = Form::kEach;
    const int64_t width = code_width(dim);
    thread_local std::vector<float> spare;
    if (int64_t(spare.size()) < 3 * width) spare.resize(size_t(3 * width));
    auto* codes = reinterpret_cast<Code*>(spare.data() + 2 * width);
    Form form(nullptr);
    for (int64_t h = 0; h < 2 * kv_heads; ++h, page += head_words(dim, Form::kType)) {
        const bool key = h < kv_heads;
        const float step = form.encode(key ? k + h * dim : v + (h - kv_heads) * dim, dim, key, spare.data(), codes);
        auto* to = reinterpret_cast<Code*>(page);
        for (int64_t d = 0; d < width; ++d) {
            const int64_t at = key ? d / kEach * kEach * kKeyBlock + kEach * slot + d % kEach
                                   : slot / kEach * kEach * width + kEach * d + slot % kEach;
            to[at] = Form::stored(codes[d], key);
        }
        const uint32_t bits = float_to_bits(step) >> (32 - 8 * sizeof(Step));
        std::memcpy(to + kKeyBlock * width + slot * int64_t(sizeof(Step) / sizeof(Code)), &bits, sizeof(Step));
    }
}

inline void store_position(const float* k, const float* v, KvType type, int64_t kv_heads, int64_t dim, int64_t slot,
                           int16_t* page) {
    (type == KvType::q8 ? store_as<QuadForm> : store_as<PairForm>)(k, v, kv_heads, dim, slot, page);
}

}  // namespace
}  // namespace bitnet
