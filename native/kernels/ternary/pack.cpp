// Packs ternary encodings into the tiles of ternary/layout.hpp, and unpacks rows of tiles.
#include "ternary/layout.hpp"

#include "system/thread_pool.hpp"

namespace bitnet {
namespace {

constexpr int kPart = 64;               // columns unpacked at a time
constexpr uint8_t kZeroWeights = 0x55;  // four codes 1

// The field of two bits at bit *shift* of each of *count* bytes.
void fields(const uint8_t* bytes, int count, int shift, uint8_t* out) {
    for (int i = 0; i < count; ++i) out[i] = (bytes[i] >> shift) & 3;
}

// Codes of the 64 weights from 64 * part on of a block of TQ1_0, which has 160 weights in 32 bytes,
// 80 in 16 and 16 in 4.
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

// A matrix in an encoding of a file.
struct Source {
    TernarySource kind;
    const uint8_t* data;
    int64_t rows, cols;

    // Codes 0, 1, 2 of columns c .. c + n - 1 of row r; c is a multiple of 64, n at most 64.
    void part(int64_t r, int64_t c, int n, uint8_t* out) const {
        switch (kind) {
            case TernarySource::codes: {
                const uint8_t* row = data + r * cols + c;
                // Anything other than -1, 0 and 1 becomes 3.
                for (int i = 0; i < n; ++i) out[i] = std::min<uint8_t>(uint8_t(row[i] + 1), 3);
                return;
            }
            case TernarySource::tq1_0:
                return tq1_0_part(data + (r * cols + c) / 256 * 54, int(c % 256 / 64), out);
            case TernarySource::packed_u8:
                return fields(data + r % (rows / 4) * cols + c, n, int(2 * (r / (rows / 4))), out);
            default: {  // iq2_bn: Kernels::pack_two_bits packs the others
                const uint8_t* bytes = data + r * (4 + cols / 4) + 4 + c / 4;
                for (int i = 0; i < 4; ++i) fields(bytes, 16, 2 * i, out + 16 * i);
            }
        }
    }
};

// 16 codes in the four bytes that a row has in a line.
uint32_t pack_16(const uint8_t* code) {
    return read<uint32_t>(code) | read<uint32_t>(code + 4) << 2 | read<uint32_t>(code + 8) << 4 |
           read<uint32_t>(code + 12) << 6;
}

// Packs a tile with two bits per weight; returns whether a code was 3.
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

bool pack_ternary(TernarySource kind, const uint8_t* data, int64_t rows, int64_t inputs, Type type,
                  int64_t cols, uint8_t* out) {
    const Source source{kind, data, rows, inputs};
    const int64_t tiles = ternary_tiles(rows),
                  row_bytes = ternary_source_bytes(kind, rows, inputs) / rows;
    const bool dense = type == Type::TernaryDense;
    const bool kernel_packs = kind == TernarySource::i2_s || kind == TernarySource::tq2_0;
    // A dense tile is made from one with two bits per weight, which stays in a core's own cache.
    const int64_t wide = (cols + kTernaryStep - 1) / kTernaryStep * kTernaryStep;
    const Kernels& kernels = detail::active();
    const std::vector<uint8_t> zeros(size_t(kernel_packs ? row_bytes : 0), kZeroWeights);
    std::atomic<bool> valid{true};
    Split(tiles, 1, rows * cols < kSerialWork).run([&](int64_t t0, int64_t t1) {
        for (int64_t tile = t0; tile < t1; ++tile) {
            uint8_t* at = out + tile * ternary_tile_bytes(type, cols);
            uint8_t* two_bits = dense ? thread_scratch(size_t(wide) * 4) : at;
            bool bad;
            if (kernel_packs) {
                const uint8_t* tile_rows[kTernaryRows];
                for (int64_t i = 0, r = tile * kTernaryRows; i < kTernaryRows; ++i, ++r)
                    tile_rows[i] = r < rows ? data + r * row_bytes : zeros.data();
                bad = kernels.pack_two_bits(kind, tile_rows, inputs, two_bits);
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

void unpack_ternary_row(Type type, const uint8_t* weight, int64_t rows, int64_t cols, int64_t r,
                        float scale, float* out) {
    LinearArgs a;
    a.weight = weight;
    a.rows = rows;
    a.cols = cols;
    const int64_t lane = r % kTernaryRows;
    const uint8_t* tile = weight + r / kTernaryRows * ternary_tile_bytes(type, cols);
    for (int64_t c = 0; c < cols; ++c) {
        float d = scale;
        if (type == Type::TernaryBlocks)
            d *= read<float>(ternary_scales(a, r) + 4 * (c / kTernaryBlock * kTernaryRows + lane));
        out[c] = d * float(ternary_code(type, tile, c, lane) - 1);
    }
}

// ---- packs encodings with a scale per group of columns into the tiles of ternary/layout.hpp, and
// unpacks rows of tiles

namespace {

constexpr int64_t kDenseGroup = 128;  // columns of a group of PTQ1_0
// Runs behind the last column, where scales are 0, so that any codes would do.
constexpr uint8_t kNoBits[4] = {};
constexpr uint8_t kNoFields[8] = {0x55, 0x55, 0x55, 0x55, 0x55, 0x55, 0x55, 0x55};

// Transposes four bytes of four fields of two bits, as a matrix.
uint32_t transpose_fields(uint32_t x) {
    uint32_t swapped = (x ^ (x >> 6)) & 0x00cc00cc;
    x ^= swapped ^ (swapped << 6);
    swapped = (x ^ (x >> 12)) & 0x0000f0f0;
    return x ^ swapped ^ (swapped << 12);
}

// Transposes eight bytes as a matrix of bits.
uint64_t transpose_bits(uint64_t x) {
    uint64_t swapped = (x ^ (x >> 7)) & 0x00aa00aa00aa00aa;
    x ^= swapped ^ (swapped << 7);
    swapped = (x ^ (x >> 14)) & 0x0000cccc0000cccc;
    x ^= swapped ^ (swapped << 14);
    swapped = (x ^ (x >> 28)) & 0x00000000f0f0f0f0;
    return x ^ swapped ^ (swapped << 28);
}

// Writes the low 32 bits of *word* to row *lane* of a line.
void put_word(uint8_t* line, int lane, uint64_t word) {
    const auto bytes = uint32_t(word);
    std::memcpy(line + 4 * lane, &bytes, 4);
}

// Writes row *lane* of a block, whose runs are as in a file: four codes to a byte, in order.
void put_fields(const uint8_t* const* run, int lane, uint8_t* block) {
    for (int i = 0; i < kRunLines; ++i) {
        uint32_t word = 0;
        for (int f = 0; f < 4; ++f) word |= uint32_t(run[f][i]) << (8 * f);
        put_word(block + 64 * i, lane, transpose_fields(word));
    }
}

// The same, with eight codes of one bit to a byte.
void put_bits(const uint8_t* const* run, int lane, uint8_t* block) {
    for (int i = 0; i < kRunLines; i += 2) {
        uint64_t words = 0;
        for (int f = 0; f < 8; ++f) words |= uint64_t(run[f][i / 2]) << (8 * f);
        words = transpose_bits(words);
        put_word(block + 64 * i, lane, words);
        put_word(block + 64 * (i + 1), lane, words >> 32);
    }
}

// The same, with one code to a byte.
void put_dense(const uint8_t* codes, int lane, uint8_t* block) {
    for (int i = 0; i < kRunLines; i += 2) {
        uint64_t words = 0;  // no byte of the sum overflows
        for (int f = 0; f < 5; ++f)
            words += uint64_t(kDensePlaces[f]) * read<uint64_t>(codes + kRun * f + 4 * i);
        put_word(block + 64 * i, lane, words);
        put_word(block + 64 * (i + 1), lane, words >> 32);
    }
}

// The first *digits* digits of kCount bytes: the first digits of all bytes, then the second ones,
// and so on; see base3_digits.
template <int kCount>
void unpack_base3(const uint8_t* bytes, int digits, uint8_t* code) {
    uint16_t rest[kCount];
    for (int i = 0; i < kCount; ++i) rest[i] = bytes[i];
    for (int n = 0; n < digits; ++n, code += kCount)
        for (int i = 0; i < kCount; ++i) {
            const auto tripled = uint16_t(rest[i] * 3);
            code[i] = uint8_t(tripled >> 8);
            rest[i] = tripled & 255;
        }
}

// The 128 codes of a group of PTQ1_0: 80 in 16 bytes, 40 in 8 and 8 in 2.
void unpack_dense(const uint8_t* group, uint8_t* code) {
    unpack_base3<16>(group, 5, code);
    unpack_base3<8>(group + 16, 5, code + 80);
    unpack_base3<2>(group + 24, 4, code + 120);
}

// Writes row *lane* of a tile, whose lines begin at *lines*, from a row of the file.
void put_row(Type source, const uint8_t* row, int64_t inputs, int64_t cols, int lane,
             uint8_t* lines) {
    const Encoding& from = encoding(source);
    if (source == Type::PTQ1_0) {
        uint8_t* codes = thread_scratch(size_t(cols));
        for (int64_t c = 0; c < inputs; c += kDenseGroup)
            unpack_dense(row + c / kDenseGroup * from.bytes, codes + c);
        std::fill(codes + inputs, codes + cols, uint8_t(1));
        for (int64_t c = 0; c < cols; c += 5 * kRun, lines += kBlockBytes)
            put_dense(codes + c, lane, lines);
        return;
    }
    const bool bits = source == Type::Q1_0;
    const int runs = bits ? 8 : 4, run_bytes = kRun / runs, runs_per_group = from.weights / kRun;
    const uint8_t* run[8];
    for (int64_t first = 0; first < cols / kRun; first += runs, lines += kBlockBytes) {
        for (int f = 0; f < runs; ++f) {
            const int64_t group = (first + f) / runs_per_group,
                          within = (first + f) % runs_per_group;
            run[f] = kRun * (first + f) < inputs ? row + group * from.bytes + 2 + within * run_bytes
                     : bits                      ? kNoBits
                                                 : kNoFields;
        }
        if (bits)
            put_bits(run, lane, lines);
        else
            put_fields(run, lane, lines);
    }
}

// Packs a tile from *rows* rows, at most 16.
void pack_group_tile(Type source, const uint8_t* weight, int64_t rows, int64_t inputs,
                     uint8_t* out) {
    const Type type = tiled(source);
    const Encoding& from = encoding(source);
    const int64_t cols = tiled_cols(source, inputs), groups = inputs / from.weights;
    const int64_t scales = group_scale_bytes(type, cols),
                  scale_at = source == Type::PTQ1_0 ? from.bytes - 2 : 0;
    std::memset(out, 0, size_t(scales));
    for (int lane = 0; lane < int(kTernaryRows); ++lane) {
        const uint8_t* row = weight + lane * groups * from.bytes;
        const int64_t filled = lane < rows ? inputs : 0;
        for (int64_t g = 0; g < filled / from.weights; ++g)
            std::memcpy(out + (g * kTernaryRows + lane) * 2, row + g * from.bytes + scale_at, 2);
        put_row(source, row, filled, cols, lane, out + scales);
    }
}

}  // namespace

void pack_groups(Type source, const uint8_t* weight, int64_t rows, int64_t inputs, uint8_t* out) {
    const Encoding& from = encoding(source);
    const int64_t tile_bytes =
        kTernaryRows * group_row_bytes(tiled(source), tiled_cols(source, inputs));
    const int64_t row_bytes = inputs / from.weights * from.bytes, tiles = ternary_tiles(rows);
    Split(tiles, 1, rows * inputs < kSerialWork).run([&](int64_t t0, int64_t t1) {
        for (int64_t t = t0; t < t1; ++t) {
            const int64_t r = t * kTernaryRows, count = std::min<int64_t>(kTernaryRows, rows - r);
            pack_group_tile(source, weight + r * row_bytes, count, inputs, out + t * tile_bytes);
        }
    });
}

void unpack_group_row(Type type, const uint8_t* weight, int64_t cols, int64_t r, float* out) {
    const int64_t lane = r % kTernaryRows;
    const uint8_t* tile = weight + (r - lane) * group_row_bytes(type, cols);
    const uint8_t* lines = tile + group_scale_bytes(type, cols);
    for (int64_t c = 0; c < cols; ++c) {
        const float scale =
            read_half(tile + (c / (kRun * group_runs(type)) * kTernaryRows + lane) * 2);
        out[c] = scale * float(group_code(type, lines, c, lane) - 1);
    }
}

}  // namespace bitnet
