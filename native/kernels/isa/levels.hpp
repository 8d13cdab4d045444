// The instruction sets with kernels of their own, slowest first. Each has a folder of its name here, a
// line `add_isa` in CMakeLists.txt and a bit in cpu.cpp.
#pragma once

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
#define BITNET_LEVELS(level) level(avx2) BITNET_IF_AVX_VNNI(level) level(avx512_vnni) BITNET_IF_AMX(level)
#elif defined(BITNET_ARM)
#define BITNET_LEVELS(level) level(neon_dotprod) BITNET_IF_I8MM(level)
#else
#define BITNET_LEVELS(level)
#endif
