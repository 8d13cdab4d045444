// What one instruction set provides: a table of functions, filled by scalar/, avx2/, ...
//
// Numerics of `linear`, y (T, rows) = x (T, cols) * w^T, by class of encoding:
//   float    F32 F16 BF16: per kFloatRun columns two chains of fused multiply-adds in float32, over
//   the
//            even and the odd ones; their sum is added to that of the columns before.
//   block    Q*: the activations become int8 in groups of 16, step = max|x| / 127,
//            q = round_half_even(x * (127 / max|x|)). Sums of code * q are exact integers per
//            group. With p, step of the two groups of each 32 columns and sum = sum(step * q), in
//            order:
//              y = fma(fma(p1, step1, p0 * step0), scale, y)    (Q6_K: a scale of each group, two
//              fmas) y = fma(sum, min, y)                             (encodings with a minimum)
//            llama.cpp has one step per 32 activations, for *_K one per 256: with 16 the error of
//            the rounding is smaller.
//   ternary  (W1.58A8) one s = 127 / max(max|x|, 1e-5) per token, q = clip(round_half_even(x * s)),
//            integer sums over the whole row, y = sum / s * scale. With scales per 256 columns the
//            integer sums are scaled and added in float64, first to last, then y = sum / s * scale.
//   grouped  (Q1_0, Q2_0, PQ2_0, PTQ1_0) the activations become int8 in runs of 32, rounded as
//   those of block encodings,
//            which have runs of 16; llama.cpp has 32 here, too. With p = sum(code * q) of a run, an
//            exact integer, in order: part = fma(p, step, part), from 0 on, and where the columns
//            of a scale end: y = fma(part, scale, y).
// Attention: a vector of a head is int16 codes and a float32 step, code = round_half_even(x *
// (range / size)), step =
//            size / range. Of queries and keys the size is the length and the range 32,767; of
//            values it is the largest magnitude and the range 16,383. The step is 0 where the size
//            is below 1e-18, NaN where it is above 1e18 or none. A score is the exact integer
//            product of codes, times (step of the query * scale), times the step of the key. Page
//            by page a weight is 2^(score - largest of the page), 0 below 2^-100; weight * step of
//            the value becomes a code as well, of a sum of 131,000 or, where one would be larger,
//            with 32,767 at most (all 0 where a unit is below 1e-30). So a sum of values is an
//            exact integer too. Sums of pages are added online in float32, in splits of kSplitPages
//            pages that begin at fixed positions and are merged in order; behind them the score of
//            a sink, whose value is 0.
// Attention, q8: a vector of a head is rotated, each block of the largest power of two that divides
// its width by doublings of
//            (x_0 + x_1, x_2 + x_3, ..., x_0 - x_1, x_2 - x_3, ...), which spreads what is large
//            over the block; results are rotated back. It is int8 codes and a step, the smallest
//            float32 with 16 zero bits at its end that is not below the largest magnitude / 127;
//            code = round_half_even(x * (1 / step)). The step is 0 where that magnitude is below
//            1e-18, NaN where it is above 1e14 or none. A score is the exact product of codes *
//            (step of the query * scale) * step of the key. Page by page, in integers of 16 bits,
//            products of a and b being (a b + 2^14) / 2^15 rounded down: a weight is 2^-x, x being
//            what the score is below the largest, rounded to 1 / 2,048: with f the last 11 bits, 1
//            - f (c1 - f (c2 - f c3)), halved as often as the others say; its part is its product
//            with round_half_even(step
//            * (32,767 / largest step)) of the values that are seen. The largest part of the row
//            becomes code 255, the others in proportion, with seven bits behind the point, rounded
//            up from a fraction on that each place of a page has for itself (ops/code_sums.hpp).
//            The sum over values is exact, and NaN where a step that is seen is. The rest is as
//            above.
// Block encodings with interleaved rows (*_R16) and ternary ones give the same bits for every
// instruction set, batch size and number of threads, and so does attention; float ones too, but for
// `scalar`, which does not fuse. Block and float encodings in rows become tiles when they are
// multiplied (linear_in_rows).
#pragma once

#include <cstddef>

#include "head/exact_head.hpp"
#include "encodings/tiles.hpp"

namespace bitnet {

constexpr int kDecodeTokens = 16;  // batches up to this size go through `decode`
constexpr int kFloatRun = 256;

// Activations of 32 columns of one token, block encodings; a cache line.
struct alignas(64) BlockInput {
    int8_t q[32];
    float step[2];              // of the first 16 and of the others
    float sum;                  // of step * q
    int32_t minus_q[2];         // -sum(q) of each 16
    int16_t minus_pairs[2][2];  // the same of the first and the second two of each four
};
static_assert(sizeof(BlockInput) == 64, "one cache line");

// From one token to the next; odd, so that tokens do not compete for the same sets of a cache.
constexpr int64_t block_inputs(int64_t cols) { return (cols / 32) | 1; }

struct LinearArgs {
    const uint8_t* weight = nullptr;
    Type type = Type::F32;
    int64_t row_bytes = 0, rows = 0, cols = 0, tokens = 0;
    float scale = 1.0f;                  // ternary: of all weights
    const float* x = nullptr;            // float: (tokens, cols)
    const BlockInput* inputs = nullptr;  // block: (tokens, block_inputs(cols))
    const int8_t* q = nullptr;           // ternary, grouped: (tokens, cols)
    const float* step = nullptr;    // ternary: (tokens,), the s above; grouped: (tokens, cols / 32)
    const int32_t* sums = nullptr;  // of q, as many
    float* y = nullptr;             // (tokens, rows)

    // The product of tokens t0 .. t1 - 1 alone.
    LinearArgs of_tokens(int64_t t0, int64_t t1) const {
        LinearArgs part = *this;
        if (is_float(type))
            part.x += t0 * cols;
        else if (is_ternary(type)) {
            part.q += t0 * cols;
            part.step += t0;
            part.sums += t0;
        } else if (is_grouped(type)) {
            part.q += t0 * cols;
            part.step += t0 * cols / 32;
            part.sums += t0 * cols / 32;
        } else
            part.inputs += t0 * block_inputs(cols);
        part.y += t0 * rows;
        part.tokens = t1 - t0;
        return part;
    }
};

// Rows [r0, r1) of the product for all tokens; *scratch* has scratch_bytes(cols) bytes, 64-aligned.
using LinearKernel = void (*)(const LinearArgs&, int64_t r0, int64_t r1, uint8_t* scratch);
// That of float and block encodings in rows, one after the other as in a file: 16 at a time become
// a tile, so that results have the same bits (ops/ops.cpp).
void linear_in_rows(const LinearArgs& a, int64_t r0, int64_t r1, uint8_t* scratch);

constexpr size_t scratch_bytes(int64_t cols) { return size_t(cols) * 96 + 4096; }

constexpr int kKeyBlock = 64;  // positions of a cache page, and keys per step of the online softmax
constexpr int kSplitPages =
    4;  // pages whose keys are seen in one go; then partial results are merged
constexpr int kQueryBlock = 16;  // tokens per unit of work, at least
constexpr float kCodeRange = 32767.0f, kValueRange = 16383.0f, kWeightSum = 131000.0f;
enum class KvType : int { f16, q8 };  // form of keys and values: codes of 16 bits, or of 8

// Codes of a vector: zeros fill the last 16.
constexpr int64_t code_width(int64_t dim) { return (dim + 15) / 16 * 16; }

// int16 of a page that one head's keys, or values, of one layer take. With w codes a vector: those
// of keys, (w / 2, 64, 2), or of values, (32, w, 2), and behind them 64 steps, float32. Of q8,
// bytes: those of keys, plus 128, (w / 4, 64, 4), or of values, (16, w, 4), then the upper halves
// of 64 steps.
constexpr int64_t head_words(int64_t dim, KvType type) {
    return kKeyBlock * (type == KvType::q8 ? code_width(dim) / 2 + 1 : code_width(dim) + 2);
}

// Attention of *tokens* queries at positions start, start+1, ... over all keys up to their own, or,
// if it is not causal, over all keys of the sequence, which ends with the last query. Those of
// positions 64i .. 64i+63 are in page i: at layer_offset the keys of all heads, then their values.
struct AttentionArgs {
    const float* q = nullptr;  // (tokens, heads, head_dim)
    const int16_t* const* pages = nullptr;
    int64_t layer_offset = 0;
    KvType kv_type = KvType::f16;
    int64_t tokens = 0, heads = 0, kv_heads = 0, head_dim = 0, start = 0;
    int64_t window = 0;                  // keys a query sees, itself included; 0: all
    float scale = 1.0f, softcap = 0.0f;  // softcap 0: none
    const float* sinks =
        nullptr;  // (heads,), scores of one more key of each head, whose value is 0; null: none
    const float* slopes = nullptr;  // (heads,), what a score loses per position between query and
                                    // key (ALiBi); null: nothing
    // (heads, 2 * reach + 1), what is added to the score of a key by its distance from the query,
    // the keys before it first; those beyond *reach* get what is added at it; null: nothing
    const float* distances = nullptr;
    int64_t reach = 0;
    bool causal = true;
    float* out = nullptr;  // (tokens, heads, head_dim)

    int64_t first_key(int64_t t) const {
        const int64_t first = start + t + 1 - window;
        return window > 0 && first > 0 ? first : 0;
    }
    int64_t end_key(int64_t t) const {
        const int64_t end = start + tokens;
        if (causal) return start + t + 1;
        return window > 0 ? std::min(end, start + t + window) : end;
    }
};

// What rows of queries have seen of one split: sums of weighted values (rows, code_width(dim)),
// each row's largest score and sum of weights. A row that saw no key has sum 0.
struct PartialAttention {
    float *acc, *top, *sum;
    PartialAttention(float* memory, int64_t rows, int64_t dim)
        : acc(memory), top(memory + rows * code_width(dim)), sum(top + rows) {}
    static int64_t floats(int64_t rows, int64_t dim) {
        return (rows * (code_width(dim) + 2) + 15) / 16 * 16;
    }  // whole cache lines
};

// Floats: the queries' codes, steps and starts of sums, the ratios of a page's steps, and what was
// seen of a second split, or before that three vectors.
inline int64_t attend_scratch(int64_t rows, int64_t dim) {
    return 2 * rows + rows * code_width(dim) / 2 + kKeyBlock / 2 +
           PartialAttention::floats(rows + 2, dim);
}

enum class Gate : int {
    silu,
    gelu_tanh,
    relu2,
    relu,
    sigmoid,
    silu_clamped,
    swiglu_oai,
    identity,
    gelu,
    gelu_quick,
    softplus,
    tanh
};

struct RopeArgs {
    const float* x = nullptr;                    // (tokens, heads, head_dim)
    const float *cos = nullptr, *sin = nullptr;  // (tokens, rotated / 2)
    int64_t heads = 0, head_dim = 0, rotated = 0;
    bool half = true;  // pairs (i, i + rotated/2); else (2i, 2i + 1)
    float* out = nullptr;
};

// Layers with a state of fixed size: a causal convolution of each channel, the gated delta rule,
// and Mamba-2's scan. One position follows another in each, and every sum is added in one order, so
// the bits depend neither on how a sequence is cut nor on threads or vector widths.
struct ConvolveArgs {
    const float* x = nullptr;       // (tokens, channels)
    const float* weight = nullptr;  // (channels, width), the last for the position itself
    float* state =
        nullptr;  // (width - 1, channels): the inputs before, and afterwards the last ones
    const float* bias = nullptr;  // (channels), or none
    float* out = nullptr;         // (tokens, channels)
    int64_t tokens = 0, channels = 0, width = 0;
    bool silu = false;  // of the result
};
constexpr int64_t kLineFloats =
    16;  // channels of a cache line, which threads should not take from each other

struct DeltaArgs {
    const float *q = nullptr, *k = nullptr;  // (tokens, key_heads, key_dim)
    const float* v = nullptr;                // (tokens, heads, value_dim)
    const float* alpha = nullptr;            // (tokens, heads, decays)
    const float* beta = nullptr;             // (tokens, heads)
    const float* a = nullptr;                // (heads)
    const float* dt = nullptr;               // (heads, decays)
    float* state = nullptr;                  // (heads, key_dim, value_dim)
    float* out = nullptr;                    // as v
    int64_t tokens = 0, heads = 0, key_heads = 0, key_dim = 0, value_dim = 0;
    int64_t decays = 1;     // of a state: one for all of it, or for each of its key_dim rows
    float strength = 1.0f;  // factor on the sigmoid of beta
    float floor = 0.0f;     // of the logarithms of decays; 0: they have none
    bool grouped = false;  // neighbouring heads share a key head; otherwise every key_heads-th does
};

struct ScanArgs {
    const float* x = nullptr;                      // (tokens, heads, head_dim)
    const float *b = nullptr, *c = nullptr;        // (tokens, groups, state_size)
    const float* dt = nullptr;                     // (tokens, heads)
    const float* a = nullptr;                      // (heads, decays)
    const float *bias = nullptr, *skip = nullptr;  // (heads)
    float* state = nullptr;                        // (heads, state_size, head_dim)
    float* out = nullptr;                          // as x
    int64_t tokens = 0, heads = 0, head_dim = 0, groups = 0,
            state_size = 0;  // neighbouring heads share a group
    int64_t decays = 1;      // of a state: one for all of it, or for each of its state_size rows
};

enum class TernarySource : int;  // ternary/layout.hpp

// The operations on rows of floats, members of Kernels: plain loops that every instruction set
// compiles for itself (ops/float_ops.hpp, ops/attention.hpp). They are counted by these names.
#define BITNET_ROW_OPS(op) \
    op(rms_norm) op(rope) op(gate) op(softcap) op(convolve) op(delta_rule) op(selective_scan)

struct Kernels {
    const char* name;
    LinearKernel decode[kTypes];
    LinearKernel prefill[kTypes];
    // int8 activations of one token; see the numerics above for the outputs.
    void (*quantize_block)(const float* x, int64_t cols, BlockInput* out);
    void (*quantize_ternary)(const float* x, int64_t cols, int8_t* q, float* s, int32_t* sum);
    void (*quantize_runs)(const float* x, int64_t cols, int8_t* q, float* step, int32_t* sum);
    // Row *row* of a matrix in a float or block encoding as float32.
    void (*dequantize)(Type type, const uint8_t* weight, int64_t row, int64_t cols, float* out);
    // Per row of *cols*: x / sqrt(mean(x^2) + eps) * weight.
    void (*rms_norm)(const float* x, const float* weight, int64_t cols, float eps, float* out);
    void (*rope)(const RopeArgs&, int64_t t0, int64_t t1);
    void (*gate)(Gate kind, const float* gate, const float* up, int64_t n, float* out);
    // cap * tanh(x / cap); out may be x.
    void (*softcap)(const float* x, int64_t n, float cap, float* out);
    // Channels [c0, c1).
    void (*convolve)(const ConvolveArgs&, int64_t c0, int64_t c1);
    // State S of one head, for each position: S *= e^(a softplus(alpha + dt)); S += k
    // (sigmoid(beta) (v - S^T k))^T; out = S^T q / sqrt(key_dim), with q and k of length one.
    void (*delta_rule)(const DeltaArgs&, int64_t head);
    // State S of one head, for each position, with s = softplus(dt + bias): S = e^(a s) S + b (s
    // x)^T; out = S^T c + skip x.
    void (*selective_scan)(const ScanArgs&, int64_t head);
    // Queries [t0, t1) of the heads that share one kv head, over the keys of splits [first, last)
    // of kSplitPages pages; *partial* as PartialAttention lays it out, *scratch* of attend_scratch
    // floats, 64-aligned.
    void (*attend)(const AttentionArgs&, int64_t kv_head, int64_t t0, int64_t t1, int64_t first,
                   int64_t last, float* partial, float* scratch);
    // One position's key and value, (kv_heads, head_dim) each, into place *slot* of a layer's page.
    void (*store_position)(const float* k, const float* v, KvType type, int64_t kv_heads,
                           int64_t head_dim, int64_t slot, int16_t* page);
    // The tile (encodings/tiles.hpp) of 16 rows as they are in a file, each where its pointer says.
    void (*gather)(Type type, const uint8_t* const* rows, int64_t cols, uint8_t* tile);
    // The same of rows of i2_s or tq2_0, *cols* a multiple of 128, with two bits per weight
    // (ternary/layout.hpp); returns whether a code was 3.
    bool (*pack_two_bits)(TernarySource source, const uint8_t* const* rows, int64_t cols,
                          uint8_t* out);
    // The same tile, which has at least *cols* columns, as one of TernaryDense with *cols*.
    void (*make_dense)(const uint8_t* tile, int64_t cols, uint8_t* out);
    HeadKernels exact_head;
    bool dense_pays;  // TernaryDense is faster than two bits a weight
};

// ---- which instruction sets this processor and its operating system offer, asked once (cpu.cpp)

// A bit for each instruction set with kernels of its own, which are in the file of its name here.
struct CpuFeatures {
    bool avx2 = false, avx_vnni = false, avx512_vnni = false, amx = false, neon_dotprod = false,
         neon_i8mm = false;
    bool avx512_vbmi = false;  // with those of avx512_vnni
};

// Before a level is chosen, tests may write to it.
CpuFeatures& cpu_features();

#if defined(BITNET_X86)
struct CpuRegisters {
    uint32_t a = 0, b = 0, c = 0, d = 0;
};

// What is asked, so that tests can answer.
struct CpuQueries {
    CpuRegisters (*cpuid)(uint32_t leaf, uint32_t subleaf);
    uint64_t (*saved_state)();  // XCR0: register state that the operating system saves
    bool (*grant_tiles)();  // lets this process use the tiles of AMX, where the system permits it
};
CpuFeatures detect_features(const CpuQueries& ask);
#endif

// Every level's table; dispatch.cpp knows which are compiled.
const Kernels &scalar_kernels(), &neon_dotprod_kernels(), &neon_i8mm_kernels();
const Kernels &avx2_kernels(), &avx_vnni_kernels(), &avx512_vnni_kernels(), &amx_kernels();

namespace detail {
// The kernels in use (dispatch.cpp).
Kernels& active();
// The tables of all levels that this machine offers, slowest first.
const std::vector<const Kernels*>& offered();
}  // namespace detail

}  // namespace bitnet
