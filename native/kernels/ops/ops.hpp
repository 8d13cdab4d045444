// The operations a model is made of, on the threads of system/thread_pool.hpp and the kernels of the best
// instruction set that passed its self-test. Arrays are row-major and do not overlap.
#pragma once

#include <cmath>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "isa/kernels.hpp"

namespace bitnet {

inline void require(bool condition, const char* what) {
    if (!condition) throw std::invalid_argument(what);
}

// Instruction sets this machine can run, slowest first: "scalar", "avx2", ...
std::vector<std::string> levels();
std::string level();
// False when *name* is not one of levels().
bool set_level(const std::string& name);
// Whether the chosen level has a kernel of its own for *type*.
bool has_kernel(Type type);
// Whether it multiplies TernaryDense faster than two bits a weight.
bool dense_pays();
// Kernels of the chosen level that differ from the scalar ones and were replaced.
std::vector<std::string> self_test();

// For tests of the self-test: the kernel "linear F16_R16", "linear Q8_0_R16 prefill", "dequantize", "gather",
// "head tile", "head sixth", "head pack", "pack" or "make dense" is wrong until set_level; false for other names.
bool plant_wrong_kernel(const std::string& what);

// Bytes of a weight row, 0 when *cols* is not a whole number of blocks.
int64_t row_bytes(Type type, int64_t cols);

// Bytes of a matrix, 0 when *cols* is not a whole number of blocks.
int64_t weight_bytes(Type type, int64_t rows, int64_t cols);

// Row *r* of a matrix as float32.
void decode_row(Type type, const uint8_t* weight, int64_t rows, int64_t cols, int64_t r, float scale, float* out);
// Rows *ids* of a matrix as float32, out (count, cols).
void embed(Type type, const uint8_t* weight, int64_t rows, int64_t cols, float scale, const int64_t* ids, int64_t count,
           float* out);
// By the name of an activation in families/mixers.py.
Gate gate_of(std::string_view name);
inline void check_scores(float scale, float softcap) {
    require(std::isfinite(scale) && std::isfinite(softcap) && softcap >= 0.0f, "scale or softcap is out of range");
}
// *args* of several sequences.
void attention(const std::vector<AttentionArgs>& batch);
// What rope turns by: cos and sin of each angle, times *scale*.
void turns(const double* angles, int64_t n, double scale, float* cos, float* sin);
// Sum of the 64-bit words of *n* bytes: what reading memory costs, for benchmarks to compare with.
uint64_t sum_bytes(const uint8_t* bytes, int64_t n);

}  // namespace bitnet
