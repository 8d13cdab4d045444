// How the processor rounds, and what it does with numbers near zero.
#pragma once

#include <cstdint>

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace bitnet {

// The mode of every computation here while this lives: to nearest, small numbers as they are. Callers
// may have another one in their thread (torch.set_flush_denormal sets it), and get it back.
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

}  // namespace bitnet
