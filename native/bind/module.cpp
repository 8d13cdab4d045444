// Entry point of the extension module bitnet._native; each area binds its own functions.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind/module.hpp"

NB_MODULE(_native, m) {
    m.doc() = "Compiled parts of bitnet; import them through bitnet.base.native.";
    m.attr("INTERFACE") = BITNET_INTERFACE;
    m.def("set_leak_warnings", &nb::set_leak_warnings, "wanted"_a);
    using namespace bitnet;
    for (const auto bind : {bind_file_guard, bind_gguf, bind_graph, bind_kernels, bind_exact_head,
                            bind_tokenizer, bind_tokenizer_parts})
        bind(m);
}
