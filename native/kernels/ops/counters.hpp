// How often each kernel ran, counted where it is called.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "isa/kernels.hpp"

namespace bitnet {

#define BITNET_COUNTED(op) op,
enum class Op : int { decode, prefill, embed, attention, BITNET_ROW_OPS(BITNET_COUNTED) kCount };
#undef BITNET_COUNTED

// One more call of *op* of the active kernels; *type* only matters for the first three.
void count_call(Op op, Type type = Type::F32);

// Calls since the process began, by "linear/Q4_1/avx2/decode", "embed/F16/avx2", "attention/avx2".
// The instruction set is the one whose code ran: "scalar" for a kernel that failed its self-test.
std::map<std::string, uint64_t> counters();

}  // namespace bitnet
