// Attention by codes of 16 or 8 bits, built once per instruction set.
//
// Queries, keys, weights and values are integers, so their products and sums are exact: blocking by
// queries, keys and elements is free, and every instruction set gives the same bits. What follows a
// sum of integers is float32 without fused operations, in the order written here.
#pragma once

#include "ops/attention_forms.hpp"

namespace bitnet {
// Each instruction set compiles its own copy: no unit may run code of another's flags.
namespace {

// Prefetches two cache lines: a page is too short for the prefetcher of the hardware to detect it.
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

// Finishes the scores of one row: softcap, slope, biases by distance, and -infinity for keys that
// it does not see. Fills in lanes of the *largest* score. The softmax has the base two: a score
// that is larger by *nat* units weighs e times as much. Softcapped scores, slopes and biases count
// in factors of e, and are multiplied by *nat* here.
inline void finish_scores(const AttentionArgs& a, const QueryRow& row, float nat, float* score,
                          RowLanes& largest) {
    constexpr int kWidth = Lanes::kWidth, kParts = kLanes / kWidth;
    if (a.softcap > 0.0f) {
        softcap(score + row.first, row.last - row.first, a.softcap, score + row.first);
        for (int i = row.first; i < row.last; ++i) score[i] *= nat;
    }
    if (row.slope != 0.0f)
        for (int i = row.first; i < row.last; ++i)
            score[i] -= row.slope * nat * float(row.at < i ? i - row.at : row.at - i);
    if (row.at_distance)
        for (int i = row.first; i < row.last; ++i) {
            const int64_t distance = std::clamp<int64_t>(i - row.at, -a.reach, a.reach);
            score[i] += nat * row.at_distance[distance];
        }
    for (int i = 0; i < row.first; ++i) score[i] = -INFINITY;
    for (int i = row.last; i < kKeyBlock; ++i) score[i] = -INFINITY;
    RowLanes part;
    for (int i = 0; i < kParts; ++i) part[i] = Lanes::load(score + i * kWidth);
    for (int i = kLanes; i < kKeyBlock; i += kWidth) {
        Lanes& most = part[i / kWidth % kParts];
        most = Lanes::larger(Lanes::load(score + i), most);
    }
    for (int i = 0; i < kParts; ++i) largest[i] = part[i];
}

// Calls body(N) for a tile of the first N = min(n, kMost) rows; N is a type.
template <int kMost, class F>
void with_rows(int64_t n, F&& body) {
    if constexpr (kMost == 1)
        body(std::integral_constant<int, 1>());
    else if (n >= kMost)
        body(std::integral_constant<int, kMost>());
    else
        with_rows<kMost - 1>(n, body);
}

// Attention of queries [t0, t1) of the heads that share *kv_head*, in tiles of up to kRows rows (a
// query of one head each). The sums of a tile and kVectors registers of keys, or of elements, are
// held at once; the codes of a page are read from the cache page itself. If kFetch, codes that are
// needed next are prefetched meanwhile.
template <class Form, int kRows, int kVectors, bool kFetch>
struct Block {
    using Page = CachePage<Form>;
    using Code = typename Form::Code;
    using Weights = typename Form::Weights;
    static constexpr int kEach = Form::kEach,
                         kLine = 128 / sizeof(Code);  // codes that `fetch` fetches
    static constexpr int kWidth = Lanes::kWidth, kStep = kVectors * kWidth;
    const AttentionArgs& a;
    const int64_t kv_head, t0, t1, group, rows, width;
    Code* const q;  // of each tile (width / kEach, N, kEach)
    Form form;
    float* const step;     // step of each row's query, times the scale
    int32_t* const start;  // start of each row's sums of products with keys
    float* const rest;     // the scratch memory behind all of these

    Block(const AttentionArgs& args, int64_t head, int64_t from, int64_t to, float* scratch)
        : a(args),
          kv_head(head),
          t0(from),
          t1(to),
          group(args.heads / args.kv_heads),
          rows((to - from) * group),
          width(code_width(a.head_dim)),
          q(reinterpret_cast<Code*>(scratch)),
          form(reinterpret_cast<float*>(q + rows * width)),
          step(reinterpret_cast<float*>(q + rows * width) + Form::kPageFloats),
          start(reinterpret_cast<int32_t*>(step + rows)),
          rest(step + 2 * rows) {}

    // Calls body(r, N) for each tile of N rows, the first one from row *r* on.
    template <class F>
    void tiles(int64_t r, F&& body) const {
        while (r < rows)
            with_rows<kRows>(rows - r, [&](auto n) {
                body(r, n);
                r += n;
            });
    }

    // Encodes the queries.
    void take_queries() {
        const int64_t dim = a.head_dim;
        // A weight is two to the power of its score, so scores include log2(e), or get it after the
        // softcap.
        const float scale =
            (a.softcap > 0.0f ? a.scale : a.scale * (kLog2E * Form::kUnits)) * Form::factor(dim);
        auto* codes = reinterpret_cast<Code*>(rest + 2 * dim);
        tiles(0, [&](int64_t r, auto n) {
            for (int i = 0; i < n; ++i) {
                const int64_t t = t0 + (r + i) / group;
                const float* from = a.q + (t * a.heads + kv_head * group + (r + i) % group) * dim;
                step[r + i] = form.encode(from, dim, true, rest, codes) * scale;
                start[r + i] = Form::start(codes, width);
                for (int64_t d = 0; d < width; d += kEach)
                    std::memcpy(q + r * width + d * n + kEach * i, codes + d, 4);
            }
        });
    }

    // Fills *out* with the keys that *count* rows from *r* on see of the page that begins at
    // *base*.
    void find_visible_keys(int64_t r, int count, int64_t base, QueryRow* out) const {
        int64_t t = t0 + r / group, end = (r / group + 1) * group;
        for (int n = 0; n < count; ++n) {
            if (r + n == end) {
                ++t;
                end += group;
            }
            const int64_t head = kv_head * group + (r + n) % group;
            const float slope = a.slopes ? a.slopes[head] : 0.0f;
            const float* at_distance =
                a.distances ? a.distances + head * (2 * a.reach + 1) + a.reach : nullptr;
            out[n] = {int(std::clamp<int64_t>(a.first_key(t) - base, 0, kKeyBlock)),
                      int(std::clamp<int64_t>(a.end_key(t) - base, 0, kKeyBlock)),
                      int(a.start + t - base),
                      slope,
                      at_distance,
                      1.0f,   // before
                      0.0f};  // factor
        }
    }

    // Scores of M tiles from row *r* on and keys [first, last), and maybe of some keys around
    // these. Keys that are in the processor's L1 cache are multiplied with all tiles before the
    // next. The first step prefetches the codes at *soon*.
    template <int N, int M>
    void score(int64_t r, Page keys, const Code* soon, int first, int last,
               float (*score)[kKeyBlock]) const {
        static_assert(!kFetch || M == 1, "the first step of a prefetch scores one tile");
        int at = first / kStep * kStep;
        if constexpr (kFetch) {
            score_keys<N, kFetch>(r, keys, soon, at, score);
            at += kStep;
        }
        if constexpr (!kFetch || kStep < kKeyBlock)
            for (; at < last; at += kStep)
                for (int n = 0; n < M * N; n += N)
                    score_keys<N, false>(r + n, keys, nullptr, at, score + n);
    }

    // score[n] of keys [at, at + kStep): sums of products of codes with those of row r + n, times
    // the steps of the row and of the keys.
    template <int N, bool kAhead>
    void score_keys(int64_t r, Page keys, const Code* soon, int at,
                    float (*score)[kKeyBlock]) const {
        using Sums = typename Form::Keys;
        Sums sum[N][kVectors];
        BITNET_UNROLL(8)
        for (int n = 0; n < N; ++n)
            BITNET_UNROLL(8) for (int i = 0; i < kVectors; ++i) sum[n][i].start(start[r + n]);
        const int64_t width = this->width;  // a copy: a store of a register might change a member
        const Code *from = keys.codes + kEach * at, *query = q + r * width;
        const float* query_steps = step + r;
        if constexpr (kAhead) fetch_steps(soon);
        for (int64_t d = 0; d < width; d += kEach, from += kEach * kKeyBlock, query += kEach * N) {
            if constexpr (kAhead) {
                fetch(soon + d * kKeyBlock);
                fetch(soon + d * kKeyBlock + kLine);
            }
            decltype(Sums::load(from)) k[kVectors];
            BITNET_UNROLL(8)
            for (int i = 0; i < kVectors; ++i) k[i] = Sums::load(from + kEach * i * kWidth);
            BITNET_UNROLL(8)
            for (int n = 0; n < N; ++n) BITNET_UNROLL(8)
            for (int i = 0; i < kVectors; ++i) sum[n][i].add(k[i], query + kEach * n);
        }
        BITNET_UNROLL(8)
        for (int n = 0; n < N; ++n) BITNET_UNROLL(8) for (int i = 0; i < kVectors; ++i) {
                const Lanes steps = Form::steps(keys.steps + at + i * kWidth);
                (sum[n][i].numbers() * Lanes::set(query_steps[n]) * steps)
                    .store(score[n] + at + i * kWidth);
            }
    }

    // The softmax of a tile's rows. Each step is done for all rows before the next one, so that
    // rows do not wait for each other, and numbers of which a row has one are computed for all rows
    // at once.
    template <int N>
    void weigh_rows(QueryRow* seen, Page values, float* top, float* sum, float (*score)[kKeyBlock],
                    Weights* weights) {
        constexpr int kWholeRows = whole_eights(N);
        alignas(64) float page_top[kWholeRows] = {}, sums[kWholeRows] = {}, steps[kWholeRows] = {};
        RowLanes largest[kWholeRows];
        for (int n = 0; n < kWholeRows; ++n)
            if (n < N && seen[n].sees())
                finish_scores(a, seen[n], kLog2E * Form::kUnits, score[n], largest[n]);
            else
                zero(largest[n]);
        fold_rows<N, false>(largest, page_top);
        form.template weigh<N>(seen, page_top, values, score, weights, sums, steps);
        for (int n = 0; n < kWholeRows; ++n) page_top[n] *= 1.0f / Form::kUnits;
        alignas(64) float most[kWholeRows] = {}, before[kWholeRows] = {}, now[kWholeRows] = {};
        for (int n = 0; n < N; ++n) before[n] = top[n];
        for (int n = 0; n < kWholeRows; ++n) {
            most[n] = page_top[n] > before[n] ? page_top[n] : before[n];
            before[n] = power_or_zero(before[n] - most[n]);
            now[n] = power_or_zero(page_top[n] - most[n]);
        }
        for (int n = 0; n < N; ++n) {
            if (!seen[n].sees()) continue;
            top[n] = most[n];
            sum[n] = sum[n] * before[n] + sums[n] * now[n];
            seen[n].before = before[n];
            seen[n].factor = steps[n] * now[n];
        }
    }

    // acc = acc * before + sum * factor, with the sum of weights' codes * values over keys
    // [first, last).
    template <int N, int M>
    void add(const QueryRow* seen, Page values, const Code* soon, int first, int last,
             const Weights* codes, float* acc) const {
        first = first / kEach * kEach;
        last = (last + kEach - 1) / kEach * kEach;
        int64_t d = 0;
        for (; d + kStep <= width; d += kStep)
            for (int n = 0; n < M * N; n += N)
                add_vectors<N, kVectors, kFetch>(seen + n, values.codes, soon, d, first, last,
                                                 codes + n, acc + n * width);
        for (; d < width; d += kWidth)
            for (int n = 0; n < M * N; n += N)
                add_vectors<N, 1, false>(seen + n, values.codes, soon, d, first, last, codes + n,
                                         acc + n * width);
    }

    // The same for kCount registers of elements from *d* on; kEach divides *first* and *last*.
    template <int N, int kCount, bool kAhead>
    void add_vectors(const QueryRow* seen, const Code* values, const Code* soon, int64_t d,
                     int first, int last, const Weights* codes, float* acc) const {
        using Sums = typename Form::Values;
        const int64_t width = this->width;
        Sums sum[N][kCount];
        BITNET_UNROLL(8)
        for (int n = 0; n < N; ++n)
            BITNET_UNROLL(8) for (int i = 0; i < kCount; ++i) sum[n][i].start(codes[n]);
        values += first * width + kEach * d;
        if constexpr (kAhead) fetch_steps(soon);
        for (int key = first; key < last; key += kEach, values += kEach * width) {
            if constexpr (kAhead)  // *soon* in the order of memory, unlike *values*
                for (int i = 0; i < kEach * kCount * kWidth; i += kLine)
                    fetch(soon + d * kKeyBlock + key * kCount * kWidth + i);
            decltype(Sums::load(values)) v[kCount];
            BITNET_UNROLL(8)
            for (int i = 0; i < kCount; ++i) v[i] = Sums::load(values + kEach * i * kWidth);
            BITNET_UNROLL(8)
            for (int n = 0; n < N; ++n) BITNET_UNROLL(8)
            for (int i = 0; i < kCount; ++i) sum[n][i].add(v[i], codes[n].at(key));
        }
        BITNET_UNROLL(8) for (int n = 0; n < N; ++n) {
            if (!seen[n].sees()) continue;
            BITNET_UNROLL(8)
            for (int i = 0; i < kCount; ++i)
                seen[n].add(sum[n][i].numbers(), acc + n * width + d + i * kWidth);
        }
    }

    // Prefetches the steps behind the codes at *soon*.
    void fetch_steps(const Code* soon) const {
        for (int64_t i = 0; i < kKeyBlock * int64_t(sizeof(typename Form::Step) / sizeof(Code));
             i += kLine)
            fetch(soon + kKeyBlock * width + i);
    }

    // Attention of M tiles of N rows over the page that begins at *base*. While the keys are read,
    // the values are prefetched, and while these are read, *next*, the keys of the next page.
    template <int N, int M>
    void attend_page(int64_t r, Page keys, Page values, const Code* next, int64_t base,
                     const PartialAttention& part) {
        QueryRow row[M * N];
        find_visible_keys(r, M * N, base, row);
        // The first and the last key of a later row are not earlier.
        const int first = row[0].first, last = row[M * N - 1].last;
        if (first >= last) return;
        alignas(64) float scores[M * N][kKeyBlock];
        alignas(64) Weights weights[M * N];
        score<N, M>(r, keys, values.codes, first, last, scores);
        for (int n = 0; n < M * N; n += N)
            weigh_rows<N>(row + n, values, part.top + r + n, part.sum + r + n, scores + n,
                          weights + n);
        add<N, M>(row, values, next, first, last, weights, part.acc + r * width);
    }

    // Attention over the pages of one split.
    void attend_split(int64_t split, const PartialAttention& part) {
        std::fill_n(part.acc, rows * width, 0.0f);
        std::fill_n(part.top, rows, -INFINITY);
        std::fill_n(part.sum, rows, 0.0f);
        for (int64_t p = split * kSplitPages; p < (split + 1) * kSplitPages; ++p) {
            const int64_t base = p * kKeyBlock;
            if (base >= a.end_key(t1 - 1)) break;
            if (base + kKeyBlock <= a.first_key(t0)) continue;
            const int16_t* page = a.pages[p] + a.layer_offset;
            const Page keys(page, kv_head, a.head_dim),
                values(page, a.kv_heads + kv_head, a.head_dim);
            const bool end = base + kKeyBlock >= a.end_key(t1 - 1);
            const Code* next =
                end ? keys.codes : Page(a.pages[p + 1] + a.layer_offset, kv_head, a.head_dim).codes;
            form.take_page(keys, values);
            // Tiles of rows that go through a page together.
            constexpr int kTogether = kFetch ? 1 : 4;
            int64_t r = 0;
            if constexpr (kTogether > 1)
                for (; r + kRows * kTogether <= rows; r += kRows * kTogether)
                    attend_page<kRows, kTogether>(r, keys, values, next, base, part);
            tiles(r, [&](int64_t at, auto n) {
                attend_page<n, 1>(at, keys, values, next, base, part);
            });
        }
    }
};

// Attention of queries [t0, t1) of the heads that share *kv_head*, over splits [first, last).
template <class Block>
void attend_with(const AttentionArgs& a, int64_t kv_head, int64_t t0, int64_t t1, int64_t first,
                 int64_t last, float* partial, float* scratch) {
    Block block(a, kv_head, t0, t1, scratch);
    const int64_t rows = block.rows;
    const PartialAttention total(partial, rows, a.head_dim);
    const PartialAttention of_split(block.rest, rows, a.head_dim);
    block.take_queries();
    block.attend_split(first, total);
    for (int64_t split = first + 1; split < last; ++split) {
        block.attend_split(split, of_split);
        merge(total, of_split, rows, a.head_dim);
    }
}

template <class Form>
void attend_by(const AttentionArgs& a, int64_t kv_head, int64_t t0, int64_t t1, int64_t first,
               int64_t last, float* partial, float* scratch) {
    // With so few rows, the time goes into reading keys and values from memory, not into products.
    const bool few = (t1 - t0) * (a.heads / a.kv_heads) <= 2 * Form::kFewRows;
    (few ? attend_with<Block<Form, Form::kFewRows, Form::kFewVectors, true>>
         : attend_with<Block<Form, Form::kManyRows, Form::kManyVectors, false>>)(a, kv_head, t0, t1,
                                                                                 first, last,
                                                                                 partial, scratch);
}

inline void attend(const AttentionArgs& a, int64_t kv_head, int64_t t0, int64_t t1, int64_t first,
                   int64_t last, float* partial, float* scratch) {
    (a.kv_type == KvType::q8 ? attend_by<QuadForm> : attend_by<PairForm>)(a, kv_head, t0, t1, first,
                                                                          last, partial, scratch);
}

// Stores one position's keys and values, (kv_heads, dim) each, in place *slot* of a page. kEach
// codes in a row are neighbouring elements of a key, but neighbouring positions of values.
template <class Form>
void store_as(const float* k, const float* v, int64_t kv_heads, int64_t dim, int64_t slot,
              int16_t* page) {
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
        const float step = form.encode(key ? k + h * dim : v + (h - kv_heads) * dim, dim, key,
                                       spare.data(), codes);
        auto* to = reinterpret_cast<Code*>(page);
        for (int64_t d = 0; d < width; ++d) {
            const int64_t at = key ? d / kEach * kEach * kKeyBlock + kEach * slot + d % kEach
                                   : slot / kEach * kEach * width + kEach * d + slot % kEach;
            to[at] = Form::stored(codes[d], key);
        }
        const uint32_t bits = float_to_bits(step) >> (32 - 8 * sizeof(Step));
        std::memcpy(to + kKeyBlock * width + slot * int64_t(sizeof(Step) / sizeof(Code)), &bits,
                    sizeof(Step));
    }
}

inline void store_position(const float* k, const float* v, KvType type, int64_t kv_heads,
                           int64_t dim, int64_t slot, int16_t* page) {
    (type == KvType::q8 ? store_as<QuadForm> : store_as<PairForm>)(k, v, kv_heads, dim, slot, page);
}

}  // namespace
}  // namespace bitnet
