// Makes reads of mapped files safe if the files are truncated meanwhile: a read past the new end,
// for which the system sends SIGBUS, returns zeros, and the mapping is marked as torn.
#include "bind/module.hpp"

#if !defined(_WIN32)
#include <csignal>
#include <cerrno>
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace bitnet {
namespace {

#if defined(_WIN32)

// Windows does not let a mapped file be truncated.
int guard(uintptr_t, size_t) { return -1; }
void release(int) {}
bool watch() { return false; }
bool is_torn(int) { return false; }

#else

// Addresses of a guarded mapping.
struct Range {
    std::atomic<uintptr_t> begin{0}, end{0};  // whole pages; begin 0: the entry is free
    std::atomic<bool> torn{false};
};

constexpr int kRanges = 1024;  // mappings that are guarded at once, at most
Range ranges[kRanges];
uintptr_t page_size = 4096;

// The handlers that on_fault has replaced, each once, the latest last. A handler may restore its
// predecessor and raise the signal again, as faulthandler does: then on_fault runs once more,
// inside the first call, and passes the signal to the handler before that one. *asked* counts the
// handlers that have the signal at the moment.
constexpr int kHandlers = 16;
struct sigaction handlers[kHandlers];
std::atomic<int> handler_count{0}, asked{0};

// Replaces the guarded pages from *address* on by zeros and marks their range as torn; false if the
// address is not guarded. Calls only what is safe in a signal handler.
bool put_zeros(uintptr_t address) {
    for (Range& range : ranges) {
        const uintptr_t begin = range.begin.load(), end = range.end.load();
        if (begin == 0 || address < begin || address >= end) continue;
        range.torn.store(true);
        const uintptr_t page = address / page_size * page_size;
        return mmap(reinterpret_cast<void*>(page), end - page, PROT_READ,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
    }
    return false;
}

// Lets the system's default action end the process.
void run_default_action(int number) {
    signal(number, SIG_DFL);
    raise(number);
}

void on_fault(int number, siginfo_t* info, void* context) {
    const int error = errno;
    const bool by_access = info->si_code > 0;  // the code is 0 or below if a process sent it
    if (by_access && put_zeros(reinterpret_cast<uintptr_t>(info->si_addr))) {
        errno = error;
        return;
    }
    const int last = handler_count.load() - 1 - asked.fetch_add(1);
    if (last < 0) {
        run_default_action(number);
    } else if (const struct sigaction& next = handlers[last]; next.sa_flags & SA_SIGINFO) {
        next.sa_sigaction(number, info, context);
    } else if (next.sa_handler != SIG_DFL && next.sa_handler != SIG_IGN) {
        next.sa_handler(number);
    } else if (by_access || next.sa_handler == SIG_DFL) {
        // As without on_fault, a faulting access ends the process even if the signal is ignored.
        run_default_action(number);
    }
    asked.fetch_sub(1);
}

// Makes on_fault the handler of SIGBUS, also if another handler has replaced it since the last
// call; false if it cannot be. The caller holds the interpreter's lock.
bool watch() {
    struct sigaction current{};
    if (sigaction(SIGBUS, nullptr, &current) != 0) return false;
    if ((current.sa_flags & SA_SIGINFO) && current.sa_sigaction == on_fault) return true;
    const int count = handler_count.load();
    int index = 0;
    while (index < count && handlers[index].sa_handler != current.sa_handler) ++index;
    if (index == kHandlers) return false;
    // A handler that was replaced before becomes the latest again; a new one is added at the end.
    if (index < count) std::rotate(handlers + index, handlers + index + 1, handlers + count);
    handlers[std::max(index, count - 1)] = current;
    handler_count.store(std::max(index + 1, count));
    page_size = uintptr_t(sysconf(_SC_PAGESIZE));
    struct sigaction action{};
    action.sa_sigaction = on_fault;
    // SA_NODEFER: an older handler may raise the signal again while on_fault runs.
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART | SA_NODEFER;
    sigemptyset(&action.sa_mask);
    return sigaction(SIGBUS, &action, nullptr) == 0;
}

// Number under which *length* bytes at *address* are guarded from now on; -1 if they cannot be. The
// caller holds the interpreter's lock.
int guard(uintptr_t address, size_t length) {
    if (!watch() || address == 0 || address % page_size != 0) return -1;
    for (int i = 0; i < kRanges; ++i) {
        Range& range = ranges[i];
        if (range.begin.load() != 0) continue;
        range.torn.store(false);
        range.end.store(address + (length + page_size - 1) / page_size * page_size);
        range.begin.store(address);
        return i;
    }
    return -1;
}

void release(int i) {
    if (i >= 0 && i < kRanges) ranges[i].begin.store(0);
}

bool is_torn(int i) { return i >= 0 && i < kRanges && ranges[i].torn.load(); }

#endif

int guard_buffer(nb::handle mapped) {
    const Buffer buffer(mapped);
    return guard(reinterpret_cast<uintptr_t>(buffer.data()), buffer.size());
}

}  // namespace

void bind_file_guard(nb::module_& m) {
    m.def("guard_mapping", &guard_buffer, "mapped"_a);
    m.def("watch_mappings", &watch);
    m.def("release_mapping", &release, "number"_a);
    m.def("is_torn", &is_torn, "number"_a);
}

}  // namespace bitnet
