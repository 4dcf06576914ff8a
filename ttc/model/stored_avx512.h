// Blocks of stored weights as bfloat16, by the instructions of processors with AVX512_BF16: the
// numbers that `unpack` of each kind gives, rounded to the nearest.
//
// A code of 4 or 5 bits is an index into a table of its part's 16 or 32 numbers, which a processor
// looks up for 32 codes at a time. Each 32 numbers go to `put`, a function of their place and them.

#pragma once

#include "../vectors.h"

#if defined(__AVX512BF16__)

namespace {

INLINE __m512 count_from(float first) {
  return _mm512_set_ps(first + 15, first + 14, first + 13, first + 12, first + 11, first + 10,
                       first + 9, first + 8, first + 7, first + 6, first + 5, first + 4, first + 3,
                       first + 2, first + 1, first);
}

// n * d + m for n from 0 to 15, twice: bit 4 of an index does not matter.
INLINE __m512i table16(__m512 d, __m512 m) {
  const __m512 numbers = _mm512_fmadd_ps(count_from(0), d, m);
  return (__m512i)_mm512_cvtne2ps_pbh(numbers, numbers);
}

// For n from 0 to 31.
INLINE __m512i table32(__m512 d, __m512 m) {
  return (__m512i)_mm512_cvtne2ps_pbh(_mm512_fmadd_ps(count_from(16), d, m),
                                      _mm512_fmadd_ps(count_from(0), d, m));
}

INLINE __m512i look_up(__m512i index, __m512i table) {
  return _mm512_permutexvar_epi16(index, table);
}

INLINE __m512i words(const void* bytes32) {
  return _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i*)bytes32));
}

// Codes of 16 bytes, with or without a sign, as float32.
INLINE __m512 signed16(__m128i x) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(x)); }

// 16 low and 16 high nibbles, which stand for these numbers.
INLINE __m512i nibbles_by(const uint8_t* bytes16, __m512 numbers) {
  const __m256i table = (__m256i)_mm512_cvtneps_pbh(numbers);
  const __m256i w = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i*)bytes16));
  const __m256i upper = _mm256_permutexvar_epi16(_mm256_srli_epi16(w, 4), table);
  return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_permutexvar_epi16(w, table)), upper, 1);
}

// 16 numbers that are read one by one from memory: a load that fills a vector is cheaper than the
// permutation that GCC would make of it.
struct Factors {
  alignas(64) float numbers[16];
  explicit Factors(__m512 x) {
    _mm512_store_ps(numbers, x);
    asm("" : "+m"(numbers));
  }
  __m512 operator[](int n) const { return _mm512_set1_ps(numbers[n]); }
};

// The eight scales of a block of Q4_K or Q5_K, then its eight least numbers, negative.
INLINE Factors factors_of(const uint8_t* b) {
  const uint32_t low = load<uint32_t>(b + 4), least = load<uint32_t>(b + 8);
  const uint32_t high = load<uint32_t>(b + 12);
  const uint32_t upper = (high & 0x0F0F0F0F) | (low >> 2 & 0x30303030);
  const uint32_t upper_least = (high >> 4 & 0x0F0F0F0F) | (least >> 2 & 0x30303030);
  const __m128i codes = _mm_set_epi32(upper_least, least & 0x3F3F3F3F, upper, low & 0x3F3F3F3F);
  const __m512 d = _mm512_set1_ps(half(b)), m = _mm512_set1_ps(-half(b + 2));
  const __m512 numbers = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(codes));
  return Factors(_mm512_mul_ps(numbers, _mm512_mask_blend_ps(0xFF00, d, m)));
}

template <typename Stored>
struct Bfloat16Block {
  static constexpr bool KNOWN = false;
};

template <>
struct Bfloat16Block<Q4_0> {
  static constexpr bool KNOWN = true;
  template <typename Put>
  INLINE static void unpack(const uint8_t* b, Put put) {
    put(0, nibbles_by(b + 2, _mm512_mul_ps(count_from(-8), _mm512_set1_ps(half(b)))));
  }
};

template <>
struct Bfloat16Block<Q4_1> {
  static constexpr bool KNOWN = true;
  template <typename Put>
  INLINE static void unpack(const uint8_t* b, Put put) {
    const __m512 d = _mm512_set1_ps(half(b)), m = _mm512_set1_ps(half(b + 2));
    put(0, nibbles_by(b + 4, _mm512_fmadd_ps(count_from(0), d, m)));
  }
};

template <>
struct Bfloat16Block<Q8_0> {
  static constexpr bool KNOWN = true;
  template <typename Put>
  INLINE static void unpack(const uint8_t* b, Put put) {
    const __m512 d = _mm512_set1_ps(half(b));
    const __m512 first = signed16(load<__m128i>(b + 2)), second = signed16(load<__m128i>(b + 18));
    put(0, (__m512i)_mm512_cvtne2ps_pbh(_mm512_mul_ps(second, d), _mm512_mul_ps(first, d)));
  }
};

template <>
struct Bfloat16Block<Q4_K> {
  static constexpr bool KNOWN = true;
  template <typename Put>
  INLINE static void unpack(const uint8_t* b, Put put) {
    const Factors f = factors_of(b);
#pragma GCC unroll 4
    for (int part = 0; part < 8; part += 2) {
      const __m512i w = words(b + 16 + 16 * part);
      put(part, look_up(w, table16(f[part], f[8 + part])));
      put(part + 1, look_up(_mm512_srli_epi16(w, 4), table16(f[part + 1], f[9 + part])));
    }
  }
};

template <>
struct Bfloat16Block<Q5_K> {
  static constexpr bool KNOWN = true;
  template <typename Put>
  INLINE static void unpack(const uint8_t* b, Put put) {
    const Factors f = factors_of(b);
    const __m512i fifths = _mm512_slli_epi16(words(b + 16), 4), low = _mm512_set1_epi16(15);
#pragma GCC unroll 4
    for (int part = 0; part < 8; part += 2) {
      const __m512i w = words(b + 48 + 16 * part);
      const auto numbers = [&](__m512i codes, int n) {
        const __m512i index = _mm512_ternarylogic_epi32(low, codes, _mm512_srli_epi16(fifths, n), 0xCA);
        const __m512i table = table32(f[n], f[8 + n]);
        put(n, look_up(index, table));
      };
      numbers(w, part);
      numbers(_mm512_srli_epi16(w, 4), part + 1);
    }
  }
};

template <>
struct Bfloat16Block<Q6_K> {
  static constexpr bool KNOWN = true;
  template <typename Put>
  INLINE static void unpack(const uint8_t* b, Put put) {
    const __m512 all_scales = _mm512_mul_ps(signed16(load<__m128i>(b + 192)), _mm512_set1_ps(half(b + 208)));
    const Factors scales(all_scales), shifts(_mm512_mul_ps(all_scales, _mm512_set1_ps(-32)));
    const __m256i low = _mm256_set1_epi8(15);
#pragma GCC unroll 2
    for (int side = 0; side < 2; ++side) {
      const __m256i upper = load<__m256i>(b + 128 + 32 * side);
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) {
        __m256i q = load<__m256i>(b + 64 * side + 32 * (k % 2));
        if (k >= 2) q = _mm256_srli_epi16(q, 4);
        const __m256i bits = k < 2 ? _mm256_slli_epi16(upper, 4 - 2 * k) : _mm256_srli_epi16(upper, 2 * k - 4);
        q = _mm256_ternarylogic_epi32(low, q, _mm256_and_si256(bits, _mm256_set1_epi8(48)), 0xCA);
        const int n = 8 * side + 2 * k;
        const auto numbers = [&](__m128i codes, int part) {
          const __m512 x = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(codes));
          return _mm512_fmadd_ps(x, scales[part], shifts[part]);
        };
        const __m512 first = numbers(_mm256_castsi256_si128(q), n);
        const __m512 second = numbers(_mm256_extracti128_si256(q, 1), n + 1);
        put(n / 2, (__m512i)_mm512_cvtne2ps_pbh(second, first));
      }
    }
  }
};

template <int SIZE>
struct Bfloat16Block<Group4<SIZE>> {
  static constexpr bool KNOWN = true;
  template <typename Put>
  INLINE static void unpack(const uint8_t* b, Put put) {
    const __m512 scale = _mm512_set1_ps(load<float>(b)), zero = _mm512_set1_ps(load<float>(b + 4));
    const __m512 numbers = _mm512_mul_ps(_mm512_sub_ps(count_from(0), zero), scale);
#pragma GCC unroll 4
    for (int part = 0; part < SIZE / 32; ++part)
      put(part, nibbles_by(b + 8 + 16 * part, numbers));
  }
};

template <int SIZE>
struct Bfloat16Block<Group8<SIZE>> {
  static constexpr bool KNOWN = true;
  template <typename Put>
  INLINE static void unpack(const uint8_t* b, Put put) {
    const __m512 scale = _mm512_set1_ps(load<float>(b)), zero = _mm512_set1_ps(load<float>(b + 4));
    const auto numbers = [&](const uint8_t* codes) {
      const __m512 x = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(load<__m128i>(codes)));
      return _mm512_mul_ps(_mm512_sub_ps(x, zero), scale);
    };
#pragma GCC unroll 4
    for (int part = 0; part < SIZE / 32; ++part) {
      const uint8_t* codes = b + 8 + 32 * part;
      put(part, (__m512i)_mm512_cvtne2ps_pbh(numbers(codes + 16), numbers(codes)));
    }
  }
};

}  // namespace

#endif
