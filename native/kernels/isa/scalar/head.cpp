// The exact head in plain C++: what the SIMD versions compute.
#include "head/pack.hpp"
#include "head/tile.hpp"
#include "isa/kernels.hpp"

namespace bitnet {
namespace {

void tile_scalar(const uint8_t* tile, int64_t blocks, const HeadInput& x, const float* step, const float* residual,
                 const float* norm, float* approx, float* upper) {
    const uint8_t *norms = tile, *codes = tile + head_codes(blocks);
    for (int64_t r = 0; r < kHeadRows; ++r) {
        float sum = 0.0f, error = 0.0f;
        for (int64_t b = 0; b < blocks; ++b) {
            const uint8_t* block = codes + b * kHeadBlockBytes;
            int32_t product = 0;
            for (int64_t i = 0; i < kHeadBlock; ++i) {
                const int64_t g = i / 4, at = 4 * r + i % 4;
                const int low = block[64 * (1 + g / 8 + g / 2) + at] >> (4 * (g % 2)) & 15;
                const int high = block[320 * (g / 8) + at] >> (g % 8) & 1;
                const int64_t place = b * kHeadBlock + i;
                product += (low + 16 * high) * (128 * x.high[size_t(place)] + x.low[size_t(place)]);
            }
            sum += float(2 * product - x.middle[size_t(b)]) * x.step[size_t(b)];
            error += float(norms[b * kHeadRows + r]) * x.norm[size_t(b)];
        }
        finish_row(sum * step[r], error * residual[r] + x.slack * norm[r], approx[r], upper[r]);
    }
}

void sixth_scalar(const uint8_t* row, int64_t cols, const HeadInput& x, float* sum, float* error) {
    const uint8_t *norms = row + sizeof(float), *bits = row + head_bits(cols);
    *sum = *error = 0.0f;
    for (int64_t lane = 0; lane < head_groups(cols) * 8; ++lane) {
        int32_t product = 0;
        for (int64_t i = 0; i < 32; ++i) {
            const int64_t byte = 4 * lane + i % 4, bit = i / 4;
            const auto at = size_t(byte / kHeadGroupBytes * 8 * kHeadGroupBytes + bit * kHeadGroupBytes + byte % kHeadGroupBytes);
            product += (bits[byte] >> bit & 1) * (128 * x.sixth_high[at] + x.sixth_low[at]);
        }
        *sum += float(2 * product - x.sixth_middle[size_t(lane)]) * x.sixth_step[size_t(lane)];
    }
    for (int64_t b = 0; b < head_blocks(cols); ++b) *error += float(norms[b]) * x.norm[size_t(b)];
}

}  // namespace

void add_scalar_head(Kernels& k) { k.exact_head = {tile_scalar, sixth_scalar, pack_tile}; }

}  // namespace bitnet
