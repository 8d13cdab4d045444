#include "system/forks.hpp"

#if !defined(_WIN32)
#include <pthread.h>
#endif

namespace bitnet {
namespace {

std::atomic<int> count{0};

#if !defined(_WIN32)
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, [] { count.fetch_add(1); });
#endif

}  // namespace

int forks() { return count.load(std::memory_order_relaxed); }

}  // namespace bitnet
