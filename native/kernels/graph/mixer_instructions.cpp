// Adds the instructions of layers with a state of fixed size, and of mixtures of experts, to the
// stages of a graph. instructions.cpp has all others.
#include <numeric>

#include "graph/operands.hpp"
#include "system/thread_pool.hpp"

namespace bitnet {
using detail::active;

namespace {

// One matrix of each type and width among *matrices*: an input is rounded once for each of these.
std::vector<Matrix> input_forms(const std::vector<std::vector<Matrix>>& matrices) {
    std::vector<Matrix> forms;
    for (const auto& experts : matrices) {
        for (const Matrix& m : experts) {
            const auto same_form = [&](const Matrix& form) {
                return form.type == m.type && form.cols == m.cols;
            };
            if (std::none_of(forms.begin(), forms.end(), same_form)) forms.push_back(m);
        }
    }
    return forms;
}

}  // namespace

void Graph::convolve(const Operands& operands) {
    const int out = reg(operands, "out");
    const int x = reg(operands, "x");
    const std::vector<FloatArray> weights = operands.arrays("weights");
    require(!weights.empty() && weights[0].data, "a convolution must have weights");
    FloatArray weight = weights[0];
    if (weights.size() > 1) {  // each has the kernels of neighbouring channels
        std::vector<float>& all = joined_.emplace_back();
        for (const FloatArray& part : weights)
            all.insert(all.end(), part.data, part.data + part.size);
        weight = {all.data(), int64_t(all.size())};
    }
    ConvolveArgs same;
    same.channels = width(x);
    same.width = weight.size / same.channels;
    same.weight = weight.data;
    same.silu = operands.integer("silu") != 0;
    require(same.width > 0 && weight.size == same.width * same.channels &&
                width(out) == same.channels && out != x,
            "the convolution has another width");
    same.bias = floats(operands, "bias", same.channels, "the bias has another width");
    const int64_t offset = state_offset(operands, (same.width - 1) * same.channels, true);
    add_whole([=](Pass& pass) {
        count_call(Op::convolve);
        each_segment(pass, false, [&](const Segment& segment, int64_t row, int64_t tokens) {
            ConvolveArgs a = same;
            a.x = at(pass, x, row);
            a.out = at(pass, out, row);
            a.state = segment.state + offset;
            a.tokens = tokens;
            Split(a.channels, kLineFloats, a.tokens * a.channels < kSerialWork)
                .run([&](int64_t c0, int64_t c1) { active().convolve(a, c0, c1); });
        });
    });
}

template <class Args, class Fill>
void Graph::add_recurrence(Op op, const Args& same, int64_t offset,
                           void (*Kernels::*kernel)(const Args&, int64_t), Fill fill) {
    add_whole([=](Pass& pass) {
        count_call(op);
        std::vector<Args> all;
        each_segment(pass, false, [&](const Segment& segment, int64_t row, int64_t tokens) {
            Args& a = all.emplace_back(same);
            a.state = segment.state + offset;
            a.tokens = tokens;
            fill(pass, a, row);
        });
        parallel_for(int64_t(all.size()) * same.heads, [&](int64_t i) {
            (active().*kernel)(all[size_t(i / same.heads)], i % same.heads);
        });
    });
}

void Graph::delta_rule(const Operands& operands) {
    const int out = reg(operands, "out");
    const int q = reg(operands, "q");
    const int k = reg(operands, "k");
    const int v = reg(operands, "v");
    const int alpha = reg(operands, "alpha");
    const int beta = reg(operands, "beta");
    constexpr const char* kPerHead =
        "a must have one number per head, alpha and dt one per head or per key dimension";
    DeltaArgs same;
    same.heads = width(beta);
    same.decays = width(alpha) / same.heads;
    same.strength = operands.real("strength");
    same.floor = operands.real("floor");
    same.key_heads = operands.integer("key_heads");
    same.grouped = operands.integer("grouped") != 0;
    same.a = required(operands, "a", same.heads, kPerHead);
    same.dt = required(operands, "dt", width(alpha), kPerHead);
    require(width(alpha) == same.heads * same.decays, kPerHead);
    require(same.key_heads > 0 && same.heads % same.key_heads == 0 &&
                width(k) % same.key_heads == 0 && width(q) == width(k),
            "queries and keys are those of other heads");
    require(
        width(v) % same.heads == 0 && width(out) == width(v) && out != v && out != q && out != k,
        "values or results are those of other heads");
    same.key_dim = width(k) / same.key_heads;
    require(same.decays == 1 || same.decays == same.key_dim,
            "a head must have one decay, or one for each row of its state");
    same.value_dim = width(v) / same.heads;
    add_recurrence(Op::delta_rule, same, state_offset(operands, same.key_dim * width(v), false),
                   &Kernels::delta_rule, [=](Pass& pass, DeltaArgs& a, int64_t row) {
                       a.q = at(pass, q, row);
                       a.k = at(pass, k, row);
                       a.v = at(pass, v, row);
                       a.out = at(pass, out, row);
                       a.alpha = at(pass, alpha, row);
                       a.beta = at(pass, beta, row);
                   });
}

void Graph::selective_scan(const Operands& operands) {
    const int out = reg(operands, "out");
    const int x = reg(operands, "x");
    const int b = reg(operands, "b");
    const int c = reg(operands, "c");
    const int dt = reg(operands, "dt");
    constexpr const char* kPerHead =
        "dt, bias and skip must have one number per head, a one per head or per state";
    ScanArgs same;
    same.heads = width(dt);
    same.groups = operands.integer("groups");
    const FloatArray a = operands.arrays("a").at(0);
    same.a = a.data;
    same.decays = a.size / same.heads;
    require(a.data && a.size == same.heads * same.decays, kPerHead);
    same.bias = floats(operands, "bias", same.heads, kPerHead);
    same.skip = required(operands, "skip", same.heads, kPerHead);
    require(same.groups > 0 && same.heads % same.groups == 0 && width(b) % same.groups == 0 &&
                width(b) == width(c),
            "b and c are those of other groups");
    require(
        width(x) % same.heads == 0 && width(out) == width(x) && out != x && out != b && out != c,
        "x or results are those of other heads");
    same.head_dim = width(x) / same.heads;
    same.state_size = width(b) / same.groups;
    require(same.decays == 1 || same.decays == same.state_size, kPerHead);
    add_recurrence(Op::selective_scan, same,
                   state_offset(operands, same.state_size * width(x), false),
                   &Kernels::selective_scan, [=](Pass& pass, ScanArgs& a, int64_t row) {
                       a.x = at(pass, x, row);
                       a.b = at(pass, b, row);
                       a.c = at(pass, c, row);
                       a.dt = at(pass, dt, row);
                       a.out = at(pass, out, row);
                   });
}

void Graph::route(const Operands& operands) {
    const int experts = reg(operands, "experts");
    const int weights = reg(operands, "weights");
    const int logits = reg(operands, "logits");
    const Routing by{width(logits),
                     width(experts),
                     operands.integer("groups"),
                     operands.integer("groups_used"),
                     gating_of(operands.text("gating")),
                     operands.integer("renormalised") != 0,
                     operands.real("scale"),
                     operands.real("nearness")};
    bitnet::check(by);
    require(width(weights) == by.used && experts != weights,
            "each chosen expert must have one weight");
    const float* bias = floats(operands, "bias", by.count, "each expert must have one bias");
    experts_behind_[experts] = by.count;
    add_row([=](Pass& pass, int64_t row) {
        bitnet::route(by, at(pass, logits, row), bias, at(pass, experts, row),
                      at(pass, weights, row));
    });
}

void Graph::enumerate(const Operands& operands) {
    const int experts = reg(operands, "experts");
    experts_behind_[experts] = width(experts);
    add_row([=](Pass& pass, int64_t row) {
        std::iota(at(pass, experts, row), at(pass, experts, row) + width(experts), 0.0f);
    });
}

void Graph::expert_linear(const Operands& operands) {
    const int x = reg(operands, "x");
    const int experts = reg(operands, "experts");
    const std::vector<int> outs = regs(operands, "outs");
    const bool apart = operands.integer("apart") != 0;
    require(experts_behind_.count(experts) > 0, "no instruction chooses these experts");
    const int64_t count = experts_behind_[experts];
    const int64_t used = width(experts);
    const int64_t parts = apart ? used : 1;
    require(width(x) % parts == 0, "each expert of a token must have an input of the same width");
    const auto matrices = operands.matrices("weights");
    require(matrices.size() == outs.size(), "lists differ in length");
    std::vector<int64_t> sizes;
    for (size_t i = 0; i < outs.size(); ++i) {
        const int64_t rows = width(outs[i]) / used;
        require(rows * used == width(outs[i]) && outs[i] != x,
                "each expert of a token must have a result of the same width");
        require(int64_t(matrices[i].size()) == count, "each expert must have one matrix");
        for (const Matrix& m : matrices[i])
            require(share_input(shaped(m, width(x) / parts, rows), matrices[i][0]),
                    "the experts of a layer do not share a form of their input");
        sizes.push_back(count * rows);
    }
    products(x, experts, outs, matrices, biases(operands, sizes), apart);
}

void Graph::products(int x, int experts, const std::vector<int>& outs,
                     const std::vector<std::vector<Matrix>>& matrices,
                     const std::vector<const float*>& biases, bool apart) {
    const std::vector<Matrix> forms = input_forms(matrices);
    if (outs.size() > 1 && !share_inputs(forms)) {
        for (size_t i = 0; i < outs.size(); ++i)
            products(x, experts, {outs[i]}, {matrices[i]}, {biases[i]}, apart);
        return;
    }
    const int64_t used = width(experts);
    const int64_t parts = apart ? used : 1;
    const int64_t cols = width(x) / parts;
    add_row(
        [=](Pass& pass, int64_t row) {
            for (int64_t part = 0; part < parts; ++part)
                pass.activations.quantize(at(pass, x, row) + part * cols, row * parts + part);
        },
        [=](Pass& pass) { pass.activations.prepare(forms, pass.rows * parts); });
    add_whole([=](Pass& pass) {
        pass.expert_jobs.clear();
        for (size_t i = 0; i < outs.size(); ++i)
            pass.expert_jobs.push_back({matrices[i].data(), biases[i], at(pass, outs[i], 0)});
        const ExpertInput input{at(pass, x, 0), at(pass, experts, 0),        pass.rows,
                                used,           int64_t(matrices[0].size()), cols,
                                apart};
        expert_products(pass.expert_jobs, input, pass.activations, forms, pass.expert_room);
    });
}

void Graph::combine(const Operands& operands) {
    const int out = reg(operands, "out");
    const int x = reg(operands, "x");
    const int weights = reg(operands, "weights");
    require(width(x) == width(out) * width(weights) && out != x,
            "each weight must have a part of the result's width");
    const float* bias = floats(operands, "bias", width(out), "the bias has another width");
    add_row([=](Pass& pass, int64_t row) {
        const int64_t n = width(out);
        const int64_t parts = width(weights);
        const float* from = at(pass, x, row);
        const float* weight = at(pass, weights, row);
        float* to = at(pass, out, row);
        for (int64_t i = 0; i < n; ++i) to[i] = from[i] * weight[0];
        for (int64_t part = 1; part < parts; ++part)
            for (int64_t i = 0; i < n; ++i) to[i] += from[part * n + i] * weight[part];
        if (bias)
            for (int64_t i = 0; i < n; ++i) to[i] += bias[i];
    });
}

void Graph::blend(const Operands& operands) {
    const int out = reg(operands, "out");
    const int x = reg(operands, "x");
    const int y = reg(operands, "y");
    const float x_share = operands.real("x_share");
    const float y_share = operands.real("y_share");
    require(width(x) == width(y) && width(out) == width(x), "widths differ");
    add_row([=](Pass& pass, int64_t row) {
        const float* first = at(pass, x, row);
        const float* second = at(pass, y, row);
        float* to = at(pass, out, row);
        for (int64_t i = 0; i < width(x); ++i) to[i] = first[i] * x_share + second[i] * y_share;
    });
}

// Scales x to the magnitude of like.
void Graph::match_magnitude(const Operands& operands) {
    const int out = reg(operands, "out");
    const int x = reg(operands, "x");
    const int like = reg(operands, "like");
    const double eps = operands.number("eps");
    require(width(x) == width(like) && width(out) == width(x) && out != like, "widths differ");
    require(eps > 0.0, "the least mean square must be above 0");
    const auto mean_square = [](const float* from, int64_t n) {
        double sum = 0.0;
        for (int64_t i = 0; i < n; ++i) sum += double(from[i]) * double(from[i]);
        return sum / double(n);
    };
    add_row(
        [=](Pass& pass, int64_t row) {
            const int64_t n = width(x);
            const float* from = at(pass, x, row);
            const double own = mean_square(from, n);
            const double wanted = mean_square(at(pass, like, row), n);
            const float factor = float(std::sqrt(wanted) / std::sqrt(own < eps ? eps : own));
            float* to = at(pass, out, row);
            for (int64_t i = 0; i < n; ++i) to[i] = from[i] * factor;
        },
        [](Pass&) { count_call(Op::rms_norm); });
}

void Graph::cutoff(const Operands& operands) {
    const int out = reg(operands, "out");
    const int x = reg(operands, "x");
    const double deviations = operands.number("deviations");
    require(width(out) == width(x), "widths differ");
    add_row(
        [=](Pass& pass, int64_t row) {
            const int64_t n = width(x);
            const float* from = at(pass, x, row);
            const double mean = std::accumulate(from, from + n, 0.0) / double(n);
            double squares = 0.0;
            for (int64_t i = 0; i < n; ++i) {
                const double distance = double(from[i]) - mean;
                squares += distance * distance;
            }
            const float least = float(mean + std::sqrt(squares / double(n)) * deviations);
            float* to = at(pass, out, row);
            for (int64_t i = 0; i < n; ++i) {
                const float above = from[i] - least;
                to[i] = above < 0.0f ? 0.0f : above;
            }
        },
        [](Pass&) { count_call(Op::gate); });
}

}  // namespace bitnet
