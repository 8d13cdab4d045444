// The two forms of codes in attention, 16 and 8 bits: how vectors become integers, and how a
// softmax makes codes of weights from scores.
#pragma once

#include <cfloat>

#include "ops/code_sums.hpp"
#include "ops/partial_attention.hpp"

namespace bitnet {
// Each instruction set compiles its own copy: no unit may run code of another's flags.
namespace {

// The keys [first, last) of the current page that a row (a query of one head) sees, and how the
// page changes the sums of the row.
struct QueryRow {
    int first, last;
    int at;                    // position of the query, counted from the first key of the page
    float slope;               // loss of a score per position between query and key
    const float* at_distance;  // biases of scores for keys -reach to reach away; null: none
    float before, factor;      // factors on the sums so far, and on those of this page's codes
    bool sees() const { return first < last; }

    // Adds a register of sums over this page to the sums so far.
    void add(Lanes sum, float* acc) const {
        (Lanes::load(acc) * Lanes::set(before) + sum * Lanes::set(factor)).store(acc);
    }
};

// How a vector becomes integers. If it is not finite or larger than the encodings allow, codes of 0
// with a step of NaN make the result NaN.
struct Coding {
    float scale, step;

    // Scales *size*, the vector's length or largest magnitude, to *range*.
    Coding(float size, float range) {
        const bool finite = size <= 1e18f, zero = !finite || size < 1e-18f;
        scale = zero ? 0.0f : range / size;
        step = !finite ? NAN : zero ? 0.0f : size / range;
    }
    // The step is the least float32 not below *largest* / 127 whose lower 16 bits are 0.
    explicit Coding(float largest) {
        const bool finite = largest <= 1e14f, zero = !finite || largest < 1e-18f;
        step = !finite ? NAN
               : zero  ? 0.0f
                       : bits_to_float((float_to_bits(largest / 127.0f) + 0xffff) & 0xffff0000);
        scale = zero ? 0.0f : 1.0f / step;
    }

    template <class Code>
    void encode(const float* x, int64_t n, Code* codes) const {
        std::fill(codes + n, codes + code_width(n), Code(0));
        if (scale == 0.0f)
            std::fill_n(codes, n, Code(0));
        else
            for (int64_t i = 0; i < n; ++i) codes[i] = Code(int32_t(round_half_even(x[i] * scale)));
    }
};

// The codes and steps of one head's keys, or values, in a page of one layer. *head* counts the
// heads of keys, and then those of values.
template <class Form>
struct CachePage {
    const typename Form::Code* codes;
    const typename Form::Step* steps;
    CachePage(const int16_t* page, int64_t head, int64_t dim)
        : codes(reinterpret_cast<const typename Form::Code*>(page +
                                                             head * head_words(dim, Form::kType))),
          steps(reinterpret_cast<const typename Form::Step*>(codes + kKeyBlock * code_width(dim))) {
    }
};

// Calls with_keys(n) for each of N rows that sees something of a page, and without_keys(n) for
// those that do not, and for the missing rows up to whole eights.
template <int N, class F, class G>
inline void each_row(const QueryRow* rows, F&& with_keys, G&& without_keys) {
    for (int n = 0; n < N; ++n)
        if (rows[n].sees())
            with_keys(n);
        else
            without_keys(n);
    for (int n = N; n < whole_eights(N); ++n) without_keys(n);
}

// Codes of 16 bits. Tiles have kManyRows rows (queries of one head each), and hold sums for
// kManyVectors registers of keys, or of elements; with few rows, as in decode, kFewRows and
// kFewVectors. NEON's sums take two registers each.
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
    // Codes that a product takes together, and floats of scratch memory for a page.
    static constexpr int kEach = 2, kPageFloats = 0;
    static constexpr float kUnits = 1.0f;  // units of a score that make a factor of two
    using Code = int16_t;
    using Step = float;
    using Keys = PairSums;
    using Values = PairSums;
    using Weights = PairCodes;
    using Page = CachePage<PairForm>;

    explicit PairForm(float*) {}
    static Lanes steps(const float* p) { return Lanes::load(p); }
    // The code that the cache stores for *code*, the first value of sums of products with a query,
    // and a factor on scores: only QuadForm needs them.
    static Code stored(Code code, bool) { return code; }
    static int32_t start(const Code*, int64_t) { return 0; }
    static float factor(int64_t) { return 1.0f; }

    // Writes the codes of *x* and returns their step. The ranges of codes keep every partial sum of
    // the product of a query and a key, and every sum of values times weights, below 2^31.
    static float encode(const float* x, int64_t dim, bool key, float*, Code* codes) {
        const Coding coding =
            key ? Coding(std::sqrt(sum_over(dim, [&](int64_t i) { return x[i] * x[i]; })),
                         kCodeRange)
                : Coding(max_abs(x, dim), kValueRange);
        coding.encode(x, dim, codes);
        return coding.step;
    }

    // Called for each page, before its products.
    void take_page(Page, Page) {}

    // Makes *codes* of parts, the weights times the steps of the values. Their unit, in *steps*, is
    // chosen by the sum of the parts, or by the largest one if that makes the unit larger, and
    // keeps every sum of values below 2^31. *sums* gets the sums of the weights.
    template <int N>
    static void weigh(const QueryRow* rows, const float* page_top, Page values,
                      float (*score)[kKeyBlock], Weights* codes, float* sums, float* steps) {
        constexpr int kWholeRows = whole_eights(N);
        alignas(64) float part_sums[kWholeRows] = {}, largest[kWholeRows] = {}, scales[kWholeRows];
        RowLanes weights[kWholeRows], parts[kWholeRows], most[kWholeRows];
        each_row<N>(
            rows,
            [&](int n) {
                weigh_row(page_top[n], values.steps, score[n], weights[n], parts[n], most[n]);
            },
            [&](int n) {
                zero(weights[n]);
                zero(parts[n]);
                zero(most[n]);
            });
        fold_rows<N, true>(weights, sums);
        fold_rows<N, true>(parts, part_sums);
        fold_rows<N, false>(most, largest);
        for (int n = 0; n < kWholeRows; ++n) {
            const float by_sum = part_sums[n] / kWeightSum, by_largest = largest[n] / kCodeRange;
            steps[n] = by_largest > by_sum ? by_largest : by_sum;
            scales[n] = steps[n] > 1e-30f ? 1.0f / steps[n] : 0.0f;
        }
        for (int n = 0; n < N; ++n) {
            if (!rows[n].sees())
                std::fill_n(codes[n].code, kKeyBlock, int16_t(0));
            else
                for (int i = 0; i < kKeyBlock; i += 2 * Lanes::kWidth) {
                    const auto scaled = [&](int at) {
                        return Lanes::load(score[n] + at) * Lanes::set(scales[n]);
                    };
                    Lanes::round_to(scaled(i), scaled(i + Lanes::kWidth), codes[n].code + i);
                }
        }
    }

private:
    // Weights of one row, and their products with the steps of the values, which replace *score*:
    // lanes of the sum of the weights, and of the sum and the largest of the products.
    static void weigh_row(float top, const float* steps, float* score, RowLanes& sum,
                          RowLanes& part_sum, RowLanes& largest) {
        constexpr int kWidth = Lanes::kWidth, kParts = kLanes / kWidth;
        RowLanes weights, parts, most;
        for (int i = 0; i < kKeyBlock / kWidth; ++i) {
            const Lanes scores = Lanes::load(score + i * kWidth);
            const Lanes weight = power(scores - Lanes::set(top));
            // The step of a hidden value may be anything, and does not count. A NaN step of one
            // that is seen counts, however small its weight is.
            const Lanes used_steps = Lanes::load(steps + i * kWidth).unless_below(scores, -FLT_MAX);
            const Lanes part = weight * used_steps;
            part.store(score + i * kWidth);
            const int lane = i % kParts;
            weights[lane] = i < kParts ? weight : weights[lane] + weight;
            parts[lane] = i < kParts ? part : parts[lane] + part;
            most[lane] = i < kParts ? part : Lanes::larger(part, most[lane]);
        }
        for (int i = 0; i < kParts; ++i) {
            sum[i] = weights[i];
            part_sum[i] = parts[i];
            largest[i] = most[i];
        }
    }
};

// Codes of 8 bits, of rotated vectors; the members are explained at PairForm.
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
    static constexpr float kUnits = 2048.0f, kWhole = 32767.0f;  // kWhole: int16 that stands for 1
    static constexpr float kMost = 32640.0f;  // the largest code, 255, with seven fractional bits
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
    // Keys are stored plus 128, which adds 128 times the sum of the query to every product: sums
    // start below zero by as much.
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
        queries_are_numbers = queries_are_numbers && coding.step == coding.step;
        return coding.step;
    }

    void take_page(Page keys, Page values) {
        unit = ratios_of(values.steps, ratios);
        int most = 0;
        for (int i = 0; i < kKeyBlock; ++i) most = std::max(most, keys.steps[i] & 0x7fff);
        keys_are_numbers = most <= 0x7f80;  // the bits of NaN are larger than those of infinity
    }

    template <int N>
    void weigh(const QueryRow* rows, const float* page_top, Page values, float (*score)[kKeyBlock],
               Weights* codes, float* sums, float* steps) const {
        constexpr int kWholeRows = whole_eights(N);
        RowLanes lanes[kWholeRows], most[kWholeRows];
        // Ratios of the steps that a row sees, for rows that see a part of the page; neighbouring
        // rows often see the same part.
        alignas(64) int16_t own[kKeyBlock];
        alignas(64) int16_t parts[N][kKeyBlock];
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
                    uint16_t seen_steps[kKeyBlock] = {};
                    std::copy(values.steps + first, values.steps + last, seen_steps + first);
                    own_unit = ratios_of(seen_steps, own);
                    own_first = first;
                    own_last = last;
                }
                weigh_row(power, page_top[n], score[n], whole ? ratios : own, parts[n], lanes[n],
                          most[n]);
                steps[n] = whole ? unit : own_unit;
            },
            [&](int n) {
                zero(lanes[n]);
                zero(most[n]);
                if (n < N) std::fill_n(parts[n], kKeyBlock, int16_t(0));
            });
        fold_rows<N, true>(lanes, sums);
        fold_rows<N, false>(most, largest);
        for (int n = 0; n < kWholeRows; ++n) {
            sums[n] *= 1.0f / kWhole;
            const float top = largest[n] > 1.0f ? largest[n] : 1.0f;
            // So that 2^15 <= top * 2^shift < 2^16.
            shifts[n] = int(142 - (float_to_bits(top) >> 23));
            const float doubled = bits_to_float(uint32_t(127 + shifts[n]) << 23);  // 2^shift
            factors[n] = int32_t(kMost * 65536.0f / (top * doubled));
            steps[n] *= 128.0f * 65536.0f / (float(factors[n]) * doubled);
        }
        for (int n = 0; n < N; ++n) codes[n].set(parts[n], shifts[n], factors[n]);
        if (queries_are_numbers && keys_are_numbers) return;
        for (int n = 0; n < N; ++n)  // NaN is lost in integers: a score of NaN makes the sum NaN
            for (int i = rows[n].first; i < rows[n].last; ++i) sums[n] += score[n][i] * 0.0f;
    }

private:
    int16_t* ratios;  // of a page's values
    float unit = 0.0f;
    bool queries_are_numbers = true, keys_are_numbers = true;

    // Fills in *ratios* of a page's steps of values to the largest one. Returns the factor on codes
    // of values, by which a part (a product of a weight and a ratio) of 1 counts.
    static float ratios_of(const uint16_t* steps, int16_t* ratios) {
        constexpr int kWidth = Lanes::kWidth, kParts = kLanes / kWidth;
        Lanes wide_steps[kKeyBlock / kWidth], most[kParts], sums[kParts];
        for (int i = 0; i < kKeyBlock; i += kWidth) {
            const Lanes wide = Lanes::upper(steps + i);
            wide_steps[i / kWidth] = wide;
            Lanes& top = most[i / kWidth % kParts];
            Lanes& sum = sums[i / kWidth % kParts];
            top = i < kLanes ? wide : Lanes::larger(wide, top);
            sum = i < kLanes ? wide : sum + wide;
        }
        const float largest = Sixteen(most).largest(), nan_or_not = Sixteen(sums).sum() * 0.0f;
        const Lanes scale = Lanes::set(largest > 0.0f ? kWhole / largest : 0.0f);
        for (int i = 0; i < kKeyBlock / kWidth; i += 2)
            Words::nearest(wide_steps[i] * scale, wide_steps[i + 1] * scale)
                .store(ratios + i * kWidth);
        return largest * (32768.0f / kWhole / kWhole) + nan_or_not;
    }

    // 32,767 times 2^-x, for x in units of 1 / 2,048: a cubic polynomial of the fraction (with an
    // error of 1.4e-4), halved as often as the whole part, (x - 1,024) * 16 / 2^15 rounded, says.
    // It is 0 for the largest x.
    struct Power {
        Words half = Words::kept(1024), shift = Words::kept(16), whole = Words::kept(32767);
        Words first = Words::kept(22652), second = Words::kept(7545), third = Words::kept(1277);
        Words operator()(Words x) const {
            const Words f = x.fraction();
            return (whole - f * (first - f * (second - f * third))).halved((x - half) * shift);
        }
    };

    // Fills in *parts* of one row, the weights times ratios, by which each value counts; lanes of
    // the sum of the weights; and lanes of the largest part.
    static void weigh_row(const Power& power, float top, const float* score, const int16_t* ratios,
                          int16_t* parts, RowLanes& sum, RowLanes& most) {
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
            part.store(parts + i);
            largest = Words::larger(largest, part);
        }
        zero(sum);
        zero(most);
        sum[0] = sums.numbers();
        most[0] = largest.largest();
    }
};

}  // namespace
}  // namespace bitnet
