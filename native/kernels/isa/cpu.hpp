// Which instruction sets this processor and its operating system offer, asked once.
#pragma once

#include <cstdint>

// The instruction sets with kernels of their own that are compiled, slowest first. Each has a file of its name here, a
// line `add_isa` in CMakeLists.txt and a bit in cpu.cpp.
#if defined(BITNET_AVX2)
#define BITNET_IF_AVX2(level) level(avx2)
#else
#define BITNET_IF_AVX2(level)
#endif
#if defined(BITNET_AVX512_VNNI)
#define BITNET_IF_AVX512(level) level(avx512_vnni)
#else
#define BITNET_IF_AVX512(level)
#endif
#if defined(BITNET_AVX_VNNI)
#define BITNET_IF_AVX_VNNI(level) level(avx_vnni)
#else  // a compiler that does not know it
#define BITNET_IF_AVX_VNNI(level)
#endif
#if defined(BITNET_AMX)
#define BITNET_IF_AMX(level) level(amx)
#else
#define BITNET_IF_AMX(level)
#endif
#if defined(BITNET_I8MM)
#define BITNET_IF_I8MM(level) level(neon_i8mm)
#else
#define BITNET_IF_I8MM(level)
#endif

#if defined(BITNET_X86)
#define BITNET_LEVELS(level) BITNET_IF_AVX2(level) BITNET_IF_AVX_VNNI(level) BITNET_IF_AVX512(level) BITNET_IF_AMX(level)
#elif defined(BITNET_ARM)
#define BITNET_LEVELS(level) level(neon_dotprod) BITNET_IF_I8MM(level)
#else
#define BITNET_LEVELS(level)
#endif

namespace bitnet {

struct CpuFeatures {
    bool avx2 = false, avx_vnni = false, avx512_vnni = false, amx = false, neon_dotprod = false, neon_i8mm = false;
    bool avx512_vbmi = false;  // with those of avx512_vnni
};

const CpuFeatures& cpu_features();

// For tests, before a level is chosen: what cpu_features() answers from now on.
void pretend_cpu_features(const CpuFeatures& features);

#if defined(BITNET_X86)
struct CpuRegisters {
    uint32_t a = 0, b = 0, c = 0, d = 0;
};

// What is asked, so that tests can answer.
struct CpuQueries {
    CpuRegisters (*cpuid)(uint32_t leaf, uint32_t subleaf);
    uint64_t (*saved_state)();  // XCR0: register state that the operating system saves
    bool (*grant_tiles)();      // lets this process use the tiles of AMX, where the system permits it
};
CpuFeatures detect_features(const CpuQueries& ask);
#endif

}  // namespace bitnet
