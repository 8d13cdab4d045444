// The specification: one row and one token at a time, on any processor.

#include "head/pack.hpp"
#include "ops/elementary.hpp"
#include "ternary/layout.hpp"

namespace bitnet {
namespace {

// Eight floats; isa/avx512.hpp, and isa/avx2.hpp for times_power, say what the functions do.
struct Lanes {
    static constexpr int kWidth = 8;
    float v[8];
    template <class F>
    static Lanes of(F value) {
        Lanes out;
        for (int i = 0; i < 8; ++i) out.v[i] = value(i);
        return out;
    }
    static Lanes set(float f) {
        return of([&](int) { return f; });
    }
    static Lanes load(const float* p) {
        return of([&](int i) { return p[i]; });
    }
    static Lanes upper(const uint16_t* p) {
        return of([&](int i) { return bits_to_float(uint32_t(p[i]) << 16); });
    }
    void store(float* p) const {
        for (int i = 0; i < 8; ++i) p[i] = v[i];
    }
    static void round_to(const Lanes& a, const Lanes& b, int16_t* p) {
        for (int i = 0; i < 16; ++i) {
            const float f = (i < 8 ? a : b).v[i % 8];
            p[i] = int16_t(f == f ? int32_t(round_half_even(f)) : 0);
        }
    }
    friend Lanes operator+(const Lanes& a, const Lanes& b) {
        return of([&](int i) { return a.v[i] + b.v[i]; });
    }
    friend Lanes operator-(const Lanes& a, const Lanes& b) {
        return of([&](int i) { return a.v[i] - b.v[i]; });
    }
    friend Lanes operator*(const Lanes& a, const Lanes& b) {
        return of([&](int i) { return a.v[i] * b.v[i]; });
    }
    static Lanes larger(const Lanes& a, const Lanes& b) {
        return of([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
    }
    Lanes unless_below(const Lanes& x, float least) const {
        return of([&](int i) { return x.v[i] < least ? 0.0f : v[i]; });
    }
    Lanes times_power(const Lanes& power) const {
        return of([&](int i) {
            return bits_to_float(float_to_bits(v[i]) + (float_to_bits(power.v[i]) << 23));
        });
    }
};

// transpose_lines and planes are explained in ops/tile_gather.hpp.
void transpose_lines(const uint8_t* const* rows, int64_t at, uint8_t* out) {
    for (int i = 0; i < 4; ++i)
        for (int r = 0; r < kTileRows; ++r)
            std::memcpy(out + 64 * i + 4 * r, rows[r] + at + 4 * i, 4);
}

void planes(const uint8_t* line, uint8_t* out) {
    for (int i = 0; i < 64; ++i) out[16 * (i % 4) + i / 4] = line[i];
}

}  // namespace
}  // namespace bitnet

#include "ops/row_ops.hpp"

namespace bitnet {
namespace {

// The dot_ functions return the product of row *r* with token *t*.
float dot_float(const LinearArgs& a, int64_t r, int64_t t) {
    const float* x = a.x + t * a.cols;
    const int lane = int(r % kTileRows);
    const uint8_t* tile = a.weight + (r - lane) * a.row_bytes;
    float total = 0.0f;
    for (int64_t begin = 0; begin < a.cols; begin += kFloatRun) {
        float sum[2] = {0.0f, 0.0f};
        for (int64_t i = begin; i < std::min(a.cols, begin + kFloatRun); ++i)
            sum[i % 2] += tile_float(a.type, tile, lane, i) * x[i];
        total += sum[0] + sum[1];
    }
    return total;
}

// Of a block encoding with interleaved rows, or of a grouped one in rows: block encodings in rows
// are multiplied by linear_in_rows.
float dot_block(const LinearArgs& a, int64_t r, int64_t t) {
    const int lane = int(r % kTileRows);
    const uint8_t* row = a.weight + (is_tiled(a.type) ? r - lane : r) * a.row_bytes;
    float sum = 0.0f;
    Group group;
    for (int64_t g = 0; g < a.cols / 32; ++g) {
        if (is_tiled(a.type))
            unpack_tile_group(a.type, row, lane, g, group);
        else
            unpack_group(a.type, row, g, group);
        const BlockInput& x = a.inputs[t * block_inputs(a.cols) + g];
        int32_t part[2] = {0, 0};
        for (int i = 0; i < 32; ++i) part[i / 16] += int32_t(group.code[i]) * x.q[i];
        const float first = float(part[0]) * x.step[0];
        if (a.type == Type::Q6_K_R16) {
            sum = std::fma(first, group.scale[0], sum);
            sum = std::fma(float(part[1]) * x.step[1], group.scale[1], sum);
        } else {
            sum = std::fma(std::fma(float(part[1]), x.step[1], first), group.scale[0], sum);
            if (encoding(a.type).minimum) sum = std::fma(x.sum, group.min, sum);
        }
    }
    return sum;
}

// Of weights (code - 1) * scale, with a scale for each group of columns.
float dot_groups(const LinearArgs& a, int64_t r, int64_t t) {
    const int64_t lane = r % kTernaryRows, runs = a.cols / kRun,
                  runs_per_group = group_runs(a.type);
    const uint8_t* tile = a.weight + (r - lane) * a.row_bytes;
    const uint8_t* lines = tile + group_scale_bytes(a.type, a.cols);
    float y = 0.0f, part = 0.0f;
    for (int64_t run = 0; run < runs; ++run) {
        const int8_t* q = a.q + t * a.cols + run * kRun;
        int32_t sum = 0;
        for (int c = 0; c < kRun; ++c)
            sum += (group_code(a.type, lines, run * kRun + c, lane) - 1) * q[c];
        part = std::fma(float(sum), a.step[t * runs + run], part);
        if ((run + 1) % runs_per_group && run + 1 < runs) continue;
        y = std::fma(part, read_half(tile + (run / runs_per_group * kTernaryRows + lane) * 2), y);
        part = 0.0f;
    }
    return y;
}

// Sum of weight * q over the columns [c, end) of row *r*, the weights -1, 0 and 1.
int32_t sum_ternary(const LinearArgs& a, int64_t r, int64_t t, int64_t c, int64_t end) {
    const uint8_t* tile = a.weight + r / kTernaryRows * ternary_tile_bytes(a.type, a.cols);
    const int8_t* q = a.q + t * a.cols;
    int32_t sum = 0;
    for (; c < end; ++c) sum += (ternary_code(a.type, tile, c, r % kTernaryRows) - 1) * q[c];
    return sum;
}

float dot_ternary(const LinearArgs& a, int64_t r, int64_t t) {
    return float(sum_ternary(a, r, t, 0, a.cols)) / a.step[t] * a.scale;
}

float dot_ternary_blocks(const LinearArgs& a, int64_t r, int64_t t) {
    const uint8_t* scales = ternary_scales(a, r) + 4 * (r % kTernaryRows);
    double sum = 0.0;
    for (int64_t c = 0; c < a.cols; c += kTernaryBlock) {
        const auto scale = read<float>(scales + c / kTernaryBlock * kTernaryRows * 4);
        sum += double(scale) * sum_ternary(a, r, t, c, c + kTernaryBlock);
    }
    return float(sum) / a.step[t] * a.scale;
}

template <float (*dot)(const LinearArgs&, int64_t, int64_t)>
void linear(const LinearArgs& a, int64_t r0, int64_t r1, uint8_t*) {
    for (int64_t r = r0; r < r1; ++r)
        for (int64_t t = 0; t < a.tokens; ++t) a.y[t * a.rows + r] = dot(a, r, t);
}

LinearKernel linear_of(Type type) {
    if (can_tile(type) && !is_grouped_row(type)) return linear_in_rows;
    if (type == Type::TernaryBlocks) return linear<dot_ternary_blocks>;
    if (is_ternary(type)) return linear<dot_ternary>;
    if (is_grouped(type)) return linear<dot_groups>;
    return is_float(type) ? linear<dot_float> : linear<dot_block>;
}

// `HeadKernels::tile`, and below `HeadKernels::sixth`.
void tile_scalar(const uint8_t* tile, int64_t blocks, const HeadInput& x, const float* step,
                 const float* residual, const float* norm, float* approx, float* upper) {
    const uint8_t *norms = tile, *codes = tile + head_codes(blocks);
    for (int64_t r = 0; r < kHeadRows; ++r) {
        float sum = 0.0f, error = 0.0f;
        for (int64_t b = 0; b < blocks; ++b) {
            const uint8_t* block = codes + b * kHeadBlockBytes;
            int32_t product = 0;
            for (int64_t i = 0; i < kHeadBlock; ++i) {
                // Groups of four columns: 0 to 7 and 8 to 15 are in the two halves of a block, of
                // five lines each.
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
            const auto at = size_t(byte / kHeadGroupBytes * 8 * kHeadGroupBytes +
                                   bit * kHeadGroupBytes + byte % kHeadGroupBytes);
            product += (bits[byte] >> bit & 1) * (128 * x.sixth_high[at] + x.sixth_low[at]);
        }
        *sum += float(2 * product - x.sixth_middle[size_t(lane)]) * x.sixth_step[size_t(lane)];
    }
    for (int64_t b = 0; b < head_blocks(cols); ++b) *error += float(norms[b]) * x.norm[size_t(b)];
}

}  // namespace

const Kernels& scalar_kernels() {
    static const Kernels table = [] {
        Kernels k{};
        k.name = "scalar";
        for (int i = 0; i < kTypes; ++i) k.decode[i] = k.prefill[i] = linear_of(Type(i));
        add_row_ops(k);
        k.exact_head = {tile_scalar, sixth_scalar, pack_tile};
        return k;
    }();
    return table;
}

}  // namespace bitnet
