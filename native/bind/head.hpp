// The exact head as a member of the extension module.
#pragma once

#include <nanobind/nanobind.h>

namespace bitnet {

void bind_exact_head(nanobind::module_& m);

}  // namespace bitnet
