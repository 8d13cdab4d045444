// The instruction sets with kernels of their own, slowest first. Each has a folder of its name here, a
// line `add_isa` in CMakeLists.txt and a bit in cpu.cpp.
#pragma once

#if defined(BITNET_X86) && defined(BITNET_AVX_VNNI)
#define BITNET_LEVELS(level) level(avx2) level(avx_vnni) level(avx512_vnni)
#elif defined(BITNET_X86)  // a compiler that does not know AVX-VNNI
#define BITNET_LEVELS(level) level(avx2) level(avx512_vnni)
#elif defined(BITNET_ARM)
#define BITNET_LEVELS(level) level(neon_dotprod)
#else
#define BITNET_LEVELS(level)
#endif
