// Which instruction sets this processor and its operating system offer, asked once.
#pragma once

#include <string>
#include <vector>

namespace bitnet {

struct CpuFeatures {
    bool avx2 = false;         // with FMA and F16C
    bool avx512_vnni = false;  // with F, BW, DQ and VL
    bool avx512_vbmi = false;  // with those of avx512_vnni
    bool neon_dotprod = false;
};

const CpuFeatures& cpu_features();

// The names of the features that are present, for people and reports.
std::vector<std::string> cpu_feature_names();

}  // namespace bitnet
