// Which instruction sets this processor and its operating system offer, asked once.
#pragma once

#include "isa/levels.hpp"

namespace bitnet {

struct CpuFeatures {
#define BITNET_FEATURE(name) bool name = false;
    BITNET_LEVELS(BITNET_FEATURE)
#undef BITNET_FEATURE
    bool avx512_vbmi = false;  // with those of avx512_vnni
};

const CpuFeatures& cpu_features();

}  // namespace bitnet
