#include "ops/ops.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "ops/counters.hpp"
#include "ops/elementary.hpp"
#include "system/split.hpp"
#include "ternary/groups.hpp"

namespace bitnet {
using detail::active;

int64_t row_bytes(Type type, int64_t cols) {
    const Encoding& size = encoding(type);
    if (cols % size.weights) return 0;
    return is_grouped(type) ? group_row_bytes(type, cols) : cols / size.weights * size.bytes;
}

int64_t weight_bytes(Type type, int64_t rows, int64_t cols) {
    if (is_tiled(type) || is_ternary(type)) rows = (rows + kTileRows - 1) / kTileRows * kTileRows;
    return rows * row_bytes(type, cols);
}

void decode_row(Type type, const uint8_t* weight, int64_t rows, int64_t cols, int64_t r, float scale, float* out) {
    if (is_ternary(type)) unpack_ternary_row(type, weight, rows, cols, r, scale, out);
    else if (is_grouped(type)) unpack_group_row(type, weight, cols, r, out);
    else active().dequantize(type, weight, r, cols, out);
}

void embed(Type type, const uint8_t* weight, int64_t rows, int64_t cols, float scale, const int64_t* ids, int64_t count,
           float* out) {
    count_call(Op::embed, type);
    for (int64_t i = 0; i < count; ++i) decode_row(type, weight, rows, cols, ids[i], scale, out + i * cols);
}

Gate gate_of(std::string_view name) {
    constexpr std::string_view kNames[] = {"silu",    "gelu_tanh",    "relu_squared", "relu",
                                           "sigmoid", "silu_clamped", "swiglu_oai",   "identity"};
    const auto* found = std::find(std::begin(kNames), std::end(kNames), name);
    require(found != std::end(kNames), "unknown gate");
    return Gate(found - std::begin(kNames));
}

void turns(const double* angles, int64_t n, double scale, float* cos, float* sin) {
    for (int64_t i = 0; i < n; ++i) {
        double sine, cosine;
        sine_and_cosine(angles[i], sine, cosine);
        cos[i] = float(cosine * scale);
        sin[i] = float(sine * scale);
    }
}

uint64_t sum_bytes(const uint8_t* bytes, int64_t n) {
    std::atomic<uint64_t> total{0};
    Split(n / 64, 1024, n < kSerialWork).run([&](int64_t c0, int64_t c1) {
        uint64_t lane[8] = {};
        for (int64_t c = c0; c < c1; ++c)
            for (int i = 0; i < 8; ++i) lane[i] += read<uint64_t>(bytes + 64 * c + 8 * i);
        uint64_t sum = 0;
        for (const uint64_t value : lane) sum += value;
        total += sum;
    });
    return total;
}

}  // namespace bitnet
