#pragma once

#include <nanobind/nanobind.h>

namespace bitnet {

void bind_operations(nanobind::module_& m);

}  // namespace bitnet
