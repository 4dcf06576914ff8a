// Rows that are rounded to 8 bits, times the rows of a weight that stays as it is stored.
//
// 32 numbers of a row become integers from -127 to 127 with one scale. They meet the weights' codes
// as integers, whose sums are exact; then come the scales, in float32. Sums are added up in one
// order, the same on every processor, and a row's result does not depend on the rows beside it.

#include <cmath>

#include "kinds.h"
#include "parts.h"

namespace {

typedef int32_t Sums __attribute__((vector_size(32)));  // of eight columns
constexpr int64_t SLICE = 512;  // numbers of a column that are unpacked at a time

// A rounded row: its integers, then a scale for each 32, then what each 32 add up to, scaled, and
// each half of these.
struct Row {
  const int8_t* numbers;
  const float *scales, *sums;
};
Row row_at(const char* x, int64_t width) {
  const auto* scales = (const float*)(x + width);
  return {(const int8_t*)x, scales, scales + width / 32};
}

// 32 integers as bytes.
INLINE void store_bytes(const Ints* x, int8_t* to) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  const auto pair = [x](int i) { return _mm256_packs_epi32((__m256i)x[i], (__m256i)x[i + 1]); };
  const __m256i fours = _mm256_packs_epi16(pair(0), pair(2));
  store(to, _mm256_permutevar8x32_epi32(fours, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
#else
  for (int i = 0; i < VECTORS; ++i)
    for (int n = 0; n < LANES; ++n) to[i * LANES + n] = (int8_t)x[i][n];
#endif
}

template <typename Get>
void round_row(int64_t width, char* out, Get get) {
  auto* numbers = (int8_t*)out;
  auto* scales = (float*)(out + width);
  float* sums = scales + width / 32;
  for (int64_t part = 0; part < width / 32; ++part) {
    Floats x[VECTORS], most = {}, halves[2] = {};
    for (int i = 0; i < VECTORS; ++i) {
      x[i] = get(32 * part + i * LANES);
      most = larger(most, larger(x[i], -x[i]));
    }
    const float scale = largest(most) / 127.0f;
    const float by = scale > 0 ? 1.0f / scale : 0.0f;
    Ints rounded[VECTORS];
    for (int i = 0; i < VECTORS; ++i) {
      const Floats nearest = larger(floor(x[i] * by + 0.5f), all(-127.0f));
      halves[2 * i / VECTORS] += nearest;
      rounded[i] = __builtin_convertvector(nearest, Ints);
    }
    store_bytes(rounded, numbers + 32 * part);
    scales[part] = scale;
    const float first = total(halves[0]), second = total(halves[1]);
    sums[3 * part] = scale * (first + second);
    sums[3 * part + 1] = scale * first;
    sums[3 * part + 2] = scale * second;
  }
}

// ---------------------------------------------------------------- integers

#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
#define TTC_DOT(sum, codes, x) \
  (Sums)_mm256_dpbusd_epi32((__m256i)(sum), (__m256i)(codes), (__m256i)(x))
#elif defined(__AVXVNNI__)
#define TTC_DOT(sum, codes, x) \
  (Sums)_mm256_dpbusd_avx_epi32((__m256i)(sum), (__m256i)(codes), (__m256i)(x))
#endif

// Codes of 8 bits that are multiplied with a sign, less 128, where no instruction takes them else.
template <int BITS>
#if defined(TTC_DOT)
constexpr bool SIGNED = false;
#else
constexpr bool SIGNED = BITS == 8;
#endif

// Four integers, eight times.
INLINE Codes four(const int8_t* x) { return (Codes)(load<int32_t>(x) - Sums{}); }

// Sums of the products of four numbers each: by_fours.
#if defined(TTC_DOT)
template <int BITS>
INLINE Sums by_fours(Codes codes, Codes x) { return TTC_DOT(Sums{}, codes, x); }

template <int BITS>
struct Dot {
  Sums total;
  template <int GROUP>
  INLINE void add(Codes codes, Codes x) { total = held(TTC_DOT(total, codes, x)); }
};
#elif defined(__AVX2__)
// Products of two numbers each, in 16 bits.
template <int BITS>
INLINE __m256i by_twos(Codes codes, Codes x) {
  const __m256i w = (__m256i)codes;
  if constexpr (!SIGNED<BITS>) return _mm256_maddubs_epi16(w, (__m256i)x);
  else return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8((__m256i)x, w));
}

template <int BITS>
INLINE Sums by_fours(Codes codes, Codes x) {
  return (Sums)_mm256_madd_epi16(by_twos<BITS>(codes, x), _mm256_set1_epi16(1));
}

// Products of two numbers are added up in 16 bits, where as many of them fit as MOST.
template <int BITS>
struct Dot {
  static constexpr int MOST = BITS == 4 ? 8 : BITS == 5 ? 4 : BITS == 6 ? 2 : 1;
  Sums total;
  __m256i some;
  template <int GROUP>
  INLINE void add(Codes codes, Codes x) {
    const __m256i pairs = by_twos<BITS>(codes, x);
    some = held(GROUP % MOST == 0 ? pairs : _mm256_add_epi16(some, pairs));
    if (GROUP % MOST == MOST - 1 || GROUP == 7)
      total += (Sums)_mm256_madd_epi16(some, _mm256_set1_epi16(1));
  }
};
#else
template <int BITS>
struct Dot {
  Sums total;
  template <int GROUP>
  INLINE void add(Codes codes, Codes x) {
#if defined(__ARM_FEATURE_DOTPROD)
    int32x4_t halves[2];
    int8x16_t w[2], by[2];
    memcpy(halves, &total, 32);
    memcpy(w, &codes, 32);
    memcpy(by, &x, 32);
    for (int i = 0; i < 2; ++i) halves[i] = vdotq_s32(halves[i], w[i], by[i]);
    memcpy(&total, halves, 32);
#else
    for (int c = 0; c < 8; ++c)
      for (int n = 4 * c; n < 4 * c + 4; ++n)
        total[c] += (SIGNED<BITS> ? (int8_t)codes[n] : codes[n]) * (int8_t)x[n];
#endif
  }
};

template <int BITS>
INLINE Sums by_fours(Codes codes, Codes x) {
  Dot<BITS> dot = {};
  dot.template add<0>(codes, x);
  return dot.total;
}
#endif

// ---------------------------------------------------------------- weights

// Lanes of a and b. As float32, which GCC takes one instruction for.
template <int... LANE>
INLINE Sums picked(Sums a, Sums b) {
  return (Sums)__builtin_shufflevector((Float8)a, (Float8)b, LANE...);
}

// Words of four columns, and in the upper halves of four others, turned: vector n gets the words n.
INLINE void turn_halves(const Sums* x, Sums* words) {
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const auto pair = [&](Sums a, Sums b) {
      return i == 0 ? picked<0, 8, 1, 9, 4, 12, 5, 13>(a, b)
                    : picked<2, 10, 3, 11, 6, 14, 7, 15>(a, b);
    };
    const Sums a = pair(x[0], x[1]), b = pair(x[2], x[3]);
    words[2 * i] = picked<0, 1, 8, 9, 4, 5, 12, 13>(a, b);
    words[2 * i + 1] = picked<2, 3, 10, 11, 6, 7, 14, 15>(a, b);
  }
}

// The words of eight columns' codes, turned: word n of each column becomes vector n.
INLINE void turn(Sums* x) {
  Sums first[4], last[4];  // of four columns: words n and n + 4
  turn_halves(x, first);
  turn_halves(x + 4, last);
#pragma GCC unroll 4
  for (int n = 0; n < 4; ++n) {
    x[n] = picked<0, 1, 2, 3, 8, 9, 10, 11>(first[n], last[n]);
    x[n + 4] = picked<4, 5, 6, 7, 12, 13, 14, 15>(first[n], last[n]);
  }
}

// SLICE numbers of PANEL columns: words of four codes, and for each 16 numbers the scales and
// shifts of the columns.
struct Weights {
  alignas(64) uint8_t codes[SLICE / 4][PANEL][4];
  alignas(64) float scales[SLICE / 16][PANEL], shifts[SLICE / 16][PANEL];
};

// How many factors 32 numbers have.
template <typename Stored>
constexpr int FACTORS = std::is_same_v<typename Stored::Factors, Multiples<16>> ? 2 : 1;

// Eight float16 numbers, as integers, as float32.
INLINE Float8 halves(Sums x) {
#if defined(__F16C__) && defined(__AVX2__)
  const __m128i low = _mm256_castsi256_si128((__m256i)x);
  const __m128i high = _mm256_extracti128_si256((__m256i)x, 1);
  return (Float8)_mm256_cvtph_ps(_mm_packus_epi32(low, high));
#else
  Float8 y;
  for (int c = 0; c < 8; ++c) {
    const uint16_t bits = (uint16_t)x[c];
    y[c] = half(&bits);
  }
  return y;
#endif
}

// 16 bytes of eight columns, turned: words[n] are the columns' words n.
INLINE void turn_words(const uint8_t* const* blocks, int64_t at, Sums* words) {
  typedef int32_t Four __attribute__((vector_size(16)));
  Sums x[4];
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c)
    x[c] = __builtin_shufflevector(load<Four>(blocks[c] + at), load<Four>(blocks[c + 4] + at), 0, 1,
                                   2, 3, 4, 5, 6, 7);
  turn_halves(x, words);
}

// What eight columns' scales and shifts are, for each part of a block and each factor of it.
template <typename Stored>
struct EightFactors {
  static constexpr int EACH = FACTORS<Stored>, COUNT = Stored::NUMBERS / 32 * EACH;
  Float8 scales[COUNT], shifts[COUNT];

  INLINE void read(const uint8_t* const* blocks) { of((Stored*)nullptr, blocks); }

  // Q4_K and Q5_K.
  INLINE void of(Affine<8>*, const uint8_t* const* blocks) {
    Sums words[4], codes[4];
    turn_words(blocks, 0, words);
    scales_and_least(words[1], words[2], words[3], codes);
    const Float8 scale = halves(words[0] & 0xFFFF), shift = -halves(words[0] >> 16 & 0xFFFF);
#pragma GCC unroll 8
    for (int n = 0; n < 8; ++n) {
      const int by = 8 * (n % 4);
      scales[n] = __builtin_convertvector(codes[n / 4] >> by & 0xFF, Float8) * scale;
      shifts[n] = __builtin_convertvector(codes[2 + n / 4] >> by & 0xFF, Float8) * shift;
    }
  }

  // Q6_K, whose scales have a sign.
  INLINE void of(Q6_K*, const uint8_t* const* blocks) {
    Sums words[4], all;
    turn_words(blocks, 192, words);
    for (int c = 0; c < 8; ++c) all[c] = load<uint16_t>(blocks[c] + 208);
    const Float8 scale = halves(all);
#pragma GCC unroll 16
    for (int n = 0; n < 16; ++n) {
      scales[n] = __builtin_convertvector(words[n / 4] << (24 - 8 * (n % 4)) >> 24, Float8) * scale;
      shifts[n] = scales[n] * (float)-Stored::ZERO;
    }
  }

  template <int TIMES>
  INLINE void of(Scaled<TIMES>*, const uint8_t* const* blocks) {
    Sums all;
    for (int c = 0; c < 8; ++c) all[c] = load<uint16_t>(blocks[c]);
    const Float8 scale = halves(all), shift = scale * (float)-Stored::ZERO;
    all_parts(scale, SIGNED<Stored::BITS> ? shift + 128 * scale : shift);
  }

  INLINE void of(Shifted*, const uint8_t* const* blocks) {
    Sums all;
    for (int c = 0; c < 8; ++c) all[c] = load<int32_t>(blocks[c]);
    all_parts(halves(all & 0xFFFF), halves(all >> 16 & 0xFFFF));
  }

  INLINE void of(MXFP4*, const uint8_t* const* blocks) {
    Float8 scale;
    for (int c = 0; c < 8; ++c) scale[c] = MXFP4::scale(blocks[c]);
    all_parts(scale, scale * (float)-MXFP4::ZERO);
  }

  // One scale and one shift for all parts of a block.
  INLINE void all_parts(Float8 scale, Float8 shift) {
    for (int n = 0; n < COUNT; ++n) {
      scales[n] = scale;
      shifts[n] = shift;
    }
  }
};

// Unpacks `numbers` of eight columns, or of `count` and the last of these again. What lies `ahead`
// is asked for meanwhile.
template <typename Stored>
void unpack_eight(const char* from, int64_t apart, int64_t count, int64_t numbers, int64_t ahead,
                  int64_t column, Weights& to) {
  for (int64_t i = 0; i < numbers / Stored::NUMBERS; ++i) {
    const uint8_t* blocks[8];
    for (int c = 0; c < 8; ++c) {
      const int64_t place = std::min<int64_t>(c, count - 1);
      blocks[c] = (const uint8_t*)from + place * apart + i * Stored::BYTES;
      for (int64_t line = 0; line < Stored::BYTES; line += 64)
        __builtin_prefetch(blocks[c] + line + ahead, 0, 2);
    }
    EightFactors<Stored> factors;
    factors.read(blocks);
#pragma GCC unroll 16
    for (int n = 0; n < factors.COUNT; ++n) {
      store(&to.scales[factors.COUNT * i + n][column], factors.scales[n]);
      store(&to.shifts[factors.COUNT * i + n][column], factors.shifts[n]);
    }
    each_below<Stored::NUMBERS / 32>([&](auto number) {
      constexpr int PART = decltype(number)::value;
      const int64_t part = i * (Stored::NUMBERS / 32) + PART;
      Sums words[8];
#pragma GCC unroll 8
      for (int c = 0; c < 8; ++c) {
        const Codes codes = Stored::template codes<PART>(blocks[c]);
        words[c] = (Sums)(SIGNED<Stored::BITS> ? codes ^ 128 : codes);
      }
      turn(words);
#pragma GCC unroll 8
      for (int n = 0; n < 8; ++n) store(&to.codes[8 * part + n][column], words[n]);
    });
  }
}

// ---------------------------------------------------------------- products

// out[r] += rows[r] . w for ROWS rows and PANEL columns, over numbers from `begin` on.
template <typename Stored, int ROWS>
void tile(const Row* rows, int64_t begin, int64_t numbers, const Weights& w, float (*out)[PANEL]) {
  constexpr int COUNT = FACTORS<Stored>, GROUPS = 8 / COUNT, EIGHTS = PANEL / 8;
  Row row[ROWS];
  for (int r = 0; r < ROWS; ++r) row[r] = rows[r];
  for (int64_t place = 0; place < numbers / 32 * COUNT; ++place) {
    const int64_t first = begin + 32 / COUNT * place, part = (uint64_t)first / 32;
    Dot<Stored::BITS> dots[ROWS][EIGHTS];
#pragma GCC unroll 8
    for (int i = 0; i < ROWS * EIGHTS; ++i) dots[i / EIGHTS][i % EIGHTS].total = Sums{};
    each_below<GROUPS>([&](auto group) {
      constexpr int GROUP = decltype(group)::value;
      Codes codes[EIGHTS];
#pragma GCC unroll 8
      for (int e = 0; e < EIGHTS; ++e)
        codes[e] = held(load<Codes>(w.codes[GROUPS * place + GROUP][8 * e]));
#pragma GCC unroll 8
      for (int r = 0; r < ROWS; ++r) {
        const Codes x = held(four(row[r].numbers + first + 4 * GROUP));
#pragma GCC unroll 8
        for (int e = 0; e < EIGHTS; ++e) dots[r][e].template add<GROUP>(codes[e], x);
      }
    });
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r) {
      const float by = row[r].scales[part];
      const float sum = row[r].sums[3 * part + (COUNT == 1 ? 0 : 1 + place % 2)];
#pragma GCC unroll 8
      for (int e = 0; e < EIGHTS; ++e) {
        Float8 cell = load<Float8>(&out[r][8 * e]);
        const Float8 whole = __builtin_convertvector(dots[r][e].total, Float8) * by;
        cell += whole * load<Float8>(&w.scales[place][8 * e]);
        cell += load<Float8>(&w.shifts[place][8 * e]) * sum;
        store(&out[r][8 * e], cell);
      }
    }
  }
}

// Eight vectors become one: lane n is the sum of what is in vector n, of its first and of its
// second half.
INLINE void fold_eight(const Sums* x, Sums& first, Sums& second) {
  const auto fold = [](Sums a, Sums b) {
    return picked<0, 2, 8, 10, 4, 6, 12, 14>(a, b) + picked<1, 3, 9, 11, 5, 7, 13, 15>(a, b);
  };
  const Sums low = fold(fold(x[0], x[1]), fold(x[2], x[3]));
  const Sums high = fold(fold(x[4], x[5]), fold(x[6], x[7]));
  first = picked<0, 1, 2, 3, 8, 9, 10, 11>(low, high);
  second = picked<4, 5, 6, 7, 12, 13, 14, 15>(low, high);
}

// The same sums as `panel` gives for one row, whose codes are multiplied as they come.
template <typename Stored>
void one_row(const StoredProduct& p) {
  constexpr int COUNT = FACTORS<Stored>;
  const Row row = row_at(p.x, p.width);
  for (int64_t column = 0; column < PANEL; column += 8) {
    Float8 out = {};
    const char* soon = after(p, column + 8);  // asked for in the order in which it lies
    for (int64_t i = 0; i < p.width / Stored::NUMBERS; ++i) {
      const uint8_t* blocks[8];
      for (int c = 0; c < 8; ++c)
        blocks[c] = (const uint8_t*)p.w + (column + c) * p.w_row + i * Stored::BYTES;
      expect(soon, 8 * Stored::BYTES);
      soon += 8 * Stored::BYTES;
      EightFactors<Stored> factors;
      factors.read(blocks);
      each_below<Stored::NUMBERS / 32>([&](auto number) {
        constexpr int PART = decltype(number)::value;
        const int64_t part = i * (Stored::NUMBERS / 32) + PART;
        const Codes x = held(load<Codes>(row.numbers + 32 * part));
        Sums sums[8], halves[2];
#pragma GCC unroll 8
        for (int c = 0; c < 8; ++c) {
          const Codes codes = Stored::template codes<PART>(blocks[c]);
          sums[c] = by_fours<Stored::BITS>(SIGNED<Stored::BITS> ? codes ^ 128 : codes, x);
        }
        fold_eight(sums, halves[0], halves[1]);
        if constexpr (COUNT == 1) halves[0] += halves[1];
#pragma GCC unroll 2
        for (int n = 0; n < COUNT; ++n) {
          const float sum = row.sums[3 * part + (COUNT == 1 ? 0 : 1 + n)];
          const Float8 whole = __builtin_convertvector(halves[n], Float8) * row.scales[part];
          out += whole * factors.scales[COUNT * PART + n];
          out += factors.shifts[COUNT * PART + n] * sum;
        }
      });
    }
    store(p.out + 4 * column, out);
  }
}

template <typename Stored, int ROWS>
int64_t tiles(const Row* rows, int64_t row, int64_t count, int64_t begin, int64_t numbers,
              const Weights& w, float (*out)[PANEL]) {
  for (; count - row >= ROWS; row += ROWS)
    tile<Stored, ROWS>(rows + row, begin, numbers, w, out + row);
  return row;
}

// Up to CHUNK rows and PANEL columns.
template <typename Stored>
void panel(const StoredProduct& p) {
  if (p.columns == PANEL && p.rows == 1) return one_row<Stored>(p);
  static thread_local Weights weights;
  alignas(32) float out[CHUNK][PANEL];
  memset(out, 0, p.rows * sizeof *out);
  Row rows[CHUNK];
  for (int64_t r = 0; r < p.rows; ++r) rows[r] = row_at(p.x + r * p.x_row, p.width);
  for (int64_t begin = 0; begin < p.width; begin += SLICE) {
    const int64_t numbers = std::min(SLICE, p.width - begin);
    const char* w = p.w + begin / Stored::NUMBERS * Stored::BYTES;
    for (int64_t c = 0; c < p.columns; c += 8)  // of fewer columns the last one, again
      unpack_eight<Stored>(w + c * p.w_row, p.w_row, std::min<int64_t>(8, p.columns - c), numbers,
                           p.ahead, c, weights);
    int64_t row = tiles<Stored, 4>(rows, 0, p.rows, begin, numbers, weights, out);
    row = tiles<Stored, 2>(rows, row, p.rows, begin, numbers, weights, out);
    tiles<Stored, 1>(rows, row, p.rows, begin, numbers, weights, out);
  }
  for (int64_t r = 0; r < p.rows; ++r)
    memcpy(p.out + r * p.out_row, out[r], p.columns * sizeof(float));
}

void products(int64_t stored, const StoredProduct& all) {
  by_kind(stored, [&](auto tag) {
    typedef typename decltype(tag)::Type Stored;
    if constexpr (Stored::BITS > 0) in_parts(all, panel<Stored>);
  });
}

}  // namespace

extern "C" {
void products_int8(int64_t stored, const StoredProduct* p) { products(stored, *p); }
void share_int8(Shared* s) { share(s, products); }

// A row of so many numbers becomes a rounded one.
void round_float32(const float* x, int64_t width, char* out) {
  round_row(width, out, [x](int64_t i) { return load<Floats>(x + i); });
}
void round_bfloat16(const uint16_t* x, int64_t width, char* out) {
  round_row(width, out, [x](int64_t i) { return widened(load<Halves>(x + i)); });
}
}
