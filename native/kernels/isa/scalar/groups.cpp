// The specification of the kernels of weights with a scale per group of columns: one row and one token at a time.
#include <cmath>

#include "ternary/groups.hpp"

namespace bitnet {
namespace {

float dot(const LinearArgs& a, int64_t r, int64_t t) {
    const int64_t lane = r % kTernaryRows, runs = a.cols / kRun, shared = group_runs(a.type);
    const uint8_t* tile = a.weight + (r - lane) * a.row_bytes;
    const uint8_t* lines = tile + group_scale_bytes(a.type, a.cols);
    float y = 0.0f, part = 0.0f;
    for (int64_t run = 0; run < runs; ++run) {
        const int8_t* q = a.q + t * a.cols + run * kRun;
        int32_t sum = 0;
        for (int c = 0; c < kRun; ++c) sum += (group_code(a.type, lines, run * kRun + c, lane) - 1) * q[c];
        part = std::fma(float(sum), a.step[t * runs + run], part);
        if ((run + 1) % shared && run + 1 < runs) continue;
        y = std::fma(part, read_half(tile + (run / shared * kTernaryRows + lane) * 2), y);
        part = 0.0f;
    }
    return y;
}

void linear(const LinearArgs& a, int64_t r0, int64_t r1, uint8_t*) {
    for (int64_t r = r0; r < r1; ++r)
        for (int64_t t = 0; t < a.tokens; ++t) a.y[t * a.rows + r] = dot(a, r, t);
}

}  // namespace

void add_scalar_groups(Kernels& k) {
    for (int i = 0; i < kTypes; ++i)
        if (is_grouped(Type(i))) k.decode[i] = k.prefill[i] = linear;
}

}  // namespace bitnet
