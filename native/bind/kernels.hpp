// The functions of this folder as members of the extension module.
#pragma once

#include <nanobind/nanobind.h>

namespace bitnet {

void bind_kernels(nanobind::module_& m);
void bind_ternary(nanobind::module_& m);

}  // namespace bitnet
