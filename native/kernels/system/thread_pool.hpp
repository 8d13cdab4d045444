// Threads that wait for work: they spin for a short time, then sleep, and never assume that a core
// is theirs. Also how a range of rows is cut into pieces of work, memory for weights, the
// floating-point mode, and state that a forked child must not take over from its parent.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace bitnet {

// Sets the number of compute threads, the caller's included, for the work that begins from now on.
void set_threads(int count);
int threads();

// Wakes the threads that sleep; they then spin for the work that is about to follow.
void wake_threads();

using ChunkFunction = void (*)(void* context, int64_t chunk);

// Calls function(context, i) once for every i in [0, chunks), on any thread, in any order, and
// returns when all are done. While another caller has the threads, all calls run on the caller's
// own thread, and its exceptions pass. Otherwise an exception in any call, the caller's own ones
// included, becomes std::bad_alloc, the only one expected.
void run_chunks(int64_t chunks, ChunkFunction function, void* context);

template <class F>
void parallel_for(int64_t chunks, F&& body) {
    using Body = std::remove_reference_t<F>;
    run_chunks(
        chunks, [](void* context, int64_t chunk) { (*static_cast<Body*>(context))(chunk); }, &body);
}

// Number of elements below which waking a thread costs more than it saves.
constexpr int64_t kSerialWork = 16384;

// Cuts [0, size) into ranges, multiples of *multiple*: one if *small*, otherwise several per
// thread, so that a slow core does not delay the others.
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

// How long a thread spins before it sleeps. If a spin took far longer than its turns need, another
// program ran on the core meanwhile, and could have run instead of the spin: then the thread sleeps
// at once in its next waits, before it spins again.
class Patience {
public:
    static constexpr int kTurns = 2000;  // about 40 microseconds: the gap between two operations
    static constexpr int kWaitsAsleep = 256;  // before the next spin
    static constexpr std::chrono::microseconds kPreempted{1000};

    // Turns to spin in the wait that begins.
    int turns() {
        if (asleep_ == 0) return kTurns;
        --asleep_;
        return 0;
    }
    // A spin has taken *time*.
    void spun(std::chrono::nanoseconds time) {
        if (time > kPreempted) asleep_ = kWaitsAsleep;
    }

private:
    int asleep_ = 0;
};

// 64-aligned memory of this thread, at least *size* bytes, valid until its next call in this
// thread.
uint8_t* thread_scratch(size_t size);

// Memory for repacked weights: *size* bytes, 64-aligned, not initialized. It is a piece of a large
// mapping, which has huge pages if the system has them, and is freed with the last of its pieces.
// Null if the memory does not suffice.
std::shared_ptr<uint8_t> allocate_weights(size_t size);

// Sets the floating-point mode that the kernels are written for: rounding to nearest, subnormal
// numbers kept. A caller's thread may have another mode, for example from torch.set_flush_denormal;
// that mode is restored at the end.
class FloatMode {
public:
    FloatMode() : before_(read()) {
        if (before_ != kDefault) write(kDefault);
    }
    ~FloatMode() { write(before_); }
    FloatMode(const FloatMode&) = delete;
    FloatMode& operator=(const FloatMode&) = delete;

private:
#if defined(__x86_64__) || defined(_M_X64)
    using Bits = unsigned;
    static constexpr Bits kDefault = 0x1f80;  // every exception masked
    static Bits read() { return _mm_getcsr(); }
    static void write(Bits bits) { _mm_setcsr(bits); }
#elif defined(__aarch64__) && !defined(_MSC_VER)
    using Bits = uint64_t;
    static constexpr Bits kDefault = 0;
    static Bits read() {
        Bits bits;
        __asm__ volatile("mrs %0, fpcr" : "=r"(bits));
        return bits;
    }
    static void write(Bits bits) { __asm__ volatile("msr fpcr, %0" : : "r"(bits)); }
#else
    using Bits = int;
    static constexpr Bits kDefault = 0;
    static Bits read() { return kDefault; }
    static void write(Bits) {}
#endif
    const Bits before_;
};

// Number of forks between the process that loaded this module and this one.
int forks();

// A T for this process. A forked child gets one of its own when it first calls get(): threads of
// the parent, which the child does not have, may have held locks of the parent's T and left it half
// changed. The child leaves that one in memory as it is.
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
