// Instructions that multiply and add whole groups of small numbers, for linear_vnni.inc and
// linear_int8.inc.
//
// With AVX-512 VNNI and BF16 these are two instructions. VV_EMULATED_VNNI replaces both by functions
// of the same results, so that the very same kernels are tested on a CPU that lacks them.
// Elsewhere `ByteSum` does the exact sum of int8 products with what there is.
#pragma once
#include "simd.h"

#if defined(VV_EMULATED_VNNI) || (defined(__AVX512VNNI__) && defined(__AVX512BF16__))
#define VV_VNNI 1
#endif

// A sum is finished before the next begins. GCC would begin many products at once, and move sums to
// memory to have the registers: half the speed.
#define VV_IN_ORDER(constraint, sum) __asm__ volatile("" : constraint(sum))

namespace vivace {
namespace VV_ISA {

VV_INLINE int32_t four_bytes(const void* p) { int32_t x; std::memcpy(&x, p, 4); return x; }
VV_INLINE int64_t eight_bytes(const void* p) { int64_t x; std::memcpy(&x, p, 8); return x; }

#if defined(VV_VNNI)

#ifdef VV_EMULATED_VNNI
// vpdpbusd: sum + the four products of unsigned and signed bytes of each lane.
VV_INLINE I16 dpbusd(I16 sum, I16 u, I16 s) {
    const __m512i low = _mm512_set1_epi16(255);
    const __m512i u_even = _mm512_and_si512(u.v, low), u_odd = _mm512_srli_epi16(u.v, 8);
    const __m512i s_even = _mm512_srai_epi16(_mm512_slli_epi16(s.v, 8), 8), s_odd = _mm512_srai_epi16(s.v, 8);
    return iadd(sum, iadd({_mm512_madd_epi16(u_even, s_even)}, {_mm512_madd_epi16(u_odd, s_odd)}));
}

VV_INLINE F16 flushed(F16 x) {  // denormals are zeros
    const __m512 size = _mm512_abs_ps(x.v);
    const __mmask16 small = _mm512_cmp_ps_mask(size, _mm512_set1_ps(1.17549435e-38f), _CMP_LT_OQ);
    return {_mm512_mask_and_ps(x.v, small, x.v, _mm512_set1_ps(-0.0f))};
}

// vdpbf16ps: sum + odd product, then + even product, each a rounding to nearest even.
VV_INLINE F16 dpbf16(F16 sum, I16 a, I16 b) {
    const F16 odd = flushed(fma(flushed(high_bf16(a)), flushed(high_bf16(b)), flushed(sum)));
    return flushed(fma(flushed(low_bf16(a)), flushed(low_bf16(b)), odd));
}
#else
VV_INLINE I16 dpbusd(I16 sum, I16 u, I16 s) { return {_mm512_dpbusd_epi32(sum.v, u.v, s.v)}; }
VV_INLINE F16 dpbf16(F16 sum, I16 a, I16 b) { return {_mm512_dpbf16_ps(sum.v, (__m512bh)a.v, (__m512bh)b.v)}; }
#endif

// Sixteen sums of int8 products. Activations are kept as x + 128, so that they are unsigned;
// what that adds is 128 times the column's sum.
struct ByteSum {
    static constexpr int REGISTERS = 1, BYTES = 4;  // BYTES of four activations
    using Weights = I16;
    I16 v;
    VV_INLINE Weights weights(const uint8_t* p) { return iload(p); }
    void clear() { v = iset1(0); }
    __attribute__((always_inline)) void add(Weights w, const uint8_t* x) {
        v = dpbusd(v, iset1(four_bytes(x)), w);
        VV_IN_ORDER("+v", v.v);
    }
    __attribute__((always_inline)) I16 total(const uint8_t* column_sums) const {
        return {_mm512_sub_epi32(v.v, _mm512_slli_epi32(iload(column_sums).v, 7))};
    }
    VV_INLINE void store_quantized(uint8_t* to, I16 q) { store_low8(to, iadd(q, iset1(128))); }
};

#elif defined(__AVX512F__)

// Bytes are widened to 16 bits, whose products vpmaddwd adds in pairs: two lanes for each column.
struct ByteSum {
    static constexpr int REGISTERS = 2, BYTES = 8;
    struct Weights { __m512i low, high; };
    __m512i low, high;
    VV_INLINE Weights weights(const uint8_t* p) {
        return {_mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)p)),
                _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)p + 1))};
    }
    void clear() { low = high = _mm512_setzero_si512(); }
    __attribute__((always_inline)) void add(const Weights& w, const uint8_t* x) {
        const __m512i four = _mm512_set1_epi64(eight_bytes(x));
        low = _mm512_add_epi32(low, _mm512_madd_epi16(w.low, four));
        high = _mm512_add_epi32(high, _mm512_madd_epi16(w.high, four));
        VV_IN_ORDER("+v", low);
        VV_IN_ORDER("+v", high);
    }
    __attribute__((always_inline)) I16 total(const uint8_t*) const {
        const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
        const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
        return {
            _mm512_add_epi32(_mm512_permutex2var_epi32(low, even, high), _mm512_permutex2var_epi32(low, odd, high))};
    }
    VV_INLINE void store_quantized(uint8_t* to, I16 q) { store_low16((uint16_t*)to, q); }
};

#elif defined(__AVX2__)

struct ByteSum {
    static constexpr int REGISTERS = 4, BYTES = 8;
    struct Weights { __m256i v[4]; };
    __m256i v[4];
    VV_INLINE Weights weights(const uint8_t* p) {
        Weights w;
VV_UNROLL(4)
        for (int i = 0; i < 4; ++i) w.v[i] = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)p + i));
        return w;
    }
    void clear() { v[0] = v[1] = v[2] = v[3] = _mm256_setzero_si256(); }
    __attribute__((always_inline)) void add(const Weights& w, const uint8_t* x) {
        const __m256i four = _mm256_set1_epi64x(eight_bytes(x));
VV_UNROLL(4)
        for (int i = 0; i < 4; ++i) {
            v[i] = _mm256_add_epi32(v[i], _mm256_madd_epi16(w.v[i], four));
            VV_IN_ORDER("+x", v[i]);
        }
    }
    __attribute__((always_inline)) I16 total(const uint8_t*) const {
        const __m256i a = _mm256_hadd_epi32(v[0], v[1]), b = _mm256_hadd_epi32(v[2], v[3]);
        return {_mm256_permute4x64_epi64(a, 0xd8), _mm256_permute4x64_epi64(b, 0xd8)};
    }
    VV_INLINE void store_quantized(uint8_t* to, I16 q) { store_low16((uint16_t*)to, q); }
};

#elif defined(__ARM_NEON) && defined(__aarch64__)

struct ByteSum {
    static constexpr int BYTES = 4;
    struct Weights { int8x16_t v[4]; };
    VV_INLINE Weights weights(const uint8_t* p) {
        Weights w;
        VV_EACH(i) w.v[i] = vld1q_s8((const int8_t*)p + 16 * i);
        return w;
    }
    VV_INLINE void store_quantized(uint8_t* to, I16 q) { store_low8(to, q); }
#ifdef __ARM_FEATURE_DOTPROD
    static constexpr int REGISTERS = 4;
    int32x4_t v[4];
    void clear() { VV_EACH(i) v[i] = vdupq_n_s32(0); }
    __attribute__((always_inline)) void add(const Weights& w, const uint8_t* x) {
        const int8x16_t four = vreinterpretq_s8_s32(vdupq_n_s32(four_bytes(x)));
        VV_EACH(i) v[i] = vdotq_s32(v[i], w.v[i], four);
    }
    __attribute__((always_inline)) I16 total(const uint8_t*) const { I16 r; VV_EACH(i) r.v[i] = v[i]; return r; }
#else
    static constexpr int REGISTERS = 8;
    int32x4_t v[8];  // two lanes for each column
    void clear() { for (auto& sum : v) sum = vdupq_n_s32(0); }
    __attribute__((always_inline)) void add(const Weights& w, const uint8_t* x) {
        const int8x8_t four = vreinterpret_s8_s32(vdup_n_s32(four_bytes(x)));
        VV_EACH(i) {
            v[2 * i] = vpadalq_s16(v[2 * i], vmull_s8(vget_low_s8(w.v[i]), four));
            v[2 * i + 1] = vpadalq_s16(v[2 * i + 1], vmull_s8(vget_high_s8(w.v[i]), four));
        }
    }
    __attribute__((always_inline)) I16 total(const uint8_t*) const {
        I16 r; VV_EACH(i) r.v[i] = vpaddq_s32(v[2 * i], v[2 * i + 1]); return r;
    }
#endif
};

#else

struct ByteSum {
    static constexpr int REGISTERS = 4, BYTES = 4;
    using Weights = I16;
    I16 v;
    VV_INLINE Weights weights(const uint8_t* p) { return iload(p); }
    void clear() { v = iset1(0); }
    void add(Weights w, const uint8_t* x) {
        const auto* four = (const int8_t*)x;
        v.v += ((w.v << 24) >> 24) * four[0];
        v.v += ((w.v << 16) >> 24) * four[1];
        v.v += ((w.v << 8) >> 24) * four[2];
        v.v += (w.v >> 24) * four[3];
    }
    I16 total(const uint8_t*) const { return v; }
    VV_INLINE void store_quantized(uint8_t* to, I16 q) { store_low8(to, q); }
};

#endif

// Sixteen sums of products of unsigned weights below 64 with int8, four neighboring numbers of each
// column at a time. A run of `limit(bits)` groups of weights of so many bits is exact; `total` ends it.
#if defined(VV_VNNI)

struct Run {
    static constexpr int REGISTERS = 1;
    static constexpr int limit(int) { return 1 << 16; }
    I16 v;
    VV_INLINE I16 four(const uint8_t* x) { return iset1(four_bytes(x)); }
    __attribute__((always_inline)) void begin(I16 w, I16 x) { v = dpbusd(iset1(0), w, x); }
    __attribute__((always_inline)) void add(I16 w, I16 x) {
        v = dpbusd(v, w, x);
        VV_IN_ORDER("+v", v.v);
    }
    __attribute__((always_inline)) I16 total() const { return v; }
};

#elif defined(__AVX512F__) || defined(__AVX2__)

// vpmaddubsw adds two products into 16 bits, where 32767 / (2 * 127 * (2^bits - 1)) of them fit.
struct Run {
    static constexpr int limit(int bits) { return bits <= 4 ? 8 : bits == 5 ? 4 : 2; }
    VV_INLINE I16 four(const uint8_t* x) { return iset1(four_bytes(x)); }
#if defined(__AVX512F__)
    static constexpr int REGISTERS = 1;
    __m512i v;
    __attribute__((always_inline)) void begin(I16 w, I16 x) { v = _mm512_maddubs_epi16(w.v, x.v); }
    __attribute__((always_inline)) void add(I16 w, I16 x) {
        v = _mm512_add_epi16(v, _mm512_maddubs_epi16(w.v, x.v));
        VV_IN_ORDER("+v", v);
    }
    __attribute__((always_inline)) I16 total() const { return {_mm512_madd_epi16(v, _mm512_set1_epi16(1))}; }
#else
    static constexpr int REGISTERS = 2;
    __m256i a, b;
    __attribute__((always_inline)) void begin(I16 w, I16 x) {
        a = _mm256_maddubs_epi16(w.a, x.a), b = _mm256_maddubs_epi16(w.b, x.b);
    }
    __attribute__((always_inline)) void add(I16 w, I16 x) {
        a = _mm256_add_epi16(a, _mm256_maddubs_epi16(w.a, x.a));
        b = _mm256_add_epi16(b, _mm256_maddubs_epi16(w.b, x.b));
        VV_IN_ORDER("+x", a);
        VV_IN_ORDER("+x", b);
    }
    __attribute__((always_inline)) I16 total() const {
        const __m256i ones = _mm256_set1_epi16(1);
        return {_mm256_madd_epi16(a, ones), _mm256_madd_epi16(b, ones)};
    }
#endif
};

#elif defined(__ARM_NEON) && defined(__aarch64__)

struct Run {  // below 64, signed and unsigned bytes are the same
    static constexpr int REGISTERS = ByteSum::REGISTERS;
    static constexpr int limit(int) { return 1 << 16; }
    ByteSum v;
    VV_INLINE const uint8_t* four(const uint8_t* x) { return x; }
    __attribute__((always_inline)) void begin(I16 w, const uint8_t* x) { v.clear(), add(w, x); }
    __attribute__((always_inline)) void add(I16 w, const uint8_t* x) {
        ByteSum::Weights bytes;
        VV_EACH(i) bytes.v[i] = vreinterpretq_s8_s32(w.v[i]);
        v.add(bytes, x);
    }
    __attribute__((always_inline)) I16 total() const { return v.total(nullptr); }
};

#else

struct Run {
    static constexpr int REGISTERS = ByteSum::REGISTERS;
    static constexpr int limit(int) { return 1 << 16; }
    ByteSum v;
    VV_INLINE const uint8_t* four(const uint8_t* x) { return x; }
    void begin(I16 w, const uint8_t* x) { v.clear(), v.add(w, x); }
    void add(I16 w, const uint8_t* x) { v.add(w, x); }
    I16 total() const { return v.total(nullptr); }
};

#endif

}  // namespace VV_ISA
}  // namespace vivace
