// Products of the same input with one or several matrices: the input is rounded once, and the
// threads wait for each other once.
#pragma once

#include <string_view>

#include "isa/kernels.hpp"

namespace bitnet {

// A packed matrix in memory of the caller.
struct Matrix {
    Type type = Type::F32;
    const uint8_t* data = nullptr;
    int64_t rows = 0, cols = 0;      // cols: a whole number of blocks
    int64_t inputs = 0;              // columns in the model; those behind them are zero weights
    float scale = 1.0f;              // ternary: of all weights
    const float* factors = nullptr;  // factors on the outputs, or null
    int64_t n_factors = 0;           // 1 or rows
};

struct LinearJob {
    Matrix matrix;
    const float* bias = nullptr;  // (rows,) or null
    float* y = nullptr;           // (tokens, rows)
};

// Rows of an input, rounded to int8 in the forms that the kernels of block, ternary and grouped
// encodings read.
class Activations {
public:
    // Room for *tokens* rows in the forms that *matrices* read.
    void prepare(const std::vector<Matrix>& matrices, int64_t tokens);
    // Fills row *t* from *x*, `inputs` floats. Rows may be filled by several threads at once.
    void quantize(const float* x, int64_t t);
    // Row *t* is row *from* of *other*, which was prepared for the same matrices.
    void take(const Activations& other, int64_t from, int64_t t);
    // Makes *args* read these rows.
    void point(LinearArgs& args) const;

private:
    // Rows with a step per token, or per run of 32 columns.
    struct Rounded {
        int64_t cols = 0;  // 0: no matrix reads this form
        std::vector<int8_t> q;
        std::vector<float> step;
        std::vector<int32_t> sums;
        void make_room(int64_t tokens, int64_t steps);
        void take(const Rounded& other, int64_t from, int64_t t, int64_t steps);
    };
    int64_t block_cols_ = 0;  // 0: no matrix reads blocks
    std::vector<BlockInput> blocks_;
    Rounded tokens_, runs_;
    int64_t inputs_ = 0;
};

// Whether products with *a* and *b* can share Activations: they do not need the same form of the
// input in two widths.
bool share_input(const Matrix& a, const Matrix& b);

// One product, of an input whose rows are quantized already.
struct LinearCall {
    LinearCall(const LinearJob& job, const float* x, int64_t tokens,
               const Activations& activations);
    void run(int64_t r0, int64_t r1) const;  // writes rows [r0, r1) of the result to args.y

    LinearArgs args;
    LinearKernel kernel;
    LinearJob job;
};

// job.y (tokens, rows) = x (tokens, cols) * matrix^T * factors + bias for every job, from an input
// whose rows are quantized already.
void linear_group(const std::vector<LinearJob>& jobs, const float* x, int64_t tokens,
                  const Activations& activations);

// The same for one job, quantization included.
void linear(const LinearJob& job, const float* x, int64_t tokens);

// ---- mixtures of experts: the choice of a token's experts, and products with their matrices

enum class Gating : int { softmax, softmax_chosen, sigmoid, sparse };

Gating gating_of(std::string_view name);  // by its name in families/network_mixers.py

// How experts are chosen and weighted, as explained at Routing in families/network_mixers.py.
struct Routing {
    int64_t count = 0, used = 0, groups = 1, groups_used = 1;
    Gating gating = Gating::softmax;
    bool renormalised = false;
    float scale = 1.0f;
    // Gating::sparse: the softmax is over the logits within this relative distance of the best one
    float nearness = 0.0f;
};

// Throws std::invalid_argument if the numbers of *routing* contradict each other.
void check(const Routing& routing);

// Weights are divided by their sum, but at least by this, 2^-14, as in llama.cpp.
constexpr float kLeastSum = 6.103515625e-5f;

// Writes the numbers of the experts of one token and their weights, `used` each, best first; of
// equal scores the lower number is chosen. *bias*, (count,) or null, counts only for the choice: it
// is added to the scores there.
void route(const Routing& routing, const float* logits, const float* bias, float* experts,
           float* weights);

struct ExpertJob {
    const Matrix* matrices = nullptr;  // one for each expert, of one shape
    const float* biases = nullptr;     // (experts, rows) or null
    float* y = nullptr;                // (tokens, used, rows)
};

// Memory of expert_products, which is kept from one call to the next.
struct ExpertRoom {
    std::vector<int64_t> begins, order, next;
    Activations inputs;
    std::vector<float> x;
    std::vector<std::vector<float>> y;
};

// Inputs of expert_products.
struct ExpertInput {
    const float* x = nullptr;        // (tokens, cols), or (tokens, used, cols) if *apart*
    const float* experts = nullptr;  // (tokens, used), numbers below *count*
    int64_t tokens = 0, used = 0, count = 0, cols = 0;
    bool apart = false;  // each expert of a token has an input of its own
};

// Products of every token with the matrices of its experts, on all threads at once. Tokens of an
// expert are gathered, so that its weights are read once. *activations* has the rows of x, *forms*
// the matrices for which they were prepared.
void expert_products(const std::vector<ExpertJob>& jobs, const ExpertInput& input,
                     const Activations& activations, const std::vector<Matrix>& forms,
                     ExpertRoom& room);

}  // namespace bitnet
