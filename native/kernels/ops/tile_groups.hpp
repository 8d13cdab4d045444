// What a tile of 16 interleaved rows holds, as vectors: the codes, scales and minima of 32 columns.
//
// The including file defines `Vec`, the vectors of its instruction set, of which one or two cover a tile.
#pragma once

#include "isa/kernels.hpp"

namespace bitnet {
namespace {

constexpr int kVecs = kTileRows / Vec::kLanes;  // vectors a tile is wide
constexpr int64_t kInputBytes = 384 << 10;      // activations that stay in the second cache

// Largest code, what is subtracted from codes in integers, and whether codes are s8.
template <Type kType>
struct Codes {
    static constexpr bool kEight = tile_layout(kType).offset == 128;
    static constexpr bool kSigned = kEight && Vec::kSignedCodes;
    static constexpr int kMax = kEight ? (kSigned ? 128 : 255) : has_table(kType) ? 28 : tile_layout(kType).high == 0 ? 15
                                : tile_layout(kType).high == 64 ? 31 : 63;
    static constexpr int kOffset = kSigned ? 0 : tile_layout(kType).offset;
    static constexpr bool kHalves = kType == Type::Q6_K_R16, kMin = encoding(kType).minimum;
};

// The table of a type as products take its codes: with a sign, or plus the offset.
template <Type kType>
constexpr CodeTable byte_codes() {
    CodeTable out = code_table(kType);
    for (int8_t& code : out.code) {
        const int byte = code + Codes<kType>::kOffset;
        code = int8_t(byte < 128 ? byte : byte - 256);
    }
    return out;
}
template <Type kType>
constexpr CodeTable kByteCodes = byte_codes<kType>();

// Vector *v* of four neighbouring columns, 4j .. 4j+3, of the rows of a tile.
template <Type kType>
inline typename Vec::Int tile_codes(const uint8_t* unit, int j, int v) {
    constexpr TileLayout kLayout = tile_layout(kType);
    const uint8_t* lanes = unit + 4 * Vec::kLanes * v;
    if constexpr (kType == Type::Q8_0_R16) {
        const auto codes = Vec::load(lanes + 64 * j);
        return Vec::kSignedCodes ? Vec::flip(codes) : codes;
    } else {
        const auto both = Vec::load(lanes + kLayout.high + 64 * (j % 4));
        const auto low = Vec::and_bytes(j < 4 ? both : Vec::shift_right(both, 4), 0x0f);
        if constexpr (has_table(kType)) return Vec::look_up(kByteCodes<kType>.code, low);
        if constexpr (kLayout.high == 0) return low;
        if constexpr (kLayout.high == 64)
            return Vec::or_masked(low, Vec::shift(Vec::load(lanes), 4 - j), 0x10);
        return Vec::or_masked(low, Vec::shift(Vec::load(lanes + 64 * (j / 4)), 4 - 2 * (j % 4)), 0x30);
    }
}

// Scales and minima of a block for one vector of rows; `of` those of its group j.
template <Type kType>
struct Scales {
    typename Vec::Float d, dmin;
    const uint8_t* bytes;
    static constexpr int kHeader = tile_layout(kType).header;
    static typename Vec::Float first(const uint8_t* block, int v) {
        if constexpr (kHeader == 16) return Vec::load_half_power(block + Vec::kLanes * v);
        else return Vec::load_half(block + 2 * Vec::kLanes * v);
    }
    explicit Scales(const uint8_t* block, int v) : d(first(block, v)), dmin(d) {
        bytes = block + (kHeader == 320 ? 64 : 32) + Vec::kLanes * v;
        if constexpr (Codes<kType>::kMin) dmin = Vec::load_half(block + 32 + 2 * Vec::kLanes * v);
        if constexpr (kHeader == 320) dmin = Vec::negated(dmin);
    }
    typename Vec::Float scale(int j, int half) const {
        if constexpr (kHeader == 320) return Vec::mul(d, Vec::load_u8(bytes + 16 * j));
        else if constexpr (kHeader == 160) return Vec::mul(d, Vec::load_s8(bytes + 16 * j));
        else if constexpr (Codes<kType>::kHalves) return Vec::mul(d, Vec::load_s8(bytes + 32 * j + 16 * half));
        else return d;
    }
    typename Vec::Float min(int j) const {
        if constexpr (kHeader == 320) return Vec::mul(dmin, Vec::load_u8(bytes + 128 + 16 * j));
        else return dmin;
    }
};

// Group *j* of a block as it lies in a tile, for V vectors of rows from *first* on.
template <Type kType, int V>
struct PackedGroup {
    const uint8_t* unit;
    int first, j;
    const Scales<kType>* scales;
    typename Vec::Int codes(int i, int v) const { return tile_codes<kType>(unit, i, first + v); }
    typename Vec::Float scale(int v, int half) const { return scales[v].scale(j, half); }
    typename Vec::Float min(int v) const { return scales[v].min(j); }
};

// The same of a whole tile, computed once for many tokens: 8 x 64 codes, scales as floats (of each half
// where they differ), minima as floats.
template <Type kType>
struct UnpackedGroup {
    static constexpr int kScales = Codes<kType>::kHalves ? 2 : 1;
    static constexpr int kBytes = 64 * (8 + kScales + (Codes<kType>::kMin ? 1 : 0));
    static_assert(scratch_bytes(32) >= kBytes + 4096, "a tile does not fit the scratch memory");
    const uint8_t* at;
    static constexpr int codes_at(int i, int v) { return 64 * i + 4 * Vec::kLanes * v; }
    static constexpr int scale_at(int v, int half) { return codes_at(8 + half % kScales, v); }
    static constexpr int min_at(int v) { return codes_at(8 + kScales, v); }
    typename Vec::Int codes(int i, int v) const { return Vec::load(at + codes_at(i, v)); }
    typename Vec::Float scale(int v, int half) const { return Vec::load_float(at + scale_at(v, half)); }
    typename Vec::Float min(int v) const { return Vec::load_float(at + min_at(v)); }
};

struct AsTheyAre {
    typename Vec::Int operator()(typename Vec::Int codes) const { return codes; }
};

// All groups of a tile, their codes as *change* makes them.
template <Type kType, class Change = AsTheyAre>
void unpack_tile(const uint8_t* block, int64_t cols, uint8_t* out, Change change = {}) {
    using Unpacked = UnpackedGroup<kType>;
    constexpr TileLayout kLayout = tile_layout(kType);
    for (int64_t b = 0; b < cols / (32 * kLayout.groups); ++b, block += kLayout.block()) {
        const Scales<kType> scales[2] = {Scales<kType>(block, 0), Scales<kType>(block, kVecs - 1)};
        for (int j = 0; j < kLayout.groups; ++j, out += Unpacked::kBytes) {
            const PackedGroup<kType, kVecs> group{block + kLayout.header + j * kLayout.unit(), 0, j, scales};
            const auto put = [&](int at, typename Vec::Float f) { Vec::store(reinterpret_cast<float*>(out + at), f); };
#pragma GCC unroll 2
            for (int v = 0; v < kVecs; ++v) {
#pragma GCC unroll 8
                for (int i = 0; i < 8; ++i) Vec::store(out + Unpacked::codes_at(i, v), change(group.codes(i, v)));
                for (int half = 0; half < Unpacked::kScales; ++half) put(Unpacked::scale_at(v, half), group.scale(v, half));
                if constexpr (Codes<kType>::kMin) put(Unpacked::min_at(v), group.min(v));
            }
        }
    }
}

// *rows* floats of a tile's vector *v* to their places.
inline void store_rows(float* y, int v, int rows, typename Vec::Float value) {
    const int begin = Vec::kLanes * v;
    if (rows >= begin + Vec::kLanes) return Vec::store(y + begin, value);
    alignas(64) float all[Vec::kLanes];
    Vec::store(all, value);
    for (int i = begin; i < rows; ++i) y[i] = all[i - begin];
}

// Tokens that are multiplied with all tiles before the next: as many as fit, in even shares.
constexpr int64_t tokens_per_pass(int64_t tokens, int64_t token_bytes, int64_t multiple, int64_t bytes = kInputBytes) {
    const int64_t whole = bytes / token_bytes / multiple * multiple, fitting = whole > 0 ? whole : multiple;
    const int64_t passes = (tokens + fitting - 1) / fitting, share = (tokens + passes - 1) / passes;
    return (share + multiple - 1) / multiple * multiple;
}

}  // namespace
}  // namespace bitnet
