// How a range of rows is cut into pieces of work.
#pragma once

#include <algorithm>
#include <cstdint>

#include "system/thread_pool.hpp"

namespace bitnet {

constexpr int64_t kSerialWork = 16384;  // elements below which waking a thread costs more than it saves

// Ranges of a fixed multiple of rows, several per thread so that a slow core does not hold the rest.
struct Split {
    int64_t n, step, chunks;
    Split(int64_t size, int64_t multiple, bool small) : n(size) {
        const int64_t parts = small ? 1 : int64_t(threads()) * (threads() > 1 ? 8 : 1);
        const int64_t units = (n + multiple - 1) / multiple;
        step = std::max<int64_t>(1, (units + parts - 1) / parts) * multiple;
        chunks = (n + step - 1) / step;
    }
    template <class F>
    void run(F&& body) const {
        parallel_for(chunks, [&](int64_t c) { body(c * step, std::min(n, (c + 1) * step)); });
    }
};

}  // namespace bitnet
