// Reads operands of an instruction and checks their sizes.
#pragma once

#include "graph/graph.hpp"

namespace bitnet {

// The floats of *field*, or null if it has no value; throws with the message *otherwise* if their
// number is not *size*.
inline const float* floats(const Operands& operands, const char* field, int64_t size,
                           const char* otherwise) {
    const FloatArray array = operands.arrays(field).at(0);
    require(!array.data || array.size == size, otherwise);
    return array.data;
}

// The same of a field that must have a value.
inline const float* required(const Operands& operands, const char* field, int64_t size,
                             const char* otherwise) {
    const float* data = floats(operands, field, size, otherwise);
    require(data != nullptr, otherwise);
    return data;
}

// *m*; throws if its shape is not (rows, inputs).
inline Matrix shaped(const Matrix& m, int64_t inputs, int64_t rows) {
    require(m.inputs == inputs && m.inputs <= m.cols && m.rows == rows,
            "the matrix has another shape than its registers");
    return m;
}

// Whether products of all *matrices* can share one rounding of their input.
inline bool share_inputs(const std::vector<Matrix>& matrices) {
    return std::all_of(matrices.begin(), matrices.end(), [&](const Matrix& a) {
        return std::all_of(matrices.begin(), matrices.end(),
                           [&](const Matrix& b) { return share_input(a, b); });
    });
}

}  // namespace bitnet
