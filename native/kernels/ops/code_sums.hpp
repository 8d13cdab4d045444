// Sums of products of codes, which each instruction set provides for attention.
//
// `Pairs` holds two neighbouring codes of 16 bits for each of kWidth sums. The sums are integers,
// so any order of additions gives the same. They begin with `start`, and not with a constructor:
// GCC 12 runs a constructor in a loop, and then keeps an array of sums in memory.
//
// `Quads` holds four neighbouring bytes for each of kWidth sums. Keys and the codes of weights are
// unsigned bytes, values signed ones.
//
// `Words` are 2 * kWidth numbers of 16 bits, each for one of a row's kKeyBlock keys. Packing leaves
// the numbers of a row in an order of its own: number i of all kKeyBlock is that of key_at(i). A
// product is round(a b / 2^15), halves up. The AVX-512 form explains the functions.
#pragma once

#include "ops/lanes.hpp"

namespace bitnet {
// Each instruction set compiles its own copy: no unit may run code of another's flags.
namespace {

struct PairCodes {  // codes of a row's weights
    alignas(64) int16_t code[kKeyBlock];
    const int16_t* at(int key) const { return code + key; }
};

#if defined(__AVX512F__)
struct PairSums {
    using Pairs = __m512i;
    __m512i v;
    template <class... Any>
    void start(const Any&...) {
        v = _mm512_setzero_si512();
    }
    static Pairs load(const int16_t* p) { return _mm512_loadu_si512(p); }
    void add(Pairs a, const int16_t* pair) {
        v = _mm512_dpwssd_epi32(v, a, _mm512_set1_epi32(read<int32_t>(pair)));
        pin(v);
    }
    Lanes numbers() const { return {_mm512_cvtepi32_ps(v)}; }
};
#elif defined(BITNET_F16C)
struct PairSums {
    using Pairs = __m256i;
    __m256i v;
    template <class... Any>
    void start(const Any&...) {
        v = _mm256_setzero_si256();
    }
    static Pairs load(const int16_t* p) {
        return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    }
    void add(Pairs a, const int16_t* pair) {
        const __m256i b = _mm256_set1_epi32(read<int32_t>(pair));
#if defined(__GNUC__)
        // In place: GCC 12 adds into the register of the product and moves it back. The operand is
        // a copy, as in `pin`.
        __m256i sum = v;
        asm("vpaddd %1, %0, %0" : "+v"(sum) : "v"(_mm256_madd_epi16(a, b)));
        v = sum;
#else
        v = _mm256_add_epi32(v, _mm256_madd_epi16(a, b));
#endif
    }
    Lanes numbers() const { return {_mm256_cvtepi32_ps(v)}; }
};
#elif defined(BITNET_NEON)
struct PairSums {  // sums of the first and of the second codes of pairs apart
    struct Pairs {
        int16x8_t low, high;
    };
    int32x4_t v[4];
    template <class... Any>
    void start(const Any&...) {
        v[0] = v[1] = v[2] = v[3] = vdupq_n_s32(0);
    }
    static Pairs load(const int16_t* p) { return {vld1q_s16(p), vld1q_s16(p + 8)}; }
    void add(Pairs a, const int16_t* pair) {
        const int16x8_t b = vreinterpretq_s16_s32(vdupq_n_s32(read<int32_t>(pair)));
        v[0] = vmlal_s16(v[0], vget_low_s16(a.low), vget_low_s16(b));
        v[1] = vmlal_high_s16(v[1], a.low, b);
        v[2] = vmlal_s16(v[2], vget_low_s16(a.high), vget_low_s16(b));
        v[3] = vmlal_high_s16(v[3], a.high, b);
    }
    Lanes numbers() const {
        return {vcvtq_f32_s32(vpaddq_s32(v[0], v[1])), vcvtq_f32_s32(vpaddq_s32(v[2], v[3]))};
    }
};
#else
struct PairSums {
    using Pairs = const int16_t*;
    // Modulo 2^32. Sums may overflow where keys are hidden, whose codes may be anything, and are
    // not used then.
    uint32_t v[8];
    template <class... Any>
    void start(const Any&...) {
        std::fill_n(v, 8, 0u);
    }
    static Pairs load(const int16_t* p) { return p; }
    void add(Pairs a, const int16_t* pair) {
        for (int i = 0; i < 16; ++i) v[i / 2] += uint32_t(int32_t(a[i]) * pair[i % 2]);
    }
    Lanes numbers() const {
        return Lanes::of([&](int i) { return float(int32_t(v[i])); });
    }
};
#endif

#if defined(BITNET_F16C)
// Number i of packed registers is one of four that belong to neighbouring keys; returns the first
// of these keys. Packing takes four lanes of each of two registers in turn.
constexpr int packed(int i) {
    return i / (2 * Lanes::kWidth) * 2 * Lanes::kWidth + i % 8 / 4 * Lanes::kWidth +
           i % (2 * Lanes::kWidth) / 8 * 4;
}
#endif

#if defined(__AVX512F__)
struct Words {
    __m512i v;
    static constexpr int key_at(int i) { return packed(i) + i % 4; }
    static Words set(int16_t n) { return {_mm512_set1_epi16(n)}; }
    static Words load(const int16_t* p) { return {_mm512_loadu_si512(p)}; }
    void store(int16_t* p) const { _mm512_storeu_si512(p, v); }
    // Nearest integers, halves to even, of numbers up to 32,767; smaller ones than -32,768, and
    // NaN, become -32,768.
    static Words nearest(Lanes a, Lanes b) {
        return {_mm512_packs_epi32(_mm512_cvtps_epi32(a.v), _mm512_cvtps_epi32(b.v))};
    }
    friend Words operator-(Words a, Words b) { return {_mm512_sub_epi16(a.v, b.v)}; }
    friend Words operator*(Words a, Words b) { return {_mm512_mulhrs_epi16(a.v, b.v)}; }
    // -v, and 32,767 for -32,768.
    Words negative() const { return {_mm512_subs_epi16(_mm512_setzero_si512(), v)}; }
    // The last eleven bits as a fraction, in units of 2^-15.
    Words fraction() const {
        return {_mm512_and_si512(_mm512_slli_epi16(v, 4), _mm512_set1_epi16(0x7ff0))};
    }
    // Divided by 2^times and rounded down; *times* is up to 15.
    Words halved(Words times) const { return {_mm512_srlv_epi16(v, times.v)}; }
    static Words larger(Words a, Words b) { return {_mm512_max_epi16(a.v, b.v)}; }
    // The larger of two numbers, which are not below 0, in each lane.
    Lanes largest() const {
        return {_mm512_cvtepi32_ps(_mm512_max_epi32(
            _mm512_srli_epi32(v, 16), _mm512_and_si512(v, _mm512_set1_epi32(0xffff))))};
    }
    // v * 2^shift, which must be below 2^16, times *factor* / 2^16, rounded down.
    Words scaled(int shift, int factor) const {
        return {_mm512_mulhi_epu16(_mm512_sllv_epi16(v, _mm512_set1_epi16(int16_t(shift))),
                                   _mm512_set1_epi16(int16_t(factor)))};
    }
    // *n*, which stays in a register: GCC 12 otherwise makes it again for every row.
    static Words kept(int16_t n) {
        Words out = set(n);
        pin(out.v);
        return out;
    }
};
#elif defined(BITNET_F16C)
struct Words {  // of each four keys, the even ones come first, as in Quads
    __m256i v;
    static constexpr int key_at(int i) { return packed(i) + i % 2 * 2 + i % 4 / 2; }
    static Words set(int16_t n) { return {_mm256_set1_epi16(n)}; }
    static Words load(const int16_t* p) { return {load256(p)}; }
    void store(int16_t* p) const { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v); }
    static __m256i both(__m128i bytes) { return _mm256_broadcastsi128_si256(bytes); }
    static Words nearest(Lanes a, Lanes b) {
        const __m128i turned = _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
        return {_mm256_shuffle_epi8(
            _mm256_packs_epi32(_mm256_cvtps_epi32(a.v), _mm256_cvtps_epi32(b.v)), both(turned))};
    }
    friend Words operator-(Words a, Words b) { return {_mm256_sub_epi16(a.v, b.v)}; }
    friend Words operator*(Words a, Words b) { return {_mm256_mulhrs_epi16(a.v, b.v)}; }
    Words negative() const { return {_mm256_subs_epi16(_mm256_setzero_si256(), v)}; }
    Words fraction() const {
        return {_mm256_and_si256(_mm256_slli_epi16(v, 4), _mm256_set1_epi16(0x7ff0))};
    }
    // The upper half of 2 v * 2^(15 - times), whose two bytes are looked up.
    Words halved(Words times) const {
        const __m128i first = _mm_setr_epi8(-128, 64, 32, 16, 8, 4, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0);
        const __m256i upper = _mm256_slli_epi16(_mm256_shuffle_epi8(both(first), times.v), 8);
        const __m256i lower = _mm256_shuffle_epi8(both(_mm_slli_si128(first, 8)), times.v);
        return {_mm256_mulhi_epu16(_mm256_add_epi16(v, v), _mm256_or_si256(upper, lower))};
    }
    static Words larger(Words a, Words b) { return {_mm256_max_epi16(a.v, b.v)}; }
    Lanes largest() const {
        return {_mm256_cvtepi32_ps(_mm256_max_epi32(
            _mm256_srli_epi32(v, 16), _mm256_and_si256(v, _mm256_set1_epi32(0xffff))))};
    }
    Words scaled(int shift, int factor) const {
        return {_mm256_mulhi_epu16(_mm256_sll_epi16(v, _mm_cvtsi32_si128(shift)),
                                   _mm256_set1_epi16(int16_t(factor)))};
    }
    static Words kept(int16_t n) { return set(n); }
};
#elif defined(BITNET_NEON)
struct Words {
    int16x8_t low, high;
    static constexpr int key_at(int i) { return i; }
    static Words set(int16_t n) { return {vdupq_n_s16(n), vdupq_n_s16(n)}; }
    static Words load(const int16_t* p) { return {vld1q_s16(p), vld1q_s16(p + 8)}; }
    void store(int16_t* p) const {
        vst1q_s16(p, low);
        vst1q_s16(p + 8, high);
    }
    static Words nearest(Lanes a, Lanes b) {
        const auto rounded = [](float32x4_t x) {
            return vqmovn_s32(vcvtnq_s32_f32(vmaxnmq_f32(x, vdupq_n_f32(-32768.0f))));
        };
        return {vcombine_s16(rounded(a.low), rounded(a.high)),
                vcombine_s16(rounded(b.low), rounded(b.high))};
    }
    friend Words operator-(Words a, Words b) {
        return {vsubq_s16(a.low, b.low), vsubq_s16(a.high, b.high)};
    }
    friend Words operator*(Words a, Words b) {
        return {vqrdmulhq_s16(a.low, b.low), vqrdmulhq_s16(a.high, b.high)};
    }
    Words negative() const { return {vqnegq_s16(low), vqnegq_s16(high)}; }
    Words fraction() const {
        const int16x8_t behind = vdupq_n_s16(0x7ff0);
        return {vandq_s16(vshlq_n_s16(low, 4), behind), vandq_s16(vshlq_n_s16(high, 4), behind)};
    }
    Words halved(Words times) const {
        return {vshlq_s16(low, vnegq_s16(times.low)), vshlq_s16(high, vnegq_s16(times.high))};
    }
    static Words larger(Words a, Words b) {
        return {vmaxq_s16(a.low, b.low), vmaxq_s16(a.high, b.high)};
    }
    Lanes largest() const {
        const int16x8_t most = vmaxq_s16(low, high);
        return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(most))), vcvtq_f32_s32(vmovl_high_s16(most))};
    }
    Words scaled(int shift, int factor) const {
        const auto product = [&](int16x8_t words) {
            const uint16x8_t x =
                vshlq_u16(vreinterpretq_u16_s16(words), vdupq_n_s16(int16_t(shift)));
            const uint16x8_t by = vdupq_n_u16(uint16_t(factor));
            const uint16x4_t first = vshrn_n_u32(vmull_u16(vget_low_u16(x), vget_low_u16(by)), 16);
            return vreinterpretq_s16_u16(
                vcombine_u16(first, vshrn_n_u32(vmull_high_u16(x, by), 16)));
        };
        return {product(low), product(high)};
    }
    static Words kept(int16_t n) { return set(n); }
};
#else
struct Words {
    int16_t v[16];
    template <class F>
    static Words of(F value) {
        Words out;
        for (int i = 0; i < 16; ++i) out.v[i] = int16_t(value(i));
        return out;
    }
    static constexpr int key_at(int i) { return i; }
    static Words set(int16_t n) {
        return of([&](int) { return n; });
    }
    static Words load(const int16_t* p) {
        return of([&](int i) { return p[i]; });
    }
    void store(int16_t* p) const { std::copy_n(v, 16, p); }
    static Words nearest(const Lanes& a, const Lanes& b) {
        return of([&](int i) {
            const float f = i < 8 ? a.v[i] : b.v[i - 8];
            return f > -32768.0f ? std::min(int32_t(round_half_even(f)), 32767) : -32768;
        });
    }
    friend Words operator-(const Words& a, const Words& b) {
        return of([&](int i) { return a.v[i] - b.v[i]; });
    }
    friend Words operator*(const Words& a, const Words& b) {
        return of([&](int i) { return (a.v[i] * b.v[i] + 0x4000) >> 15; });
    }
    Words negative() const {
        return of([&](int i) { return std::min(-v[i], 32767); });
    }
    Words fraction() const {
        return of([&](int i) { return v[i] * 16 & 0x7ff0; });
    }
    Words halved(const Words& times) const {
        return of([&](int i) { return v[i] >> times.v[i]; });
    }
    static Words larger(const Words& a, const Words& b) {
        return of([&](int i) { return std::max(a.v[i], b.v[i]); });
    }
    Lanes largest() const {
        return Lanes::of([&](int i) { return float(std::max(v[i], v[8 + i])); });
    }
    Words scaled(int shift, int factor) const {
        return of([&](int i) { return (uint32_t(v[i]) << shift) * uint32_t(factor) >> 16; });
    }
    static Words kept(int16_t n) { return set(n); }
};
#endif

// Numbers that are subtracted from codes, which have seven fractional bits, before these are
// rounded. Each of a page's 64 keys has a different one (ordered dithering): of many weights that
// are small fractions of a code, so many are rounded up that the sum of the codes is right.
struct Thresholds {
    alignas(64) int16_t at[kKeyBlock] = {};
    constexpr Thresholds() {
        for (int i = 0; i < kKeyBlock; ++i) {
            at[i] = 63;
            for (int bit = 0; bit < 6; ++bit)
                at[i] = int16_t(at[i] - ((Words::key_at(i) >> bit & 1) << (6 - bit)));
        }
    }
};
constexpr Thresholds kThresholds;

// Codes, up to 255, of 2 * kWidth *parts* of a row from *i* on. *shift* and *factor* are chosen so
// that the row's largest part becomes 255.
inline Words codes_at(const int16_t* parts, int shift, int factor, int i) {
    return (Words::load(parts + i).scaled(shift, factor) - Words::load(kThresholds.at + i)) *
           Words::set(256);
}

#if defined(__AVX512F__)
using Quads = __m512i;
inline __m512i four_bytes(const void* p) { return _mm512_set1_epi32(read<int32_t>(p)); }
struct QuadCodes {  // codes of a row's weights; `at` undoes the order of packing
    alignas(64) uint8_t code[kKeyBlock];
    void set(const int16_t* parts, int shift, int factor) {
        _mm512_store_si512(code, _mm512_packus_epi16(codes_at(parts, shift, factor, 0).v,
                                                     codes_at(parts, shift, factor, 32).v));
    }
    const uint8_t* at(int key) const { return code + (key & 12) * 4 + (key >> 4) * 4; }
};
struct QuadSums {
    __m512i v;
    static Quads load(const uint8_t* p) { return _mm512_loadu_si512(p); }
    Lanes numbers() const { return {_mm512_cvtepi32_ps(v)}; }
};
struct KeyQuads : QuadSums {
    void start(int32_t at) { v = _mm512_set1_epi32(at); }
    void add(Quads keys, const uint8_t* query) {
        v = _mm512_dpbusd_epi32(v, keys, four_bytes(query));
        pin(v);
    }
};
struct ValueQuads : QuadSums {
    void start(const QuadCodes&) { v = _mm512_setzero_si512(); }
    void add(Quads values, const uint8_t* weights) {
        v = _mm512_dpbusd_epi32(v, four_bytes(weights), values);
        pin(v);
    }
};
#elif defined(BITNET_F16C)
struct Quads {  // two products of 16 bits at a time: bytes 0 and 2 of each four, and bytes 1 and 3
    __m256i even, odd;
};
struct QuadCodes {
    alignas(32) int16_t code[kKeyBlock];
    void set(const int16_t* parts, int shift, int factor) {
        for (int i = 0; i < kKeyBlock; i += 16) codes_at(parts, shift, factor, i).store(code + i);
    }
    // Of each 16 keys, packing has put 8 to 11 before 4 to 7.
    const int16_t* at(int key) const { return code + (key & 48) + (key & 4) * 2 + (key >> 1 & 4); }
};
struct QuadSums {
    __m256i v;
    // Signed bytes, widened.
    static Quads with_sign(__m256i v) {
        return {_mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8), _mm256_srai_epi16(v, 8)};
    }
    void add(Quads a, __m256i even, __m256i odd) {
        v = _mm256_add_epi32(
            v, _mm256_add_epi32(_mm256_madd_epi16(a.even, even), _mm256_madd_epi16(a.odd, odd)));
        pin(v);
    }
    Lanes numbers() const { return {_mm256_cvtepi32_ps(v)}; }
};
struct KeyQuads : QuadSums {
    static Quads load(const uint8_t* p) {
        const __m256i v = load256(p);
        return {_mm256_and_si256(v, _mm256_set1_epi16(255)), _mm256_srli_epi16(v, 8)};
    }
    void start(int32_t at) { v = _mm256_set1_epi32(at); }
    void add(Quads keys, const uint8_t* query) {
        const Quads x = with_sign(_mm256_set1_epi32(read<int32_t>(query)));
        QuadSums::add(keys, x.even, x.odd);
    }
};
struct ValueQuads : QuadSums {
    static Quads load(const uint8_t* p) { return with_sign(load256(p)); }
    void start(const QuadCodes&) { v = _mm256_setzero_si256(); }
    void add(Quads values, const int16_t* weights) {
        QuadSums::add(values, _mm256_set1_epi32(read<int32_t>(weights)),
                      _mm256_set1_epi32(read<int32_t>(weights + 2)));
    }
};
#elif defined(BITNET_NEON)
struct Quads {  // 128 more or less than the bytes: keys have a sign here, values none
    uint8x16_t low, high;
};
struct QuadCodes {
    uint8_t code[kKeyBlock];
    int32_t start;  // -128 times their sum
    void set(const int16_t* parts, int shift, int factor) {
        start = 0;
        for (int i = 0; i < kKeyBlock; i += 16) {
            const Words words = codes_at(parts, shift, factor, i);
            const uint8x16_t bytes = vcombine_u8(vmovn_u16(vreinterpretq_u16_s16(words.low)),
                                                 vmovn_u16(vreinterpretq_u16_s16(words.high)));
            vst1q_u8(code + i, bytes);
            start -= 128 * int32_t(vaddlvq_u8(bytes));
        }
    }
    const uint8_t* at(int key) const { return code + key; }
};
struct QuadSums {
    static Quads load(const uint8_t* p) {
        return {veorq_u8(vld1q_u8(p), vdupq_n_u8(128)),
                veorq_u8(vld1q_u8(p + 16), vdupq_n_u8(128))};
    }
    static uint8x16_t four_bytes(const uint8_t* p) {
        return vreinterpretq_u8_s32(vdupq_n_s32(read<int32_t>(p)));
    }
};
struct KeyQuads : QuadSums {
    int32x4_t low, high;
    void start(int32_t) { low = high = vdupq_n_s32(0); }
    void add(Quads keys, const uint8_t* query) {
        const int8x16_t x = vreinterpretq_s8_u8(four_bytes(query));
        low = vdotq_s32(low, vreinterpretq_s8_u8(keys.low), x);
        high = vdotq_s32(high, vreinterpretq_s8_u8(keys.high), x);
    }
    Lanes numbers() const { return {vcvtq_f32_s32(low), vcvtq_f32_s32(high)}; }
};
struct ValueQuads : QuadSums {
    uint32x4_t low, high;
    void start(const QuadCodes& w) { low = high = vreinterpretq_u32_s32(vdupq_n_s32(w.start)); }
    void add(Quads values, const uint8_t* weights) {
        low = vdotq_u32(low, values.low, four_bytes(weights));
        high = vdotq_u32(high, values.high, four_bytes(weights));
    }
    Lanes numbers() const {
        return {vcvtq_f32_s32(vreinterpretq_s32_u32(low)),
                vcvtq_f32_s32(vreinterpretq_s32_u32(high))};
    }
};
#else
using Quads = const uint8_t*;
struct QuadCodes {
    uint8_t code[kKeyBlock];
    void set(const int16_t* parts, int shift, int factor) {
        for (int i = 0; i < kKeyBlock; i += 16) {
            const Words words = codes_at(parts, shift, factor, i);
            for (int j = 0; j < 16; ++j) code[i + j] = uint8_t(words.v[j]);
        }
    }
    const uint8_t* at(int key) const { return code + key; }
};
struct QuadSums {
    int32_t v[Lanes::kWidth];
    static Quads load(const uint8_t* p) { return p; }
    Lanes numbers() const {
        return Lanes::of([&](int i) { return float(v[i]); });
    }
};
struct KeyQuads : QuadSums {
    void start(int32_t at) { std::fill_n(v, Lanes::kWidth, at); }
    void add(Quads keys, const uint8_t* query) {
        for (int i = 0; i < 4 * Lanes::kWidth; ++i) v[i / 4] += keys[i] * int8_t(query[i % 4]);
    }
};
struct ValueQuads : QuadSums {
    void start(const QuadCodes&) { std::fill_n(v, Lanes::kWidth, 0); }
    void add(Quads values, const uint8_t* weights) {
        for (int i = 0; i < 4 * Lanes::kWidth; ++i) v[i / 4] += weights[i % 4] * int8_t(values[i]);
    }
};
#endif

}  // namespace
}  // namespace bitnet
