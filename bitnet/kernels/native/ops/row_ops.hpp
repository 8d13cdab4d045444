// The operations that are plain loops, as the compiler makes them with the flags of the including file.
#pragma once

#include "ops/attention.hpp"
#include "ops/float_ops.hpp"

namespace bitnet {
namespace {

void add_row_ops(Kernels& k) {
    k.quantize_block = quantize_block;
    k.quantize_ternary = quantize_ternary;
    k.dequantize = dequantize;
    k.rms_norm = rms_norm;
    k.rope = rope;
    k.gate = gate;
    k.softcap = softcap;
    k.attend = attend;
    k.store_position = store_position;
}

}  // namespace
}  // namespace bitnet
