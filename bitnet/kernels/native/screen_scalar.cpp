// The screen in plain C++: what the SIMD versions compute.
#include "screen_pack.hpp"
#include "screen_tile.hpp"

namespace bitnet {
namespace {

void tile_scalar(const uint8_t* tile, int64_t blocks, const ScreenInput& x, const float* step, const float* residual,
                 const float* norm, float* approx, float* upper) {
    const uint8_t *norms = tile, *codes = tile + screen_codes(blocks);
    for (int64_t r = 0; r < kScreenRows; ++r) {
        float sum = 0.0f, error = 0.0f;
        for (int64_t b = 0; b < blocks; ++b) {
            const uint8_t* block = codes + b * kScreenBlockBytes;
            int32_t product = 0;
            for (int64_t i = 0; i < kScreenBlock; ++i) {
                const int64_t g = i / 4, at = 4 * r + i % 4;
                const int low = block[64 * (1 + g / 8 + g / 2) + at] >> (4 * (g % 2)) & 15;
                const int high = block[320 * (g / 8) + at] >> (g % 8) & 1;
                const int64_t place = b * kScreenBlock + i;
                product += (low + 16 * high) * (128 * x.high[size_t(place)] + x.low[size_t(place)]);
            }
            sum += float(2 * product - x.middle[size_t(b)]) * x.step[size_t(b)];
            error += float(norms[b * kScreenRows + r]) * x.norm[size_t(b)];
        }
        finish_row(sum * step[r], error * residual[r] + x.slack * norm[r], approx[r], upper[r]);
    }
}

}  // namespace

const ScreenKernels& screen_scalar_kernels() {
    static const ScreenKernels kernels = {tile_scalar, pack_tile};
    return kernels;
}

}  // namespace bitnet
