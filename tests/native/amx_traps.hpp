// AMX on a processor without it: its instructions trap, and the handler of the trap emulates them.
// So the kernels run as they are compiled for processors that have AMX, with every operand as the
// assembler encoded it.
//
// Written from Intel's description of the instructions. Anything that a processor would refuse
// (tiles that are not configured, or whose shapes do not fit each other) ends the program.
#pragma once

#if defined(BITNET_AMX)
#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace amx_traps {

inline std::atomic<bool> broken{false};   // if set, products are wrong in their last column
inline std::atomic<int> configured{0};    // threads that have tiles
inline std::atomic<int64_t> products{0};  // emulated tdpbssd instructions

struct Tile {
    int rows = 0, bytes = 0;
    alignas(64) uint8_t at[16][64] = {};
};
struct Registers {
    bool configured = false;
    Tile tile[8];
};
inline thread_local Registers registers;

[[noreturn]] inline void refuse(const char* why) {
    const auto say = [](const char* text) { return write(2, text, std::strlen(text)); };
    if (say("AMX instruction that a processor would refuse: ") < 0 || say(why) < 0 || say("\n") < 0)
        std::abort();
    std::abort();
}

// An instruction with a three-byte VEX prefix, opcode map 0F 38, and its operands.
struct Instruction {
    int prefix, opcode, mod, reg, rm, third;  // prefix: 0 none, 1 66, 2 F3, 3 F2
    int64_t address = 0, stride = 0, length = 0;

    bool decode(const uint8_t* p, const greg_t* gregs) {
        if (p[0] != 0xc4 || (p[1] & 0x1f) != 2 || (p[2] & 0x84) != 0)
            return false;  // W 0, 128 bits
        const int extend_reg = p[1] & 0x80 ? 0 : 8, extend_index = p[1] & 0x40 ? 0 : 8,
                  extend_base = p[1] & 0x20 ? 0 : 8;
        prefix = p[2] & 3;
        third = (p[2] >> 3 & 15) ^ 15;
        opcode = p[3];
        mod = p[4] >> 6;
        reg = (p[4] >> 3 & 7) + extend_reg;
        rm = p[4] & 7;
        length = 5;
        if (mod == 3) return true;
        bool relative = mod == 0 && rm == 5, base = !relative;
        int at = rm + extend_base;
        if (rm == 4) {
            const int sib = p[length++], index = (sib >> 3 & 7) + extend_index;
            at = (sib & 7) + extend_base;
            base = mod != 0 || (sib & 7) != 5;
            relative = false;
            if (index != 4) stride = value(gregs, index) << (sib >> 6);
            if (!base) mod = 2;  // 32 bits of displacement
        }
        if (base) address = value(gregs, at);
        if (mod == 1) address += int8_t(p[length++]);
        if (mod == 2 || relative) {
            int32_t displacement;
            std::memcpy(&displacement, p + length, 4);
            address += displacement;
            length += 4;
        }
        if (relative) address += gregs[REG_RIP] + length;
        if (opcode == 0x49) address += stride;
        return true;
    }
    static int64_t value(const greg_t* gregs, int number) {
        constexpr int kPlaces[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                   REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                   REG_R12, REG_R13, REG_R14, REG_R15};
        return gregs[kPlaces[number]];
    }
};

inline void configure(const uint8_t* shapes) {
    if (shapes[0] != 1 || shapes[1] != 0) refuse("palette");
    for (int i = 2; i < 16; ++i)
        if (shapes[i] != 0) refuse("reserved bytes");
    if (!registers.configured) ++configured;
    registers = {};
    registers.configured = true;
    for (int i = 0; i < 16; ++i) {
        uint16_t bytes;
        std::memcpy(&bytes, shapes + 16 + 2 * i, 2);
        const int rows = shapes[48 + i];
        if (rows > 16 || bytes > 64 || (rows == 0) != (bytes == 0) || (i >= 8 && rows))
            refuse("shapes");
        if (i < 8) {
            registers.tile[i].rows = rows;
            registers.tile[i].bytes = bytes;
        }
    }
}

inline Tile& tile(int number) {
    if (!registers.configured || registers.tile[number].rows == 0) refuse("a tile without a shape");
    return registers.tile[number];
}

// tdpbssd: add products of signed bytes.
inline void multiply(Tile& sum, const Tile& left, const Tile& right) {
    if (sum.rows != left.rows || sum.bytes != right.bytes || left.bytes != 4 * right.rows)
        refuse("shapes of a product");
    for (int m = 0; m < sum.rows; ++m)
        for (int n = 0; n < sum.bytes / 4; ++n) {
            int32_t total;
            std::memcpy(&total, sum.at[m] + 4 * n, 4);
            for (int k = 0; k < right.rows; ++k)
                for (int i = 0; i < 4; ++i)
                    total += int8_t(left.at[m][4 * k + i]) * int8_t(right.at[k][4 * n + i]);
            if (broken && n == 15) total += 1;
            std::memcpy(sum.at[m] + 4 * n, &total, 4);
        }
    ++products;
}

inline bool run(const Instruction& i) {
    auto* memory = reinterpret_cast<uint8_t*>(i.address);
    if (i.opcode == 0x49 && i.prefix == 0 && i.reg == 0 && i.mod != 3)
        configure(memory);                                                    // ldtilecfg
    else if (i.opcode == 0x49 && i.prefix == 0 && i.reg == 0 && i.rm == 0) {  // tilerelease
        if (registers.configured) --configured;
        registers = {};
    } else if (i.opcode == 0x49 && i.prefix == 3 && i.mod == 3 && i.rm == 0)  // tilezero
        std::memset(tile(i.reg).at, 0, sizeof registers.tile[0].at);
    else if (i.opcode == 0x4b && i.prefix == 3 && i.mod != 3) {  // tileloadd
        Tile& to = tile(i.reg);
        std::memset(to.at, 0, sizeof to.at);
        for (int row = 0; row < to.rows; ++row)
            std::memcpy(to.at[row], memory + row * i.stride, size_t(to.bytes));
    } else if (i.opcode == 0x4b && i.prefix == 2 && i.mod != 3) {  // tilestored
        const Tile& from = tile(i.reg);
        for (int row = 0; row < from.rows; ++row)
            std::memcpy(memory + row * i.stride, from.at[row], size_t(from.bytes));
    } else if (i.opcode == 0x5e && i.prefix == 3 && i.mod == 3) {  // tdpbssd
        multiply(tile(i.reg), tile(i.rm), tile(i.third));
    } else
        return false;
    return true;
}

inline void on_trap(int, siginfo_t*, void* context) {
    greg_t* gregs = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
    Instruction instruction;
    const auto* code = reinterpret_cast<const uint8_t*>(gregs[REG_RIP]);
    if (!instruction.decode(code, gregs) || !run(instruction)) {
        signal(SIGILL, SIG_DFL);  // runs again, and ends the program
        return;
    }
    gregs[REG_RIP] += instruction.length;
}

inline void install() {
    struct sigaction action = {};
    action.sa_sigaction = on_trap;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGILL, &action, nullptr);
}

}  // namespace amx_traps
#endif
