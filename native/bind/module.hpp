// What every file of this folder needs: its functions as members of the module, arrays, buffers and
// texts of Python, a ValueError for what they lack, and the state in which C++ computes.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <thread>
#include <utility>
#include <vector>

#include "ops/ops.hpp"
#include "system/thread_pool.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace bitnet {

void bind_file_guard(nb::module_& m);
void bind_gguf(nb::module_& m);
void bind_graph(nb::module_& m);
void bind_kernels(nb::module_& m);
void bind_exact_head(nb::module_& m);
void bind_tokenizer(nb::module_& m);
void bind_tokenizer_parts(nb::module_& m);

// A contiguous buffer of Python's, held for as long as this lives.
class Buffer {
public:
    explicit Buffer(nb::handle object) {
        if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) throw nb::python_error();
    }
    ~Buffer() { PyBuffer_Release(&view_); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    std::string_view text() const {
        return {static_cast<const char*>(view_.buf), size_t(view_.len)};
    }
    const uint8_t* data() const { return static_cast<const uint8_t*>(view_.buf); }
    size_t size() const { return size_t(view_.len); }

private:
    Py_buffer view_;
};

// The text of a Python string, which keeps it. Throws for half of a surrogate pair, or too long a
// text.
std::string_view utf8(nb::handle text);

inline nb::bytes to_bytes(std::string_view text) { return nb::bytes(text.data(), text.size()); }

// As nanobind's gil_scoped_release, and safe in a daemon thread of an interpreter that ends: such a
// thread may not come back. Until Python 3.13 it is ended in here, with glibc by unwinding its
// stack, which no frame above could let pass; so it stops here, as in later versions of Python.
class Released {
public:
    Released() : state_(PyEval_SaveThread()) {}
    ~Released() {
        try {
            PyEval_RestoreThread(state_);
        } catch (...) {
            for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
        }
    }
    Released(const Released&) = delete;
    Released& operator=(const Released&) = delete;

private:
    PyThreadState* state_;
};

// Row-major, in memory; *More* may say how many axes.
template <class T, class... More>
using Array = nanobind::ndarray<T, More..., nanobind::c_contig, nanobind::device::cpu>;
using Floats = Array<const float>;
using OutFloats = Array<float>;
using Bytes = Array<const uint8_t>;
using OutBytes = Array<uint8_t>;

// The numbers as NumPy's array, which keeps them: they are not copied.
template <class T>
nb::ndarray<nb::numpy, T, nb::ndim<1>> to_array(std::vector<T>&& values) {
    auto* kept = new std::vector<T>(std::move(values));
    const nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
    return {kept->data(), {kept->size()}, owner};
}

inline Type known_type(int type) {
    require(type >= 0 && type < kTypes, "unknown weight type");
    return Type(type);
}

// Refuses shapes whose sizes in bytes, rounded up to whole tiles, might not fit in 64 bits.
inline void check_shape(int64_t rows, int64_t cols) {
    constexpr int64_t kMost = INT64_MAX / 1024;
    require(rows > 0 && cols > 0, "a matrix has no rows or no columns");
    require(rows <= kMost / cols, "the matrix is too large");
}

// The type of a matrix, whose bytes *weight* has.
inline Type checked_type(int type, int64_t rows, int64_t cols, const Bytes& weight) {
    check_shape(rows, cols);
    require(row_bytes(known_type(type), cols) > 0, "cols is not a whole number of blocks");
    require(int64_t(weight.size()) >= weight_bytes(Type(type), rows, cols),
            "weight has too few bytes");
    return Type(type);
}

// While kernels run: without the interpreter's lock, in the floating-point mode they are written
// for.
struct Computing {
    const Released released;
    const FloatMode mode;
};

}  // namespace bitnet
