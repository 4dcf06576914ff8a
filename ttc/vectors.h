// What the CPU kernels are made of: the compiler's own vectors, as long as the processor's, with
// what such vectors have no operators for. The processor is the one that the compiler is told.

#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define INLINE __attribute__((always_inline)) inline
// A function of its own: its registers do not depend on what GCC would inline around it.
#define NOT_INLINE __attribute__((noinline))

namespace {

// LANES: float32 numbers of a vector. CELLS: vectors of sums that are held in registers at a time;
// the other half of the registers holds what is multiplied.
#if defined(__AVX512BF16__)
constexpr const char* PROCESSOR = "AVX-512 with products of bfloat16";
constexpr int LANES = 16, CELLS = 16;
#elif defined(__AVX512F__)
constexpr const char* PROCESSOR = "AVX-512";
constexpr int LANES = 16, CELLS = 16;
#elif defined(__AVX2__) && defined(__FMA__)
constexpr const char* PROCESSOR = "AVX2";
constexpr int LANES = 8, CELLS = 8;
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
constexpr const char* PROCESSOR = "NEON with products of bfloat16";
constexpr int LANES = 4, CELLS = 16;
#elif defined(__aarch64__)
constexpr const char* PROCESSOR = "NEON";
constexpr int LANES = 4, CELLS = 16;
#else
constexpr const char* PROCESSOR = "vectors of 4 numbers";
constexpr int LANES = 4, CELLS = 8;
#endif

typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));
typedef uint32_t Bits __attribute__((vector_size(4 * LANES)));
typedef uint16_t Halves __attribute__((vector_size(2 * LANES)));  // 16-bit numbers, as bits
typedef uint8_t Bytes __attribute__((vector_size(LANES)));

template <typename Vector>
INLINE Vector load(const void* from) {
  Vector x;
  memcpy(&x, from, sizeof x);
  return x;
}

template <typename Vector>
INLINE void store(void* to, Vector x) {
  memcpy(to, &x, sizeof x);
}

// 0, 1, 2, ... in the lanes.
template <typename Vector, std::size_t... I>
constexpr Vector numbered(std::index_sequence<I...>) {
  return Vector{I...};
}

// Ask for memory ahead of its use. Many lines at once would hold up what comes after them.
INLINE void expect(const char* from, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(from + i, 0, 2);
}

// A vector that several products use. GCC would load it anew for each, were it not for the asm. One
// that fills more than a register is left to the compiler.
template <typename Vector>
INLINE Vector held(Vector x) {
  if constexpr (sizeof x <= 4 * LANES) {
#if defined(__x86_64__)
    asm("" : "+v"(x));
#elif defined(__aarch64__)
    asm("" : "+w"(x));
#endif
  }
  return x;
}

INLINE Floats all(float x) { return x - Floats{}; }

// All lanes are the 32 bits at an address.
INLINE Floats all_of(const void* from) { return (Floats)(load<uint32_t>(from) - Bits{}); }

// ---------------------------------------------------------------- bfloat16 and float16

// 16 bits as 32, and the lower half of 32. GCC 12 would take several instructions for one.
INLINE Bits longer(Halves x) {
#if defined(__AVX512F__)
  return (Bits)_mm512_cvtepu16_epi32((__m256i)x);
#elif defined(__AVX2__)
  return (Bits)_mm256_cvtepu16_epi32((__m128i)x);
#else
  return __builtin_convertvector(x, Bits);
#endif
}
INLINE Halves shorter(Bits x) {
#if defined(__AVX512F__)
  return (Halves)_mm512_cvtepi32_epi16((__m512i)x);
#else
  return __builtin_convertvector(x, Halves);
#endif
}

INLINE Floats widened(Halves x) { return (Floats)(longer(x) << 16); }

INLINE float widened(uint16_t x) {
  const uint32_t bits = (uint32_t)x << 16;
  return load<float>(&bits);
}

// The bits of numbers whose upper halves are the nearest bfloat16, ties to even.
template <typename Integers>
INLINE Integers nearest(Integers bits) {
  return bits + ((bits >> 16 & 1) + 0x7FFF);
}

INLINE Halves narrowed(Floats x) { return shorter(nearest((Bits)x) >> 16); }
INLINE uint16_t narrowed(float x) { return (uint16_t)(nearest(load<uint32_t>(&x)) >> 16); }

// The nearest bfloat16, as float32.
INLINE Floats rounded(Floats x) { return (Floats)(nearest((Bits)x) & 0xFFFF0000u); }

// A float16 number.
INLINE float half(const void* from) {
  const uint16_t bits = load<uint16_t>(from);
#if defined(__F16C__)
  return _cvtsh_ss(bits);
#elif defined(__aarch64__)
  return (float)load<__fp16>(&bits);
#else
  const uint32_t sign = (uint32_t)(bits & 0x8000) << 16, rest = bits & 0x7FFF;
  if (rest < 0x0400) return (sign ? -1.0f : 1.0f) * (float)rest * 0x1p-24f;
  const uint32_t exponent = (rest < 0x7C00 ? 112u : 224u) << 23;  // or that of infinity and NaN
  const uint32_t wide = sign | ((rest << 13) + exponent);
  return load<float>(&wide);
#endif
}

// Vectors of pairs of bfloat16 numbers, where the processor multiplies such: each lane of `sum`
// gets both products of a pair.
#if defined(__AVX512BF16__)
#define MULTIPLIES_BFLOAT16
typedef __m512i Pairs;
INLINE Floats add_products(Pairs x, Pairs w, Floats sum) {
  return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)x, (__m512bh)w);
}
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define MULTIPLIES_BFLOAT16
typedef uint16x8_t Pairs;
INLINE Floats add_products(Pairs x, Pairs w, Floats sum) {
  const bfloat16x8_t a = vreinterpretq_bf16_u16(x), b = vreinterpretq_bf16_u16(w);
  return (Floats)vbfdotq_f32((float32x4_t)sum, a, b);
}
#endif

// ---------------------------------------------------------------- sums of lanes

// Blocks of SPAN lanes of a and b in turn: the first of each two, or the second.
template <int SPAN, std::size_t... I>
INLINE Floats firsts(Floats a, Floats b, std::index_sequence<I...>) {
  return __builtin_shufflevector(a, b, (I & SPAN ? LANES + I - SPAN : I)...);
}
template <int SPAN, std::size_t... I>
INLINE Floats seconds(Floats a, Floats b, std::index_sequence<I...>) {
  return __builtin_shufflevector(a, b, (I & SPAN ? LANES + I : I + SPAN)...);
}

// Which lane of a (or, from LANES on, of b) is in lane i when every second number of a comes before
// every second number of b: numbers within each four lanes, or fours of lanes. Processors have
// single instructions for these.
template <int SPAN>
constexpr int every_second(int i, int first) {
  if (SPAN < 4) return (i % 4 < 2 ? 0 : LANES) + i / 4 * 4 + i % 2 * 2 + first;
  constexpr int HALF = LANES < 8 ? 1 : LANES / 8;
  return (i / 4 < HALF ? 0 : LANES) + 4 * (i / 4 % HALF * 2 + first) + i % 4;
}

template <int SPAN, std::size_t... I>
INLINE Floats fold(Floats a, Floats b, std::index_sequence<I...>) {
  return __builtin_shufflevector(a, b, every_second<SPAN>(I, 0)...) +
         __builtin_shufflevector(a, b, every_second<SPAN>(I, 1)...);
}

// Vectors become half as many, and lanes that are SPAN apart one sum, until lane n of all that is
// left is the sum of vector n. COUNT: a multiple of LANES, or the last lanes repeat.
template <int SPAN, int COUNT>
INLINE void fold_all(Floats* cells) {
  if constexpr (SPAN < LANES) {
    constexpr int PAIRED = COUNT > 1 ? COUNT / 2 : 1;
#pragma GCC unroll 16
    for (int i = 0; i < PAIRED; ++i) {
      const Floats second = cells[COUNT > 1 ? 2 * i + 1 : 2 * i];
      cells[i] = fold<SPAN>(cells[2 * i], second, std::make_index_sequence<LANES>());
    }
    fold_all<2 * SPAN, PAIRED>(cells);
  }
}

// The sum of a vector's lanes, half to half.
template <int SPAN = LANES / 2>
INLINE float total(Floats x) {
  if constexpr (SPAN == 0) return x[0];
  else return total<SPAN / 2>(x + seconds<SPAN>(x, x, std::make_index_sequence<LANES>()));
}

// LANES vectors, turned: lane n of vector m becomes lane m of vector n.
template <int SPAN = 1>
INLINE void transpose(Floats* rows) {
  if constexpr (SPAN < LANES) {
#pragma GCC unroll 16
    for (int i = 0; i < LANES; ++i) {
      if (i & SPAN) continue;
      const Floats a = rows[i], b = rows[i + SPAN];
      rows[i] = firsts<SPAN>(a, b, std::make_index_sequence<LANES>());
      rows[i + SPAN] = seconds<SPAN>(a, b, std::make_index_sequence<LANES>());
    }
    transpose<2 * SPAN>(rows);
  }
}

// ---------------------------------------------------------------- functions

INLINE Floats larger(Floats a, Floats b) { return a > b ? a : b; }

// Whether a comparison holds in any lane.
INLINE bool any(Ints holds) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)holds, (__m512i)holds);
#elif defined(__AVX2__)
  return _mm256_movemask_epi8((__m256i)holds);
#else
  for (int i = 0; i < LANES; ++i)
    if (holds[i]) return true;
  return false;
#endif
}

// The largest lane.
template <int SPAN = LANES / 2>
INLINE float largest(Floats x) {
  if constexpr (SPAN == 0) return x[0];
  else return largest<SPAN / 2>(larger(x, seconds<SPAN>(x, x, std::make_index_sequence<LANES>())));
}

INLINE Floats floor(Floats x) {
#if defined(__AVX512F__)
  return (Floats)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEG_INF);
#elif defined(__AVX2__)
  return (Floats)_mm256_floor_ps((__m256)x);
#else
  const Floats towards_zero = __builtin_convertvector(__builtin_convertvector(x, Ints), Floats);
  return towards_zero > x ? towards_zero - 1.0f : towards_zero;
#endif
}

// e to the x for x <= 0, to about 1e-7 of it (Cephes' expf); no less than 1e-38.
INLINE Floats exp(Floats x) {
  x = larger(x, all(-87.0f));
  const Floats shifted = x * 1.44269504f + 0.5f;
  Ints power = __builtin_convertvector(shifted, Ints);
  power += (Ints)(__builtin_convertvector(power, Floats) > shifted);  // -1: rounded towards zero
  const Floats n = __builtin_convertvector(power, Floats);
  const Floats r = x + n * -0.693359375f + n * 2.12194440e-4f;
  Floats p = all(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = (p * r) * r + (r + 1.0f);
  return p * (Floats)((power + 127) << 23);
}

}  // namespace
