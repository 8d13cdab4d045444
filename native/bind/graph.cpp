// Python's view of a graph: what it requires of its operands stands here. It is built from packing.Matrix and float
// arrays, which it keeps alive.
#include "bind/module.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <optional>

#include "bind/arrays.hpp"
#include "graph/graph.hpp"
#include "system/thread_pool.hpp"

namespace bitnet {
namespace {

using Doubles = Array<const double, nb::ndim<1>>;
using IdArray = Array<const int64_t, nb::ndim<1>>;
using Addresses = Array<const uint64_t, nb::ndim<1>>;

class BoundGraph {
public:
    int add_register(int64_t width, int64_t place) {
        require(place >= 0 && place <= registers_, "places in memory are numbered in order");
        ++registers_;
        return graph_.add_register(checked(width), size_t(place));
    }

    int64_t add_table(int64_t layers, int64_t kv_heads, int64_t head_dim, int64_t window, bool q8) {
        require(window >= 0, "a window is a number of positions, or 0");
        layers_.push_back(checked(layers));
        tables_.push_back({checked(kv_heads), checked(head_dim), window, q8 ? KvType::q8 : KvType::f16});
        return int64_t(graph_.add_table(tables_.back()));
    }

    int64_t add_context(const std::vector<std::pair<Doubles, double>>& rotations) {
        require(rotations.size() == pairs_.size(), "frequencies for another number of rotations");
        std::vector<Graph::Frequencies> found;
        for (const auto& [frequencies, scale] : rotations) {
            require(int64_t(frequencies.size()) == pairs_[found.size()], "frequencies for another number of pairs");
            found.push_back({{frequencies.data(), frequencies.data() + frequencies.size()}, scale});
        }
        ++contexts_;
        return graph_.add_context(std::move(found));
    }

    int add_rotation(int64_t pairs, bool half) {
        require(pairs > 0 && pairs <= kLargest, "a width or a number of heads or layers is out of range");
        pairs_.push_back(pairs);
        return graph_.add_rotation(pairs, half);
    }

    void embed(int out, nb::object table, float scale) {
        const Matrix m = matrix(table, width(out), -1);
        vocabulary_ = vocabulary_ == 0 ? m.rows : std::min(vocabulary_, m.rows);
        graph_.embed(out, m, scale);
    }

    void norm(int out, int x, const Floats& weight, int64_t parts, float eps) {
        const auto size = int64_t(weight.size());
        require(size > 0 && parts > 0 && size % parts == 0 && width(x) % size == 0 && width(x) == width(out),
                "the norm has another width");
        graph_.norm(out, x, keep(weight), size, parts, eps);
    }

    void center(int out, int x) {
        require(width(out) == width(x), "widths differ");
        graph_.center(out, x);
    }

    void linear(int x, const std::vector<int>& outs, nb::list matrices, const std::vector<std::optional<Floats>>& biases) {
        require(!outs.empty() && outs.size() == matrices.size() && outs.size() == biases.size(), "lists differ in length");
        std::vector<Matrix> all;
        std::vector<const float*> bias;
        for (size_t i = 0; i < outs.size(); ++i) {
            all.push_back(matrix(matrices[i], width(x), width(outs[i])));
            require(!biases[i] || int64_t(biases[i]->size()) == width(outs[i]), "the bias has another width");
            bias.push_back(biases[i] ? keep(*biases[i]) : nullptr);
        }
        graph_.linear(x, outs, all, bias);
    }

    void split(int x, const std::vector<int>& outs, int64_t groups) {
        int64_t sum = 0;
        for (const int out : outs) {
            sum += width(out);
            require(groups > 0 && width(out) % groups == 0, "the parts are not whole groups");
        }
        require(sum == width(x), "the parts have another width than the whole");
        graph_.split(x, outs, groups);
    }

    void join(int out, const std::vector<int>& parts, int64_t groups) {
        int64_t sum = 0;
        for (const int part : parts) {
            sum += width(part);
            require(groups > 0 && width(part) % groups == 0 && part != out, "the parts are not whole groups");
        }
        require(sum == width(out), "the parts have another width than the whole");
        graph_.join(out, parts, groups);
    }

    void transpose(int out, int x, int64_t rows, int64_t columns) {
        require(checked(rows) * checked(columns) > 0 && width(x) % (rows * columns) == 0, "the heads make no table");
        require(width(out) == width(x) && out != x, "widths differ");
        graph_.transpose(out, x, rows, columns);
    }

    void rotate(int x, int rotation, int64_t head_dim) {
        require(rotation >= 0 && rotation < int(pairs_.size()), "no such rotation");
        require(head_dim >= 2 * pairs_[size_t(rotation)] && width(x) % head_dim == 0,
                "more rotated elements than a head has, or another width");
        graph_.rotate(x, rotation, head_dim);
    }

    void temper(int x, double scale, int64_t length) {
        require(std::isfinite(scale) && length > 0, "a temperature of no sense");
        width(x);
        graph_.temper(x, scale, length);
    }

    void attend(int out, int q, int k, int v, int64_t table, int64_t place, float scale, float softcap,
                const std::optional<Floats>& sinks) {
        require(table >= 0 && table < int64_t(tables_.size()), "no such table");
        require(place >= 0 && place < layers_[size_t(table)], "no such layer");
        const Graph::Table& its = tables_[size_t(table)];
        const int64_t keys = its.kv_heads * its.head_dim;
        require(k == -1 ? v == -1 : width(k) == keys && width(v) == keys, "keys and values are those of other heads");
        require(width(q) % keys == 0 && width(out) == width(q), "queries or results are those of other heads");
        require(k == -1 || !selected_, "keys and values of the outputs alone");
        check_scores(scale, softcap);
        require(!sinks || int64_t(sinks->size()) * its.head_dim == width(q), "sinks must be one per head");
        graph_.attend(out, q, k, v, size_t(table), place, scale, softcap, sinks ? keep(*sinks) : nullptr);
    }

    // *size*: floats of the state of a sequence.
    void set_state(int64_t size) {
        require(size >= 0 && size <= kLargestState, "a state of an impossible size");
        state_ = size;
    }

    void convolve(int out, int x, const Floats& weight, const std::optional<Floats>& bias, bool silu, int64_t offset) {
        const int64_t kernel = int64_t(weight.size()) / width(x);
        require(kernel > 0 && int64_t(weight.size()) == kernel * width(x) && width(out) == width(x) && out != x,
                "the convolution has another width");
        require(!bias || int64_t(bias->size()) == width(x), "the bias has another width");
        check_state(offset, (kernel - 1) * width(x));
        graph_.convolve(out, x, keep(weight), bias ? keep(*bias) : nullptr, kernel, silu, offset);
    }

    void delta(int out, int q, int k, int v, int alpha, int beta, const Floats& a, const Floats& dt, int64_t key_heads,
               bool grouped, int64_t offset) {
        const auto heads = int64_t(a.size());
        require(heads > 0 && a.size() == dt.size() && width(alpha) == heads && width(beta) == heads,
                "alpha, beta, a and dt must have one number per head");
        require(key_heads > 0 && heads % key_heads == 0 && width(k) % key_heads == 0 && width(q) == width(k),
                "queries and keys are those of other heads");
        require(width(v) % heads == 0 && width(out) == width(v) && out != v && out != q && out != k,
                "values or results are those of other heads");
        check_state(offset, width(k) / key_heads * width(v));
        graph_.delta({out, q, k, v, alpha, beta, keep(a), keep(dt), heads, key_heads, offset, grouped});
    }

    void scan(int out, int x, int b, int c, int dt, const Floats& a, const Floats& bias, const Floats& skip,
              int64_t groups, int64_t offset) {
        const auto heads = int64_t(a.size());
        require(heads > 0 && bias.size() == a.size() && skip.size() == a.size() && width(dt) == heads,
                "dt, a, bias and skip must have one number per head");
        require(groups > 0 && heads % groups == 0 && width(b) % groups == 0 && width(b) == width(c),
                "b and c are those of other groups");
        require(width(x) % heads == 0 && width(out) == width(x) && out != x && out != b && out != c,
                "x or results are those of other heads");
        check_state(offset, width(b) / groups * width(x));
        graph_.scan({out, x, b, c, dt, keep(a), keep(bias), keep(skip), heads, groups, offset});
    }

    void gate(int out, int g, int up, int kind) {
        require(width(out) == width(g) && width(out) == width(up) && out != g && out != up, "widths differ");
        graph_.gate(out, g, up, checked_gate(kind));
    }

    void route(int experts, int weights, int logits, const std::optional<Floats>& bias, int gating, int64_t groups,
               int64_t groups_used, bool renormalised, float scale) {
        const int64_t used = width(experts);
        const Routing its = checked_routing(width(logits), used, gating, groups, groups_used, renormalised, scale);
        require(width(weights) == used && experts != weights, "a weight for each expert");
        require(!bias || int64_t(bias->size()) == its.count, "a bias for each expert");
        numbers_[experts] = its.count;
        graph_.route(experts, weights, logits, bias ? keep(*bias) : nullptr, its);
    }

    void enumerate(int experts) {
        numbers_[experts] = width(experts);
        graph_.enumerate(experts);
    }

    void expert_linear(int x, int experts, const std::vector<int>& outs, nb::list matrices,
                       const std::vector<std::optional<Floats>>& biases, bool apart) {
        require(!outs.empty() && outs.size() == matrices.size() && outs.size() == biases.size(), "lists differ in length");
        require(numbers_.count(experts) > 0, "no instruction chooses these experts");
        const int64_t count = numbers_[experts], used = width(experts), parts = apart ? used : 1;
        require(width(x) % parts == 0, "an input for each of a token's experts");
        std::vector<std::vector<Matrix>> all;
        std::vector<const float*> bias;
        for (size_t i = 0; i < outs.size(); ++i) {
            const int64_t rows = width(outs[i]) / used;
            require(rows * used == width(outs[i]) && outs[i] != x, "a result for each of a token's experts");
            all.emplace_back();
            for (nb::handle source : nb::cast<nb::tuple>(matrices[i])) all.back().push_back(matrix(source, width(x) / parts, rows));
            require(int64_t(all.back().size()) == count, "a matrix for each expert");
            require(!biases[i] || int64_t(biases[i]->size()) == count * rows, "the bias has another width");
            bias.push_back(biases[i] ? keep(*biases[i]) : nullptr);
        }
        for (const auto& experts_of_one : all)
            for (const Matrix& m : experts_of_one)
                require(share_input(m, experts_of_one[0]), "the experts of a layer need inputs of several forms");
        graph_.expert_linear(x, experts, outs, all, bias, apart);
    }

    void combine(int out, int x, int weights) {
        require(width(x) == width(out) * width(weights) && out != x, "a part for each weight");
        graph_.combine(out, x, weights);
    }

    void hadamard(int out, int x, const Floats& signs, int64_t block, bool inverse) {
        require(block > 0 && (block & (block - 1)) == 0 && width(x) % block == 0, "width is not a multiple of the block");
        require(width(out) == width(x) && int64_t(signs.size()) == width(x), "widths differ");
        graph_.hadamard(out, x, keep(signs), block, inverse);
    }

    void add(int x, int y) {
        require(width(x) == width(y), "widths differ");
        graph_.add(x, y);
    }

    void scale(int x, const Floats& weight) {
        const auto count = int64_t(weight.size());
        require(count == 1 || count == width(x), "the factors are neither one nor one for each column");
        graph_.scale(x, keep(weight), count);
    }

    void select(const std::vector<int>& registers) {
        for (const int r : registers) width(r);
        require(!selected_, "the rows of the outputs are selected already");
        selected_ = true;
        graph_.select(registers);
    }

    // *segments*: (tokens, position of the first, output rows, context, addresses of pages by table, state) each.
    void run(const IdArray& tokens, nb::list segments, int result, OutFloats out) {
        std::vector<Segment> all;
        int64_t count = 0, outputs = 0;
        for (nb::handle item : segments) {
            const auto it = nb::cast<nb::tuple>(item);
            Segment s;
            s.count = nb::cast<int64_t>(it[0]), s.start = nb::cast<int64_t>(it[1]);
            s.outputs = nb::cast<int64_t>(it[2]), s.context = nb::cast<int64_t>(it[3]);
            const auto tables = nb::cast<nb::tuple>(it[4]);
            require(s.count > 0 && s.start >= 0 && s.outputs >= 0 && s.outputs <= s.count, "a segment of no sense");
            require(s.context >= 0 && s.context < contexts_, "no such context");
            require(tables.size() == tables_.size(), "pages of another number of tables");
            for (size_t i = 0; i < tables_.size(); ++i) s.pages.push_back(addresses(tables[i], s, tables_[i].window));
            const auto state = nb::cast<OutFloats>(it[5]);
            require(int64_t(state.size()) == state_, "a state of another size");
            s.state = state.data();
            count += s.count, outputs += s.outputs;
            all.push_back(std::move(s));
        }
        require(int64_t(tokens.size()) == count, "another number of tokens than the segments have");
        for (size_t i = 0; i < tokens.size(); ++i)
            require(tokens.data()[i] >= 0 && tokens.data()[i] < vocabulary_, "a token is outside of the vocabulary");
        require(selected_ || outputs == count, "nothing selects the rows of the outputs, so all are");
        require(int64_t(out.size()) == outputs * width(result), "out has another size than the output rows");
        const Computing computing;
        graph_.run(tokens.data(), all, result, out.data());
    }

private:
    // Widths and counts whose products stay far from the end of an int64_t.
    static int64_t checked(int64_t count) {
        require(count > 0 && count <= kLargest, "a width or a number of heads or layers is out of range");
        return count;
    }

    int64_t width(int r) const {
        require(r >= 0 && r < registers_, "no such register");
        return graph_.width(r);
    }

    void check_state(int64_t offset, int64_t size) const {
        require(!selected_, "a state behind the outputs alone");
        require(offset >= 0 && size <= state_ && offset <= state_ - size, "the state ends before");
    }

    static std::vector<int16_t*> addresses(nb::handle table, const Segment& s, int64_t window) {
        const auto pages = nb::cast<Addresses>(table);
        require(int64_t(pages.size()) * kKeyBlock - s.count >= s.start, "the pages have no room for the tokens");
        AttentionArgs a;
        a.start = s.start, a.window = window;
        std::vector<int16_t*> found;
        for (size_t i = 0; i < pages.size(); ++i) {
            require(pages.data()[i] != 0 || int64_t(i) < a.first_key(0) / kKeyBlock, "a page is missing");
            found.push_back(reinterpret_cast<int16_t*>(uintptr_t(pages.data()[i])));
        }
        return found;
    }

    template <class A>
    const float* keep(const A& array) {
        kept_.push_back(nb::cast(array));
        return array.data();
    }

    // A packing.Matrix; *rows* -1: an embedding, of any number of rows.
    Matrix matrix(nb::handle source, int64_t inputs, int64_t rows) {
        Matrix m;
        const auto bytes = nb::cast<Bytes>(source.attr("data"));
        m.rows = nb::cast<int64_t>(source.attr("rows")), m.cols = nb::cast<int64_t>(source.attr("columns"));
        m.type = checked_type(nb::cast<int>(source.attr("kind")), m.rows, m.cols, bytes), m.data = bytes.data();
        m.inputs = nb::cast<int64_t>(source.attr("inputs")), m.scale = nb::cast<float>(source.attr("scale"));
        require(m.inputs == inputs && m.inputs <= m.cols && (rows < 0 || m.rows == rows),
                "the matrix has another shape than its registers");
        require(m.inputs == m.cols || !is_float(m.type), "a float matrix is never padded");
        if (const nb::object factors = source.attr("factors"); !factors.is_none()) {
            const auto values = nb::cast<Floats>(factors);
            require(values.size() == 1 || int64_t(values.size()) == m.rows, "factors must be one, or one per row");
            m.factors = values.data(), m.n_factors = int64_t(values.size());
        }
        kept_.push_back(nb::borrow(source));
        return m;
    }

    static constexpr int64_t kLargest = 1 << 24, kLargestState = int64_t(1) << 40;
    int64_t registers_ = 0, state_ = 0, vocabulary_ = 0, contexts_ = 0;
    bool selected_ = false;
    std::vector<int64_t> pairs_, layers_;  // of rotations; of tables
    std::map<int, int64_t> numbers_;       // of experts, by the register of the chosen ones
    std::vector<Graph::Table> tables_;
    std::vector<nb::object> kept_;
    Graph graph_;
};

}  // namespace

void bind_graph(nb::module_& m) {
    nb::class_<BoundGraph>(m, "Graph", "A forward pass; bitnet/kernels/instructions.py says what the parts mean.")
        .def(nb::init<>())
        .def("add_register", &BoundGraph::add_register, "width"_a, "place"_a)
        .def("add_table", &BoundGraph::add_table, "layers"_a, "kv_heads"_a, "head_dim"_a, "window"_a, "q8"_a = false)
        .def("add_context", &BoundGraph::add_context, "rotations"_a)
        .def("add_rotation", &BoundGraph::add_rotation, "pairs"_a, "half"_a)
        .def("embed", &BoundGraph::embed, "out"_a, "table"_a, "scale"_a)
        .def("norm", &BoundGraph::norm, "out"_a, "x"_a, "weight"_a.noconvert(), "parts"_a, "eps"_a)
        .def("center", &BoundGraph::center, "out"_a, "x"_a)
        .def("linear", &BoundGraph::linear, "x"_a, "outs"_a, "matrices"_a, "biases"_a)
        .def("split", &BoundGraph::split, "x"_a, "outs"_a, "groups"_a)
        .def("join", &BoundGraph::join, "out"_a, "parts"_a, "groups"_a)
        .def("transpose", &BoundGraph::transpose, "out"_a, "x"_a, "rows"_a, "columns"_a)
        .def("set_state", &BoundGraph::set_state, "size"_a)
        .def("convolve", &BoundGraph::convolve, "out"_a, "x"_a, "weight"_a.noconvert(), "bias"_a.noconvert().none(), "silu"_a,
             "offset"_a)
        .def("delta", &BoundGraph::delta, "out"_a, "q"_a, "k"_a, "v"_a, "alpha"_a, "beta"_a, "a"_a.noconvert(),
             "dt"_a.noconvert(), "key_heads"_a, "grouped"_a, "offset"_a)
        .def("scan", &BoundGraph::scan, "out"_a, "x"_a, "b"_a, "c"_a, "dt"_a, "a"_a.noconvert(),
             "bias"_a.noconvert(), "skip"_a.noconvert(), "groups"_a, "offset"_a)
        .def("rotate", &BoundGraph::rotate, "x"_a, "rotation"_a, "head_dim"_a)
        .def("temper", &BoundGraph::temper, "x"_a, "scale"_a, "length"_a)
        .def("attend", &BoundGraph::attend, "out"_a, "q"_a, "k"_a, "v"_a, "table"_a, "place"_a, "scale"_a,
             "softcap"_a, "sinks"_a.noconvert().none() = nb::none())
        .def("gate", &BoundGraph::gate, "out"_a, "gate"_a, "up"_a, "kind"_a)
        .def("route", &BoundGraph::route, "experts"_a, "weights"_a, "logits"_a, "bias"_a, "gating"_a, "groups"_a,
             "groups_used"_a, "renormalised"_a, "scale"_a)
        .def("enumerate", &BoundGraph::enumerate, "experts"_a)
        .def("expert_linear", &BoundGraph::expert_linear, "x"_a, "experts"_a, "outs"_a, "matrices"_a, "biases"_a,
             "apart"_a)
        .def("combine", &BoundGraph::combine, "out"_a, "x"_a, "weights"_a)
        .def("hadamard", &BoundGraph::hadamard, "out"_a, "x"_a, "signs"_a.noconvert(), "block"_a, "inverse"_a)
        .def("add", &BoundGraph::add, "x"_a, "y"_a)
        .def("scale", &BoundGraph::scale, "x"_a, "weight"_a.noconvert())
        .def("select", &BoundGraph::select, "registers"_a)
        .def("run", &BoundGraph::run, "tokens"_a.noconvert(), "segments"_a, "result"_a, "out"_a.noconvert());
}

}  // namespace bitnet
