#include "system/thread_pool.hpp"

#include <condition_variable>
#include <exception>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif
#if !defined(_WIN32)
#include <pthread.h>
#include <sys/mman.h>
#endif

namespace bitnet {
namespace {

std::atomic<int> fork_count{0};
#if !defined(_WIN32)
[[maybe_unused]] const int forks_are_counted =
    pthread_atfork(nullptr, nullptr, [] { fork_count.fetch_add(1); });
#endif

constexpr int kCallerSpins = 200;  // then the caller yields its core to a worker that has none

void pause_core() {
#if defined(__x86_64__) || defined(_M_X64)
    _mm_pause();
#elif defined(__aarch64__) && !defined(_MSC_VER)
    __asm__ volatile("yield");
#endif
}

// One call of run_chunks.
struct Job {
    ChunkFunction function;
    void* context;
    int64_t chunks;
    std::atomic<int64_t> next{0};
    std::atomic<bool> failed{false};
    std::exception_ptr error{};  // of the first chunk that failed

    // Must not throw: other threads still work on the job, and a worker has no caller to catch it.
    void work() noexcept {
        try {
            for (;;) {
                const int64_t chunk = next.fetch_add(1, std::memory_order_relaxed);
                if (chunk >= chunks) return;
                function(context, chunk);
            }
        } catch (...) {
            if (!failed.exchange(true)) error = std::current_exception();
        }
    }
};

class Pool {
public:
    // If the system cannot start another thread, there are fewer: that is slower, and still right.
    explicit Pool(int workers) : requested_(workers) {
        try {
            workers_.reserve(size_t(workers));
            for (int i = 0; i < workers; ++i) workers_.emplace_back([this] { loop(); });
        } catch (const std::exception&) {
            // The threads that have started do all the work.
        }
    }

    ~Pool() {
        {
            const std::lock_guard<std::mutex> lock(sleep_);
            stop_ = true;
            // Without the lock, a worker could compare the old number, and then miss the only
            // notification before it waits.
            epoch_.fetch_add(1);
        }
        wake_.notify_all();
        for (std::thread& worker : workers_) worker.join();
    }

    // The caller works, too. The job is over when it is withdrawn and no worker is inside: a worker
    // that did not get a core in time has taken no chunk, and is not waited for.
    void run(Job& job) {
        current_.store(&job);
        epoch_.fetch_add(1);
        notify();
        job.work();
        current_.store(nullptr);
        for (int spins = 0; inside_.load() != 0; ++spins) {
            if (spins < kCallerSpins)
                pause_core();
            else
                std::this_thread::yield();
        }
        if (job.failed.load()) std::rethrow_exception(job.error);
    }

    int requested() const { return requested_; }

    void wake() {
        epoch_.fetch_add(1);
        notify();
    }

private:
    void notify() {
        if (sleepers_.load() == 0) return;
        {
            const std::lock_guard<std::mutex> lock(sleep_);
        }
        wake_.notify_all();
    }

    // The life of a worker.
    void loop() {
        const FloatMode mode;
        Patience patience;
        uint64_t seen = 0;
        for (;;) {
            wait(seen, patience);
            seen = epoch_.load();
            if (stop_.load()) return;
            inside_.fetch_add(1);
            if (Job* job = current_.load()) job->work();
            inside_.fetch_sub(1);
        }
    }

    // Returns when epoch_ is not *seen*.
    void wait(uint64_t seen, Patience& patience) {
        if (const int turns = patience.turns()) {
            const auto start = std::chrono::steady_clock::now();
            const bool called = spin(seen, turns);
            patience.spun(std::chrono::steady_clock::now() - start);
            if (called) return;
        }
        std::unique_lock<std::mutex> lock(sleep_);
        sleepers_.fetch_add(1);
        wake_.wait(lock, [&] { return epoch_.load() != seen; });
        sleepers_.fetch_sub(1);
    }

    bool spin(uint64_t seen, int turns) const {
        for (int i = 0; i < turns; ++i) {
            if (epoch_.load(std::memory_order_acquire) != seen) return true;
            pause_core();
        }
        return false;
    }

    const int requested_;
    std::vector<std::thread> workers_;
    std::mutex sleep_;
    std::condition_variable wake_;
    alignas(64) std::atomic<uint64_t> epoch_{0};  // grows with each job, and to wake the workers
    std::atomic<int> sleepers_{0};                // workers that sleep
    std::atomic<bool> stop_{false};
    alignas(64) std::atomic<Job*> current_{nullptr};  // null when it is withdrawn
    alignas(64) std::atomic<int> inside_{0};          // workers that may have a pointer to the job
};

std::atomic<int> requested_threads{int(std::max(1u, std::thread::hardware_concurrency()))};

// A forked child has this memory but none of the threads: it starts its own.
struct State {
    std::mutex in_use;
    std::unique_ptr<Pool> pool;
};

// Never freed: at exit, workers may still sleep in its pool.
State& state() {
    static auto& of_process = *new PerProcess<State>;
    return of_process.get();
}

// The pool of *s*, whose lock is held, with as many threads as are requested now.
Pool& prepared(State& s) {
    const int workers = requested_threads.load() - 1;
    if (!s.pool || s.pool->requested() != workers) {
        s.pool.reset();  // first, so that its threads end before others begin
        s.pool = std::make_unique<Pool>(workers);
    }
    return *s.pool;
}

}  // namespace

int forks() { return fork_count.load(std::memory_order_relaxed); }

void set_threads(int count) { requested_threads.store(count < 1 ? 1 : count); }

int threads() { return requested_threads.load(); }

void wake_threads() {
    State& s = state();
    if (threads() < 2 || !s.in_use.try_lock()) return;
    const std::lock_guard<std::mutex> lock(s.in_use, std::adopt_lock);
    prepared(s).wake();
}

void run_chunks(int64_t chunks, ChunkFunction function, void* context) {
    State& s = state();
    if (chunks > 1 && threads() > 1 && s.in_use.try_lock()) {
        const std::lock_guard<std::mutex> lock(s.in_use, std::adopt_lock);
        Job job{function, context, chunks};
        prepared(s).run(job);
        return;
    }
    for (int64_t chunk = 0; chunk < chunks; ++chunk) function(context, chunk);
}

uint8_t* thread_scratch(size_t size) {
    thread_local std::unique_ptr<uint8_t[]> memory;
    thread_local size_t capacity = 0;
    if (capacity < size + 64) {
        memory.reset(new uint8_t[size + 64]);
        capacity = size + 64;
    }
    const auto address = reinterpret_cast<uintptr_t>(memory.get());
    return memory.get() + (64 - address % 64) % 64;
}

// ---- memory for repacked weights

namespace {

constexpr size_t kHugePage = size_t(2) << 20, kChunk = size_t(32) << 20;

// A mapping of which allocate_weights hands out pieces.
struct Chunk {
    uint8_t* memory = nullptr;  // kHugePage-aligned, on Windows 4096
    size_t size = 0, used = 0;
#if defined(_WIN32)
    explicit Chunk(size_t n) : size(n) {
        memory = static_cast<uint8_t*>(::operator new(n, std::align_val_t(4096), std::nothrow));
    }
    ~Chunk() { ::operator delete(memory, std::align_val_t(4096)); }
#else
    void* mapping = MAP_FAILED;
    explicit Chunk(size_t n) : size(n) {
        mapping = mmap(nullptr, n + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                       -1, 0);
        if (mapping == MAP_FAILED) return;
        const auto address = reinterpret_cast<uintptr_t>(mapping);
        memory = static_cast<uint8_t*>(mapping) + (kHugePage - address % kHugePage) % kHugePage;
#if defined(MADV_HUGEPAGE)
        madvise(memory, n, MADV_HUGEPAGE);
#endif
    }
    ~Chunk() {
        if (mapping != MAP_FAILED) munmap(mapping, size + kHugePage);
    }
#endif
    Chunk(const Chunk&) = delete;
    Chunk& operator=(const Chunk&) = delete;
};

struct Arena {
    std::mutex mutex;
    std::weak_ptr<Chunk> current;
};

}  // namespace

std::shared_ptr<uint8_t> allocate_weights(size_t size) {
    // Never freed: a thread may be here when the process ends.
    static auto& arenas = *new PerProcess<Arena>;
    Arena& arena = arenas.get();
    const std::lock_guard<std::mutex> lock(arena.mutex);
    const size_t needed = (size + 63) / 64 * 64;
    std::shared_ptr<Chunk> chunk = arena.current.lock();
    if (!chunk || chunk->size - chunk->used < needed) {
        const size_t whole = (needed + kHugePage - 1) / kHugePage * kHugePage;
        chunk = std::make_shared<Chunk>(whole > kChunk ? whole : kChunk);
        if (!chunk->memory) return nullptr;
        arena.current = chunk;
    }
    uint8_t* piece = chunk->memory + chunk->used;
    chunk->used += needed;
    return {chunk, piece};
}

}  // namespace bitnet
