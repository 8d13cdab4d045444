// A mixture of experts: which of its networks a token goes through, and products with the matrices of these.
#pragma once

#include <string_view>
#include <vector>

#include "ops/linear.hpp"

namespace bitnet {

enum class Gating : int { softmax, softmax_chosen, sigmoid };

Gating gating_of(std::string_view name);  // in families/mixers.py

// How experts are chosen and weighted; Routing in families/blocks.py has the meaning.
struct Routing {
    int64_t count = 0, used = 0, groups = 1, groups_used = 1;
    Gating gating = Gating::softmax;
    bool renormalised = false;
    float scale = 1.0f;
};

void check(const Routing& its);  // std::invalid_argument for one that cannot be

constexpr float kLeastSum = 6.103515625e-5f;  // of weights that are divided by it; llama.cpp has the same

// Numbers of the experts of one token and their weights, `used` each, best first; of equal scores the lower number
// is chosen. *bias* (count,), or null, is added to the scores for the choice alone.
void route(const Routing& its, const float* logits, const float* bias, float* experts, float* weights);

struct ExpertJob {
    const Matrix* matrices = nullptr;  // one for each expert, of one shape
    const float* biases = nullptr;     // (experts, rows) or null
    float* y = nullptr;                // (tokens, used, rows)
};

// Memory of expert_products, which it leaves for the next call.
struct ExpertRoom {
    std::vector<int64_t> begins, order, next;
    Activations inputs;
    std::vector<float> x;
    std::vector<std::vector<float>> y;
};

// What a token is multiplied with.
struct ExpertInput {
    const float* x = nullptr;        // (tokens, cols), or (tokens, used, cols) where they are *apart*
    const float* experts = nullptr;  // (tokens, used), their numbers below *count*
    int64_t tokens = 0, used = 0, count = 0, cols = 0;
    bool apart = false;
};

// Products of every token with the matrices of its experts, on all threads at once. Tokens of an expert are gathered,
// so that its weights are read once; *activations* has the rows of x. *forms*: as Activations::prepare takes them.
void expert_products(const std::vector<ExpertJob>& jobs, const ExpertInput& input, const Activations& activations,
                     const std::vector<Matrix>& forms, ExpertRoom& room);

}  // namespace bitnet
