// Packs rows into a tile of the exact head; every instruction set compiles this for itself.
#pragma once

#include <algorithm>
#include <limits>

#include "head/exact_head.hpp"

namespace bitnet {
// Each instruction set compiles its own copy: no unit may run code of another's flags.
namespace {

// Norm from a float sum of *n* squares, rounded up: such a sum is off by n * 2^-24 of itself at
// most, and 1e-17 is more than squares that underflow can add (docs/architecture/exact-head.md).
inline float norm_up(float squares, int64_t n) {
    return std::sqrt(squares) * (1.0f + float(n + 16) * 0x1p-23f) + 1e-17f;
}

// Sum of the squares of *n* numbers, in eight sums side by side, which fit in one register.
inline float sum_of_squares(const float* x, int64_t n) {
    float lanes[8] = {};
    for (int64_t i = 0; i < n; i += 8)
        for (int64_t k = 0; k < 8; ++k) lanes[k] += x[i + k] * x[i + k];
    return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +
           ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

// Largest magnitude of *n* numbers.
inline float largest_of(const float* x, int64_t n) {
    float lanes[8] = {};
    for (int64_t i = 0; i < n; i += 8)
        for (int64_t k = 0; k < 8; ++k) {
            const float size = std::fabs(x[i + k]);
            lanes[k] = size > lanes[k] ? size : lanes[k];
        }
    return *std::max_element(lanes, lanes + 8);
}

// Rounds the block *left* to *codes* at *step*, and subtracts their values from it. Returns the sum
// of the squares of these values.
inline float quantize_head(float* __restrict left, float step, uint8_t* __restrict codes) {
    const float inverse = step > 0.0f ? 1.0f / step : 0.0f;
    alignas(64) float values[kHeadBlock];
    for (int64_t i = 0; i < kHeadBlock; ++i) {
        const float place = std::floor(left[i] * inverse), low = place < -16.0f ? -16.0f : place;
        const float inside = low > 15.0f ? 15.0f : low;
        values[i] = (inside + 0.5f) * step;
        codes[i] = uint8_t(int(inside) + int(kHeadNegative));
        left[i] -= values[i];
    }
    return sum_of_squares(values, kHeadBlock);
}

// Sixth bits of *left*, what one or two codes, the last of them at *step*, have left of a block.
// Subtracts the values of the bits from it.
inline void quantize_sixth(float* __restrict left, float step, uint8_t* __restrict bits) {
    const float quarter = 0.25f * step;
    for (int64_t b = 0; b < 8; ++b) bits[b] = 0;
    for (int64_t i = 0; i < 8; ++i)
        for (int64_t b = 0; b < 8; ++b) {
            const bool above = left[8 * i + b] >= 0.0f;
            bits[b] = uint8_t(bits[b] | int(above) << i);
            left[8 * i + b] -= above ? quarter : -quarter;
        }
}

// Writes the codes of *row* to a block: words of the low four bits of two groups of four columns
// each, and of the high bits of eight groups.
inline void pack_block(const uint8_t* codes, int64_t row, uint8_t* block) {
    uint32_t bits[2] = {};
    for (int64_t g = 0; g < 16; g += 2) {
        const auto even = read<uint32_t>(codes + 4 * g), odd = read<uint32_t>(codes + 4 * g + 4);
        const uint32_t word = (even & 0x0f0f0f0f) | (odd & 0x0f0f0f0f) << 4;
        std::memcpy(block + 64 * (1 + g / 8 + g / 2) + 4 * row, &word, 4);
        bits[g / 8] |= (even >> 4 & 0x01010101) << g % 8 | (odd >> 4 & 0x01010101) << (g % 8 + 1);
    }
    for (int64_t p = 0; p < 2; ++p) std::memcpy(block + 320 * p + 4 * row, &bits[p], 4);
}

// The step of a row for which six bits leave least, by the sum of the norms of its blocks.
// *largest* and *typical* are the largest magnitude and the root mean square of its weights.
inline float best_step(const float* w, int64_t blocks, float largest, float typical) {
    float best = 0.0f, least = std::numeric_limits<float>::infinity(), last_step = 0.0f;
    for (const float clip : kHeadClips) {
        const float step = std::min(largest, clip * typical) / float(kHeadNegative);
        if (step == last_step) break;
        last_step = step;
        float total = 0.0f;
        for (int64_t b = 0; b < blocks; ++b) {
            alignas(64) float left[kHeadBlock];
            uint8_t codes[kHeadBlock];
            std::copy_n(w + b * kHeadBlock, kHeadBlock, left);
            quantize_head(left, step, codes);
            if (b == 0) quantize_head(left, step / float(kHeadLevels), codes);
            quantize_sixth(left, b == 0 ? step / float(kHeadLevels) : step, codes);
            total += std::sqrt(sum_of_squares(left, kHeadBlock));
        }
        if (total < least) {
            least = total;
            best = step;
        }
    }
    return best < 1e-30f ? 0.0f : best;  // so that inverses are finite
}

// Writes the norms *left* of blocks in eight bits, *stride* apart, rounded up. Returns their unit.
inline float pack_norms(const float* left, int64_t blocks, int64_t stride, uint8_t* norms) {
    const float unit = *std::max_element(left, left + blocks) / 255.0f * (1.0f + 0x1p-20f);
    for (int64_t b = 0; b < blocks; ++b)
        norms[b * stride] =
            uint8_t(std::min(255.0f, std::ceil(left[b] / unit * (1.0f + 0x1p-20f))));
    return unit;
}

// Packs row *r*, whose permuted and scaled weights, padded with zeros, are *w*, which is
// overwritten. False as HeadPack.
inline bool pack_row(const ExactHead& m, int64_t r, float* w, uint8_t* tile) {
    const int64_t blocks = head_blocks(m.cols), width = blocks * kHeadBlock, lane = r % kHeadRows;
    const float squares = sum_of_squares(w, width);
    if (!(squares < kHeadLimit * kHeadLimit)) return false;
    const float step =
        best_step(w, blocks, largest_of(w, width), std::sqrt(squares / float(m.cols)));
    uint8_t codes[kHeadBlock], *out = tile + head_codes(blocks + 1);
    uint8_t* sixth = m.sixth + r * head_sixth_bytes(m.cols);
    float left[kHeadColumns / kHeadBlock] = {}, left_by_six[kHeadColumns / kHeadBlock] = {};
    float coarse = 0.0f, fine = 0.0f;
    for (int64_t b = 0; b < blocks; ++b) {
        float* block = w + b * kHeadBlock;
        coarse += quantize_head(block, step, codes);
        pack_block(codes, lane, out + b * kHeadBlockBytes);
        if (b == 0) {
            fine = quantize_head(block, step / float(kHeadLevels), codes);
            pack_block(codes, lane, out + blocks * kHeadBlockBytes);
        }
        left[b] = norm_up(sum_of_squares(block, kHeadBlock), kHeadBlock);
        quantize_sixth(block, b == 0 ? step / float(kHeadLevels) : step,
                       sixth + head_bits(m.cols) + 8 * b);
        left_by_six[b] = norm_up(sum_of_squares(block, kHeadBlock), kHeadBlock);
    }
    m.step[r] = step;
    m.residual[r] = pack_norms(left, blocks, kHeadRows, tile + lane);
    tile[blocks * kHeadRows + lane] = 0;
    const float unit = pack_norms(left_by_six, blocks, 1, sixth + sizeof(float));
    std::memcpy(sixth, &unit, sizeof(float));
    // Sum of the squares of what the sixth bits add, at most.
    const float quarters = 0.0625f * step * step * float(width);
    const float copy = norm_up(coarse, width) + norm_up(fine, width) + norm_up(quarters, width);
    m.norm[r] = std::max(norm_up(squares, width), copy);
    return m.norm[r] < kHeadLimit;
}

// `HeadKernels::pack`.
inline bool pack_tile(const ExactHead& m, int64_t tile, float* rows) {
    const int64_t width = head_blocks(m.cols) * kHeadBlock;
    uint8_t* out = m.tiles + tile * head_tile_bytes(m.cols);
    bool fits = true;
    for (int64_t i = 0; i < kHeadRows; ++i)
        fits &= pack_row(m, tile * kHeadRows + i, rows + i * width, out);
    return fits;
}

}  // namespace
}  // namespace bitnet
