// Layers with a state of fixed size: a causal convolution of each channel, the gated delta rule, and Mamba-2's scan.
//
// One position follows another in each, and every sum is added in one order, so the bits depend neither on how
// a sequence is cut nor on threads or vector widths.
#pragma once

#include <cstdint>

namespace bitnet {

struct ConvolveArgs {
    const float* x = nullptr;       // (tokens, channels)
    const float* weight = nullptr;  // (channels, width), the last for the position itself
    float* state = nullptr;         // (width - 1, channels): the inputs before, and afterwards the last ones
    const float* bias = nullptr;    // (channels), or none
    float* out = nullptr;           // (tokens, channels)
    int64_t tokens = 0, channels = 0, width = 0;
    bool silu = false;  // of the result
};
constexpr int64_t kLineFloats = 16;  // channels of a cache line, which threads should not take from each other

struct DeltaArgs {
    const float *q = nullptr, *k = nullptr;         // (tokens, key_heads, key_dim)
    const float* v = nullptr;                       // (tokens, heads, value_dim)
    const float *alpha = nullptr, *beta = nullptr;  // (tokens, heads)
    const float *a = nullptr, *dt = nullptr;        // (heads)
    float* state = nullptr;                         // (heads, key_dim, value_dim)
    float* out = nullptr;                           // as v
    int64_t tokens = 0, heads = 0, key_heads = 0, key_dim = 0, value_dim = 0;
    bool grouped = false;  // neighbouring heads share a key head; otherwise every key_heads-th does
};

struct ScanArgs {
    const float* x = nullptr;                       // (tokens, heads, head_dim)
    const float *b = nullptr, *c = nullptr;         // (tokens, groups, state_size)
    const float* dt = nullptr;                      // (tokens, heads)
    const float *a = nullptr, *bias = nullptr, *skip = nullptr;  // (heads)
    float* state = nullptr;                         // (heads, state_size, head_dim)
    float* out = nullptr;                           // as x
    int64_t tokens = 0, heads = 0, head_dim = 0, groups = 0, state_size = 0;  // neighbouring heads share a group
};

}  // namespace bitnet
