#include "system/arena.hpp"

#include <mutex>
#include <new>

#include "system/forks.hpp"

#if !defined(_WIN32)
#include <sys/mman.h>
#endif

namespace bitnet {
namespace {

constexpr size_t kHugePage = size_t(2) << 20, kChunk = size_t(32) << 20;

struct Chunk {
    uint8_t* memory = nullptr;  // kHugePage-aligned
    size_t size = 0, used = 0;
#if defined(_WIN32)
    explicit Chunk(size_t n) : size(n) {
        memory = static_cast<uint8_t*>(::operator new(n, std::align_val_t(4096), std::nothrow));
    }
    ~Chunk() { ::operator delete(memory, std::align_val_t(4096)); }
#else
    void* mapping = MAP_FAILED;
    explicit Chunk(size_t n) : size(n) {
        mapping = mmap(nullptr, n + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
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
    static auto& arenas = *new PerProcess<Arena>;  // leaked: a thread may be here when the process ends
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
    return {std::move(chunk), piece};
}

}  // namespace bitnet
