// Python binding of the exact head: an output head with a copy of six bits a weight.
#include "bind/module.hpp"

#include <nanobind/stl/vector.h>

#include "head/exact_head.hpp"

namespace bitnet {
namespace {

// An ExactHead that points into the caller's arrays, which keep_alive in bind_exact_head holds.
// *tiles* has the first five bits of each weight of the copy, *sixth* the sixth.
struct BoundHead {
    using Order = Array<const int32_t>;
    ExactHead head;

    BoundHead(int type, const Bytes& weight, int64_t rows, int64_t cols, const Order& order,
              const Floats& factors, const OutBytes& tiles, const OutBytes& sixth,
              const OutFloats& step, const OutFloats& residual, const OutFloats& norm, int file,
              int64_t file_offset) {
        require(type >= 0 && type < kTypes && is_float(Type(type)) && !is_tiled(Type(type)),
                "only F32, F16 and BF16 heads have bounds");
        require(rows > 0 && cols > 0 && cols <= kHeadColumns, "rows and cols are out of range");
        require(int64_t(weight.size()) / row_bytes(Type(type), cols) >= rows,
                "weight has too few bytes");
        const int64_t padded = head_tiles(rows) * kHeadRows;
        require(int64_t(order.size()) == cols && int64_t(factors.size()) == cols,
                "order and factors must be (cols,)");
        for (int64_t i = 0; i < cols; ++i)
            require(order.data()[i] >= 0 && order.data()[i] < cols,
                    "a column number is out of range");
        require(int64_t(tiles.size()) == head_tiles(rows) * head_tile_bytes(cols),
                "tiles has a wrong size");
        require(int64_t(sixth.size()) == padded * head_sixth_bytes(cols), "sixth has a wrong size");
        require(int64_t(step.size()) == padded && int64_t(residual.size()) == padded &&
                    int64_t(norm.size()) == padded,
                "step, residual and norm must have whole tiles of rows");
        head.type = Type(type);
        head.weight = weight.data();
        head.rows = rows;
        head.cols = cols;
        head.order = order.data();
        head.factors = factors.data();
        head.tiles = tiles.data();
        head.sixth = sixth.data();
        head.step = step.data();
        head.residual = residual.data();
        head.norm = norm.data();
        head.file = file;
        head.file_offset = file_offset;
    }
};

// Fills tiles [begin, end) of the copy; false if it has weights whose logits cannot be bounded.
bool bind_build(const BoundHead& self, int64_t begin, int64_t end) {
    require(begin >= 0 && begin <= end && end <= head_tiles(self.head.rows),
            "tiles are out of range");
    const Computing computing;
    return build_copy(self.head, begin, end);
}

// (ids, logits, bound, tail, refined), as HeadResult explains them; None for a hidden state whose
// logits cannot be bounded.
nb::object to_tuple(HeadResult&& r) {
    if (!r.usable) return nb::none();
    return nb::make_tuple(to_array(std::move(r.ids)), to_array(std::move(r.logits)), r.bound,
                          r.tail, r.refined);
}

// A tuple of to_tuple for each hidden state of *x*, (tokens, cols). Its ids are the *count* best
// rows that are not *listed* for the state, the rows within its margin of the best one, and the
// listed ones; see HeadQuery.
nb::list bind_find(const BoundHead& self, const Floats& x, int64_t count,
                   const std::vector<float>& margins,
                   const std::vector<Array<const int64_t>>& listed) {
    const int64_t tokens = int64_t(x.size()) / self.head.cols;
    require(int64_t(x.size()) == tokens * self.head.cols, "x must be (tokens, cols)");
    require(int64_t(margins.size()) == tokens && int64_t(listed.size()) == tokens && count > 0,
            "margins and listed must have an entry for each token, count must be positive");
    std::vector<HeadQuery> queries(static_cast<size_t>(tokens));
    for (size_t i = 0; i < queries.size(); ++i) {
        HeadQuery& query = queries[i];
        query.x = x.data() + int64_t(i) * self.head.cols;
        query.count = count;
        query.margin = margins[i];
        query.listed.assign(listed[i].data(), listed[i].data() + listed[i].size());
        for (size_t k = 0; k < query.listed.size(); ++k)
            require(query.listed[k] >= 0 && query.listed[k] < self.head.rows &&
                        (k == 0 || query.listed[k] > query.listed[k - 1]),
                    "listed rows must be rising and in range");
    }
    std::vector<HeadResult> results;
    {
        const Computing computing;
        results = find_logits(self.head, queries);
    }
    nb::list out;
    for (HeadResult& result : results) out.append(to_tuple(std::move(result)));
    return out;
}

// Fills in approximate logits and upper bounds of all rows, with or without the sixth bits; false
// for a hidden state whose logits cannot be bounded.
bool bind_bounds(const BoundHead& self, const Floats& x, bool sixth, const OutFloats& approx,
                 const OutFloats& upper) {
    require(int64_t(x.size()) == self.head.cols &&
                int64_t(approx.size()) == head_tiles(self.head.rows) * kHeadRows &&
                upper.size() == approx.size(),
            "x must be (cols,), approx and upper must have whole tiles of rows");
    const Computing computing;
    return head_bounds(self.head, x.data(), sixth, approx.data(), upper.data());
}

// Fills *out* with the logits of the rows *ids*, as the head's own kernel computes them.
void bind_rows(const BoundHead& self, const Floats& x, const Array<const int64_t>& ids,
               const OutFloats& out) {
    require(int64_t(x.size()) == self.head.cols && ids.size() == out.size(),
            "x must be (cols,), out must have the size of ids");
    for (size_t i = 0; i < ids.size(); ++i)
        require(ids.data()[i] >= 0 && ids.data()[i] < self.head.rows,
                "a row number is out of range");
    const Computing computing;
    linear_rows(self.head, x.data(), ids.data(), int64_t(ids.size()), out.data());
}

// Sizes of the arrays that the caller allocates for a copy: (bytes of *tiles*, bytes of *sixth*,
// number of rows rounded up to whole tiles).
nb::tuple bind_sizes(int64_t rows, int64_t cols) {
    require(rows > 0 && cols > 0 && cols <= kHeadColumns, "rows and cols are out of range");
    const int64_t padded = head_tiles(rows) * kHeadRows;
    return nb::make_tuple(head_tiles(rows) * head_tile_bytes(cols), padded * head_sixth_bytes(cols),
                          padded);
}

}  // namespace

void bind_exact_head(nb::module_& m) {
    m.def("exact_head_sizes", &bind_sizes, "rows"_a, "cols"_a);
    m.attr("EXACT_HEAD_COLUMNS") = kHeadColumns;
    // Arguments of keep_alive: 1 is the head itself, 3 is *weight*, and 6 to 12 are *order* to
    // *norm*.
    nb::class_<BoundHead>(m, "ExactHead")
        .def(nb::init<int, const Bytes&, int64_t, int64_t, const BoundHead::Order&, const Floats&,
                      const OutBytes&, const OutBytes&, const OutFloats&, const OutFloats&,
                      const OutFloats&, int, int64_t>(),
             nb::keep_alive<1, 3>(), nb::keep_alive<1, 6>(), nb::keep_alive<1, 7>(),
             nb::keep_alive<1, 8>(), nb::keep_alive<1, 9>(), nb::keep_alive<1, 10>(),
             nb::keep_alive<1, 11>(), nb::keep_alive<1, 12>(), "type"_a, "weight"_a.noconvert(),
             "rows"_a, "cols"_a, "order"_a.noconvert(), "factors"_a.noconvert(),
             "tiles"_a.noconvert(), "sixth"_a.noconvert(), "step"_a.noconvert(),
             "residual"_a.noconvert(), "norm"_a.noconvert(), "file"_a = -1, "file_offset"_a = 0)
        .def("build", &bind_build, "begin"_a, "end"_a)
        .def("find", &bind_find, "x"_a.noconvert(), "count"_a, "margins"_a, "listed"_a)
        .def("bounds", &bind_bounds, "x"_a.noconvert(), "sixth"_a, "approx"_a.noconvert(),
             "upper"_a.noconvert())
        .def("rows", &bind_rows, "x"_a.noconvert(), "ids"_a.noconvert(), "out"_a.noconvert());
}

}  // namespace bitnet
