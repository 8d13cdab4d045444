// Threads that wait for work: a short spin, then sleep. They never assume a core is theirs.
#pragma once

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

// 64-aligned memory of this thread, at least *size* bytes, valid until its next call in this thread.
uint8_t* thread_scratch(size_t size);

}  // namespace bitnet
