// Ternary encodings into the tiles of ternary/layout.hpp, and rows of them back.
#include "ternary/layout.hpp"

#include <algorithm>
#include <atomic>
#include <vector>

#include "system/split.hpp"

namespace bitnet {
namespace {

constexpr int kPart = 64;       // columns unpacked at a time
constexpr uint8_t kZeroWeights = 0x55;  // four codes 1

void fields(const uint8_t* bytes, int count, int shift, uint8_t* out) {
    for (int i = 0; i < count; ++i) out[i] = (bytes[i] >> shift) & 3;
}

// A TQ1_0 block has 160 weights in 32 bytes, 80 in 16 and 16 in 4; *out* gets weights 64 p .. + 63.
void tq1_0_part(const uint8_t* block, int part, uint8_t* out) {
    const auto first = [&](int n, uint8_t* at) { base3_digits(block, 32, n, at); };
    const auto second = [&](int n, uint8_t* at) { base3_digits(block + 32, 16, n, at); };
    if (part < 2) {
        first(2 * part, out);
        first(2 * part + 1, out + 32);
    } else if (part == 2) {
        first(4, out);
        second(0, out + 32);
        second(1, out + 48);
    } else {
        for (int n = 2; n < 5; ++n) second(n, out + 16 * (n - 2));
        for (int n = 0; n < 4; ++n) base3_digits(block + 48, 4, n, out + 48 + 4 * n);
    }
}

struct Source {
    TernarySource kind;
    const uint8_t* data;
    int64_t rows, cols;

    // Codes 0, 1, 2 of columns c .. c + n - 1, n <= 64, c a multiple of 64.
    void part(int64_t r, int64_t c, int n, uint8_t* out) const {
        switch (kind) {
            case TernarySource::codes: {
                const uint8_t* row = data + r * cols + c;
                // Anything other than -1, 0 and 1 becomes 3.
                for (int i = 0; i < n; ++i) out[i] = std::min<uint8_t>(uint8_t(row[i] + 1), 3);
                return;
            }
            case TernarySource::tq1_0: return tq1_0_part(data + (r * cols + c) / 256 * 54, int(c % 256 / 64), out);
            case TernarySource::packed_u8:
                return fields(data + r % (rows / 4) * cols + c, n, int(2 * (r / (rows / 4))), out);
            default: {
                const uint8_t* bytes = data + r * (4 + cols / 4) + 4 + c / 4;
                for (int i = 0; i < 4; ++i) fields(bytes, 16, 2 * i, out + 16 * i);
            }
        }
    }
};

// 16 codes into the four bytes of a row.
uint32_t pack_16(const uint8_t* code) {
    return read<uint32_t>(code) | read<uint32_t>(code + 4) << 2 | read<uint32_t>(code + 8) << 4 |
           read<uint32_t>(code + 12) << 6;
}

// A tile with two bits per weight; returns whether a code was 3.
bool pack_tile(const Source& source, int64_t tile, int64_t cols, uint8_t* out) {
    alignas(64) uint8_t code[kPart];
    uint8_t bad = 0;
    for (int lane = 0; lane < kTernaryRows; ++lane) {
        const int64_t r = tile * kTernaryRows + lane;
        for (int64_t c = 0; c < cols; c += kPart) {
            const int n = int(std::clamp<int64_t>(source.cols - c, 0, kPart));
            if (r >= source.rows || n < kPart) std::fill(code, code + kPart, uint8_t(1));
            if (r < source.rows && n > 0) source.part(r, c, n, code);
            for (int i = 0; i < kPart; ++i) bad |= code[i] & (code[i] >> 1);
            const int64_t steps = std::min<int64_t>(cols - c, kPart) / kTernaryStep;
            for (int64_t s = 0; s < steps; ++s) {
                const uint32_t word = pack_16(code + kTernaryStep * s);
                std::memcpy(out + (c / kTernaryStep + s) * 64 + 4 * lane, &word, 4);
            }
        }
    }
    return bad != 0;
}

}  // namespace

bool pack_ternary(TernarySource kind, const uint8_t* data, int64_t rows, int64_t inputs, Type type, int64_t cols,
                  uint8_t* out) {
    const Source source{kind, data, rows, inputs};
    const int64_t tiles = ternary_tiles(rows), row_bytes = ternary_source_bytes(kind, rows, inputs) / rows;
    const bool dense = type == Type::TernaryDense, fields = kind == TernarySource::i2_s || kind == TernarySource::tq2_0;
    // A dense tile is made of one with two bits per weight, which lies in a core's own cache.
    const int64_t wide = (cols + kTernaryStep - 1) / kTernaryStep * kTernaryStep;
    const Kernels& kernels = detail::active();
    const std::vector<uint8_t> zeros(size_t(fields ? row_bytes : 0), kZeroWeights);
    std::atomic<bool> valid{true};
    Split(tiles, 1, rows * cols < kSerialWork).run([&](int64_t t0, int64_t t1) {
        for (int64_t tile = t0; tile < t1; ++tile) {
            uint8_t* at = out + tile * ternary_tile_bytes(type, cols);
            uint8_t* two_bits = dense ? thread_scratch(size_t(wide) * 4) : at;
            bool bad;
            if (fields) {
                const uint8_t* its[kTernaryRows];
                for (int64_t i = 0, r = tile * kTernaryRows; i < kTernaryRows; ++i, ++r)
                    its[i] = r < rows ? data + r * row_bytes : zeros.data();
                bad = kernels.pack_two_bits(kind, its, inputs, two_bits);
                std::fill(two_bits + 4 * inputs, two_bits + 4 * wide, kZeroWeights);
            } else {
                bad = pack_tile(source, tile, wide, two_bits);
            }
            if (dense) kernels.make_dense(two_bits, cols, at);
            if (bad) valid = false;
        }
    });
    return valid;
}

void unpack_ternary_row(Type type, const uint8_t* weight, int64_t rows, int64_t cols, int64_t r, float scale, float* out) {
    LinearArgs a;
    a.weight = weight, a.rows = rows, a.cols = cols;
    const int64_t lane = r % kTernaryRows;
    const uint8_t* tile = weight + r / kTernaryRows * ternary_tile_bytes(type, cols);
    for (int64_t c = 0; c < cols; ++c) {
        float d = scale;
        if (type == Type::TernaryBlocks)
            d *= read<float>(ternary_scales(a, r) + 4 * (c / kTernaryBlock * kTernaryRows + lane));
        out[c] = d * float(ternary_code(type, tile, c, lane) - 1);
    }
}

}  // namespace bitnet
