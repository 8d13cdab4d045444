#include "graph/graph.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "isa/dispatch.hpp"
#include "ops/ops.hpp"
#include "system/split.hpp"

namespace bitnet {
using detail::active;

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

int Graph::add_register(int64_t width, size_t place) {
    registers_.push_back({width, place});
    if (widths_.size() <= place) widths_.resize(place + 1);
    widths_[place] = std::max(widths_[place], width);
    offsets_.assign(widths_.size(), 0);
    std::partial_sum(widths_.begin(), widths_.end() - 1, offsets_.begin() + 1);
    total_width_ = offsets_.back() + widths_.back();
    return int(registers_.size()) - 1;
}

size_t Graph::add_table(const Table& table) {
    tables_.push_back(table);
    return tables_.size() - 1;
}

int64_t Graph::add_context(std::vector<Frequencies> rotations) {
    const std::lock_guard<std::mutex> lock(passes_.get().running);
    contexts_.push_back(std::move(rotations));
    return int64_t(contexts_.size()) - 1;
}

void Graph::add_row(RowFunction function, std::function<void()> before) {
    if (stages_.empty() || stages_.back().whole) stages_.emplace_back();
    stages_.back().rows.push_back(std::move(function));
    if (before) stages_.back().before.push_back(std::move(before));
}

void Graph::add_whole(std::function<void()> function) {
    stages_.emplace_back();
    stages_.back().whole = std::move(function);
}

// The cosines and sines of every row come first, once per pass.
int Graph::add_rotation(int64_t pairs, bool half) {
    const size_t i = rotations_.size();
    rotations_.push_back({pairs, half});
    add_row([this, i, pairs](int64_t row) {
        Turns& to = pass_->turns[i];
        const Row& it = pass_->of_row[size_t(row)];
        const Frequencies& f = contexts_[size_t(segment(it).context)][i];
        auto* angles = reinterpret_cast<double*>(thread_scratch(size_t(pairs) * sizeof(double)));
        for (int64_t p = 0; p < pairs; ++p) angles[p] = double(it.position) * f.of_pair[size_t(p)];
        turns(angles, pairs, f.scale, &to.cos[size_t(row * pairs)], &to.sin[size_t(row * pairs)]);
    });
    return int(i);
}

void Graph::embed(int out, const Matrix& table, float scale) {
    add_row(
        [=](int64_t row) {
            const int64_t id = pass_->of_row[size_t(row)].token;
            float* x = at(out, row);
            float* all = table.cols == table.inputs
                             ? x
                             : reinterpret_cast<float*>(thread_scratch(size_t(table.cols) * sizeof(float)));
            decode_row(table.type, table.data, table.rows, table.cols, id, table.scale, all);
            if (all != x) std::copy(all, all + table.inputs, x);
            if (table.factors)
                for (int64_t i = 0; i < table.inputs; ++i) x[i] *= table.factors[table.n_factors == 1 ? 0 : id];
            if (scale != 1.0f)
                for (int64_t i = 0; i < table.inputs; ++i) x[i] *= scale;
        },
        [=] { count_call(Op::embed, table.type); });
}

void Graph::norm(int out, int x, const float* weight, int64_t size, int64_t parts, float eps) {
    const int64_t group = size / parts;
    add_row(
        [=](int64_t row) {
            for (int64_t i = 0; i < width(x); i += group)
                active().rms_norm(at(x, row) + i, weight + i % size, group, eps, at(out, row) + i);
        },
        [] { count_call(Op::rms_norm); });
}

void Graph::center(int out, int x) {
    add_row([=](int64_t row) {
        const int64_t n = width(x);
        const float* from = at(x, row);
        float* to = at(out, row);
        double sum = 0;
        for (int64_t i = 0; i < n; ++i) sum += double(from[i]);
        const float mean = float(sum / double(n));
        for (int64_t i = 0; i < n; ++i) to[i] = from[i] - mean;
    });
}

void Graph::linear(int x, const std::vector<int>& outs, const std::vector<Matrix>& matrices,
                   const std::vector<const float*>& biases) {
    for (size_t i = 0; i < matrices.size();) {
        size_t end = i + 1;
        const auto shares = [&](size_t j) {
            return std::all_of(matrices.begin() + int64_t(i), matrices.begin() + int64_t(j),
                               [&](const Matrix& m) { return share_input(m, matrices[j]); });
        };
        while (end < matrices.size() && shares(end)) ++end;
        const auto part = [&](const auto& items) {
            return std::decay_t<decltype(items)>(items.begin() + int64_t(i), items.begin() + int64_t(end));
        };
        product(x, part(outs), part(matrices), part(biases));
        i = end;
    }
}

void Graph::product(int x, const std::vector<int>& outs, const std::vector<Matrix>& matrices,
                    const std::vector<const float*>& biases) {
    add_row([=](int64_t row) { pass_->activations.quantize(at(x, row), row); },
            [=] { pass_->activations.prepare(matrices, pass_->rows); });
    add_whole([=] {
        pass_->jobs.clear();
        for (size_t i = 0; i < outs.size(); ++i) pass_->jobs.push_back({matrices[i], biases[i], at(outs[i], 0)});
        linear_group(pass_->jobs, at(x, 0), pass_->rows, pass_->activations);
    });
}

void Graph::split(int x, const std::vector<int>& outs, int64_t groups) {
    add_row([=](int64_t row) {
        const float* from = at(x, row);
        for (int64_t group = 0; group < groups; ++group)
            for (const int out : outs) {
                const int64_t part = width(out) / groups;
                std::copy(from, from + part, at(out, row) + group * part);
                from += part;
            }
    });
}

void Graph::join(int out, const std::vector<int>& parts, int64_t groups) {
    add_row([=](int64_t row) {
        float* to = at(out, row);
        for (int64_t group = 0; group < groups; ++group)
            for (const int x : parts) {
                const int64_t part = width(x) / groups;
                to = std::copy_n(at(x, row) + group * part, part, to);
            }
    });
}

void Graph::transpose(int out, int x, int64_t rows, int64_t columns) {
    add_row([=](int64_t token) {
        const int64_t head = width(x) / (rows * columns);
        const float* from = at(x, token);
        for (int64_t row = 0; row < rows; ++row)
            for (int64_t column = 0; column < columns; ++column, from += head)
                std::copy(from, from + head, at(out, token) + (column * rows + row) * head);
    });
}

void Graph::rotate(int x, int rotation, int64_t head_dim) {
    add_row(
        [=](int64_t row) {
            const Rotation& r = rotations_[size_t(rotation)];
            const Turns& by = pass_->turns[size_t(rotation)];
            RopeArgs a;
            a.x = a.out = at(x, row);
            a.cos = &by.cos[size_t(row * r.pairs)], a.sin = &by.sin[size_t(row * r.pairs)];
            a.heads = width(x) / head_dim, a.head_dim = head_dim, a.rotated = 2 * r.pairs;
            a.half = r.half;
            active().rope(a, 0, 1);
        },
        [] { count_call(Op::rope); });
}

void Graph::temper(int x, double scale, int64_t length) {
    add_row([=](int64_t row) {
        const int64_t times = pass_->of_row[size_t(row)].position / length;
        if (times == 0) return;
        const float by = float(1.0 + scale * std::log(double(1 + times)));
        float* to = at(x, row);
        for (int64_t i = 0; i < width(x); ++i) to[i] *= by;
    });
}

void Graph::attend(int out, int q, int k, int v, size_t table, int64_t place, float scale, float softcap, const float* sinks) {
    const Table its = tables_[table];
    const int64_t offset = place * its.layer_words();
    if (k >= 0) {
        add_row([=](int64_t row) {
            const Row& it = pass_->of_row[size_t(row)];
            int16_t* page = segment(it).pages[table][size_t(it.position / kKeyBlock)];
            active().store_position(at(k, row), at(v, row), its.type, its.kv_heads, its.head_dim, it.position % kKeyBlock,
                                    page + offset);
        });
        // Keys of neighbouring positions share cache lines, which threads should not take from each other.
        stages_.back().multiple = kKeyBlock / 2;
    }
    add_whole([=, selected = selected_] {
        pass_->attention.clear();
        int64_t row = 0;
        for (const Segment& segment : *pass_->segments) {
            const int64_t rows = rows_of(segment, selected);
            if (rows == 0) continue;
            AttentionArgs a;
            a.q = at(q, row), a.out = at(out, row);
            a.pages = segment.pages[table].data(), a.layer_offset = offset, a.kv_type = its.type;
            a.tokens = rows, a.start = segment.start + segment.count - rows;
            a.heads = width(q) / its.head_dim, a.kv_heads = its.kv_heads, a.head_dim = its.head_dim;
            a.scale = scale, a.window = its.window, a.softcap = softcap, a.sinks = sinks;
            pass_->attention.push_back(a);
            row += rows;
        }
        attention(pass_->attention);
    });
}

void Graph::convolve(int out, int x, const float* weight, const float* bias, int64_t kernel, bool silu, int64_t offset) {
    add_whole([=] {
        count_call(Op::convolve);
        int64_t row = 0;
        for (const Segment& segment : *pass_->segments) {
            ConvolveArgs a;
            a.x = at(x, row), a.out = at(out, row), a.weight = weight, a.bias = bias, a.state = segment.state + offset;
            a.silu = silu;
            a.tokens = segment.count, a.channels = width(x), a.width = kernel;
            Split(a.channels, kLineFloats, a.tokens * a.channels < kSerialWork).run([&](int64_t c0, int64_t c1) {
                active().convolve(a, c0, c1);
            });
            row += segment.count;
        }
    });
}

void Graph::delta(const Delta& its) {
    add_whole([=] {
        count_call(Op::delta_rule);
        std::vector<DeltaArgs> all;
        int64_t row = 0;
        for (const Segment& segment : *pass_->segments) {
            DeltaArgs a;
            a.q = at(its.q, row), a.k = at(its.k, row), a.v = at(its.v, row), a.out = at(its.out, row);
            a.alpha = at(its.alpha, row), a.beta = at(its.beta, row), a.a = its.a, a.dt = its.dt;
            a.state = segment.state + its.offset, a.grouped = its.grouped;
            a.tokens = segment.count, a.heads = its.heads, a.key_heads = its.key_heads;
            a.key_dim = width(its.k) / its.key_heads, a.value_dim = width(its.v) / its.heads;
            all.push_back(a);
            row += segment.count;
        }
        parallel_for(int64_t(all.size()) * its.heads,
                     [&](int64_t i) { active().delta_rule(all[size_t(i / its.heads)], i % its.heads); });
    });
}

void Graph::scan(const Scan& its) {
    add_whole([=] {
        count_call(Op::selective_scan);
        std::vector<ScanArgs> all;
        int64_t row = 0;
        for (const Segment& segment : *pass_->segments) {
            ScanArgs a;
            a.x = at(its.x, row), a.b = at(its.b, row), a.c = at(its.c, row), a.dt = at(its.dt, row);
            a.out = at(its.out, row), a.a = its.a, a.bias = its.bias, a.skip = its.skip;
            a.state = segment.state + its.offset, a.tokens = segment.count;
            a.heads = its.heads, a.head_dim = width(its.x) / its.heads;
            a.groups = its.groups, a.state_size = width(its.b) / its.groups;
            all.push_back(a);
            row += segment.count;
        }
        parallel_for(int64_t(all.size()) * its.heads,
                     [&](int64_t i) { active().selective_scan(all[size_t(i / its.heads)], i % its.heads); });
    });
}

void Graph::gate(int out, int g, int up, Gate kind) {
    add_row([=](int64_t row) { active().gate(kind, at(g, row), at(up, row), width(out), at(out, row)); },
            [] { count_call(Op::gate); });
}

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

void Graph::hadamard(int out, int x, const float* signs, int64_t block, bool inverse) {
    const float scale = float(1.0 / std::sqrt(double(block)));
    add_row([=](int64_t row) {
        const float* from = at(x, row);
        float* to = at(out, row);
        const int64_t cols = width(x);
        for (int64_t i = 0; i < cols; ++i) to[i] = inverse ? from[i] : signs[i] * from[i];
        for (int64_t begin = 0; begin < cols; begin += block)
            for (int64_t apart = 1; apart < block; apart *= 2)
                for (int64_t pair = begin; pair < begin + block; pair += 2 * apart)
                    for (int64_t i = pair; i < pair + apart; ++i) {
                        const float a = to[i], b = to[i + apart];
                        to[i] = a + b, to[i + apart] = a - b;
                    }
        for (int64_t i = 0; i < cols; ++i) to[i] *= scale;
        if (inverse)
            for (int64_t i = 0; i < cols; ++i) to[i] *= signs[i];
    });
}

void Graph::add(int x, int y) {
    add_row([=](int64_t row) {
        float* to = at(x, row);
        const float* from = at(y, row);
        for (int64_t i = 0; i < width(x); ++i) to[i] += from[i];
    });
}

void Graph::scale(int x, const float* weight, int64_t count) {
    add_row([=](int64_t row) {
        float* to = at(x, row);
        for (int64_t i = 0; i < width(x); ++i) to[i] *= weight[count == 1 ? 0 : i];
    });
}

void Graph::select(const std::vector<int>& registers) {
    selected_ = true;
    add_whole([=] {
        Pass& pass = *pass_;
        int64_t end = 0, kept = 0;
        for (const Segment& segment : *pass.segments) {
            end += segment.count;
            const int64_t first = end - segment.outputs;
            const auto move = [&](float* all, int64_t width) {
                std::memmove(all + kept * width, all + first * width, size_t(segment.outputs * width) * sizeof(float));
            };
            for (const int r : registers) move(at(r, 0), width(r));
            for (size_t i = 0; i < rotations_.size(); ++i)
                move(pass.turns[i].cos.data(), rotations_[i].pairs), move(pass.turns[i].sin.data(), rotations_[i].pairs);
            std::copy_n(pass.of_row.begin() + first, segment.outputs, pass.of_row.begin() + kept);
            kept += segment.outputs;
        }
        pass.rows = kept;
    });
}

void Graph::start(const int64_t* tokens, const std::vector<Segment>& segments) {
    Pass& pass = *pass_;
    pass.segments = &segments;
    pass.of_row.clear();
    for (size_t s = 0; s < segments.size(); ++s)
        for (int64_t i = 0; i < segments[s].count; ++i)
            pass.of_row.push_back({int64_t(s), segments[s].start + i, *tokens++});
    pass.rows = pass.room = int64_t(pass.of_row.size());
    if (pass.capacity < pass.room) {
        pass.memory.reset(new float[size_t(pass.room * total_width_)]);
        pass.capacity = pass.room;
    }
    pass.turns.resize(rotations_.size());
    for (size_t i = 0; i < rotations_.size(); ++i) {
        pass.turns[i].cos.resize(size_t(pass.rows * rotations_[i].pairs));
        pass.turns[i].sin.resize(size_t(pass.rows * rotations_[i].pairs));
    }
}

void Graph::run_rows(const Stage& stage) {
    for (const auto& once : stage.before) once();
    const int64_t rows = pass_->rows;
    Split(rows, stage.multiple, rows * total_width_ < kSerialWork).run([&](int64_t r0, int64_t r1) {
        for (int64_t row = r0; row < r1; ++row)
            for (const RowFunction& function : stage.rows) function(row);
    });
}

void Graph::run(const int64_t* tokens, const std::vector<Segment>& segments, int result, float* out) {
    Pass& pass = passes_.get();
    const std::lock_guard<std::mutex> lock(pass.running);
    pass_ = &pass;
    wake_threads();
    start(tokens, segments);
    for (const Stage& stage : stages_) {
        if (pass.rows == 0) return;
        if (stage.whole) stage.whole();
        else run_rows(stage);
    }
    std::copy(at(result, 0), at(result, pass.rows), out);
}

}  // namespace bitnet
