// A copy of an output head, with five bits a weight and a sixth one stored apart, and the bounds on
// the logits of a hidden state that follow from it.
//
// Columns are permuted and scaled by powers of two (w' = w / s_j, x' = x * s_j, so that x.w =
// x'.w') and cut into blocks of 64. Weight (r, j) of the copy is step_r * (code - 15.5), codes 0 ..
// 31; the columns of block 0 have a second code, 32 times finer, in one more block at the end. For
// each row and block, the norm of what the codes leave of the weights is stored in eight bits,
// rounded up.
//
// A block of a tile is two halves of 32 columns, each five lines of 64 bytes. Byte b of dword r of
// a line belongs to row r: in line 0, its bit g is the high bit of column 4g + b; in line 1 + i,
// its low four bits are those of column 8i + b, its high four bits those of column 8i + 4 + b.
//
// The sixth bit of a weight says in which half of its code's step it lies: it adds or subtracts a
// quarter of step_r, or, in block 0, of the second code's step. Sixth bits are stored per row,
// since few rows need them: the unit (float) of the norms of what six bits leave, a norm per block
// in eight bits, and from head_bits on eight bytes per block, in which bit i of byte b is that of
// column 8i + b. docs/architecture/exact-head.md has the proof of the bounds.
#pragma once

#include <cmath>
#include <vector>

#if defined(BITNET_X86)
#include <xmmintrin.h>
#endif

#include "encodings/blocks.hpp"

namespace bitnet {

constexpr int64_t kHeadRows = 16;   // rows of a tile, interleaved
constexpr int64_t kHeadBlock = 64;  // columns of a block
constexpr int64_t kHeadBlockBytes = kHeadRows * kHeadBlock * 5 / 8;
constexpr int64_t kHeadColumns = 32768;  // at most
constexpr int64_t kHeadGroup = 4;        // blocks whose sixth bits are read at once
constexpr int64_t kHeadGroupBytes = kHeadGroup * kHeadBlock / 8;
constexpr int64_t kHeadLevels = 32;          // codes
constexpr int64_t kHeadNegative = 16;        // codes of weights below zero
constexpr int64_t kHeadLargest = 127 * 128;  // largest rounded activation
// Ranges of the codes, in root mean squares of the row; each row takes the one that leaves least.
constexpr float kHeadClips[] = {3.0f, 3.5f, 4.0f, 5.0f};
constexpr double kHeadLimit = 1e15;  // larger norms are refused, so that nothing can overflow

// Blocks of the columns themselves; the copy has one more.
constexpr int64_t head_blocks(int64_t cols) { return (cols + kHeadBlock - 1) / kHeadBlock; }
// With the one of block 0's second codes.
constexpr int64_t head_stored_blocks(int64_t cols) { return head_blocks(cols) + 1; }
constexpr int64_t head_tiles(int64_t rows) { return (rows + kHeadRows - 1) / kHeadRows; }
// Offset of the codes in a tile: a multiple of a cache line, behind the norms (blocks, 16).
constexpr int64_t head_codes(int64_t blocks) { return (blocks * kHeadRows + 63) / 64 * 64; }
constexpr int64_t head_tile_bytes(int64_t cols) {
    const int64_t blocks = head_stored_blocks(cols);
    return head_codes(blocks) + blocks * kHeadBlockBytes;
}

// Sixth bits come in whole groups of blocks and rows of them in whole cache lines.
constexpr int64_t head_groups(int64_t cols) {
    return (head_blocks(cols) + kHeadGroup - 1) / kHeadGroup;
}
// Offset of the bits in a row of sixth bits, behind the unit and the norms.
constexpr int64_t head_bits(int64_t cols) {
    return (int64_t(sizeof(float)) + head_blocks(cols) + 7) / 8 * 8;
}
constexpr int64_t head_sixth_bytes(int64_t cols) {
    return (head_bits(cols) + head_groups(cols) * kHeadGroupBytes + 63) / 64 * 64;
}

// An output head and its copy. Arrays of the copy have whole tiles of rows.
struct ExactHead {
    Type type = Type::F16;
    const uint8_t* weight = nullptr;  // the head itself, (rows, cols)
    int64_t rows = 0, cols = 0;
    int file = -1;  // descriptor of a file that has *weight* at *file_offset*; -1: none
    int64_t file_offset = 0;
    const int32_t* order = nullptr;  // (cols,) column of the head at each place of the copy
    const float* factors = nullptr;  // (cols,) s_j, by place
    uint8_t* tiles = nullptr;
    uint8_t* sixth = nullptr;   // (tiles * 16, head_sixth_bytes)
    float* step = nullptr;      // (tiles * 16,)
    float* residual = nullptr;  // (tiles * 16,) unit of the row's norms in its tile
    float* norm = nullptr;  // (tiles * 16,) at least |w'_r| and the norms of all parts of its copy
};

// One hidden state, rounded to 15 bits per block: x' = 2 * step * q + error, q = 128 * high + low.
struct HeadInput {
    std::vector<int8_t> high, low;  // (blocks + 1) * 64
    std::vector<float> step;        // (blocks + 1,) half the step of the activations
    std::vector<int32_t> middle;    // (blocks + 1,) 31 * sum of q
    std::vector<float> norm;        // (blocks + 8,) of x', rounded up; zeros after the blocks
    // The same digits in the order of the sixth bits: for each group of blocks, those of bit 0 of
    // its 32 bytes, then those of bit 1, ...
    std::vector<int8_t> sixth_high, sixth_low;  // groups * 256
    // For every four bytes of sixth bits, eight to a group: a quarter of the step of codes (in
    // steps of the row) times the step of the activations; and the sum of q.
    std::vector<float> sixth_step;
    std::vector<int32_t> sixth_middle;
    float slack = 0.0f;  // bound on all rounding errors, per unit of the row's norm
};

// Rounds the hidden state *x*, (cols,). False if it is not finite, or so long that products could
// overflow.
bool head_input(const ExactHead& m, const float* x, HeadInput& out);

// Approximate logits of the 16 rows of a tile, and upper bounds on the logits; *blocks* counts the
// one of second codes, too.
using HeadTile = void (*)(const uint8_t* tile, int64_t blocks, const HeadInput& x,
                          const float* step, const float* residual, const float* norm,
                          float* approx, float* upper);
// *sum*: what the sixth bits of a row add to its logit, in steps of the row. *error*: bound on what
// six bits leave of the logit, in units of the row's norms.
using HeadSixth = void (*)(const uint8_t* row, int64_t cols, const HeadInput& x, float* sum,
                           float* error);
// Fills one tile of the copy, and the sixth bits, from its 16 rows, permuted, scaled and padded to
// whole blocks, which it overwrites; false when a norm is not finite or above kHeadLimit.
using HeadPack = bool (*)(const ExactHead& m, int64_t tile, float* rows);

struct HeadKernels {
    HeadTile tile;
    HeadSixth sixth;
    HeadPack pack;
};

// Fills tiles t0 .. t1 - 1 and their sixth bits, step, residual and norm; false when the head has
// weights that cannot be bounded.
bool build_copy(const ExactHead& m, int64_t t0, int64_t t1);

struct HeadQuery {
    const float* x = nullptr;     // (cols,)
    int64_t count = 1;            // how many of the best rows outside *listed* must be found
    float margin = -1.0f;         // >= 0: also every row down to this far below the best found
    std::vector<int64_t> listed;  // rising; these rows are always found, and count for nothing else
};

struct HeadResult {
    bool usable = false;        // false: this hidden state cannot be bounded, and nothing was found
    std::vector<int64_t> ids;   // rising
    int64_t refined = 0;        // rows whose sixth bits were read
    std::vector<float> logits;  // of *ids*, with the bits that the head's own kernel gives
    float bound = 0.0f;         // the logit of every other row is below it
    double tail = 0.0;  // with a margin: sum of exp(logit - bound) of those rows, rounded up
};

std::vector<HeadResult> find_logits(const ExactHead& m, const std::vector<HeadQuery>& queries);

// Approximate logits and upper bounds of every row, (tiles * 16,) each, with or without sixth bits;
// false if the logits of *x* cannot be bounded.
bool head_bounds(const ExactHead& m, const float* x, bool sixth, float* approx, float* upper);

// Logits of rows *ids* by the head's own kernel, on all threads (ops/ops.cpp). If there is a file,
// rows are read from it: a page fault of a mapping takes longer, and leaves the page in the memory
// of the process.
void linear_rows(const ExactHead& m, const float* x, const int64_t* ids, int64_t count, float* out);

// Each instruction set compiles its own copy: no unit may run code of another's flags.
namespace {

// Approximate logit and upper bound of a row. *error* may have been rounded down by up to 2^-20 of
// itself, and so may value + error: the upper bound makes up for both.
[[maybe_unused]] inline void finish_row(float value, float error, float& approx, float& upper) {
    approx = value;
    upper = value + (error * (1.0f + 0x1p-20f) + std::fabs(value) * 0x1p-20f);
}

// Prefetches into the second cache: too few prefetches into the first can be in flight at once.
[[maybe_unused]] inline void prefetch_bytes(const uint8_t* begin, int64_t count) {
    for ([[maybe_unused]] int64_t line = 0; line < count; line += 64) {
#if defined(BITNET_X86)
        _mm_prefetch(reinterpret_cast<const char*>(begin + line), _MM_HINT_T1);
#elif defined(BITNET_ARM)
        __builtin_prefetch(begin + line, 0, 2);
#endif
    }
}

// Prefetches the block that is twelve blocks ahead.
[[maybe_unused]] inline void prefetch_block(const uint8_t* block) {
    prefetch_bytes(block + 12 * kHeadBlockBytes, kHeadBlockBytes);
}

}  // namespace
}  // namespace bitnet
