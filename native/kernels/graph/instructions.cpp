// How each instruction of a program becomes a part of a graph, and what it requires of its operands.
#include <numeric>

#include "graph/graph.hpp"
#include "system/thread_pool.hpp"

namespace bitnet {
using detail::active;

namespace {

const float* floats(const Operands& its, const char* field, int64_t size, const char* otherwise) {
    const FloatArray array = its.arrays(field).at(0);
    require(!array.data || array.size == size, otherwise);
    return array.data;
}

// The same where there must be one.
const float* required(const Operands& its, const char* field, int64_t size, const char* otherwise) {
    const float* data = floats(its, field, size, otherwise);
    require(data != nullptr, otherwise);
    return data;
}

Matrix shaped(const Matrix& m, int64_t inputs, int64_t rows) {
    require(m.inputs == inputs && m.inputs <= m.cols && m.rows == rows, "the matrix has another shape than its registers");
    return m;
}

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

bool share_inputs(const std::vector<Matrix>& matrices) {
    return std::all_of(matrices.begin(), matrices.end(), [&](const Matrix& a) {
        return std::all_of(matrices.begin(), matrices.end(), [&](const Matrix& b) { return share_input(a, b); });
    });
}

}  // namespace

namespace {

// Row *id* of a *table* of embeddings.
void read_row(const Matrix& table, int64_t id, float* x) {
    float* all = table.cols == table.inputs
                     ? x
                     : reinterpret_cast<float*>(thread_scratch(size_t(table.cols) * sizeof(float)));
    decode_row(table.type, table.data, table.rows, table.cols, id, table.scale, all);
    if (all != x) std::copy(all, all + table.inputs, x);
    if (table.factors)
        for (int64_t i = 0; i < table.inputs; ++i) x[i] *= table.factors[table.n_factors == 1 ? 0 : id];
}

}  // namespace

void Graph::embed(const Operands& its) {
    const int out = reg(its, "out");
    const Matrix given = its.matrices("table").at(0).at(0), table = shaped(given, width(out), given.rows);
    const float scale = its.real("scale");
    vocabulary_ = vocabulary_ == 0 ? table.rows : std::min(vocabulary_, table.rows);
    add_row(
        [=](int64_t row) {
            const int64_t id = pass_->of_row[size_t(row)].token;
            float* x = at(out, row);
            read_row(table, id, x);
            if (scale != 1.0f)
                for (int64_t i = 0; i < table.inputs; ++i) x[i] *= scale;
        },
        [=] { count_call(Op::embed, table.type); });
}

void Graph::lookup(const Operands& its) {
    const int out = reg(its, "out");
    const Matrix given = its.matrices("table").at(0).at(0), table = shaped(given, width(out), given.rows);
    const bool by_position = its.text("by") == "position";
    require(by_position || its.text("by") == "text", "rows of a table by something unknown");
    if (by_position) positions_ = std::min(positions_, table.rows);
    add_row(
        [=](int64_t row) {
            const Row& it = pass_->of_row[size_t(row)];
            const int64_t text = it.position >= segment(it).second ? 1 : 0;
            read_row(table, by_position ? it.position : std::min(text, table.rows - 1), at(out, row));
        },
        [=] { count_call(Op::embed, table.type); });
}

void Graph::take(const Operands& its) {
    const int out = reg(its, "out");
    const int64_t offset = taken_;
    require(!selected_, "rows are taken for all tokens");
    taken_ += width(out);
    add_row([=](int64_t row) {
        const Row& it = pass_->of_row[size_t(row)];
        const Segment& own = segment(it);
        std::copy_n(own.given.data + (it.position - own.start) * taken_ + offset, width(out), at(out, row));
    });
}

void Graph::norm(const Operands& its) {
    const int out = reg(its, "out"), x = reg(its, "x");
    const int64_t parts = its.integer("parts");
    FloatArray weight = its.arrays("weight").at(0);
    if (!weight.data) {
        ones_.emplace_back(size_t(checked(its.integer("width"))), 1.0f);
        weight = {ones_.back().data(), int64_t(ones_.back().size())};
    }
    require(weight.size > 0 && parts > 0 && weight.size % parts == 0 && width(x) % weight.size == 0 && width(x) == width(out),
            "the norm has another width");
    const int64_t group = weight.size / parts;
    const float eps = its.real("eps");
    const float* bias = floats(its, "bias", weight.size, "the bias has another width");
    add_row(
        [=](int64_t row) {
            for (int64_t i = 0; i < width(x); i += group)
                active().rms_norm(at(x, row) + i, weight.data + i % weight.size, group, eps, at(out, row) + i);
            float* to = at(out, row);
            for (int64_t i = 0; bias && i < width(x); ++i) to[i] += bias[i % weight.size];
        },
        [] { count_call(Op::rms_norm); });
}

void Graph::center(const Operands& its) {
    const int out = reg(its, "out"), x = reg(its, "x");
    require(width(out) == width(x), "widths differ");
    const int64_t own = its.integer("width"), group = own > 0 ? own : width(x);
    require(width(x) % group == 0, "the groups are not whole");
    add_row([=](int64_t row) {
        const int64_t n = width(x);
        const float* from = at(x, row);
        float* to = at(out, row);
        for (int64_t begin = 0; begin < n; begin += group) {
            const float mean = float(std::accumulate(from + begin, from + begin + group, 0.0) / double(group));
            for (int64_t i = begin; i < begin + group; ++i) to[i] = from[i] - mean;
        }
    });
}

void Graph::linear(const Operands& its) {
    const int x = reg(its, "x");
    const std::vector<int> outs = regs(its, "outs");
    std::vector<int64_t> widths;
    for (const int out : outs) widths.push_back(width(out));
    const std::vector<const float*> bias = biases(its, widths);
    const auto given = its.matrices("weights");
    require(given.size() == outs.size(), "lists differ in length");
    std::vector<Matrix> matrices;
    for (size_t i = 0; i < outs.size(); ++i) matrices.push_back(shaped(given[i].at(0), width(x), widths[i]));
    for (size_t begin = 0, end = 0; begin < outs.size(); begin = end) {
        const auto part = [&](const auto& items) {
            return std::decay_t<decltype(items)>(items.begin() + int64_t(begin), items.begin() + int64_t(end));
        };
        do ++end;
        while (end < outs.size() && share_inputs({matrices.begin() + int64_t(begin), matrices.begin() + int64_t(end) + 1}));
        product(x, part(outs), part(matrices), part(bias));
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

void Graph::split(const Operands& its) {
    const int x = reg(its, "x");
    const std::vector<int> outs = groups(its, "outs", "x");
    const int64_t count = its.integer("groups");
    add_row([=](int64_t row) {
        const float* from = at(x, row);
        for (int64_t group = 0; group < count; ++group)
            for (const int out : outs) {
                const int64_t part = width(out) / count;
                std::copy(from, from + part, at(out, row) + group * part);
                from += part;
            }
    });
}

void Graph::join(const Operands& its) {
    const int out = reg(its, "out");
    const std::vector<int> parts = groups(its, "parts", "out");
    const int64_t count = its.integer("groups");
    add_row([=](int64_t row) {
        float* to = at(out, row);
        for (int64_t group = 0; group < count; ++group)
            for (const int x : parts) {
                const int64_t part = width(x) / count;
                to = std::copy_n(at(x, row) + group * part, part, to);
            }
    });
}

void Graph::transpose(const Operands& its) {
    const int out = reg(its, "out"), x = reg(its, "x");
    const int64_t rows = checked(its.integer("rows")), columns = checked(its.integer("columns"));
    require(width(x) % (rows * columns) == 0, "the heads make no table");
    require(width(out) == width(x) && out != x, "widths differ");
    add_row([=](int64_t token) {
        const int64_t head = width(x) / (rows * columns);
        const float* from = at(x, token);
        for (int64_t row = 0; row < rows; ++row)
            for (int64_t column = 0; column < columns; ++column, from += head)
                std::copy(from, from + head, at(out, token) + (column * rows + row) * head);
    });
}

void Graph::rotate(const Operands& its) {
    const int out = reg(its, "out"), x = reg(its, "x");
    const int64_t rotation = its.integer("rotation"), head_dim = checked(its.integer("head_dim"));
    require(rotation >= 0 && rotation < int64_t(rotations_.size()), "no such rotation");
    const Rotation r = rotations_[size_t(rotation)];
    require(head_dim >= 2 * r.pairs && width(x) % head_dim == 0, "more rotated elements than a head has, or another width");
    require(width(out) == width(x), "widths differ");
    add_row(
        [=](int64_t row) {
            const Turns& by = pass_->turns[size_t(rotation)];
            RopeArgs a;
            a.x = at(x, row);
            a.out = at(out, row);
            a.cos = &by.cos[size_t(row * r.pairs)], a.sin = &by.sin[size_t(row * r.pairs)];
            a.heads = width(x) / head_dim, a.head_dim = head_dim, a.rotated = 2 * r.pairs;
            a.half = r.half;
            active().rope(a, 0, 1);
        },
        [] { count_call(Op::rope); });
}

void Graph::temper(const Operands& its) {
    const int out = reg(its, "out"), x = reg(its, "x");
    const int64_t length = its.integer("length");
    const double scale = its.number("scale");
    require(std::isfinite(scale) && length > 0, "the temperature is not finite, or grows after no positions");
    require(width(out) == width(x), "widths differ");
    add_row([=](int64_t row) {
        const int64_t times = pass_->of_row[size_t(row)].position / length;
        const float factor = float(1.0 + scale * std::log(double(1 + times)));
        const float* from = at(x, row);
        float* to = at(out, row);
        for (int64_t i = 0; i < width(x); ++i) to[i] = from[i] * factor;
    });
}

// Keys and values are the *place*-th of the pages of *table*; without k and v, those that are stored there.
void Graph::attend(const Operands& its) {
    const int out = reg(its, "out"), q = reg(its, "q");
    const std::vector<int> k = regs(its, "k"), v = regs(its, "v");
    const int64_t number = its.integer("table"), place = its.integer("place");
    require(number >= 0 && number < int64_t(tables_.size()), "no such table");
    const Table table = tables_[size_t(number)];
    require(place >= 0 && place < table.layers, "no such layer");
    const int64_t offset = place * table.layer_words(), keys = table.kv_heads * table.head_dim;
    const auto fits = [&](const std::vector<int>& r) { return r.empty() || (r.size() == 1 && width(r[0]) == keys); };
    require(k.size() == v.size() && fits(k) && fits(v), "keys and values are those of other heads");
    require(width(q) % keys == 0 && width(out) == width(q), "queries or results are those of other heads");
    require(k.empty() || !selected_, "keys and values of the outputs alone");
    AttentionArgs same;
    same.layer_offset = offset, same.kv_type = table.type, same.window = table.window;
    same.heads = width(q) / table.head_dim, same.kv_heads = table.kv_heads, same.head_dim = table.head_dim;
    same.scale = its.real("scale"), same.softcap = its.real("softcap");
    same.sinks = floats(its, "sinks", same.heads, "sinks must be one per head");
    same.slopes = floats(its, "slopes", same.heads, "slopes must be one per head");
    same.causal = its.integer("causal") != 0;
    check_scores(same.scale, same.softcap);
    if (!k.empty()) {
        add_row([=, k = k[0], v = v[0]](int64_t row) {
            const Row& it = pass_->of_row[size_t(row)];
            int16_t* page = segment(it).pages[size_t(number)][size_t(it.position / kKeyBlock)];
            active().store_position(at(k, row), at(v, row), table.type, table.kv_heads, table.head_dim,
                                    it.position % kKeyBlock, page + offset);
        });
        // Keys of neighbouring positions share cache lines, which threads should not take from each other.
        stages_.back().multiple = kKeyBlock / 2;
    }
    add_whole([=, selected = selected_] {
        pass_->attention.clear();
        int64_t row = 0;
        for (const Segment& segment : *pass_->segments) {
            AttentionArgs a = same;
            a.tokens = rows_of(segment, selected), a.start = segment.start + segment.count - a.tokens;
            if (a.tokens == 0) continue;
            a.q = at(q, row), a.out = at(out, row), a.pages = segment.pages[size_t(number)].data();
            pass_->attention.push_back(a);
            row += a.tokens;
        }
        attention(pass_->attention);
    });
}

void Graph::convolve(const Operands& its) {
    const int out = reg(its, "out"), x = reg(its, "x");
    const FloatArray weight = its.arrays("weight").at(0);
    ConvolveArgs same;
    same.channels = width(x), same.width = weight.size / same.channels, same.weight = weight.data;
    same.silu = its.integer("silu") != 0;
    require(same.width > 0 && weight.size == same.width * same.channels && width(out) == same.channels && out != x,
            "the convolution has another width");
    same.bias = floats(its, "bias", same.channels, "the bias has another width");
    const int64_t offset = state_offset(its, (same.width - 1) * same.channels, true);
    add_whole([=] {
        count_call(Op::convolve);
        int64_t row = 0;
        for (const Segment& segment : *pass_->segments) {
            ConvolveArgs a = same;
            a.x = at(x, row), a.out = at(out, row), a.state = segment.state + offset, a.tokens = segment.count;
            Split(a.channels, kLineFloats, a.tokens * a.channels < kSerialWork).run([&](int64_t c0, int64_t c1) {
                active().convolve(a, c0, c1);
            });
            row += segment.count;
        }
    });
}

// A *kernel* of one head, position by position; *fill* says where the rows from one on are.
template <class Args, class Fill>
void Graph::add_recurrence(Op op, const Args& same, int64_t offset, void (*Kernels::*kernel)(const Args&, int64_t), Fill fill) {
    add_whole([=] {
        count_call(op);
        std::vector<Args> all;
        int64_t row = 0;
        for (const Segment& segment : *pass_->segments) {
            Args& a = all.emplace_back(same);
            a.state = segment.state + offset, a.tokens = segment.count;
            fill(a, row);
            row += segment.count;
        }
        parallel_for(int64_t(all.size()) * same.heads,
                     [&](int64_t i) { (active().*kernel)(all[size_t(i / same.heads)], i % same.heads); });
    });
}

void Graph::delta_rule(const Operands& its) {
    const int out = reg(its, "out"), q = reg(its, "q"), k = reg(its, "k"), v = reg(its, "v");
    const int alpha = reg(its, "alpha"), beta = reg(its, "beta");
    constexpr const char* kPerHead = "alpha, beta, a and dt must have one number per head";
    DeltaArgs same;
    same.heads = width(alpha), same.key_heads = its.integer("key_heads"), same.grouped = its.integer("grouped") != 0;
    same.a = required(its, "a", same.heads, kPerHead), same.dt = required(its, "dt", same.heads, kPerHead);
    require(width(beta) == same.heads, kPerHead);
    require(same.key_heads > 0 && same.heads % same.key_heads == 0 && width(k) % same.key_heads == 0 && width(q) == width(k),
            "queries and keys are those of other heads");
    require(width(v) % same.heads == 0 && width(out) == width(v) && out != v && out != q && out != k,
            "values or results are those of other heads");
    same.key_dim = width(k) / same.key_heads, same.value_dim = width(v) / same.heads;
    add_recurrence(Op::delta_rule, same, state_offset(its, same.key_dim * width(v), false), &Kernels::delta_rule,
                   [=](DeltaArgs& a, int64_t row) {
                       a.q = at(q, row), a.k = at(k, row), a.v = at(v, row), a.out = at(out, row);
                       a.alpha = at(alpha, row), a.beta = at(beta, row);
                   });
}

void Graph::selective_scan(const Operands& its) {
    const int out = reg(its, "out"), x = reg(its, "x"), b = reg(its, "b"), c = reg(its, "c"), dt = reg(its, "dt");
    constexpr const char* kPerHead = "dt, a, bias and skip must have one number per head";
    ScanArgs same;
    same.heads = width(dt), same.groups = its.integer("groups"), same.a = required(its, "a", same.heads, kPerHead);
    same.bias = required(its, "bias", same.heads, kPerHead), same.skip = required(its, "skip", same.heads, kPerHead);
    require(same.groups > 0 && same.heads % same.groups == 0 && width(b) % same.groups == 0 && width(b) == width(c),
            "b and c are those of other groups");
    require(width(x) % same.heads == 0 && width(out) == width(x) && out != x && out != b && out != c,
            "x or results are those of other heads");
    same.head_dim = width(x) / same.heads, same.state_size = width(b) / same.groups;
    add_recurrence(Op::selective_scan, same, state_offset(its, same.state_size * width(x), false), &Kernels::selective_scan,
                   [=](ScanArgs& a, int64_t row) {
                       a.x = at(x, row), a.b = at(b, row), a.c = at(c, row), a.dt = at(dt, row), a.out = at(out, row);
                   });
}

void Graph::gate(const Operands& its) {
    const int out = reg(its, "out"), g = reg(its, "gate");
    const std::vector<int> ups = regs(its, "up");
    const Gate kind = gate_of(its.text("activation"));
    const int up = ups.empty() ? g : ups[0];
    require(width(out) == width(g) && width(out) == width(up) && out != g && out != up, "widths differ");
    if (ups.empty()) ones_.emplace_back(size_t(width(out)), 1.0f);
    const float* ones = ups.empty() ? ones_.back().data() : nullptr;
    add_row([=](int64_t row) { active().gate(kind, at(g, row), ones ? ones : at(up, row), width(out), at(out, row)); },
            [] { count_call(Op::gate); });
}

void Graph::route(const Operands& its) {
    const int experts = reg(its, "experts"), weights = reg(its, "weights"), logits = reg(its, "logits");
    const Routing by{width(logits), width(experts), its.integer("groups"), its.integer("groups_used"),
                     gating_of(its.text("gating")), its.integer("renormalised") != 0, its.real("scale")};
    bitnet::check(by);
    require(width(weights) == by.used && experts != weights, "a weight for each expert");
    const float* bias = floats(its, "bias", by.count, "a bias for each expert");
    numbers_[experts] = by.count;
    add_row([=](int64_t row) { bitnet::route(by, at(logits, row), bias, at(experts, row), at(weights, row)); });
}

void Graph::enumerate(const Operands& its) {
    const int experts = reg(its, "experts");
    numbers_[experts] = width(experts);
    add_row([=](int64_t row) { std::iota(at(experts, row), at(experts, row) + width(experts), 0.0f); });
}

void Graph::expert_linear(const Operands& its) {
    const int x = reg(its, "x"), experts = reg(its, "experts");
    const std::vector<int> outs = regs(its, "outs");
    const bool apart = its.integer("apart") != 0;
    require(numbers_.count(experts) > 0, "no instruction chooses these experts");
    const int64_t count = numbers_[experts], used = width(experts), parts = apart ? used : 1;
    require(width(x) % parts == 0, "an input for each of a token's experts");
    const auto matrices = its.matrices("weights");
    require(matrices.size() == outs.size(), "lists differ in length");
    std::vector<int64_t> sizes;
    for (size_t i = 0; i < outs.size(); ++i) {
        const int64_t rows = width(outs[i]) / used;
        require(rows * used == width(outs[i]) && outs[i] != x, "a result for each of a token's experts");
        require(int64_t(matrices[i].size()) == count, "a matrix for each expert");
        for (const Matrix& m : matrices[i])
            require(share_input(shaped(m, width(x) / parts, rows), matrices[i][0]),
                    "the experts of a layer need inputs of several forms");
        sizes.push_back(count * rows);
    }
    products(x, experts, outs, matrices, biases(its, sizes), apart);
}

void Graph::products(int x, int experts, const std::vector<int>& outs, const std::vector<std::vector<Matrix>>& matrices,
                     const std::vector<const float*>& biases, bool apart) {
    const std::vector<Matrix> forms = forms_of(matrices);
    if (outs.size() > 1 && !share_inputs(forms)) {
        for (size_t i = 0; i < outs.size(); ++i) products(x, experts, {outs[i]}, {matrices[i]}, {biases[i]}, apart);
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
        const ExpertInput input{at(x, 0), at(experts, 0), pass_->rows, used, int64_t(matrices[0].size()), cols, apart};
        expert_products(pass_->expert_jobs, input, pass_->activations, forms, pass_->expert_room);
    });
}

void Graph::combine(const Operands& its) {
    const int out = reg(its, "out"), x = reg(its, "x"), weights = reg(its, "weights");
    require(width(x) == width(out) * width(weights) && out != x, "a part for each weight");
    add_row([=](int64_t row) {
        const int64_t n = width(out), parts = width(weights);
        const float *from = at(x, row), *weight = at(weights, row);
        float* to = at(out, row);
        for (int64_t i = 0; i < n; ++i) to[i] = from[i] * weight[0];
        for (int64_t part = 1; part < parts; ++part)
            for (int64_t i = 0; i < n; ++i) to[i] += from[part * n + i] * weight[part];
    });
}

void Graph::hadamard(const Operands& its) {
    const int out = reg(its, "out"), x = reg(its, "x");
    const int64_t block = its.integer("block");
    const bool inverse = its.integer("inverse") != 0;
    require(block > 0 && (block & (block - 1)) == 0 && width(x) % block == 0, "width is not a multiple of the block");
    require(width(out) == width(x), "widths differ");
    const float* signs = required(its, "signs", width(x), "widths differ");
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

void Graph::add_to(const Operands& its) {
    const int out = reg(its, "out"), x = reg(its, "x"), y = reg(its, "y");
    require(width(x) == width(y) && width(out) == width(x), "widths differ");
    add_row([=](int64_t row) {
        const float *first = at(x, row), *second = at(y, row);
        float* to = at(out, row);
        for (int64_t i = 0; i < width(x); ++i) to[i] = first[i] + second[i];
    });
}

void Graph::scale(const Operands& its) {
    const int out = reg(its, "out"), x = reg(its, "x");
    const FloatArray weight = its.arrays("weight").at(0);
    require(weight.size == 1 || weight.size == width(x), "the factors are neither one nor one for each column");
    require(width(out) == width(x), "widths differ");
    add_row([=](int64_t row) {
        const float* from = at(x, row);
        float* to = at(out, row);
        for (int64_t i = 0; i < width(x); ++i) to[i] = from[i] * weight.data[weight.size == 1 ? 0 : i];
    });
}

void Graph::select(const Operands& its) {
    const std::vector<int> registers = regs(its, "registers");
    require(!selected_, "the rows of the outputs are selected already");
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

}  // namespace bitnet
