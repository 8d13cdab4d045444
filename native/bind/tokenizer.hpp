#pragma once

#include <nanobind/nanobind.h>

namespace bitnet {

void bind_tokenizer(nanobind::module_& m);

}  // namespace bitnet
