// Instructions of a mixture of experts.
#include <algorithm>
#include <numeric>

#include "graph/graph.hpp"

namespace bitnet {
namespace {

// One matrix of each form among *matrices*, as their inputs are rounded.
std::vector<Matrix> forms_of(const std::vector<std::vector<Matrix>>& matrices) {
    std::vector<Matrix> forms;
    for (const auto& experts : matrices)
        for (const Matrix& m : experts)
            if (std::none_of(forms.begin(), forms.end(),
                             [&](const Matrix& form) { return form.type == m.type && form.cols == m.cols; }))
                forms.push_back(m);
    return forms;
}

bool share_inputs(const std::vector<Matrix>& forms) {
    return std::all_of(forms.begin(), forms.end(), [&](const Matrix& a) {
        return std::all_of(forms.begin(), forms.end(), [&](const Matrix& b) { return share_input(a, b); });
    });
}

}  // namespace

void Graph::route(int experts, int weights, int logits, const float* bias, const Routing& its) {
    add_row([=](int64_t row) { bitnet::route(its, at(logits, row), bias, at(experts, row), at(weights, row)); });
}

void Graph::enumerate(int experts) {
    add_row([=](int64_t row) { std::iota(at(experts, row), at(experts, row) + width(experts), 0.0f); });
}

void Graph::expert_linear(int x, int experts, const std::vector<int>& outs,
                          const std::vector<std::vector<Matrix>>& matrices, const std::vector<const float*>& biases,
                          bool apart) {
    const std::vector<Matrix> forms = forms_of(matrices);
    if (outs.size() > 1 && !share_inputs(forms)) {
        for (size_t i = 0; i < outs.size(); ++i) expert_linear(x, experts, {outs[i]}, {matrices[i]}, {biases[i]}, apart);
        return;
    }
    const int64_t used = width(experts), parts = apart ? used : 1, cols = width(x) / parts;
    add_row(
        [=](int64_t row) {
            for (int64_t part = 0; part < parts; ++part)
                pass_->activations.quantize(at(x, row) + part * cols, row * parts + part);
        },
        [=] { pass_->activations.prepare(forms, pass_->rows * parts); });
    add_whole([=] {
        pass_->expert_jobs.clear();
        for (size_t i = 0; i < outs.size(); ++i) pass_->expert_jobs.push_back({matrices[i].data(), biases[i], at(outs[i], 0)});
        ExpertInput input;
        input.x = at(x, 0), input.experts = at(experts, 0);
        input.tokens = pass_->rows, input.used = used, input.count = int64_t(matrices[0].size());
        input.cols = cols, input.apart = apart;
        expert_products(pass_->expert_jobs, input, pass_->activations, forms, pass_->expert_room);
    });
}

void Graph::combine(int out, int x, int weights) {
    add_row([=](int64_t row) {
        const int64_t n = width(out), parts = width(weights);
        const float *from = at(x, row), *weight = at(weights, row);
        float* to = at(out, row);
        for (int64_t i = 0; i < n; ++i) to[i] = from[i] * weight[0];
        for (int64_t part = 1; part < parts; ++part)
            for (int64_t i = 0; i < n; ++i) to[i] += from[part * n + i] * weight[part];
    });
}

}  // namespace bitnet
