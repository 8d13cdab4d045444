// The interpreter's lock, let go of while C++ computes.
#pragma once

#include <Python.h>

#include <chrono>
#include <thread>

namespace bitnet {

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
