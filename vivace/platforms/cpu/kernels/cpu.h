// What this CPU has, asked of the CPU itself: the instructions, and whether the system keeps their
// registers when it switches threads (XCR0).
#pragma once
#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace vivace {

struct Cpu {
    bool avx2 = false, avx512 = false, avx512_dot = false, neon_dot = false;
    bool fast_bf16_dot = false;  // vdpbf16ps takes no longer than two fused multiply-adds of float32

    Cpu() {
#if defined(__x86_64__)
        uint32_t a, b, c, d, leaf7b, leaf7c, leaf7a1 = 0;
        if (!__get_cpuid(1, &a, &b, &c, &d)) return;
        const bool fma = c >> 12 & 1, xsave = c >> 27 & 1, half = c >> 29 & 1;
        if (!xsave || !fma || !half) return;
        const uint64_t kept = registers_kept();
        const bool ymm = (kept & 0x6) == 0x6, zmm = (kept & 0xe6) == 0xe6;
        if (!__get_cpuid_count(7, 0, &a, &leaf7b, &leaf7c, &d)) return;
        if (a >= 1 && !__get_cpuid_count(7, 1, &leaf7a1, &b, &c, &d)) leaf7a1 = 0;
        avx2 = ymm && (leaf7b >> 5 & 1);
        const uint32_t f_dq_bw_vl = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;
        avx512 = avx2 && zmm && (leaf7b & f_dq_bw_vl) == f_dq_bw_vl;
        avx512_dot = avx512 && (leaf7c >> 11 & 1) && (leaf7a1 >> 5 & 1);  // VNNI, BF16
        fast_bf16_dot = made_by_amd();  // Intel's take as long as four (Emerald Rapids)
#elif defined(__aarch64__) && defined(__linux__)
        neon_dot = getauxval(AT_HWCAP) >> 20 & 1;  // HWCAP_ASIMDDP
#endif
    }

#if defined(__x86_64__)
   private:
    static bool made_by_amd() {
        uint32_t a, b, c, d;
        return __get_cpuid(0, &a, &b, &c, &d) && b == signature_AMD_ebx && c == signature_AMD_ecx;
    }

    static uint64_t registers_kept() {
        uint32_t low, high;
        __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
        return (uint64_t)high << 32 | low;
    }
#endif
};

}  // namespace vivace
