// `HeadKernels::tile` by the vectors of an instruction set, `Vec` of the including file; each level
// (ops/ops.hpp) with vectors of its own compiles this file for itself. The 16 rows of a tile are
// lanes.
#pragma once

#include "head/pack.hpp"
#include "ops/tile_groups.hpp"

namespace bitnet {
// Each instruction set compiles its own copy: no unit may run code of another's flags.
namespace {

// Sums of products of five-bit codes. Sums of 16 bits are widened after every four groups.
struct HeadSum {
    Vec::Int all;
    Vec::Sum<31> part;
    void start() {
        all = Vec::zero();
        part.start();
    }
    void widen() {
        if constexpr (Vec::kDepth > 0) {
            all = Vec::add(all, part.total());
            part.start();
        }
    }
    Vec::Int total() const { return Vec::kDepth > 0 ? all : part.total(); }
};

// Sums of code * q over the 64 columns of a block, q in two digits of base 128. The loops over
// vectors of rows are the inner ones: with them outside, compilers spill the digits of the block.
inline void block_product(const uint8_t* block, const int8_t* high, const int8_t* low,
                          Vec::Int (&product)[kVecs]) {
    HeadSum coarse[kVecs], fine[kVecs];
    for (int v = 0; v < kVecs; ++v) {
        coarse[v].start();
        fine[v].start();
    }
    for (int half = 0; half < 2; ++half, block += 320, high += 32, low += 32) {
        Vec::Int bits[kVecs];
        for (int v = 0; v < kVecs; ++v) bits[v] = Vec::load(block + kVecBytes * v);
        BITNET_UNROLL(8)
        for (int g = 0; g < 8; ++g) BITNET_UNROLL(2) for (int v = 0; v < kVecs; ++v) {
                const Vec::Int pair = Vec::load(block + 64 * (1 + g / 2) + kVecBytes * v);
                const Vec::Int nibbles = Vec::and_bytes(Vec::shift(pair, g % 2 * -4), 15);
                const Vec::Int codes = Vec::or_masked(nibbles, Vec::shift(bits[v], 4 - g), 16);
                coarse[v].part.add(codes, high + 16 * (g / 4), g % 4);
                fine[v].part.add(codes, low + 16 * (g / 4), g % 4);
                if (g % 4 == 3) {
                    coarse[v].widen();
                    fine[v].widen();
                }
            }
    }
    for (int v = 0; v < kVecs; ++v)
        product[v] = Vec::add(Vec::times_power(coarse[v].total(), 7), fine[v].total());
}

// `HeadKernels::tile`, with finish_row for vectors of rows.
void head_tile(const uint8_t* tile, int64_t blocks, const HeadInput& x, const float* step,
               const float* residual, const float* norm, float* approx, float* upper) {
    const uint8_t *norms = tile, *codes = tile + head_codes(blocks);
    Lanes sum[kVecs], error[kVecs];
    for (int v = 0; v < kVecs; ++v) sum[v] = error[v] = Lanes::set(0.0f);
    for (int64_t b = 0; b < blocks; ++b) {
        const uint8_t* block = codes + b * kHeadBlockBytes;
        prefetch_block(block);
        Vec::Int product[kVecs];
        block_product(block, &x.high[size_t(b * kHeadBlock)], &x.low[size_t(b * kHeadBlock)],
                      product);
        for (int v = 0; v < kVecs; ++v) {
            const Vec::Int centred =
                Vec::minus(Vec::times_power(product[v], 1), x.middle[size_t(b)]);
            sum[v] = Lanes::fma(Vec::to_float(centred), Lanes::set(x.step[size_t(b)]), sum[v]);
            const Lanes block_norms =
                Lanes::unsigned_bytes(norms + b * kHeadRows + Lanes::kWidth * v);
            error[v] = Lanes::fma(block_norms, Lanes::set(x.norm[size_t(b)]), error[v]);
        }
    }
    for (int v = 0; v < kVecs; ++v) {
        const int r = Lanes::kWidth * v;
        const Lanes value = sum[v] * Lanes::load(step + r),
                    slack = Lanes::set(x.slack) * Lanes::load(norm + r);
        const Lanes rounding = Lanes::larger(value, value.negated()) * Lanes::set(0x1p-20f);
        const Lanes total = Lanes::fma(error[v], Lanes::load(residual + r), slack);
        value.store(approx + r);
        (value + Lanes::fma(total, Lanes::set(1.0f + 0x1p-20f), rounding)).store(upper + r);
    }
}

}  // namespace
}  // namespace bitnet
