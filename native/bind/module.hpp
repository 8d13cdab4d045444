// What the files of this folder share: the functions that add each area to the module, views of
// Python's arrays, buffers and strings, checks that become a ValueError, and the state in which
// kernels run.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <thread>
#include <utility>
#include <vector>

#include "ops/ops.hpp"
#include "system/thread_pool.hpp"
#include "ternary/layout.hpp"

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

// View of the contiguous buffer of a Python object, which cannot be resized as long as this lives.
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

// UTF-8 of a Python string, in memory that the string owns. Throws for a lone surrogate, and for a
// text of 2 GiB or more.
std::string_view utf8(nb::handle text);

inline nb::bytes to_bytes(std::string_view text) { return nb::bytes(text.data(), text.size()); }

// Releases the interpreter's lock, as nanobind's gil_scoped_release does, but is safe in a daemon
// thread while the interpreter shuts down, when such a thread cannot get the lock again. Up to
// Python 3.13, PyEval_RestoreThread ends the thread, for which glibc unwinds its stack with an
// exception; that would terminate the process at the first noexcept frame. So the thread sleeps
// here for good, as later versions of Python make it do.
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

// C-contiguous array in main memory; *More* can fix the number of its axes.
template <class T, class... More>
using Array = nanobind::ndarray<T, More..., nanobind::c_contig, nanobind::device::cpu>;
using Floats = Array<const float>;
using OutFloats = Array<float>;
using Bytes = Array<const uint8_t>;
using OutBytes = Array<uint8_t>;

// NumPy array that owns *values*, which are not copied.
template <class T>
nb::ndarray<nb::numpy, T, nb::ndim<1>> to_array(std::vector<T>&& values) {
    auto* owned = new std::vector<T>(std::move(values));
    const nb::capsule owner(owned,
                            [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
    return {owned->data(), {owned->size()}, owner};
}

inline Type known_type(int type) {
    require(type >= 0 && type < kTypes, "unknown weight type");
    return Type(type);
}

// Refuses shapes whose size in bytes, rounded up to whole tiles, might not fit in 64 bits.
inline void check_shape(int64_t rows, int64_t cols) {
    constexpr int64_t kMost = INT64_MAX / 1024;
    require(rows > 0 && cols > 0, "a matrix has no rows or no columns");
    require(rows <= kMost / cols, "the matrix is too large");
}

// *type* as a Type, if *weight* has all bytes of a matrix of that type and shape.
inline Type checked_type(int type, int64_t rows, int64_t cols, const Bytes& weight) {
    check_shape(rows, cols);
    require(row_bytes(known_type(type), cols) > 0, "cols is not a whole number of blocks");
    require(int64_t(weight.size()) >= weight_bytes(Type(type), rows, cols),
            "weight has too few bytes");
    require(cols <= most_ternary_cols(Type(type)), "too many columns for ternary tiles");
    return Type(type);
}

// The state in which kernels run: without the interpreter's lock, and in the floating-point mode
// that they are written for.
struct Computing {
    const Released released;
    const FloatMode mode;
};

}  // namespace bitnet
