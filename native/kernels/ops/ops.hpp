// The operations a model is made of, on the threads of system/thread_pool.hpp and the kernels of
// the best instruction set that passed its self-test. Arrays are row-major and do not overlap.
#pragma once

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>

#include "isa/kernels.hpp"

namespace bitnet {

inline void require(bool condition, const char* what) {
    if (!condition) throw std::invalid_argument(what);
}

// The index of *name* among *names*; throws with the message *otherwise* if it is not one of them.
template <class Names>
int place_of(const Names& names, std::string_view name, const char* otherwise) {
    const auto* found = std::find(std::begin(names), std::end(names), name);
    require(found != std::end(names), otherwise);
    return int(found - std::begin(names));
}

// Instruction sets this machine can run, slowest first: "scalar", "avx2", ...
std::vector<std::string> levels();
std::string level();
// False when *name* is not one of levels().
bool set_level(const std::string& name);
// Whether the chosen level has kernels of its own for *type*: decode and prefill both differ from
// those of the scalar level.
bool has_kernel(Type type);
// Whether the chosen level multiplies TernaryDense faster than two bits a weight.
bool dense_pays();
// Compares the kernels of the chosen level with the scalar ones, and returns the names of those
// that differ. If there are any, chooses the next slower level and compares that, and so on.
std::vector<std::string> self_test();

// How often each kernel ran, counted where it is called.
#define BITNET_COUNTED(op) op,
enum class Op : int { decode, prefill, embed, attention, BITNET_ROW_OPS(BITNET_COUNTED) kCount };
#undef BITNET_COUNTED

// Counts one call of *op* of the active kernels; *type* only matters for the first three.
void count_call(Op op, Type type = Type::F32);

// Calls since the process began, by keys such as "linear/Q4_1/avx2/decode", "embed/F16/avx2" and
// "attention/avx2".
std::map<std::string, uint64_t> counters();

// Bytes of a row, or of its share of a tile; 0 if *cols* is not a whole number of blocks.
int64_t row_bytes(Type type, int64_t cols);

// Bytes of a matrix, with all rows of a last tile; 0 if *cols* is not a whole number of blocks.
int64_t weight_bytes(Type type, int64_t rows, int64_t cols);

// Row *r* of a matrix as float32.
void decode_row(Type type, const uint8_t* weight, int64_t rows, int64_t cols, int64_t r,
                float scale, float* out);
// Rows *ids* of a matrix as float32, out (count, cols).
void embed(Type type, const uint8_t* weight, int64_t rows, int64_t cols, float scale,
           const int64_t* ids, int64_t count, float* out);
// The activation with this name in families/network_mixers.py.
Gate gate_of(std::string_view name);
inline void check_scores(float scale, float softcap) {
    require(std::isfinite(scale) && std::isfinite(softcap) && softcap >= 0.0f,
            "scale or softcap is out of range");
}
// Attention of several sequences.
void attention(const std::vector<AttentionArgs>& batch);
// Cosine and sine of each angle, times *scale*, as rope takes them.
void turns(const double* angles, int64_t n, double scale, float* cos, float* sin);

// ---- rounding of rows of floats to blocks, with the bytes that llama-quantize writes on x86-64
// (encodings/quantize.cpp)

// Rounds one row of *cols* floats to *out*. *importance* has a weight for the square of each
// column's error, or is null.
using RowQuantizer = void (*)(const float* x, const float* importance, int64_t cols, uint8_t* out);

// Blocks of *weights* weights in *bytes* bytes, of the type that ggml numbers *ggml_id*.
struct Quantizer {
    int ggml_id, weights, bytes;
    RowQuantizer row;
};

// The quantizer of a type, or null.
const Quantizer* find_quantizer(int ggml_id);

// Rounds *rows* rows on all threads; *cols* is a multiple of the block.
void quantize_rows(const Quantizer& quantizer, const float* x, const float* importance,
                   int64_t rows, int64_t cols, uint8_t* out);

// Sum of the 64-bit words of *n* bytes, rounded down to a multiple of 64. Benchmarks measure with
// it how fast memory is read.
uint64_t sum_bytes(const uint8_t* bytes, int64_t n);

}  // namespace bitnet
