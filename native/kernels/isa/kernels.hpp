// What one instruction set provides: a table of functions, filled by scalar.cpp, avx2.cpp, ...
//
// ---- numerics of `linear`, y (T, rows) = x (T, cols) * w^T, by class of encoding
//
//   float     F32, F16, BF16
//     Each run of kFloatRun columns has two chains of fused multiply-adds in float32, one over the
//     even and one over the odd columns. Their sum is added to that of the runs before.
//
//   block     Q4_0, Q8_0, Q4_K, MXFP4, IQ4_XS and their like
//     Activations become int8 in groups of 16 columns: step = max|x| / 127,
//     q = round_half_even(x * (127 / max|x|)). The sum p of code * q in a group is an exact
//     integer. Each 32 columns are two groups, 0 and 1, with sum = step0 * sum(q0) + step1 *
//     sum(q1). In order:
//       y = fma(fma(p1, step1, p0 * step0), scale, y)
//       y = fma(sum, min, y)                              (encodings with a minimum)
//     Q6_K has a scale for each group, and so an fma for each in place of the first line.
//     llama.cpp has one step per 32 activations, and per 256 for *_K; 16 make the error of the
//     rounding smaller.
//
//   ternary   (W1.58A8)
//     Activations become int8 with one s = 127 / max(max|x|, 1e-5) per token,
//     q = round_half_even(x * s). Then y = sum / s * scale, where sum is the integer sum of
//     weight * q over the whole row. With scales per 256 columns, the integer sums of these are
//     scaled and added in float64, first to last, and that is sum.
//
//   grouped   Q1_0, Q2_0, PQ2_0, PTQ1_0
//     Activations become int8 as for block encodings, but in runs of 32 columns, as in llama.cpp.
//     The sum p of code * q in a run is an exact integer. Columns that share a scale begin with
//     part = 0. In order:
//       part = fma(p, step, part)                         (each of their runs)
//       y = fma(part, scale, y)                           (behind the last one)
//
// ---- numerics of attention, KvType::f16
//
// A vector of a head becomes int16 codes and a float32 step: code = round_half_even(x * (range /
// size)), step = size / range. For queries and keys, size is the length and range is 32,767; for
// values, size is the largest magnitude and range is 16,383. The step is 0 where size is below
// 1e-18, and NaN where size is above 1e18 or NaN.
//
//   score     the exact integer product of codes, times (step of the query * scale), times the step
//             of the key
//   weight    in each page, 2^(score - largest score of the page), and 0 below 2^-100
//   part      weight * step of the value, which becomes an integer code, too: in units of the
//             larger of sum of parts / 131,000 and largest part / 32,767. All codes are 0 where
//             the unit is not above 1e-30. The sum over values is an exact integer
//
// Sums of pages are added online in float32. Splits of kSplitPages pages, which begin at fixed
// positions, are merged in order; the score of a sink, whose value is 0, comes last.
//
// ---- numerics of attention, KvType::q8
//
// A vector of a head is rotated: each block of the largest power of two that divides its width is
// multiplied by a Hadamard matrix, in steps (x_0 + x_1, x_2 + x_3, ..., x_0 - x_1, x_2 - x_3, ...).
// That spreads large elements over the block; results are rotated back. The vector becomes int8
// codes and a step, the smallest float32 with 16 zero bits at its end that is not below largest
// magnitude / 127: code = round_half_even(x * (1 / step)). The step is 0 where that magnitude is
// below 1e-18, and NaN where it is above 1e14 or NaN.
//
// Weights are computed in integers of 16 bits, where the product of a and b is (a b + 2^14) / 2^15,
// rounded down:
//
//   score     the exact integer product of codes * (step of the query * scale) * step of the key
//   weight    in each page, 2^-x, where x = largest score of the page - score, rounded to a
//             multiple of 1 / 2,048. With f, the fraction of x: 1 - f (c1 - f (c2 - f c3)), halved
//             as often as the whole part of x says (QuadForm::Power has the coefficients)
//   part      weight * round_half_even(step of the value * (32,767 / largest of the steps seen))
//   code      each part, scaled so that the largest one of the row is 255, with seven fractional
//             bits. It is rounded up where these are at or above a threshold, of which each place
//             of a page has its own (ops/code_sums.hpp). The sum over values is exact, and NaN
//             where a step that is seen is NaN
//
// The rest is as for f16.
//
// ---- where bits agree
//
// Block and grouped encodings with interleaved rows (*_R16), ternary ones, and attention give the
// same bits for every instruction set, batch size and number of threads. So do float encodings,
// except that `scalar` does not fuse. Block and float encodings in rows are multiplied as tiles
// (linear_in_rows). Grouped ones in rows are stored to look up rows; `scalar` multiplies them at
// every level, with the numerics of block encodings.
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
    int16_t minus_pairs[2][2];  // the two parts of it: columns 4i and 4i + 1, 4i + 2 and 4i + 3
};
static_assert(sizeof(BlockInput) == 64, "one cache line");

// BlockInputs from one token to the next; an odd number, so that tokens do not compete for the same
// sets of a cache.
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
    const int32_t* sums = nullptr;  // of q, one for each step
    float* y = nullptr;             // (tokens, rows)

    // The arguments for tokens t0 .. t1 - 1 alone.
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
// The same, for float and block encodings whose rows lie one after the other, as in a file: 16 rows
// at a time are packed into a tile, so the results have the bits of interleaved rows (ops/ops.cpp).
void linear_in_rows(const LinearArgs& a, int64_t r0, int64_t r1, uint8_t* scratch);

// Bytes of scratch memory for the tiles that a kernel unpacks, enough for 96 bytes a column;
// amx.cpp, neon_i8mm.cpp and tile_groups.hpp assert that their tiles fit.
constexpr size_t scratch_bytes(int64_t cols) { return size_t(cols) * 96 + 4096; }

constexpr int kKeyBlock = 64;  // positions of a cache page, and keys per step of the online softmax
constexpr int kSplitPages = 4;   // pages of a split; partial results of splits are merged
constexpr int kQueryBlock = 16;  // tokens per unit of work, at least
// Ranges of the codes of KvType::f16: of queries, keys and largest weights; of values; of the sum
// of a page's weights.
constexpr float kCodeRange = 32767.0f, kValueRange = 16383.0f, kWeightSum = 131000.0f;
enum class KvType : int { f16, q8 };  // form of keys and values: codes of 16 bits, or of 8

// Codes of a vector of *dim* elements, with zeros up to a multiple of 16.
constexpr int64_t code_width(int64_t dim) { return (dim + 15) / 16 * 16; }

// Size in int16 of one head's keys, or values, of one layer in a page of 64 positions. With
// w = code_width(dim), they are laid out as
//   f16   int16 codes of keys (w / 2, 64, 2) or of values (32, w, 2), then 64 steps, float32
//   q8    bytes, the codes of keys plus 128 (w / 4, 64, 4) or those of values (16, w, 4), then the
//         upper 16 bits of 64 steps
constexpr int64_t head_words(int64_t dim, KvType type) {
    return kKeyBlock * (type == KvType::q8 ? code_width(dim) / 2 + 1 : code_width(dim) + 2);
}

// Attention of *tokens* queries at positions start, start+1, ... over all keys up to their own, or,
// if it is not causal, over all keys of the sequence, which ends with the last query. Page i has
// the keys and values of positions 64i .. 64i+63: at layer_offset the keys of all heads, then their
// values.
struct AttentionArgs {
    const float* q = nullptr;  // (tokens, heads, head_dim)
    const int16_t* const* pages = nullptr;
    int64_t layer_offset = 0;
    KvType kv_type = KvType::f16;
    int64_t tokens = 0, heads = 0, kv_heads = 0, head_dim = 0, start = 0;
    int64_t window = 0;                  // keys less than this far away are seen; 0: all
    float scale = 1.0f, softcap = 0.0f;  // softcap 0: none
    // (heads,), scores of one more key of each head, whose value is 0; null: none
    const float* sinks = nullptr;
    // (heads,), loss of a score per position between query and key (ALiBi); null: none
    const float* slopes = nullptr;
    // (heads, 2 * reach + 1), biases of scores for keys at positions -reach .. reach from the
    // query; farther keys have the bias of the nearest of these; null: none
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

// Attention of rows of queries over the keys of one split, before it is divided by the sum of
// weights, which is 0 for a row that sees no key.
struct PartialAttention {
    float* acc;  // (rows, code_width(dim)), sums of weighted values
    float* top;  // (rows,), largest scores
    float* sum;  // (rows,), sums of weights
    PartialAttention(float* memory, int64_t rows, int64_t dim)
        : acc(memory), top(memory + rows * code_width(dim)), sum(top + rows) {}
    // Size of *memory*, in whole cache lines.
    static int64_t floats(int64_t rows, int64_t dim) {
        return (rows * (code_width(dim) + 2) + 15) / 16 * 16;
    }
};

// Floats of scratch memory for Kernels::attend.
inline int64_t attend_scratch(int64_t rows, int64_t dim) {
    const int64_t query_codes = rows * code_width(dim) / 2, query_steps_and_starts = 2 * rows;
    const int64_t step_ratios = kKeyBlock / 2;  // of a page of q8, int16
    // The result of a second split; before that, three vectors while queries are encoded.
    const int64_t second_split = PartialAttention::floats(rows + 2, dim);
    return query_steps_and_starts + query_codes + step_ratios + second_split;
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
    // (width - 1, channels), the inputs before these tokens; replaced by the last ones
    float* state = nullptr;
    const float* bias = nullptr;  // (channels), or none
    float* out = nullptr;         // (tokens, channels)
    int64_t tokens = 0, channels = 0, width = 0;
    bool silu = false;  // applied to the result
};
// Channels of a cache line, which threads should not take from each other.
constexpr int64_t kLineFloats = 16;

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
    int64_t decays = 1;     // of a state: one for all of it, or one for each of its key_dim rows
    float strength = 1.0f;  // factor on the sigmoid of beta
    float floor = 0.0f;     // lowest logarithm of a decay, below 0; 0: not limited
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
    int64_t tokens = 0, heads = 0, head_dim = 0;
    int64_t groups = 0;  // of b and c; neighbouring heads share one
    int64_t state_size = 0;
    int64_t decays = 1;  // of a state: one for all of it, or one for each of its state_size rows
};

enum class TernarySource : int;  // ternary/layout.hpp

// The operations on rows of floats, members of Kernels: plain loops that every instruction set
// compiles for itself (ops/float_ops.hpp, ops/attention.hpp). Calls are counted under these names.
#define BITNET_ROW_OPS(op) \
    op(rms_norm) op(rope) op(gate) op(softcap) op(convolve) op(delta_rule) op(selective_scan)

struct Kernels {
    const char* name;
    LinearKernel decode[kTypes];
    LinearKernel prefill[kTypes];
    // Rounds *cols* activations of one token to int8, as the numerics above say.
    void (*quantize_block)(const float* x, int64_t cols, BlockInput* out);
    void (*quantize_ternary)(const float* x, int64_t cols, int8_t* q, float* s, int32_t* sum);
    void (*quantize_runs)(const float* x, int64_t cols, int8_t* q, float* step, int32_t* sum);
    // Row *row* of a matrix as float32, in a float or block encoding, or a grouped one in rows.
    void (*dequantize)(Type type, const uint8_t* weight, int64_t row, int64_t cols, float* out);
    // One row of *cols*: x / sqrt(mean(x^2) + eps) * weight.
    void (*rms_norm)(const float* x, const float* weight, int64_t cols, float eps, float* out);
    void (*rope)(const RopeArgs&, int64_t t0, int64_t t1);
    // activation(gate) * up, element by element.
    void (*gate)(Gate kind, const float* gate, const float* up, int64_t n, float* out);
    // cap * tanh(x / cap); out may be x.
    void (*softcap)(const float* x, int64_t n, float cap, float* out);
    // Channels [c0, c1).
    void (*convolve)(const ConvolveArgs&, int64_t c0, int64_t c1);
    // State S of one head, for each position, with q and k scaled to length one:
    //   S *= e^(a softplus(alpha + dt)), or, with a floor, e^(floor sigmoid(a (alpha + dt)))
    //   S += k (strength sigmoid(beta) (v - S^T k))^T
    //   out = S^T q / sqrt(key_dim)
    void (*delta_rule)(const DeltaArgs&, int64_t head);
    // State S of one head, for each position, with s = softplus(dt + bias):
    //   S = e^(a s) S + b (s x)^T
    //   out = S^T c + skip x
    void (*selective_scan)(const ScanArgs&, int64_t head);
    // Queries [t0, t1) of the heads that share one kv head, over the keys of splits [first, last)
    // of kSplitPages pages; *partial* as PartialAttention lays it out, *scratch* of attend_scratch
    // floats, 64-aligned.
    void (*attend)(const AttentionArgs&, int64_t kv_head, int64_t t0, int64_t t1, int64_t first,
                   int64_t last, float* partial, float* scratch);
    // One position's key and value, (kv_heads, head_dim) each, into place *slot* of a layer's page.
    void (*store_position)(const float* k, const float* v, KvType type, int64_t kv_heads,
                           int64_t head_dim, int64_t slot, int16_t* page);
    // Packs 16 rows, as they are in a file, into a tile (encodings/tiles.hpp).
    void (*gather)(Type type, const uint8_t* const* rows, int64_t cols, uint8_t* tile);
    // Packs 16 rows of i2_s or tq2_0, *cols* a multiple of 128, into a tile with two bits per
    // weight (ternary/layout.hpp); true if a code was 3, which is not a ternary weight.
    bool (*pack_two_bits)(TernarySource source, const uint8_t* const* rows, int64_t cols,
                          uint8_t* out);
    // Packs the first *cols* columns of such a tile as a tile of TernaryDense.
    void (*make_dense)(const uint8_t* tile, int64_t cols, uint8_t* out);
    HeadKernels exact_head;
    bool dense_pays;  // TernaryDense is faster than two bits a weight
};

// ---- the instruction sets that this processor and its operating system offer, found out once
// (cpu.cpp)

// Instruction sets that have kernels of their own, in the file of the same name in this folder.
struct CpuFeatures {
    bool avx2 = false, avx_vnni = false, avx512_vnni = false, amx = false, neon_dotprod = false,
         neon_i8mm = false;
    bool avx512_vbmi = false;  // only with avx512_vnni; has kernels for dense ternary tiles
};

// The features of this processor. Tests may change them before a level is chosen.
CpuFeatures& cpu_features();

#if defined(BITNET_X86)
struct CpuRegisters {
    uint32_t a = 0, b = 0, c = 0, d = 0;  // eax to edx
};

// Queries of the processor and the operating system, which tests replace.
struct CpuQueries {
    CpuRegisters (*cpuid)(uint32_t leaf, uint32_t subleaf);
    uint64_t (*saved_state)();  // XCR0: register state that the operating system saves
    bool (*grant_tiles)();  // lets this process use the tiles of AMX, where the system permits it
};
CpuFeatures detect_features(const CpuQueries& ask);
#endif

// The table of each level; dispatch.cpp calls those functions that are compiled.
const Kernels& scalar_kernels();
const Kernels& avx2_kernels();
const Kernels& avx_vnni_kernels();
const Kernels& avx512_vnni_kernels();
const Kernels& amx_kernels();
const Kernels& neon_dotprod_kernels();
const Kernels& neon_i8mm_kernels();

namespace detail {
// The kernels in use (dispatch.cpp).
Kernels& active();
// The tables of all levels that this machine offers, slowest first.
const std::vector<const Kernels*>& offered();
}  // namespace detail

}  // namespace bitnet
