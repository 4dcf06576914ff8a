// Blocks of stored weights as bfloat16, by the instructions of processors with AVX512_BF16: the
// numbers that each kind gives as float32, rounded to the nearest.
//
// `read` takes what all numbers of a block need, and `part` gives 32 numbers. A code of 4 or 5
// bits is an index into a table of its part's 16 or 32 numbers, which a processor looks up for 32
// codes at a time.

#pragma once

#include "../vectors.h"

#if defined(__AVX512BF16__)

namespace {

INLINE __m512 count_from(float first) {
  return _mm512_set_ps(first + 15, first + 14, first + 13, first + 12, first + 11, first + 10,
                       first + 9, first + 8, first + 7, first + 6, first + 5, first + 4, first + 3,
                       first + 2, first + 1, first);
}

INLINE Pairs rounded_pairs(__m512 first, __m512 second) {
  return (Pairs)_mm512_cvtne2ps_pbh(second, first);
}

// n * d + m for n from 0 to 15, twice: bit 4 of an index does not matter.
INLINE Pairs table16(__m512 d, __m512 m) {
  const __m512 numbers = _mm512_fmadd_ps(count_from(0), d, m);
  return rounded_pairs(numbers, numbers);
}

// For n from 0 to 31.
INLINE Pairs table32(__m512 d, __m512 m) {
  return rounded_pairs(_mm512_fmadd_ps(count_from(0), d, m),
                       _mm512_fmadd_ps(count_from(16), d, m));
}

INLINE Pairs look_up(__m512i index, Pairs table) { return _mm512_permutexvar_epi16(index, table); }

INLINE __m512i words(const uint8_t* bytes32) {
  return _mm512_cvtepu8_epi16(load<__m256i>(bytes32));
}

// Codes of 4 bits in words: the lower four, or the upper ones where PART is odd.
template <int PART>
INLINE __m512i nibbles(__m512i w) {
  return PART % 2 ? _mm512_srli_epi16(w, 4) : w;
}

// 16 low and 16 high nibbles, which stand for the numbers of a table.
INLINE Pairs nibbles_by(const uint8_t* bytes16, __m256i table) {
  const __m256i w = _mm256_cvtepu8_epi16(load<__m128i>(bytes16));
  const __m256i upper = _mm256_permutexvar_epi16(_mm256_srli_epi16(w, 4), table);
  return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_permutexvar_epi16(w, table)), upper, 1);
}

// 16 bytes, with or without a sign, as float32.
INLINE __m512 with_sign(__m128i x) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(x)); }
INLINE __m512 without_sign(__m128i x) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(x)); }

// 16 numbers that are read one by one from memory.
struct InMemory {
  alignas(64) float numbers[16];
  INLINE void operator=(__m512 x) {
    _mm512_store_ps(numbers, x);
    kept_in_memory(numbers);
  }
  __m512 operator[](int n) const { return _mm512_set1_ps(numbers[n]); }
};

// The eight scales of a block of Q4_K or Q5_K, then its eight least numbers, negative.
INLINE __m512 eight_and_eight(const uint8_t* b) {
  const __m128 two = _mm_xor_ps(_mm_cvtph_ps(load<__m128i>(b)), _mm_setr_ps(0, -0.0f, 0, 0));
  const __m512i each = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
  const __m512 by = _mm512_permutexvar_ps(each, _mm512_castps128_ps512(two));
  return _mm512_mul_ps(without_sign(scales_and_least(b)), by);
}

// Kinds of whole numbers.
template <typename Stored>
struct Bfloat16Block {
  typedef None Factors;
  static void read(const uint8_t*, None&) {}
  template <int PART>
  INLINE static Pairs part(const uint8_t* b, None) {
    __m512 x[2];
    vectors_of<Stored, PART>(b, {}, [&](int i, Floats numbers) { x[i] = (__m512)numbers; });
    return rounded_pairs(x[0], x[1]);
  }
};

// Kinds with one table of 16 numbers for a block.
struct OneTable {
  typedef __m256i Factors;
  static __m256i table(__m512 numbers) { return (__m256i)_mm512_cvtneps_pbh(numbers); }
};

template <>
struct Bfloat16Block<Q4_0> : OneTable {
  INLINE static void read(const uint8_t* b, Factors& f) {
    f = table(_mm512_mul_ps(count_from(-8), _mm512_set1_ps(half(b))));
  }
  template <int PART>
  INLINE static Pairs part(const uint8_t* b, Factors f) { return nibbles_by(b + 2, f); }
};

template <>
struct Bfloat16Block<Q4_1> : OneTable {
  INLINE static void read(const uint8_t* b, Factors& f) {
    const __m512 d = _mm512_set1_ps(half(b)), m = _mm512_set1_ps(half(b + 2));
    f = table(_mm512_fmadd_ps(count_from(0), d, m));
  }
  template <int PART>
  INLINE static Pairs part(const uint8_t* b, Factors f) { return nibbles_by(b + 4, f); }
};

template <>
struct Bfloat16Block<IQ4_NL> : OneTable {
  INLINE static void read(const uint8_t* b, Factors& f) {
    const __m512 numbers = _mm512_setr_ps(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38,
                                          53, 69, 89, 113);
    f = table(_mm512_mul_ps(numbers, _mm512_set1_ps(half(b))));
  }
  template <int PART>
  INLINE static Pairs part(const uint8_t* b, Factors f) { return nibbles_by(b + 2, f); }
};

// Kinds with one table of 32 numbers for a block.
template <typename Stored>
struct LongTable {
  typedef Pairs Factors;
  INLINE static void read(const uint8_t* b, Factors& f) {
    const auto by = Stored::factors(b);
    f = table32(_mm512_set1_ps(by.scale[0]), _mm512_set1_ps(by.shift[0]));
  }
  template <int PART>
  INLINE static Pairs part(const uint8_t* b, Factors f) {
    return look_up(_mm512_cvtepu8_epi16((__m256i)Stored::template codes<PART>(b)), f);
  }
};

template <>
struct Bfloat16Block<Q5_0> : LongTable<Q5_0> {
  INLINE static void read(const uint8_t* b, Factors& f) {
    const __m512 d = _mm512_set1_ps(half(b));
    f = rounded_pairs(_mm512_mul_ps(count_from(-16), d), _mm512_mul_ps(count_from(0), d));
  }
};

template <>
struct Bfloat16Block<Q5_1> : LongTable<Q5_1> {};

template <>
struct Bfloat16Block<MXFP4> : OneTable {
  INLINE static void read(const uint8_t* b, Factors& f) {
    const __m512 doubled = _mm512_setr_ps(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
    f = table(_mm512_mul_ps(doubled, _mm512_set1_ps(MXFP4::scale(b))));
  }
  template <int PART>
  INLINE static Pairs part(const uint8_t* b, Factors f) { return nibbles_by(b + 1, f); }
};

template <>
struct Bfloat16Block<Q8_0> {
  typedef __m512 Factors;
  INLINE static void read(const uint8_t* b, Factors& f) { f = _mm512_set1_ps(half(b)); }
  template <int PART>
  INLINE static Pairs part(const uint8_t* b, Factors d) {
    return rounded_pairs(_mm512_mul_ps(with_sign(load<__m128i>(b + 2)), d),
                         _mm512_mul_ps(with_sign(load<__m128i>(b + 18)), d));
  }
};

template <>
struct Bfloat16Block<Q4_K> {
  typedef InMemory Factors;
  INLINE static void read(const uint8_t* b, Factors& f) { f = eight_and_eight(b); }
  template <int PART>
  INLINE static Pairs part(const uint8_t* b, const Factors& f) {
    return look_up(nibbles<PART>(words(b + 16 + PART / 2 * 32)), table16(f[PART], f[8 + PART]));
  }
};

template <>
struct Bfloat16Block<Q5_K> {
  typedef InMemory Factors;
  INLINE static void read(const uint8_t* b, Factors& f) { f = eight_and_eight(b); }
  template <int PART>
  INLINE static Pairs part(const uint8_t* b, const Factors& f) {
    const __m512i codes = nibbles<PART>(words(b + 48 + PART / 2 * 32));
    const __m512i fifths = _mm512_srli_epi16(_mm512_slli_epi16(words(b + 16), 4), PART);
    const __m512i low = _mm512_set1_epi16(15);
    const __m512i index = _mm512_ternarylogic_epi32(low, codes, fifths, 0xCA);
    return look_up(index, table32(f[PART], f[8 + PART]));
  }
};

template <>
struct Bfloat16Block<Q6_K> {
  struct Factors {
    InMemory scales;
    alignas(64) int8_t codes[256];
  };
  INLINE static void read(const uint8_t* b, Factors& f) {
    f.scales = _mm512_mul_ps(with_sign(load<__m128i>(b + 192)), _mm512_set1_ps(half(b + 208)));
    const __m512i low = _mm512_set1_epi8(15), two = _mm512_set1_epi8(48);
    const __m512i first = _mm512_inserti64x4(_mm512_set1_epi16(4), _mm256_set1_epi16(2), 1);
    const __m512i second = _mm512_inserti64x4(_mm512_set1_epi16(0), _mm256_set1_epi16(2), 1);
    for (int side = 0; side < 2; ++side) {
      const __m512i q = load<__m512i>(b + 64 * side);
      const __m512i upper = _mm512_broadcast_i64x4(load<__m256i>(b + 128 + 32 * side));
      const auto put = [&](int i, __m512i lower, __m512i bits) {
        const __m512i codes =
            _mm512_ternarylogic_epi32(low, lower, _mm512_and_si512(bits, two), 0xCA);
        store(f.codes + 128 * side + 64 * i, _mm512_sub_epi8(codes, _mm512_set1_epi8(32)));
      };
      put(0, q, _mm512_sllv_epi16(upper, first));
      put(1, _mm512_srli_epi16(q, 4), _mm512_srlv_epi16(upper, second));
    }
    kept_in_memory(f.codes);
  }
  template <int PART>
  INLINE static Pairs part(const uint8_t*, const Factors& f) {
    const auto numbers = [&](int n) {
      return _mm512_mul_ps(with_sign(load<__m128i>(f.codes + 16 * n)), f.scales[n]);
    };
    return rounded_pairs(numbers(2 * PART), numbers(2 * PART + 1));
  }
};

}  // namespace

#endif
