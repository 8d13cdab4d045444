// Finds out which instruction sets this processor and its operating system offer.
#include "isa/kernels.hpp"

#if defined(BITNET_X86)
#if defined(_MSC_VER)
#include <intrin.h>
#else
#include <cpuid.h>
#endif
#if defined(BITNET_AMX)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(BITNET_ARM) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(BITNET_ARM) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace bitnet {
namespace {

#if defined(BITNET_X86)

CpuRegisters cpuid(uint32_t leaf, uint32_t subleaf) {
    CpuRegisters r;
#if defined(_MSC_VER)
    int out[4];
    __cpuidex(out, int(leaf), int(subleaf));
    r = {uint32_t(out[0]), uint32_t(out[1]), uint32_t(out[2]), uint32_t(out[3])};
#else
    __cpuid_count(leaf, subleaf, r.a, r.b, r.c, r.d);
#endif
    return r;
}

uint64_t saved_state() {
#if defined(_MSC_VER)
    return _xgetbv(0);
#else
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t(high) << 32) | low;
#endif
}

// Linux 5.16 and later let a process use the tiles if it requests them.
bool grant_tiles() {
#if defined(BITNET_AMX)
    constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
#else
    return false;
#endif
}

CpuFeatures detect() { return detect_features({cpuid, saved_state, grant_tiles}); }

#elif defined(BITNET_ARM)

CpuFeatures detect() {
    CpuFeatures features;
#if defined(__linux__)
    constexpr unsigned long kAsimdDotProduct = 1ul << 20;  // HWCAP_ASIMDDP
    features.neon_dotprod = (getauxval(AT_HWCAP) & kAsimdDotProduct) != 0;
#if defined(BITNET_I8MM)
    constexpr unsigned long kMatrixProduct = 1ul << 13;  // HWCAP2_I8MM
    features.neon_i8mm = features.neon_dotprod && (getauxval(AT_HWCAP2) & kMatrixProduct) != 0;
#endif
#elif defined(__APPLE__)
    features.neon_dotprod = true;  // every Apple processor that runs 64-bit macOS
#if defined(BITNET_I8MM)
    int is_present = 0;
    size_t size = sizeof is_present;
    features.neon_i8mm =
        sysctlbyname("hw.optional.arm.FEAT_I8MM", &is_present, &size, nullptr, 0) == 0 &&
        is_present != 0;
#endif
#endif
    return features;
}

#else

CpuFeatures detect() { return {}; }

#endif

}  // namespace

CpuFeatures& cpu_features() {
    static CpuFeatures features = detect();
    return features;
}

#if defined(BITNET_X86)
CpuFeatures detect_features(const CpuQueries& ask) {
    CpuFeatures features;
    if (ask.cpuid(0, 0).a < 7) return features;  // leaf 7 has AVX2 and later instruction sets
    const CpuRegisters basic = ask.cpuid(1, 0), extended = ask.cpuid(7, 0);
    const auto bit = [](uint32_t value, int n) { return ((value >> n) & 1u) != 0; };
    if (!bit(basic.c, 27)) return features;  // OSXSAVE
    const uint64_t state = ask.saved_state();
    const bool ymm = (state & 0x6) == 0x6;    // registers of SSE and AVX
    const bool zmm = (state & 0xe6) == 0xe6;  // and of AVX-512, masks included
    const bool fma = bit(basic.c, 12);
    const bool f16c = bit(basic.c, 29);
    features.avx2 = ymm && fma && f16c && bit(extended.b, 5);
    // AVX-512 F, DQ, BW, VL and VNNI.
    features.avx512_vnni = features.avx2 && zmm && bit(extended.b, 16) && bit(extended.b, 17) &&
                           bit(extended.b, 30) && bit(extended.b, 31) && bit(extended.c, 11);
    // A build for comparisons has plain C++ in place of these instructions.
#if defined(BITNET_AVX_VNNI_PLAIN)
    features.avx_vnni = features.avx2;
#elif defined(BITNET_AVX_VNNI_EVEX)
    features.avx_vnni = features.avx512_vnni;
#else
    features.avx_vnni = features.avx2 && extended.a >= 1 && bit(ask.cpuid(7, 1).a, 4);
#endif
    features.avx512_vbmi = features.avx512_vnni && bit(extended.c, 1);
#if defined(BITNET_AMX)
    // AMX-TILE and AMX-INT8, and the state of the tiles.
    const bool tiles = bit(extended.d, 24) && bit(extended.d, 25) && (state & 0x60000) == 0x60000;
    features.amx = features.avx512_vbmi && tiles && ask.grant_tiles();
#endif
    return features;
}
#endif

}  // namespace bitnet
