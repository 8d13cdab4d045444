// What a tile of 16 interleaved rows holds, as vectors: the codes, scales and minima of 32 columns.
//
// The including file defines `Vec`, the vectors of its instruction set, of which one or two cover a
// tile. Vec::kSignedCodes: codes of eight bits are multiplied as signed bytes, without an offset.
#pragma once

#include "isa/kernels.hpp"

namespace bitnet {
// Each instruction set compiles its own copy: no unit may run code of another's flags.
namespace {

constexpr int kVecs = kTileRows / Lanes::kWidth;  // vectors that the rows of a tile fill
constexpr int64_t kVecBytes = 4 * Lanes::kWidth;
constexpr int64_t kInputBytes = 384 << 10;  // activations that stay in the second cache

// Form of codes for products: the largest code, the offset that is subtracted from codes in
// integers, whether codes are signed bytes, whether each half of 32 columns has a scale of its own,
// and whether there is a minimum.
template <int kLargest, int kSubtracted, bool kS8, bool kTwoScales, bool kMinimum>
struct CodeForm {
    static constexpr int kMax = kLargest, kOffset = kSubtracted;
    static constexpr bool kSigned = kS8, kHalves = kTwoScales, kMin = kMinimum;
};
// Whether products take the codes of eight bits of a type as signed bytes.
template <Type kType>
constexpr bool kSignedBytes = tile_layout(kType).offset == 128 && Vec::kSignedCodes;
// The largest code of a type, as products take it.
constexpr int largest_code(Type type) {
    const TileLayout layout = tile_layout(type);
    if (layout.offset == 128) return Vec::kSignedCodes ? 128 : 255;
    if (has_table(type)) return 28;  // the largest code of MXFP4 plus its offset of 16
    if (layout.high == kNoHighBits) return 15;
    return layout.high == kOneHighBit ? 31 : 63;
}
template <Type kType>
using Codes = CodeForm<largest_code(kType), kSignedBytes<kType> ? 0 : tile_layout(kType).offset,
                       kSignedBytes<kType>, kType == Type::Q6_K_R16, encoding(kType).minimum>;

// The table of a type, with codes as products take them: signed, or plus the offset.
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

// Vector *v* of the codes of four neighbouring columns, 4j .. 4j+3, of the rows of a tile.
template <Type kType>
inline Vec::Int tile_codes(const uint8_t* unit, int j, int v) {
    constexpr TileLayout kLayout = tile_layout(kType);
    const uint8_t* lanes = unit + kVecBytes * v;
    if constexpr (kType == Type::Q8_0_R16) {
        const auto codes = Vec::load(lanes + 64 * j);
        return Vec::kSignedCodes ? Vec::flip(codes) : codes;
    } else {
        const auto both = Vec::load(lanes + kLayout.high + 64 * (j % 4));
        const auto low = Vec::and_bytes(j < 4 ? both : Vec::shift(both, -4), 0x0f);
        if constexpr (has_table(kType)) return Vec::look_up(kByteCodes<kType>.code, low);
        if constexpr (kLayout.high == kNoHighBits) return low;
        if constexpr (kLayout.high == kOneHighBit)
            return Vec::or_masked(low, Vec::shift(Vec::load(lanes), 4 - j), 0x10);
        return Vec::or_masked(low, Vec::shift(Vec::load(lanes + 64 * (j / 4)), 4 - 2 * (j % 4)),
                              0x30);
    }
}

// Scales and minima of a block for vector *v* of its rows. The size of the header tells what it
// holds (encodings/tiles.hpp).
template <Type kType>
struct Scales {
    Lanes d, dmin;
    const uint8_t* bytes;
    static constexpr int kHeader = tile_layout(kType).header;
    static Lanes first(const uint8_t* block, int v) {
        if constexpr (kHeader == kPowers)
            return Lanes::half_powers(block + Lanes::kWidth * v);
        else
            return Lanes::halves(block + 2 * Lanes::kWidth * v);
    }
    explicit Scales(const uint8_t* block, int v) : d(first(block, v)), dmin(d) {
        bytes = block + (kHeader == kByteScalesAndMinima ? 64 : 32) + Lanes::kWidth * v;
        if constexpr (Codes<kType>::kMin) dmin = Lanes::halves(block + 32 + 2 * Lanes::kWidth * v);
        if constexpr (kHeader == kByteScalesAndMinima) dmin = dmin.negated();
    }
    Lanes scale(int j, int half) const {
        if constexpr (kHeader == kByteScalesAndMinima)
            return d * Lanes::unsigned_bytes(bytes + 16 * j);
        else if constexpr (kHeader == kByteScales)
            return d * Lanes::signed_bytes(bytes + 16 * j);
        else if constexpr (Codes<kType>::kHalves)
            return d * Lanes::signed_bytes(bytes + 32 * j + 16 * half);
        else
            return d;
    }
    Lanes min(int j) const {
        if constexpr (kHeader == kByteScalesAndMinima)
            return dmin * Lanes::unsigned_bytes(bytes + 128 + 16 * j);
        else
            return dmin;
    }
};

// Group *j* of a block as it lies in a tile, for V vectors of rows from *first* on.
template <Type kType, int V>
struct PackedGroup {
    const uint8_t* unit;
    int first, j;
    const Scales<kType>* scales;
    Vec::Int codes(int i, int v) const { return tile_codes<kType>(unit, i, first + v); }
    Lanes scale(int v, int half) const { return scales[v].scale(j, half); }
    Lanes min(int v) const { return scales[v].min(j); }
};

// The same for a whole tile, unpacked once for many tokens: 8 x 64 codes, scales as floats (for
// each half if they differ), and minima as floats.
template <class C>
struct UnpackedGroup {
    static constexpr int kScales = C::kHalves ? 2 : 1;
    static constexpr int kBytes = 64 * (8 + kScales + (C::kMin ? 1 : 0));
    static_assert(scratch_bytes(32) >= kBytes + 4096, "a tile does not fit the scratch memory");
    const uint8_t* at;
    static constexpr int codes_at(int i, int v) { return 64 * i + kVecBytes * v; }
    static constexpr int scale_at(int v, int half) { return codes_at(8 + half % kScales, v); }
    static constexpr int min_at(int v) { return codes_at(8 + kScales, v); }
    Vec::Int codes(int i, int v) const { return Vec::load(at + codes_at(i, v)); }
    Lanes scale(int v, int half) const { return Lanes::load(at + scale_at(v, half)); }
    Lanes min(int v) const { return Lanes::load(at + min_at(v)); }
};

struct AsTheyAre {
    Vec::Int operator()(Vec::Int codes) const { return codes; }
};

// Unpacks all groups of the tile that begins at *block* to UnpackedGroups, with change(codes).
template <Type kType, class Change = AsTheyAre>
void unpack_tile(const uint8_t* block, int64_t cols, uint8_t* out, Change change = {}) {
    using Unpacked = UnpackedGroup<Codes<kType>>;
    constexpr TileLayout kLayout = tile_layout(kType);
    for (int64_t b = 0; b < cols / (32 * kLayout.groups); ++b, block += kLayout.block()) {
        const Scales<kType> scales[2] = {Scales<kType>(block, 0), Scales<kType>(block, kVecs - 1)};
        for (int j = 0; j < kLayout.groups; ++j, out += Unpacked::kBytes) {
            const PackedGroup<kType, kVecs> group{block + kLayout.header + j * kLayout.unit(), 0, j,
                                                  scales};
            const auto put = [&](int at, Lanes f) { f.store(reinterpret_cast<float*>(out + at)); };
            BITNET_UNROLL(2) for (int v = 0; v < kVecs; ++v) {
                BITNET_UNROLL(8)
                for (int i = 0; i < 8; ++i)
                    Vec::store(out + Unpacked::codes_at(i, v), change(group.codes(i, v)));
                for (int half = 0; half < Unpacked::kScales; ++half)
                    put(Unpacked::scale_at(v, half), group.scale(v, half));
                if constexpr (Codes<kType>::kMin) put(Unpacked::min_at(v), group.min(v));
            }
        }
    }
}

// Writes vector *v* of a tile's results to *y*, at which those of the tile begin; only the first
// *rows* rows of the tile are written.
inline void store_rows(float* y, int v, int rows, Lanes value) {
    const int begin = Lanes::kWidth * v;
    if (rows >= begin + Lanes::kWidth) return value.store(y + begin);
    alignas(64) float all[Lanes::kWidth];
    value.store(all);
    for (int i = begin; i < rows; ++i) y[i] = all[i - begin];
}

// Number of tokens of a pass over all tiles, a multiple of *multiple*: passes are equal, and their
// inputs fit in *bytes*.
constexpr int64_t tokens_per_pass(int64_t tokens, int64_t token_bytes, int64_t multiple,
                                  int64_t bytes = kInputBytes) {
    const int64_t whole = bytes / token_bytes / multiple * multiple,
                  fitting = whole > 0 ? whole : multiple;
    const int64_t passes = (tokens + fitting - 1) / fitting, share = (tokens + passes - 1) / passes;
    return (share + multiple - 1) / multiple * multiple;
}

}  // namespace
}  // namespace bitnet
