// Python's view of the GGUF index.
#pragma once

#include <nanobind/nanobind.h>

namespace bitnet {

void bind_gguf(nanobind::module_& m);

}  // namespace bitnet
