// How weights are stored in .gguf files (ggml-common.h).
//
// Each kind has blocks of NUMBERS in BYTES, in parts of 32 numbers. `factors` reads what all
// numbers of a block need. `codes` gives the 32 codes of a part, without a sign, and `scaled` makes
// numbers of those in vector I. Kinds without codes give the numbers themselves.

#pragma once

#include "../vectors.h"

namespace {

typedef uint8_t Codes __attribute__((vector_size(32)));
constexpr int VECTORS = 32 / LANES;  // of a part

// Vector I of the codes, with a sign or without one, as float32.
template <int I, bool SIGN>
INLINE Floats spread(Codes c) {
#if defined(__AVX512F__)
  const __m128i some = _mm256_extracti128_si256((__m256i)c, I);
  return (Floats)_mm512_cvtepi32_ps(SIGN ? _mm512_cvtepi8_epi32(some)
                                         : _mm512_cvtepu8_epi32(some));
#elif defined(__AVX2__)
  __m128i some = _mm256_extracti128_si256((__m256i)c, I / 2);
  if (I % 2) some = _mm_unpackhi_epi64(some, some);
  return (Floats)_mm256_cvtepi32_ps(SIGN ? _mm256_cvtepi8_epi32(some)
                                         : _mm256_cvtepu8_epi32(some));
#else
  Bytes some;
  memcpy(&some, (const char*)&c + I * LANES, sizeof some);
  Ints numbers = __builtin_convertvector(some, Ints);
  if (SIGN) numbers = numbers << 24 >> 24;
  return __builtin_convertvector(numbers, Floats);
#endif
}

// 16 bytes, twice.
INLINE Codes twice(const uint8_t* bytes16) {
#if defined(__AVX2__)
  return (Codes)_mm256_broadcastsi128_si256(load<__m128i>(bytes16));
#else
  Codes c;
  memcpy(&c, bytes16, 16);
  memcpy((char*)&c + 16, bytes16, 16);
  return c;
#endif
}

// Bytes shifted to the right by N bits, or to the left by -N, of which those of MASK stay.
// Processors shift 16 bits.
template <int N, int MASK>
INLINE Codes shifted(Codes c) {
  typedef uint16_t Words __attribute__((vector_size(32)));
  if constexpr (N < 0) return (Codes)((Words)c << -N) & (uint8_t)MASK;
  else return (Codes)((Words)c >> N) & (uint8_t)MASK;
}

// Codes of 4 bits: the lower halves of 16 bytes, then the upper ones.
INLINE Codes nibbles(const uint8_t* bytes16) {
#if defined(__AVX2__)
  const __m256i both = (__m256i)twice(bytes16);
  const __m256i by = _mm256_set_epi64x(4, 4, 0, 0);
  return (Codes)_mm256_srlv_epi64(both, by) & 15;
#else
  typedef uint8_t Half __attribute__((vector_size(16)));
  const Half both = load<Half>(bytes16), lower = both & 15, upper = both >> 4;
  Codes c;
  memcpy(&c, &lower, 16);
  memcpy((char*)&c + 16, &upper, 16);
  return c;
#endif
}

struct None {};

struct F32 {
  static constexpr int NUMBERS = 32, BYTES = 128, BITS = 0;
  typedef None Factors;
  static None factors(const uint8_t*) { return {}; }
  template <int I>
  INLINE static Floats vector(const uint8_t* b) { return load<Floats>(b + 4 * I * LANES); }
};

struct F16 {
  static constexpr int NUMBERS = 32, BYTES = 64, BITS = 0;
  typedef None Factors;
  static None factors(const uint8_t*) { return {}; }
  template <int I>
  INLINE static Floats vector(const uint8_t* b) {
    Floats x;
    for (int i = 0; i < LANES; ++i) x[i] = half(b + 2 * (I * LANES + i));
    return x;
  }
};

struct BF16 {
  static constexpr int NUMBERS = 32, BYTES = 64, BITS = 0;
  typedef None Factors;
  static None factors(const uint8_t*) { return {}; }
  template <int I>
  INLINE static Floats vector(const uint8_t* b) { return widened(load<Halves>(b + 2 * I * LANES)); }
};

// Which of a block's N factors vector I of a part takes.
template <int N, int PART, int I>
constexpr int factor_of = N == 1 ? 0 : N < 16 ? PART : 2 * PART + I * LANES / 16;

// A number is scale * code + shift. Products of a scale and a code are exact in float32, so that
// this is what ggml's own steps give.
template <int COUNT>
struct Scales {
  float scale[COUNT], shift[COUNT];
};

template <int N>
struct Affine {
  static constexpr int ZERO = 0;
  typedef Scales<N> Factors;
  template <int PART, int I>
  INLINE static Floats scaled(Floats code, const Factors& f) {
    return code * f.scale[factor_of<N, PART, I>] + f.shift[factor_of<N, PART, I>];
  }
};

// A number is scale * (code - ZERO). The difference comes first: it gives a 0 the scale's sign, and
// large scales their infinity.
template <int N>
struct Multiples {
  float scale[N];
};

template <int Z, int N = 1>
struct Scaled {
  static constexpr int ZERO = Z;
  typedef Multiples<N> Factors;
  INLINE static Factors factors(const uint8_t* b) { return {{half(b)}}; }
  template <int PART, int I>
  INLINE static Floats scaled(Floats code, const Factors& f) {
    return code * f.scale[factor_of<N, PART, I>];
  }
};
struct Shifted : Affine<1> {
  INLINE static Factors factors(const uint8_t* b) { return {{half(b)}, {half(b + 2)}}; }
};

struct Q4_0 : Scaled<8> {
  static constexpr int NUMBERS = 32, BYTES = 18, BITS = 4;
  template <int PART>
  INLINE static Codes codes(const uint8_t* b) { return nibbles(b + 2); }
};

struct Q4_1 : Shifted {
  static constexpr int NUMBERS = 32, BYTES = 20, BITS = 4;
  template <int PART>
  INLINE static Codes codes(const uint8_t* b) { return nibbles(b + 4); }
};

// 32 bits as the fifth bits of 32 bytes.
INLINE Codes fifths(const uint8_t* bytes4) {
#if defined(__AVX2__)
  const __m256i all = _mm256_set1_epi32(load<int32_t>(bytes4));
  const __m256i places = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202,
                                            0x0303030303030303);
  const __m256i one = _mm256_set1_epi64x((long long)0x8040201008040201);
  const __m256i bits = _mm256_and_si256(_mm256_shuffle_epi8(all, places), one);
  return (Codes)_mm256_cmpeq_epi8(bits, one) & 16;
#else
  Codes c;
  for (int i = 0; i < 32; ++i) c[i] = (bytes4[i / 8] >> i % 8 & 1) << 4;
  return c;
#endif
}

struct Q5_0 : Scaled<16> {
  static constexpr int NUMBERS = 32, BYTES = 22, BITS = 5;
  template <int PART>
  INLINE static Codes codes(const uint8_t* b) { return nibbles(b + 6) | fifths(b + 2); }
};

struct Q5_1 : Shifted {
  static constexpr int NUMBERS = 32, BYTES = 24, BITS = 5;
  template <int PART>
  INLINE static Codes codes(const uint8_t* b) { return nibbles(b + 8) | fifths(b + 4); }
};

struct Q8_0 : Scaled<128> {
  static constexpr int NUMBERS = 32, BYTES = 34, BITS = 8;
  template <int PART>
  INLINE static Codes codes(const uint8_t* b) { return load<Codes>(b + 2) ^ 128; }
};

// Numbers that are read one by one from memory: a load that fills a vector is cheaper than the
// permutation that GCC would make of it, or than the registers that it would keep each in.
template <typename Numbers>
INLINE void kept_in_memory(Numbers& x) {
  asm("" : "+m"(x));
}

// The same, where columns have more than a scale and a shift each.
template <typename Factors, int COLUMNS>
INLINE void many_in_memory(Factors (&factors)[COLUMNS]) {
  if constexpr (sizeof(Factors) >= 64) kept_in_memory(factors);
}

// Eight bytes, without a sign or with one, as float32.
typedef float Float8 __attribute__((vector_size(32)));
INLINE Float8 eight(const uint8_t* bytes8, bool sign) {
#if defined(__AVX2__)
  const __m128i some = _mm_loadl_epi64((const __m128i*)bytes8);
  return (Float8)_mm256_cvtepi32_ps(sign ? _mm256_cvtepi8_epi32(some) : _mm256_cvtepu8_epi32(some));
#else
  Float8 x;
  for (int i = 0; i < 8; ++i) x[i] = sign ? (float)(int8_t)bytes8[i] : (float)bytes8[i];
  return x;
#endif
}

// The scales and the least numbers of the eight parts of a block of Q4_K or Q5_K, 6 bits each, as
// 16 bytes: four words, or the same four of several blocks. Behind two float16 a block has four
// bytes each: the first four scales; the first four least numbers; and fours of bits of the others,
// whose upper two bits are the upper ones of the first.
template <typename Word>
INLINE void scales_and_least(Word low, Word least, Word high, Word* codes) {
  constexpr int32_t FOUR = 0x0F0F0F0F, SIX = 0x3F3F3F3F, UPPER = 0x30303030;
  codes[0] = low & SIX;
  codes[1] = (high & FOUR) | (low >> 2 & UPPER);
  codes[2] = least & SIX;
  codes[3] = (high >> 4 & FOUR) | (least >> 2 & UPPER);
}
#if defined(__AVX2__)
INLINE __m128i scales_and_least(const uint8_t* b) {
  const __m128i begin = load<__m128i>(b);
  const __m128i lower = _mm_srlv_epi32(_mm_shuffle_epi32(begin, _MM_SHUFFLE(3, 2, 3, 1)),
                                       _mm_setr_epi32(0, 0, 0, 4));
  const __m128i upper = _mm_srli_epi32(_mm_shuffle_epi32(begin, _MM_SHUFFLE(2, 2, 1, 1)), 2);
  const __m128i low = _mm_setr_epi32(0x3F3F3F3F, 0x0F0F0F0F, 0x3F3F3F3F, 0x0F0F0F0F);
  const __m128i high = _mm_setr_epi32(0, 0x30303030, 0, 0x30303030);
  return _mm_or_si128(_mm_and_si128(lower, low), _mm_and_si128(upper, high));
}
#else
struct Sixteen {
  uint32_t words[4];
};
INLINE Sixteen scales_and_least(const uint8_t* b) {
  Sixteen codes;
  scales_and_least(load<uint32_t>(b + 4), load<uint32_t>(b + 8), load<uint32_t>(b + 12),
                   codes.words);
  return codes;
}
#endif

INLINE Scales<8> scales_of(const uint8_t* b) {
  const auto codes = scales_and_least(b);
  Scales<8> s;
  store(s.scale, eight((const uint8_t*)&codes, false) * half(b));
  store(s.shift, eight((const uint8_t*)&codes + 8, false) * -half(b + 2));
  return s;
}

struct Q4_K : Affine<8> {
  static constexpr int NUMBERS = 256, BYTES = 144, BITS = 4;
  INLINE static Factors factors(const uint8_t* b) { return scales_of(b); }
  template <int PART>
  INLINE static Codes codes(const uint8_t* b) {
    return shifted<PART % 2 * 4, 15>(load<Codes>(b + 16 + PART / 2 * 32));
  }
};

struct Q5_K : Affine<8> {
  static constexpr int NUMBERS = 256, BYTES = 176, BITS = 5;
  INLINE static Factors factors(const uint8_t* b) { return scales_of(b); }
  template <int PART>
  INLINE static Codes codes(const uint8_t* b) {
    const Codes fifth = shifted<PART - 4, 16>(load<Codes>(b + 16));
    return shifted<PART % 2 * 4, 15>(load<Codes>(b + 48 + PART / 2 * 32)) | fifth;
  }
};

struct Q6_K : Scaled<32, 16> {
  static constexpr int NUMBERS = 256, BYTES = 210, BITS = 6;
  INLINE static Factors factors(const uint8_t* b) {
    Factors f;
    const float d = half(b + 208);
    for (int i = 0; i < 16; i += 8) store(f.scale + i, eight(b + 192 + i, true) * d);
    return f;
  }
  template <int PART>
  INLINE static Codes codes(const uint8_t* b) {
    constexpr int side = PART / 4, k = PART % 4;
    const Codes low = shifted<k / 2 * 4, 15>(load<Codes>(b + 64 * side + 32 * (k % 2)));
    return low | shifted<2 * k - 4, 48>(load<Codes>(b + 128 + 32 * side));
  }
};

// The codes that nibbles stand for.
INLINE Codes codes_of(Codes nibbles, const uint8_t* table16) {
#if defined(__AVX2__)
  return (Codes)_mm256_shuffle_epi8((__m256i)twice(table16), (__m256i)nibbles);
#else
  Codes c;
  for (int i = 0; i < 32; ++i) c[i] = table16[nibbles[i]];
  return c;
#endif
}

// Numbers that lie closer together near 0: -127, -104, ..., 113. A code is such a number plus 127.
struct IQ4_NL : Scaled<127> {
  static constexpr int NUMBERS = 32, BYTES = 18, BITS = 8;
  template <int PART>
  INLINE static Codes codes(const uint8_t* b) {
    alignas(16) static constexpr uint8_t CODES[16] = {0,   23,  44,  62,  78,  92,  105, 117,
                                                      128, 140, 152, 165, 180, 196, 216, 240};
    return codes_of(nibbles(b + 2), CODES);
  }
};

// Numbers of a sign, two bits of exponent and one of mantissa, with a power of two for 32 of them
// (OCP Microscaling Formats, 1.0). Doubled they are whole, and a code is such a number plus 12.
struct MXFP4 : Scaled<12> {
  static constexpr int NUMBERS = 32, BYTES = 17, BITS = 5;
  INLINE static float scale(const uint8_t* b) {  // half of the power of two
    const uint32_t bits = b[0] < 2 ? 0x00200000u << b[0] : (b[0] - 1u) << 23;
    return load<float>(&bits);
  }
  INLINE static Factors factors(const uint8_t* b) { return {{scale(b)}}; }
  template <int PART>
  INLINE static Codes codes(const uint8_t* b) {
    alignas(16) static constexpr uint8_t CODES[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                                      12, 11, 10, 9,  8,  6,  4,  0};
    return codes_of(nibbles(b + 1), CODES);
  }
};

// Calls `call` with each number below COUNT, as a type.
template <typename Call, std::size_t... PART>
INLINE void each(Call call, std::index_sequence<PART...>) {
  (call(std::integral_constant<int, PART>()), ...);
}
template <int COUNT, typename Call>
INLINE void each_below(Call call) {
  each(call, std::make_index_sequence<COUNT>());
}

// Calls `put` with each number below VECTORS, and that vector of a part's numbers.
template <typename Stored, int PART, typename Put>
INLINE void vectors_of(const uint8_t* b, const typename Stored::Factors& f, Put put) {
  if constexpr (Stored::BITS == 0) {
    each_below<VECTORS>([&](auto i) { put(i, Stored::template vector<decltype(i)::value>(b)); });
  } else {
    constexpr int ZERO = Stored::ZERO;
    const Codes codes = Stored::template codes<PART>(b) - (uint8_t)ZERO;
    each_below<VECTORS>([&](auto i) {
      constexpr int I = decltype(i)::value;
      put(I, Stored::template scaled<PART, I>(spread<I, ZERO != 0>(codes), f));
    });
  }
}

template <typename Stored>
struct Tag {
  typedef Stored Type;
};

// Calls `call` with the tag of a kind, by ggml's number of a type.
template <typename Call>
void by_kind(int64_t stored, Call call) {
  switch (stored) {
    case 0: return call(Tag<F32>());
    case 1: return call(Tag<F16>());
    case 2: return call(Tag<Q4_0>());
    case 3: return call(Tag<Q4_1>());
    case 6: return call(Tag<Q5_0>());
    case 7: return call(Tag<Q5_1>());
    case 8: return call(Tag<Q8_0>());
    case 12: return call(Tag<Q4_K>());
    case 13: return call(Tag<Q5_K>());
    case 14: return call(Tag<Q6_K>());
    case 20: return call(Tag<IQ4_NL>());
    case 30: return call(Tag<BF16>());
    case 39: return call(Tag<MXFP4>());
  }
}

}  // namespace
