// Sixteen numbers at once, the same on every instruction set.
//
// F16 = 16 x float32, I16 = 16 x int32. Every function is one rounding per lane and lanes never
// meet except in reduce_*, whose order is fixed: results do not depend on how rows are batched.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#define VV_INLINE static inline __attribute__((always_inline))

// Loops over registers are unrolled where registers are wide; elsewhere the code would only grow.
#define VV_PRAGMA(text) _Pragma(#text)
#if defined(__AVX2__) || defined(__ARM_NEON)
#define VV_UNROLL(n) VV_PRAGMA(GCC unroll n)
#else
#define VV_UNROLL(n)
#endif

namespace vivace {
namespace VV_ISA {

#if defined(__AVX512F__)

struct F16 { __m512 v; };
struct I16 { __m512i v; };
VV_INLINE F16 zero() { return {_mm512_setzero_ps()}; }
VV_INLINE F16 set1(float x) { return {_mm512_set1_ps(x)}; }
VV_INLINE F16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
VV_INLINE void store(float* p, F16 a) { _mm512_storeu_ps(p, a.v); }
VV_INLINE F16 load_first(const float* p, int n) { return {_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p)}; }
VV_INLINE void store_first(float* p, F16 a, int n) { _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), a.v); }
VV_INLINE F16 fma(F16 a, F16 b, F16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
VV_INLINE F16 add(F16 a, F16 b) { return {_mm512_add_ps(a.v, b.v)}; }
VV_INLINE F16 sub(F16 a, F16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
VV_INLINE F16 mul(F16 a, F16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
VV_INLINE F16 div(F16 a, F16 b) { return {_mm512_div_ps(a.v, b.v)}; }
VV_INLINE F16 max(F16 a, F16 b) { return {_mm512_max_ps(a.v, b.v)}; }
VV_INLINE F16 min(F16 a, F16 b) { return {_mm512_min_ps(a.v, b.v)}; }
VV_INLINE uint32_t at_least(F16 a, F16 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ); }
VV_INLINE F16 keep_at_least(F16 a, F16 b) {
    return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ), a.v)};
}
VV_INLINE F16 choose(uint32_t bits, F16 a, F16 b) { return {_mm512_mask_blend_ps((__mmask16)bits, b.v, a.v)}; }
VV_INLINE F16 to_float(I16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
VV_INLINE I16 round_to_int(F16 a) { return {_mm512_cvtps_epi32(a.v)}; }
VV_INLINE I16 iset1(int32_t x) { return {_mm512_set1_epi32(x)}; }
VV_INLINE I16 iload(const void* p) { return {_mm512_loadu_si512(p)}; }
VV_INLINE I16 load_u8(const uint8_t* p) { return {_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p))}; }
VV_INLINE I16 load_s8(const int8_t* p) { return {_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p))}; }
VV_INLINE I16 iand(I16 a, I16 b) { return {_mm512_and_si512(a.v, b.v)}; }
VV_INLINE I16 ior(I16 a, I16 b) { return {_mm512_or_si512(a.v, b.v)}; }
VV_INLINE I16 iadd(I16 a, I16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
template <int N> VV_INLINE I16 srl(I16 a) { return {_mm512_srli_epi32(a.v, N)}; }
template <int N> VV_INLINE I16 sll(I16 a) { return {_mm512_slli_epi32(a.v, N)}; }
template <int N> VV_INLINE I16 sra(I16 a) { return {_mm512_srai_epi32(a.v, N)}; }
VV_INLINE F16 bits_to_float(I16 a) { return {_mm512_castsi512_ps(a.v)}; }
// The number of a table of sixteen that the low four bits of each lane name.
VV_INLINE F16 look_up(const float* table, I16 at) { return {_mm512_permutexvar_ps(at.v, _mm512_loadu_ps(table))}; }
VV_INLINE I16 float_to_bits(F16 a) { return {_mm512_castps_si512(a.v)}; }
VV_INLINE F16 load_half(const uint16_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))}; }
VV_INLINE F16 load_bf16(const uint16_t* p) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16))};
}
VV_INLINE void store_low16(uint16_t* p, I16 a) { _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(a.v)); }
VV_INLINE void store_low8(uint8_t* p, I16 a) { _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(a.v)); }

#elif defined(__AVX2__)

struct F16 { __m256 a, b; };
struct I16 { __m256i a, b; };
VV_INLINE F16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
VV_INLINE F16 set1(float x) { __m256 v = _mm256_set1_ps(x); return {v, v}; }
VV_INLINE F16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
VV_INLINE void store(float* p, F16 x) { _mm256_storeu_ps(p, x.a); _mm256_storeu_ps(p + 8, x.b); }
VV_INLINE F16 fma(F16 x, F16 y, F16 z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
VV_INLINE F16 add(F16 x, F16 y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
VV_INLINE F16 sub(F16 x, F16 y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
VV_INLINE F16 mul(F16 x, F16 y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
VV_INLINE F16 div(F16 x, F16 y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
VV_INLINE F16 max(F16 x, F16 y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
VV_INLINE F16 min(F16 x, F16 y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
VV_INLINE uint32_t at_least(F16 x, F16 y) {
    return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(x.a, y.a, _CMP_GE_OQ)) |
           (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(x.b, y.b, _CMP_GE_OQ)) << 8;
}
VV_INLINE F16 keep_at_least(F16 x, F16 y) {
    return {_mm256_and_ps(x.a, _mm256_cmp_ps(x.a, y.a, _CMP_GE_OQ)),
            _mm256_and_ps(x.b, _mm256_cmp_ps(x.b, y.b, _CMP_GE_OQ))};
}
VV_INLINE F16 to_float(I16 x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
VV_INLINE I16 round_to_int(F16 x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
VV_INLINE I16 iset1(int32_t x) { __m256i v = _mm256_set1_epi32(x); return {v, v}; }
VV_INLINE I16 iload(const void* p) {
    return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)p + 1)};
}
VV_INLINE I16 load_u8(const uint8_t* p) {
    return {_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p)),
            _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)(p + 8)))};
}
VV_INLINE I16 load_s8(const int8_t* p) {
    return {_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)),
            _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)(p + 8)))};
}
VV_INLINE I16 iand(I16 x, I16 y) { return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)}; }
VV_INLINE I16 ior(I16 x, I16 y) { return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
VV_INLINE I16 iadd(I16 x, I16 y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
template <int N> VV_INLINE I16 srl(I16 x) { return {_mm256_srli_epi32(x.a, N), _mm256_srli_epi32(x.b, N)}; }
template <int N> VV_INLINE I16 sll(I16 x) { return {_mm256_slli_epi32(x.a, N), _mm256_slli_epi32(x.b, N)}; }
template <int N> VV_INLINE I16 sra(I16 x) { return {_mm256_srai_epi32(x.a, N), _mm256_srai_epi32(x.b, N)}; }
VV_INLINE F16 bits_to_float(I16 x) { return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
VV_INLINE __m256 look_up_eight(const float* table, __m256i at) {
    const __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), at);
    const __m256 high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table + 8), at);
    return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(at, 28)));
}
VV_INLINE F16 look_up(const float* table, I16 at) { return {look_up_eight(table, at.a), look_up_eight(table, at.b)}; }
VV_INLINE I16 float_to_bits(F16 x) { return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
VV_INLINE F16 load_half(const uint16_t* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)),
            _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8)))};
}
VV_INLINE F16 load_bf16(const uint16_t* p) {
    I16 wide = {_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)),
                _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)(p + 8)))};
    return bits_to_float(sll<16>(wide));
}
#define VV_SPILLED_HELPERS 1

#elif defined(__ARM_NEON) && defined(__aarch64__)

struct F16 { float32x4_t v[4]; };
struct I16 { int32x4_t v[4]; };
#define VV_EACH(i) for (int i = 0; i < 4; ++i)
VV_INLINE F16 set1(float x) { F16 r; VV_EACH(i) r.v[i] = vdupq_n_f32(x); return r; }
VV_INLINE F16 zero() { return set1(0.0f); }
VV_INLINE F16 load(const float* p) { F16 r; VV_EACH(i) r.v[i] = vld1q_f32(p + 4 * i); return r; }
VV_INLINE void store(float* p, F16 x) { VV_EACH(i) vst1q_f32(p + 4 * i, x.v[i]); }
VV_INLINE F16 fma(F16 x, F16 y, F16 z) { F16 r; VV_EACH(i) r.v[i] = vfmaq_f32(z.v[i], x.v[i], y.v[i]); return r; }
VV_INLINE F16 add(F16 x, F16 y) { F16 r; VV_EACH(i) r.v[i] = vaddq_f32(x.v[i], y.v[i]); return r; }
VV_INLINE F16 sub(F16 x, F16 y) { F16 r; VV_EACH(i) r.v[i] = vsubq_f32(x.v[i], y.v[i]); return r; }
VV_INLINE F16 mul(F16 x, F16 y) { F16 r; VV_EACH(i) r.v[i] = vmulq_f32(x.v[i], y.v[i]); return r; }
VV_INLINE F16 div(F16 x, F16 y) { F16 r; VV_EACH(i) r.v[i] = vdivq_f32(x.v[i], y.v[i]); return r; }
VV_INLINE F16 max(F16 x, F16 y) { F16 r; VV_EACH(i) r.v[i] = vmaxq_f32(x.v[i], y.v[i]); return r; }
VV_INLINE F16 min(F16 x, F16 y) { F16 r; VV_EACH(i) r.v[i] = vminq_f32(x.v[i], y.v[i]); return r; }
VV_INLINE uint32_t at_least(F16 x, F16 y) {
    const uint32x4_t weights = {1, 2, 4, 8};
    uint32_t bits = 0;
    VV_EACH(i) bits |= vaddvq_u32(vandq_u32(vcgeq_f32(x.v[i], y.v[i]), weights)) << (4 * i);
    return bits;
}
VV_INLINE F16 keep_at_least(F16 x, F16 y) {
    F16 r;
    VV_EACH(i) r.v[i] = vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(x.v[i]), vcgeq_f32(x.v[i], y.v[i])));
    return r;
}
VV_INLINE F16 to_float(I16 x) { F16 r; VV_EACH(i) r.v[i] = vcvtq_f32_s32(x.v[i]); return r; }
VV_INLINE I16 round_to_int(F16 x) { I16 r; VV_EACH(i) r.v[i] = vcvtnq_s32_f32(x.v[i]); return r; }
VV_INLINE I16 iset1(int32_t x) { I16 r; VV_EACH(i) r.v[i] = vdupq_n_s32(x); return r; }
VV_INLINE I16 iload(const void* p) { I16 r; VV_EACH(i) r.v[i] = vld1q_s32((const int32_t*)p + 4 * i); return r; }
VV_INLINE I16 load_u8(const uint8_t* p) {
    const uint8x16_t bytes = vld1q_u8(p);
    const uint16x8_t low = vmovl_u8(vget_low_u8(bytes)), high = vmovl_u8(vget_high_u8(bytes));
    return {{vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(low))), vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(low))),
             vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(high))),
             vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(high)))}};
}
VV_INLINE I16 load_s8(const int8_t* p) {
    const int8x16_t bytes = vld1q_s8(p);
    const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_s8(vget_high_s8(bytes));
    return {{vmovl_s16(vget_low_s16(low)), vmovl_s16(vget_high_s16(low)), vmovl_s16(vget_low_s16(high)),
             vmovl_s16(vget_high_s16(high))}};
}
VV_INLINE I16 iand(I16 x, I16 y) { I16 r; VV_EACH(i) r.v[i] = vandq_s32(x.v[i], y.v[i]); return r; }
VV_INLINE I16 ior(I16 x, I16 y) { I16 r; VV_EACH(i) r.v[i] = vorrq_s32(x.v[i], y.v[i]); return r; }
VV_INLINE I16 iadd(I16 x, I16 y) { I16 r; VV_EACH(i) r.v[i] = vaddq_s32(x.v[i], y.v[i]); return r; }
template <int N> VV_INLINE I16 srl(I16 x) {
    I16 r; VV_EACH(i) r.v[i] = vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(x.v[i]), N)); return r;
}
template <int N> VV_INLINE I16 sll(I16 x) { I16 r; VV_EACH(i) r.v[i] = vshlq_n_s32(x.v[i], N); return r; }
template <int N> VV_INLINE I16 sra(I16 x) { I16 r; VV_EACH(i) r.v[i] = vshrq_n_s32(x.v[i], N); return r; }
VV_INLINE F16 bits_to_float(I16 x) { F16 r; VV_EACH(i) r.v[i] = vreinterpretq_f32_s32(x.v[i]); return r; }
VV_INLINE F16 look_up(const float* table, I16 at) {
    const uint8x16x4_t bytes = vld1q_u8_x4((const uint8_t*)table);
    const uint32x4_t fifteen = vdupq_n_u32(15), first = vdupq_n_u32(0x03020100);
    F16 r;
    VV_EACH(i) {
        const uint32x4_t byte = vmlaq_n_u32(first, vandq_u32(vreinterpretq_u32_s32(at.v[i]), fifteen), 0x04040404);
        r.v[i] = vreinterpretq_f32_u8(vqtbl4q_u8(bytes, vreinterpretq_u8_u32(byte)));
    }
    return r;
}
VV_INLINE I16 float_to_bits(F16 x) { I16 r; VV_EACH(i) r.v[i] = vreinterpretq_s32_f32(x.v[i]); return r; }
VV_INLINE F16 load_half(const uint16_t* p) {
    F16 r; VV_EACH(i) r.v[i] = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))); return r;
}
VV_INLINE F16 load_bf16(const uint16_t* p) {
    F16 r; VV_EACH(i) r.v[i] = vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16)); return r;
}
#define VV_SPILLED_HELPERS 1

#else

// GCC's and Clang's vectors: four registers of SSE, or whatever the machine has.
typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));
struct F16 { Floats v; };
struct I16 { Ints v; };
#define VV_LANES(i) for (int i = 0; i < 16; ++i)
VV_INLINE F16 set1(float x) { return {Floats{} + x}; }
VV_INLINE F16 zero() { return {Floats{}}; }
VV_INLINE F16 load(const float* p) { F16 r; std::memcpy(&r.v, p, 64); return r; }
VV_INLINE void store(float* p, F16 x) { std::memcpy(p, &x.v, 64); }
VV_INLINE F16 fma(F16 x, F16 y, F16 z) { return {x.v * y.v + z.v}; }
VV_INLINE F16 add(F16 x, F16 y) { return {x.v + y.v}; }
VV_INLINE F16 sub(F16 x, F16 y) { return {x.v - y.v}; }
VV_INLINE F16 mul(F16 x, F16 y) { return {x.v * y.v}; }
VV_INLINE F16 div(F16 x, F16 y) { return {x.v / y.v}; }
VV_INLINE F16 max(F16 x, F16 y) { return {x.v > y.v ? x.v : y.v}; }
VV_INLINE F16 min(F16 x, F16 y) { return {x.v < y.v ? x.v : y.v}; }
VV_INLINE uint32_t at_least(F16 x, F16 y) {
    uint32_t bits = 0; VV_LANES(i) bits |= (uint32_t)(x.v[i] >= y.v[i]) << i; return bits;
}
VV_INLINE F16 keep_at_least(F16 x, F16 y) { return {(Floats)((Ints)x.v & (x.v >= y.v))}; }
VV_INLINE F16 to_float(I16 x) { return {__builtin_convertvector(x.v, Floats)}; }
VV_INLINE I16 round_to_int(F16 x) { I16 r; VV_LANES(i) r.v[i] = (int32_t)std::nearbyintf(x.v[i]); return r; }
VV_INLINE I16 iset1(int32_t x) { return {Ints{} + x}; }
VV_INLINE I16 iload(const void* p) { I16 r; std::memcpy(&r.v, p, 64); return r; }
VV_INLINE I16 load_u8(const uint8_t* p) {
    typedef uint8_t Bytes __attribute__((vector_size(16)));
    Bytes b; std::memcpy(&b, p, 16); return {__builtin_convertvector(b, Ints)};
}
VV_INLINE I16 load_s8(const int8_t* p) {
    typedef int8_t Bytes __attribute__((vector_size(16)));
    Bytes b; std::memcpy(&b, p, 16); return {__builtin_convertvector(b, Ints)};
}
VV_INLINE I16 iand(I16 x, I16 y) { return {x.v & y.v}; }
VV_INLINE I16 ior(I16 x, I16 y) { return {x.v | y.v}; }
VV_INLINE I16 iadd(I16 x, I16 y) { return {(Ints)((Words)x.v + (Words)y.v)}; }
template <int N> VV_INLINE I16 srl(I16 x) { return {(Ints)((Words)x.v >> N)}; }
template <int N> VV_INLINE I16 sll(I16 x) { return {(Ints)((Words)x.v << N)}; }
template <int N> VV_INLINE I16 sra(I16 x) { return {x.v >> N}; }
VV_INLINE F16 look_up(const float* table, I16 at) { F16 r; VV_LANES(i) r.v[i] = table[at.v[i] & 15]; return r; }
VV_INLINE F16 bits_to_float(I16 x) { return {(Floats)x.v}; }
VV_INLINE I16 float_to_bits(F16 x) { return {(Ints)x.v}; }
VV_INLINE float half_to_float(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = (h >> 10) & 31, fraction = h & 1023;
    uint32_t bits;
    if (exponent == 31) bits = sign | 0x7f800000 | (fraction << 13);
    else if (exponent) bits = sign | ((exponent + 112) << 23) | (fraction << 13);
    else { const float small = (float)fraction * (1.0f / 16777216.0f); std::memcpy(&bits, &small, 4); bits |= sign; }
    float f; std::memcpy(&f, &bits, 4); return f;
}
VV_INLINE F16 load_half(const uint16_t* p) { F16 r; VV_LANES(i) r.v[i] = half_to_float(p[i]); return r; }
VV_INLINE F16 load_bf16(const uint16_t* p) {
    F16 r;
    VV_LANES(i) { const uint32_t b = (uint32_t)p[i] << 16; float f; std::memcpy(&f, &b, 4); r.v[i] = f; }
    return r;
}
#define VV_SPILLED_HELPERS 1
#endif

#ifdef VV_SPILLED_HELPERS
// x where a bit is set, else y. A bit becomes a float: a power of two, whose negative has a sign, or zero.
VV_INLINE F16 choose(uint32_t bits, F16 x, F16 y) {
    alignas(64) static const int32_t POWERS[16] = {1,   2,   4,    8,    16,   32,   64,    128,
                                                   256, 512, 1024, 2048, 4096, 8192, 16384, 32768};
    const F16 powers = to_float(iand(iset1((int32_t)bits), iload(POWERS)));
    const I16 set = sra<31>(float_to_bits(sub(zero(), powers)));
    const I16 clear = sra<31>(iadd(float_to_bits(powers), iset1(-1)));
    return bits_to_float(ior(iand(float_to_bits(x), set), iand(float_to_bits(y), clear)));
}
VV_INLINE F16 load_first(const float* p, int n) { float t[16] = {0}; std::memcpy(t, p, 4 * (size_t)n); return load(t); }
VV_INLINE void store_first(float* p, F16 x, int n) { float t[16]; store(t, x); std::memcpy(p, t, 4 * (size_t)n); }
VV_INLINE void store_low16(uint16_t* p, I16 x) {
    int32_t t[16];
    std::memcpy(t, &x, 64);
    for (int i = 0; i < 16; ++i) p[i] = (uint16_t)t[i];
}
VV_INLINE void store_low8(uint8_t* p, I16 x) {
    int32_t t[16];
    std::memcpy(t, &x, 64);
    for (int i = 0; i < 16; ++i) p[i] = (uint8_t)t[i];
}
#endif

// Round to nearest even, as torch does; a NaN stays one.
VV_INLINE void store_bf16(uint16_t* p, F16 a) {
    const I16 bits = float_to_bits(a);
    const I16 number = sra<31>(iadd(iand(bits, iset1(0x7fffffff)), iset1(-0x7f800001)));  // all ones; NaN: zero
    const I16 up = iand(number, iadd(iand(srl<16>(bits), iset1(1)), iset1(0x7fff)));
    const I16 quiet = sll<22>(iadd(number, iset1(1)));
    store_low16(p, srl<16>(ior(iadd(bits, up), quiet)));
}
// The two bfloat16 numbers of each 32-bit lane: [16][2] in memory.
VV_INLINE F16 low_bf16(I16 pair) { return bits_to_float(sll<16>(pair)); }
VV_INLINE F16 high_bf16(I16 pair) { return bits_to_float(iand(pair, iset1((int32_t)0xffff0000))); }

// Sixteen registers as a 16x16 matrix: lane i of register j and lane j of register i change places.
VV_INLINE void transpose(I16 (&r)[16]) {
#if defined(__AVX512F__)
    __m512i t[16], u[16];
    VV_UNROLL(8)
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i].v, r[i + 1].v);
        t[i + 1] = _mm512_unpackhi_epi32(r[i].v, r[i + 1].v);
    }
    VV_UNROLL(4)
    for (int i = 0; i < 16; i += 4)
        for (int j = 0; j < 2; ++j) {
            u[i + 2 * j] = _mm512_unpacklo_epi64(t[i + j], t[i + j + 2]);
            u[i + 2 * j + 1] = _mm512_unpackhi_epi64(t[i + j], t[i + j + 2]);
        }
    // u[4 * g + j], 128-bit lane l: rows 4g..4g+3 of column 4l + j
    VV_UNROLL(4)
    for (int j = 0; j < 4; ++j) {
        const __m512i a = _mm512_shuffle_i32x4(u[j], u[j + 4], 0x88), b = _mm512_shuffle_i32x4(u[j], u[j + 4], 0xdd);
        const __m512i c = _mm512_shuffle_i32x4(u[j + 8], u[j + 12], 0x88),
                      d = _mm512_shuffle_i32x4(u[j + 8], u[j + 12], 0xdd);
        r[j].v = _mm512_shuffle_i32x4(a, c, 0x88);
        r[j + 4].v = _mm512_shuffle_i32x4(b, d, 0x88);
        r[j + 8].v = _mm512_shuffle_i32x4(a, c, 0xdd);
        r[j + 12].v = _mm512_shuffle_i32x4(b, d, 0xdd);
    }
#else
    int32_t rows[16][16], columns[16][16];
    std::memcpy(rows, r, sizeof rows);
    for (int i = 0; i < 16; ++i)
        for (int j = 0; j < 16; ++j) columns[j][i] = rows[i][j];
    std::memcpy(r, columns, sizeof columns);
#endif
}

#if defined(__AVX512F__)
// Halves are folded: lane i + lane i+8, then 4, 2, 1.
#define VV_FOLD(name, fold)                                                                                  \
    VV_INLINE float name(F16 x) {                                                                            \
        const __m256 low = _mm512_castps512_ps256(x.v), high = _mm512_extractf32x8_ps(x.v, 1);               \
        const __m256 eight = _mm256_##fold##_ps(low, high);                                                  \
        const __m128 four = _mm_##fold##_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1)); \
        const __m128 two = _mm_##fold##_ps(four, _mm_movehl_ps(four, four));                                 \
        return _mm_cvtss_f32(_mm_##fold##_ss(two, _mm_movehdup_ps(two)));                                    \
    }
VV_FOLD(reduce_add, add)
VV_FOLD(reduce_max, max)
#undef VV_FOLD
#else
// Halves are folded: lane i + lane i+8, then 4, 2, 1.
VV_INLINE float reduce_add(F16 x) {
    float t[16];
    store(t, x);
    for (int width = 8; width; width /= 2)
        for (int i = 0; i < width; ++i) t[i] += t[i + width];
    return t[0];
}
VV_INLINE float reduce_max(F16 x) {
    float t[16];
    store(t, x);
    for (int width = 8; width; width /= 2)
        for (int i = 0; i < width; ++i) t[i] = t[i] > t[i + width] ? t[i] : t[i + width];
    return t[0];
}
#endif

// exp with at most 2 ulp of error; below -87.3 it is 0, above 88.7 infinity.
VV_INLINE F16 exp(F16 x) {
    // the constant comes first: of a NaN and a number, x86 keeps the second, and a NaN must stay
    const F16 clamped = max(set1(-105.0f), min(set1(89.0f), x));
    const I16 n = round_to_int(mul(clamped, set1(1.44269504f)));
    const F16 k = to_float(n);
    F16 r = fma(k, set1(-0.693359375f), clamped);
    r = fma(k, set1(2.12194440e-4f), r);
    F16 p = set1(1.9875691500e-4f);
    p = fma(p, r, set1(1.3981999507e-3f));
    p = fma(p, r, set1(8.3334519073e-3f));
    p = fma(p, r, set1(4.1665795894e-2f));
    p = fma(p, r, set1(1.6666665459e-1f));
    p = fma(p, r, set1(5.0000001201e-1f));
    p = add(fma(mul(r, r), p, r), set1(1.0f));
    // 2^n in two factors, so that results near the ends of the range are right
    const I16 half = round_to_int(mul(k, set1(0.5f)));
    const I16 rest = round_to_int(sub(k, to_float(half)));
    const F16 first = bits_to_float(sll<23>(iadd(half, iset1(127))));
    const F16 second = bits_to_float(sll<23>(iadd(rest, iset1(127))));
    return mul(mul(p, first), second);
}

}  // namespace VV_ISA
}  // namespace vivace
