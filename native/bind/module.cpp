// Entry point of the extension module bitnet._native; each area binds its own functions.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind/kernels.hpp"
#include "bind/graph.hpp"
#include "bind/operations.hpp"
#include "bind/head.hpp"
#include "bind/file_guard.hpp"
#include "bind/gguf.hpp"
#include "bind/tokenizer.hpp"

namespace nb = nanobind;

NB_MODULE(_native, m) {
    m.doc() = "Compiled parts of bitnet; import them through bitnet.base.native.";
    m.attr("INTERFACE") = BITNET_INTERFACE;
    m.def("set_leak_warnings", &nb::set_leak_warnings, nb::arg("wanted"),
          "Whether the end of the process tells which objects of this module are left.");
    bitnet::bind_file_guard(m);
    bitnet::bind_gguf(m);
    bitnet::bind_operations(m);
    bitnet::bind_graph(m);
    bitnet::bind_kernels(m);
    bitnet::bind_exact_head(m);
    bitnet::bind_ternary(m);
    bitnet::bind_tokenizer(m);
}
