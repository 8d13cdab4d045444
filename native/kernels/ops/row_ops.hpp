// The operations that are plain loops, as the compiler makes them with the flags of the including file.
#pragma once

#include "ops/attention.hpp"
#include "ops/delta_loops.hpp"
#include "ops/float_ops.hpp"

namespace bitnet {
namespace {

void add_row_ops(Kernels& k) {
    k.quantize_block = quantize_block;
    k.quantize_ternary = quantize_ternary;
    k.quantize_runs = quantize_runs;
    k.dequantize = dequantize;
#define BITNET_SET(op) k.op = op;
    BITNET_ROW_OPS(BITNET_SET)
#undef BITNET_SET
    k.attend = attend;
    k.store_position = store_position;
}

}  // namespace
}  // namespace bitnet
