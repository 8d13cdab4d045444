// Rounding rows of floats to blocks, with the bytes that llama-quantize writes on x86-64.
#pragma once

#include <cstdint>

namespace bitnet {

// Rounds one row of *cols* floats to *out*. *importance* has a weight for the square of each column's error, or is null.
using RowQuantizer = void (*)(const float* x, const float* importance, int64_t cols, uint8_t* out);

// Blocks of *weights* weights in *bytes* bytes, of the type that ggml numbers *ggml_id*.
struct Quantizer {
    int ggml_id, weights, bytes;
    RowQuantizer row;
};

// The quantizer of a type, or null.
const Quantizer* find_quantizer(int ggml_id);

// Rounds *rows* rows on all threads; *cols* is a multiple of the block.
void quantize_rows(const Quantizer& its, const float* x, const float* importance, int64_t rows, int64_t cols,
                   uint8_t* out);

}  // namespace bitnet
