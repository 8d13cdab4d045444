// Threads that wait for work: a short spin, then sleep. They never assume a core is theirs.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace bitnet {

// Compute threads, the caller's included; takes effect with the next piece of work.
void set_threads(int count);
int threads();

// Sleeping threads wake up and wait for the work that follows shortly.
void wake_threads();

using ChunkFunction = void (*)(void* context, int64_t chunk);

// Calls function(context, i) once for every i in [0, chunks), on any thread, in any order, and
// returns when all are done. Work that arrives while another caller has the threads runs on the
// caller's own thread.
void run_chunks(int64_t chunks, ChunkFunction function, void* context);

template <class F>
void parallel_for(int64_t chunks, F&& body) {
    using Body = std::remove_reference_t<F>;
    run_chunks(chunks, [](void* context, int64_t chunk) { (*static_cast<Body*>(context))(chunk); }, &body);
}

// How long a thread spins before it sleeps. A spin that took far longer than its turns means that
// another program ran on the core meanwhile and could have all along: then the thread sleeps at once,
// and tries again some waits later.
class Patience {
public:
    static constexpr int kTurns = 2000;       // about 40 microseconds: the gap between two operations
    static constexpr int kWaitsAsleep = 256;  // before the next try
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

// 64-aligned memory of this thread, at least *size* bytes, valid until its next call in this thread.
uint8_t* thread_scratch(size_t size);

}  // namespace bitnet
