// Adds each kind of instruction to the stages of a graph, and checks its operands.
// mixer_instructions.cpp has those of layers with a state and of experts.
#include <numeric>

#include "graph/operands.hpp"
#include "ops/elementary.hpp"
#include "system/thread_pool.hpp"

namespace bitnet {
using detail::active;

namespace {

// Writes row *id* of a *table* of embeddings to *x*.
void read_row(const Matrix& table, int64_t id, float* x) {
    float* stored = x;  // the row with its padding
    if (table.cols != table.inputs)
        stored = reinterpret_cast<float*>(thread_scratch(size_t(table.cols) * sizeof(float)));
    decode_row(table.type, table.data, table.rows, table.cols, id, table.scale, stored);
    if (stored != x) std::copy(stored, stored + table.inputs, x);
    if (table.factors) {
        const float factor = table.factors[table.n_factors == 1 ? 0 : id];
        for (int64_t i = 0; i < table.inputs; ++i) x[i] *= factor;
    }
}

// Items [begin, end).
template <class T>
std::vector<T> stretch(const std::vector<T>& items, size_t begin, size_t end) {
    return {items.begin() + int64_t(begin), items.begin() + int64_t(end)};
}

}  // namespace

void Graph::embed(const Operands& operands) {
    const int out = reg(operands, "out");
    const Matrix stored = operands.matrices("table").at(0).at(0);
    const Matrix table = shaped(stored, width(out), stored.rows);
    const float scale = operands.real("scale");
    const int64_t rows = operands.integer("rows");
    require(rows >= 0 && rows <= table.rows, "more rows than the table has");
    // If `rows` is above 0, tokens from there on have no row of their own and take row 0: the table
    // does not limit them.
    if (rows == 0) vocabulary_ = vocabulary_ == 0 ? table.rows : std::min(vocabulary_, table.rows);
    add_row(
        [=](Pass& pass, int64_t row) {
            const int64_t token = pass.of_row[size_t(row)].token;
            const int64_t id = rows > 0 && token >= rows ? 0 : token;
            float* x = at(pass, out, row);
            read_row(table, id, x);
            if (scale != 1.0f)
                for (int64_t i = 0; i < table.inputs; ++i) x[i] *= scale;
        },
        [=](Pass&) { count_call(Op::embed, table.type); });
}

void Graph::lookup(const Operands& operands) {
    const int out = reg(operands, "out");
    const Matrix stored = operands.matrices("table").at(0).at(0);
    const Matrix table = shaped(stored, width(out), stored.rows);
    const bool by_position = operands.text("by") == "position";
    require(by_position || operands.text("by") == "text",
            "a table is looked up neither by position nor by text");
    if (by_position) positions_ = std::min(positions_, table.rows);
    add_row(
        [=](Pass& pass, int64_t row) {
            const Row& input = pass.of_row[size_t(row)];
            const int64_t text = input.position >= segment(pass, input).second ? 1 : 0;
            read_row(table, by_position ? input.position : std::min(text, table.rows - 1),
                     at(pass, out, row));
        },
        [=](Pass&) { count_call(Op::embed, table.type); });
}

void Graph::take(const Operands& operands) {
    const int out = reg(operands, "out");
    const int64_t offset = taken_;
    require(!selected_, "Take follows Select");
    taken_ += width(out);
    add_row([=](Pass& pass, int64_t row) {
        const Row& input = pass.of_row[size_t(row)];
        const Segment& source = segment(pass, input);
        // taken_ is the width of all Take instructions by now.
        std::copy_n(source.hidden.data + (input.position - source.start) * taken_ + offset,
                    width(out), at(pass, out, row));
    });
}

void Graph::norm(const Operands& operands) {
    const int out = reg(operands, "out");
    const int x = reg(operands, "x");
    const int64_t parts = operands.integer("parts");
    FloatArray weight = operands.arrays("weight").at(0);
    if (!weight.data) {
        ones_.emplace_back(size_t(checked(operands.integer("width"))), 1.0f);
        weight = {ones_.back().data(), int64_t(ones_.back().size())};
    }
    require(weight.size > 0 && parts > 0 && weight.size % parts == 0 &&
                width(x) % weight.size == 0 && width(x) == width(out),
            "the norm has another width");
    const int64_t group = weight.size / parts;
    const float eps = operands.real("eps");
    const float* bias = floats(operands, "bias", weight.size, "the bias has another width");
    add_row(
        [=](Pass& pass, int64_t row) {
            for (int64_t i = 0; i < width(x); i += group)
                active().rms_norm(at(pass, x, row) + i, weight.data + i % weight.size, group, eps,
                                  at(pass, out, row) + i);
            float* to = at(pass, out, row);
            if (bias)
                for (int64_t i = 0; i < width(x); ++i) to[i] += bias[i % weight.size];
        },
        [](Pass&) { count_call(Op::rms_norm); });
}

void Graph::center(const Operands& operands) {
    const int out = reg(operands, "out");
    const int x = reg(operands, "x");
    require(width(out) == width(x), "widths differ");
    const int64_t stated = operands.integer("width");
    const int64_t group = stated > 0 ? stated : width(x);
    require(width(x) % group == 0, "the width is not a multiple of the groups' width");
    add_row([=](Pass& pass, int64_t row) {
        const int64_t n = width(x);
        const float* from = at(pass, x, row);
        float* to = at(pass, out, row);
        for (int64_t begin = 0; begin < n; begin += group) {
            const float mean =
                float(std::accumulate(from + begin, from + begin + group, 0.0) / double(group));
            for (int64_t i = begin; i < begin + group; ++i) to[i] = from[i] - mean;
        }
    });
}

void Graph::clamp(const Operands& operands) {
    const int out = reg(operands, "out");
    const int x = reg(operands, "x");
    const float limit = operands.real("limit");
    require(width(out) == width(x), "widths differ");
    require(limit > 0.0f, "the limit must be above 0");
    add_row([=](Pass& pass, int64_t row) {
        const float* from = at(pass, x, row);
        float* to = at(pass, out, row);
        for (int64_t i = 0; i < width(x); ++i) {
            const float below = from[i] > limit ? limit : from[i];
            to[i] = below < -limit ? -limit : below;
        }
    });
}

void Graph::xielu(const Operands& operands) {
    const int out = reg(operands, "out");
    const int x = reg(operands, "x");
    const float above = operands.real("above");
    const float below = operands.real("below");
    const float beta = operands.real("beta");
    const float eps = operands.real("eps");
    require(width(out) == width(x), "widths differ");
    add_row(
        [=](Pass& pass, int64_t row) {
            const float* from = at(pass, x, row);
            float* to = at(pass, out, row);
            for (int64_t i = 0; i < width(x); ++i) {
                const float v = from[i];
                const float power = exp_fast(v < eps ? v : eps) - 1.0f;
                to[i] = (v > 0.0f ? above * v * v : below * (power - v)) + beta * v;
            }
        },
        [](Pass&) { count_call(Op::gate); });
}

void Graph::linear(const Operands& operands) {
    const int x = reg(operands, "x");
    const std::vector<int> outs = regs(operands, "outs");
    std::vector<int64_t> widths;
    for (const int out : outs) widths.push_back(width(out));
    const std::vector<const float*> bias = biases(operands, widths);
    const auto stored = operands.matrices("weights");
    require(stored.size() == outs.size(), "lists differ in length");
    std::vector<Matrix> matrices;
    for (size_t i = 0; i < outs.size(); ++i)
        matrices.push_back(shaped(stored[i].at(0), width(x), widths[i]));
    size_t begin = 0;
    while (begin < outs.size()) {  // neighbours that share their rounded input are one product
        size_t end = begin + 1;
        while (end < outs.size() && share_inputs(stretch(matrices, begin, end + 1))) ++end;
        product(x, stretch(outs, begin, end), stretch(matrices, begin, end),
                stretch(bias, begin, end));
        begin = end;
    }
}

void Graph::product(int x, const std::vector<int>& outs, const std::vector<Matrix>& matrices,
                    const std::vector<const float*>& biases) {
    add_row([=](Pass& pass, int64_t row) { pass.activations.quantize(at(pass, x, row), row); },
            [=](Pass& pass) { pass.activations.prepare(matrices, pass.rows); });
    add_whole([=](Pass& pass) {
        pass.jobs.clear();
        for (size_t i = 0; i < outs.size(); ++i)
            pass.jobs.push_back({matrices[i], biases[i], at(pass, outs[i], 0)});
        linear_group(pass.jobs, at(pass, x, 0), pass.rows, pass.activations);
    });
}

void Graph::split(const Operands& operands) {
    const int x = reg(operands, "x");
    const std::vector<int> outs = groups(operands, "outs", "x");
    const int64_t count = operands.integer("groups");
    add_row([=](Pass& pass, int64_t row) {
        const float* from = at(pass, x, row);
        for (int64_t group = 0; group < count; ++group)
            for (const int out : outs) {
                const int64_t part = width(out) / count;
                std::copy(from, from + part, at(pass, out, row) + group * part);
                from += part;
            }
    });
}

void Graph::join(const Operands& operands) {
    const int out = reg(operands, "out");
    const std::vector<int> parts = groups(operands, "parts", "out");
    const int64_t count = operands.integer("groups");
    add_row([=](Pass& pass, int64_t row) {
        float* to = at(pass, out, row);
        for (int64_t group = 0; group < count; ++group)
            for (const int x : parts) {
                const int64_t part = width(x) / count;
                to = std::copy_n(at(pass, x, row) + group * part, part, to);
            }
    });
}

void Graph::transpose(const Operands& operands) {
    const int out = reg(operands, "out");
    const int x = reg(operands, "x");
    const int64_t rows = checked(operands.integer("rows"));
    const int64_t columns = checked(operands.integer("columns"));
    require(width(x) % (rows * columns) == 0,
            "the width is not a multiple of rows times columns of heads");
    require(width(out) == width(x) && out != x, "widths differ");
    add_row([=](Pass& pass, int64_t token) {
        const int64_t head = width(x) / (rows * columns);
        const float* from = at(pass, x, token);
        for (int64_t row = 0; row < rows; ++row)
            for (int64_t column = 0; column < columns; ++column, from += head)
                std::copy(from, from + head, at(pass, out, token) + (column * rows + row) * head);
    });
}

void Graph::rotate(const Operands& operands) {
    const int out = reg(operands, "out");
    const int x = reg(operands, "x");
    const int64_t rotation = operands.integer("rotation");
    const int64_t head_dim = checked(operands.integer("head_dim"));
    require(rotation >= 0 && rotation < int64_t(rotations_.size()), "no such rotation");
    const Rotation r = rotations_[size_t(rotation)];
    require(head_dim >= 2 * r.pairs && width(x) % head_dim == 0,
            "more rotated elements than a head has, or the width is not whole heads");
    require(width(out) == width(x), "widths differ");
    add_row(
        [=](Pass& pass, int64_t row) {
            const Turns& by = pass.turns[size_t(rotation)];
            RopeArgs a;
            a.x = at(pass, x, row);
            a.out = at(pass, out, row);
            a.cos = &by.cos[size_t(row * r.pairs)];
            a.sin = &by.sin[size_t(row * r.pairs)];
            a.heads = width(x) / head_dim;
            a.head_dim = head_dim;
            a.rotated = 2 * r.pairs;
            a.half = r.half;
            active().rope(a, 0, 1);
        },
        [](Pass&) { count_call(Op::rope); });
}

void Graph::temper(const Operands& operands) {
    const int out = reg(operands, "out");
    const int x = reg(operands, "x");
    const int64_t length = operands.integer("length");
    const double scale = operands.number("scale");
    require(std::isfinite(scale) && length > 0,
            "the scale is not finite, or the length is not above 0");
    require(width(out) == width(x), "widths differ");
    add_row([=](Pass& pass, int64_t row) {
        const int64_t times = pass.of_row[size_t(row)].position / length;
        const float factor = float(1.0 + scale * std::log(double(1 + times)));
        const float* from = at(pass, x, row);
        float* to = at(pass, out, row);
        for (int64_t i = 0; i < width(x); ++i) to[i] = from[i] * factor;
    });
}

// The cache is layer *place* in the pages of *table*. Without k and v, only its contents are read.
void Graph::attend(const Operands& operands) {
    const int out = reg(operands, "out");
    const int q = reg(operands, "q");
    const std::vector<int> k = regs(operands, "k");
    const std::vector<int> v = regs(operands, "v");
    const int64_t number = operands.integer("table");
    const int64_t place = operands.integer("place");
    require(number >= 0 && number < int64_t(tables_.size()), "no such table");
    const Table table = tables_[size_t(number)];
    require(place >= 0 && place < table.layers, "no such layer");
    const int64_t offset = place * table.layer_words();
    const int64_t keys = table.kv_heads * table.head_dim;
    const auto fits = [&](const std::vector<int>& r) {
        return r.empty() || (r.size() == 1 && width(r[0]) == keys);
    };
    require(k.size() == v.size() && fits(k) && fits(v), "keys and values are those of other heads");
    require(width(q) % keys == 0 && width(out) == width(q),
            "queries or results are those of other heads");
    require(k.empty() || !selected_, "keys and values are stored after Select");
    AttentionArgs same;
    same.layer_offset = offset;
    same.kv_type = table.type;
    same.window = table.window;
    same.heads = width(q) / table.head_dim;
    same.kv_heads = table.kv_heads;
    same.head_dim = table.head_dim;
    same.scale = operands.real("scale");
    same.softcap = operands.real("softcap");
    same.sinks = floats(operands, "sinks", same.heads, "sinks must be one per head");
    same.slopes = floats(operands, "slopes", same.heads, "slopes must be one per head");
    const FloatArray distances = operands.arrays("distances").at(0);
    require(!distances.data ||
                (distances.size % same.heads == 0 && distances.size / same.heads % 2 == 1),
            "distances must be as many on both sides of each head's queries");
    same.distances = distances.data;
    same.reach = distances.data ? distances.size / same.heads / 2 : 0;
    same.causal = operands.integer("causal") != 0;
    check_scores(same.scale, same.softcap);
    if (!k.empty()) {
        add_row([=, k = k[0], v = v[0]](Pass& pass, int64_t row) {
            const Row& input = pass.of_row[size_t(row)];
            int16_t* page =
                segment(pass, input).pages[size_t(number)][size_t(input.position / kKeyBlock)];
            active().store_position(at(pass, k, row), at(pass, v, row), table.type, table.kv_heads,
                                    table.head_dim, input.position % kKeyBlock, page + offset);
        });
        // Keys of neighbouring positions share cache lines, which threads should not take from each
        // other.
        stages_.back().multiple = kKeyBlock / 2;
    }
    add_whole([=, selected = selected_](Pass& pass) {
        pass.attention.clear();
        each_segment(pass, selected, [&](const Segment& segment, int64_t row, int64_t tokens) {
            AttentionArgs a = same;
            a.tokens = tokens;
            a.start = segment.start + segment.count - tokens;
            a.q = at(pass, q, row);
            a.out = at(pass, out, row);
            a.pages = segment.pages[size_t(number)].data();
            pass.attention.push_back(a);
        });
        attention(pass.attention);
    });
}

void Graph::gate(const Operands& operands) {
    const int out = reg(operands, "out");
    const int g = reg(operands, "gate");
    const std::vector<int> ups = regs(operands, "up");
    const Gate kind = gate_of(operands.text("activation"));
    const int up = ups.empty() ? g : ups[0];
    require(width(out) == width(up) && width(g) > 0 && width(out) % width(g) == 0 && out != g &&
                out != up,
            "widths differ");
    if (width(g) < width(out)) {
        gate_groups(out, g, up, kind);
        return;
    }
    if (ups.empty()) ones_.emplace_back(size_t(width(out)), 1.0f);
    const float* ones = ups.empty() ? ones_.back().data() : nullptr;
    add_row(
        [=](Pass& pass, int64_t row) {
            active().gate(kind, at(pass, g, row), ones ? ones : at(pass, up, row), width(out),
                          at(pass, out, row));
        },
        [](Pass&) { count_call(Op::gate); });
}

// A gate in which each group of columns of *up* shares one number of *g*.
void Graph::gate_groups(int out, int g, int up, Gate kind) {
    const int64_t groups = width(g);
    const int64_t columns = width(out) / groups;
    ones_.emplace_back(size_t(columns), 1.0f);
    const float* ones = ones_.back().data();
    add_row(
        [=](Pass& pass, int64_t row) {
            const float* gates = at(pass, g, row);
            const float* from = at(pass, up, row);
            float* to = at(pass, out, row);
            for (int64_t group = 0; group < groups; ++group) {
                float factor = 0.0f;
                active().gate(kind, gates + group, ones, 1, &factor);
                for (int64_t i = group * columns; i < (group + 1) * columns; ++i)
                    to[i] = factor * from[i];
            }
        },
        [](Pass&) { count_call(Op::gate); });
}

void Graph::hadamard(const Operands& operands) {
    const int out = reg(operands, "out");
    const int x = reg(operands, "x");
    const int64_t block = operands.integer("block");
    const bool inverse = operands.integer("inverse") != 0;
    require(block > 0 && (block & (block - 1)) == 0 && width(x) % block == 0,
            "width is not a multiple of the block");
    require(width(out) == width(x), "widths differ");
    const float* signs = required(operands, "signs", width(x), "widths differ");
    const float scale = float(1.0 / std::sqrt(double(block)));
    add_row([=](Pass& pass, int64_t row) {
        const float* from = at(pass, x, row);
        float* to = at(pass, out, row);
        const int64_t cols = width(x);
        for (int64_t i = 0; i < cols; ++i) to[i] = inverse ? from[i] : signs[i] * from[i];
        for (int64_t begin = 0; begin < cols; begin += block)
            for (int64_t apart = 1; apart < block; apart *= 2)
                for (int64_t pair = begin; pair < begin + block; pair += 2 * apart)
                    for (int64_t i = pair; i < pair + apart; ++i) {
                        const float a = to[i];
                        const float b = to[i + apart];
                        to[i] = a + b;
                        to[i + apart] = a - b;
                    }
        for (int64_t i = 0; i < cols; ++i) to[i] *= scale;
        if (inverse)
            for (int64_t i = 0; i < cols; ++i) to[i] *= signs[i];
    });
}

void Graph::add_to(const Operands& operands) {
    const int out = reg(operands, "out");
    const int x = reg(operands, "x");
    const int y = reg(operands, "y");
    require(width(x) == width(y) && width(out) == width(x), "widths differ");
    add_row([=](Pass& pass, int64_t row) {
        const float* first = at(pass, x, row);
        const float* second = at(pass, y, row);
        float* to = at(pass, out, row);
        for (int64_t i = 0; i < width(x); ++i) to[i] = first[i] + second[i];
    });
}

void Graph::scale(const Operands& operands) {
    const int out = reg(operands, "out");
    const int x = reg(operands, "x");
    const FloatArray weight = operands.arrays("weight").at(0);
    require(weight.size == 1 || weight.size == width(x),
            "the factors are neither one nor one for each column");
    require(width(out) == width(x), "widths differ");
    add_row([=](Pass& pass, int64_t row) {
        const float* from = at(pass, x, row);
        float* to = at(pass, out, row);
        for (int64_t i = 0; i < width(x); ++i)
            to[i] = from[i] * weight.data[weight.size == 1 ? 0 : i];
    });
}

void Graph::select(const Operands& operands) {
    const std::vector<int> registers = regs(operands, "registers");
    require(!selected_, "the rows of the outputs are selected already");
    selected_ = true;
    add_whole([=](Pass& pass) {
        int64_t outputs = 0;
        each_segment(pass, false, [&](const Segment& segment, int64_t row, int64_t rows) {
            const int64_t first = row + rows - segment.outputs;
            const auto move = [&](float* all, int64_t width) {
                std::memmove(all + outputs * width, all + first * width,
                             size_t(segment.outputs * width) * sizeof(float));
            };
            for (const int r : registers) move(at(pass, r, 0), width(r));
            for (size_t i = 0; i < rotations_.size(); ++i) {
                move(pass.turns[i].cos.data(), rotations_[i].pairs);
                move(pass.turns[i].sin.data(), rotations_[i].pairs);
            }
            std::copy_n(pass.of_row.begin() + first, segment.outputs,
                        pass.of_row.begin() + outputs);
            outputs += segment.outputs;
        });
        pass.rows = outputs;
    });
}

}  // namespace bitnet
