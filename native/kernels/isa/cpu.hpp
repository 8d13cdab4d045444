// Which instruction sets this processor and its operating system offer, asked once.
#pragma once

#include <cstdint>

#include "isa/levels.hpp"

namespace bitnet {

struct CpuFeatures {
#define BITNET_FEATURE(name) bool name = false;
    BITNET_LEVELS(BITNET_FEATURE)
#undef BITNET_FEATURE
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
