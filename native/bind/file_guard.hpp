// Reads from a mapped file that ends before them: zeros and a mark, where the system sends SIGBUS.
#pragma once

#include <nanobind/nanobind.h>

namespace bitnet {

void bind_file_guard(nanobind::module_& m);

}  // namespace bitnet
