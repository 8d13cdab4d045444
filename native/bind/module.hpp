// What every file of this folder needs: its functions as members of the module, buffers of Python, and the
// interpreter's lock, let go of while C++ computes.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <cstdint>
#include <string_view>
#include <thread>

namespace nb = nanobind;
using namespace nb::literals;

namespace bitnet {

void bind_file_guard(nb::module_& m);
void bind_gguf(nb::module_& m);
void bind_operations(nb::module_& m);
void bind_graph(nb::module_& m);
void bind_kernels(nb::module_& m);
void bind_exact_head(nb::module_& m);
void bind_tokenizer(nb::module_& m);

// A contiguous buffer of Python's, held for as long as this lives.
class Buffer {
public:
    explicit Buffer(nb::handle object) {
        if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) throw nb::python_error();
    }
    ~Buffer() { PyBuffer_Release(&view_); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    std::string_view text() const { return {static_cast<const char*>(view_.buf), static_cast<size_t>(view_.len)}; }
    const uint8_t* data() const { return static_cast<const uint8_t*>(view_.buf); }
    size_t size() const { return static_cast<size_t>(view_.len); }

private:
    Py_buffer view_;
};

inline nb::bytes to_bytes(std::string_view text) { return nb::bytes(text.data(), text.size()); }

// As nanobind's gil_scoped_release, and safe in a daemon thread of an interpreter that ends: such a
// thread may not come back. Until Python 3.13 it is ended in here, with glibc by unwinding its stack,
// which no frame above could let pass; so it stops here, as in later versions of Python.
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

}  // namespace bitnet
