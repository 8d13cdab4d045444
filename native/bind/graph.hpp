#pragma once

#include <nanobind/nanobind.h>

namespace bitnet {

void bind_graph(nanobind::module_& m);

}  // namespace bitnet
