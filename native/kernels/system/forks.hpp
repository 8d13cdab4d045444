// What a forked child may not take over from its parent: state that another thread was changing.
#pragma once

#include <atomic>

namespace bitnet {

// Forks between the process that loaded this module and this one.
int forks();

// A T for this process. A child of fork gets one of its own when it first asks: threads that the
// child does not have may have held the locks of its parent's, and left it half changed. That one
// stays in memory as it is.
template <class T>
class PerProcess {
public:
    PerProcess() : held_(new Held) {}
    ~PerProcess() {
        const Held* held = held_.load();
        if (held->forks == forks()) delete held;
    }
    PerProcess(const PerProcess&) = delete;
    PerProcess& operator=(const PerProcess&) = delete;

    T& get() {
        Held* held = held_.load(std::memory_order_acquire);
        if (held->forks == forks()) return held->value;
        auto* own = new Held;
        if (held_.compare_exchange_strong(held, own)) return own->value;
        delete own;  // another thread was faster
        return held->value;
    }

private:
    struct Held {
        int forks = bitnet::forks();
        T value;
    };
    std::atomic<Held*> held_;
};

}  // namespace bitnet
