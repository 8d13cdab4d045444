// The screen of the output head as a member of the extension module.
#pragma once

#include <nanobind/nanobind.h>

namespace bitnet {

void bind_screen(nanobind::module_& m);

}  // namespace bitnet
