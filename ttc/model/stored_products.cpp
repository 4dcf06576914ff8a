// Rows times the rows of a weight that stays as it is stored, in a .gguf file or in groups of codes:
// a few columns are unpacked at a time, into the nearest cache, and multiplied with all rows.
//
// Unpacked numbers are float32, with the very bits that gguf's own `dequantize` gives, or those of
// scale * (code - zero). Where the rows are bfloat16 they are rounded to the nearest bfloat16, and
// pairs of them are multiplied. Sums are float32, added up in one order: a row's result does not
// depend on the rows beside it.

#include <algorithm>

#include "../vectors.h"

namespace {
// What is unpacked at a time, whatever the processor: the compiler cuts these into its own vectors.
typedef float Float16 __attribute__((vector_size(64)));
typedef int32_t Int16 __attribute__((vector_size(64)));
typedef uint8_t Bytes16 __attribute__((vector_size(16)));

constexpr int64_t PANEL = 16;    // columns that are unpacked at a time
constexpr int64_t SLICE = 2048;  // bytes of each
constexpr int64_t APART = SLICE + 64;
constexpr int64_t CHUNK = 128;  // rows that meet them

Float16 widened(Bytes16 x) {
  return __builtin_convertvector(__builtin_convertvector(x, Int16), Float16);
}
Bytes16 nibbles(Bytes16 x, bool upper) { return upper ? x >> 4 : x & 15; }

// How ggml stores weights (ggml-common.h). Each has blocks of NUMBERS in BYTES; `unpack` gives 32
// numbers of a block from the 32 * PART-th on.

struct F32 {
  static constexpr int NUMBERS = 32, BYTES = 128;
  template <int PART>
  static void unpack(const uint8_t* b, Float16* out) {
    for (int i = 0; i < 2; ++i) out[i] = load<Float16>(b + 64 * i);
  }
};

struct F16 {
  static constexpr int NUMBERS = 32, BYTES = 64;
  template <int PART>
  static void unpack(const uint8_t* b, Float16* out) {
    for (int i = 0; i < 32; ++i) ((float*)out)[i] = half(b + 2 * i);
  }
};

struct BF16 {
  static constexpr int NUMBERS = 32, BYTES = 64;
  template <int PART>
  static void unpack(const uint8_t* b, Float16* out) {
    typedef uint16_t Halves __attribute__((vector_size(32)));
    for (int i = 0; i < 2; ++i)
      out[i] = (Float16)(__builtin_convertvector(load<Halves>(b + 32 * i), Int16) << 16);
  }
};

struct Q4_0 {
  static constexpr int NUMBERS = 32, BYTES = 18;
  template <int PART>
  static void unpack(const uint8_t* b, Float16* out) {
    const float d = half(b);
    const Bytes16 q = load<Bytes16>(b + 2);
    for (int i = 0; i < 2; ++i) out[i] = (widened(nibbles(q, i)) - 8.0f) * d;
  }
};

struct Q4_1 {
  static constexpr int NUMBERS = 32, BYTES = 20;
  template <int PART>
  static void unpack(const uint8_t* b, Float16* out) {
    const float d = half(b), m = half(b + 2);
    const Bytes16 q = load<Bytes16>(b + 4);
    for (int i = 0; i < 2; ++i) out[i] = widened(nibbles(q, i)) * d + m;
  }
};

struct Q8_0 {
  static constexpr int NUMBERS = 32, BYTES = 34;
  template <int PART>
  static void unpack(const uint8_t* b, Float16* out) {
    const float d = half(b);
    for (int i = 0; i < 2; ++i)  // as bytes without a sign: GCC widens the others one by one
      out[i] = (widened(load<Bytes16>(b + 2 + 16 * i) ^ 128) - 128.0f) * d;
  }
};

// The scale and the least number of part J of a block of Q4_K or Q5_K, 6 bits each.
template <int J>
void scales(const uint8_t* b, float& d, float& m) {
  const uint8_t* s = b + 4;
  const int scale = J < 4 ? s[J] & 63 : (s[J + 4] & 15) | (s[J < 4 ? 0 : J - 4] >> 6) << 4;
  const int least = J < 4 ? s[J + 4] & 63 : s[J + 4] >> 4 | (s[J] >> 6) << 4;
  d = half(b) * (float)scale;
  m = half(b + 2) * (float)least;
}

struct Q4_K {
  static constexpr int NUMBERS = 256, BYTES = 144;
  template <int PART>
  static void unpack(const uint8_t* b, Float16* out) {
    float d, m;
    scales<PART>(b, d, m);
    for (int i = 0; i < 2; ++i) {
      const Bytes16 q = load<Bytes16>(b + 16 + PART / 2 * 32 + 16 * i);
      out[i] = widened(nibbles(q, PART % 2)) * d - m;
    }
  }
};

struct Q5_K {
  static constexpr int NUMBERS = 256, BYTES = 176;
  template <int PART>
  static void unpack(const uint8_t* b, Float16* out) {
    float d, m;
    scales<PART>(b, d, m);
    for (int i = 0; i < 2; ++i) {
      const Bytes16 q = load<Bytes16>(b + 48 + PART / 2 * 32 + 16 * i);
      const Bytes16 fifth = (load<Bytes16>(b + 16 + 16 * i) >> PART & 1) << 4;
      out[i] = widened(nibbles(q, PART % 2) | fifth) * d - m;
    }
  }
};

struct Q6_K {
  static constexpr int NUMBERS = 256, BYTES = 210;
  template <int PART>
  static void unpack(const uint8_t* b, Float16* out) {
    constexpr int side = PART / 4, k = PART % 4;
    const float d = half(b + 208);
    for (int i = 0; i < 2; ++i) {
      const Bytes16 q = load<Bytes16>(b + 64 * side + 32 * (k % 2) + 16 * i);
      const Bytes16 upper = (load<Bytes16>(b + 128 + 32 * side + 16 * i) >> 2 * k & 3) << 4;
      const float scale = d * (float)(int8_t)b[192 + 8 * side + 2 * k + i];
      out[i] = (widened(nibbles(q, k / 2) | upper) - 32.0f) * scale;
    }
  }
};

// Groups of codes of 4 or 8 bits, as `grouped_weights.py` lays them out: a group's scale and zero
// as float32, then the codes, those of 4 bits as in Q4_0.

template <int SIZE>
struct Group4 {
  static constexpr int NUMBERS = SIZE, BYTES = 8 + SIZE / 2;
  template <int PART>
  static void unpack(const uint8_t* b, Float16* out) {
    const float scale = load<float>(b), zero = load<float>(b + 4);
    const Bytes16 q = load<Bytes16>(b + 8 + 16 * PART);
    for (int i = 0; i < 2; ++i) out[i] = (widened(nibbles(q, i)) - zero) * scale;
  }
};

template <int SIZE>
struct Group8 {
  static constexpr int NUMBERS = SIZE, BYTES = 8 + SIZE;
  template <int PART>
  static void unpack(const uint8_t* b, Float16* out) {
    const float scale = load<float>(b), zero = load<float>(b + 4);
    for (int i = 0; i < 2; ++i)
      out[i] = (widened(load<Bytes16>(b + 8 + 32 * PART + 16 * i)) - zero) * scale;
  }
};

}  // namespace

#include "stored_avx512.h"

namespace {

// How the model's numbers are kept, and multiplied.

template <typename Stored, typename Number, std::size_t... PART>
__attribute__((always_inline)) inline void unpack_block(const uint8_t* from, char* to,
                                                        std::index_sequence<PART...>) {
  const auto part = [&](auto number) {
    Float16 x[2];
    Stored::template unpack<decltype(number)::value>(from, x);
    Number::put(x, to + 32 * Number::SIZE * decltype(number)::value);
  };
  (part(std::integral_constant<int, PART>()), ...);
}

struct Float32 {
  static constexpr int64_t SIZE = 4, VECTOR = 4 * LANES;
  template <typename Stored>
  static void block(const uint8_t* from, char* to) {
    unpack_block<Stored, Float32>(from, to, std::make_index_sequence<Stored::NUMBERS / 32>());
  }
  static Floats get(const char* from) { return held(load<Floats>(from)); }
  static void put(const Float16* x, char* to) { memcpy(to, x, 2 * sizeof *x); }
  static Floats add(Floats x, Floats w, Floats sum) { return x * w + sum; }
};

#if defined(__AVX512BF16__)
struct BFloat16 {
  static constexpr int64_t SIZE = 2, VECTOR = 64;
  template <typename Stored>
  static void block(const uint8_t* from, char* to) {
    const auto put = [to](int part, __m512i x) { _mm512_storeu_si512(to + 64 * part, x); };
    if constexpr (Bfloat16Block<Stored>::KNOWN) Bfloat16Block<Stored>::unpack(from, put);
    else unpack_block<Stored, BFloat16>(from, to, std::make_index_sequence<Stored::NUMBERS / 32>());
  }
  static Pairs get(const char* from) { return held(load<Pairs>(from)); }
  static void put(const Float16* x, char* to) {
    _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh((__m512)x[1], (__m512)x[0]));
  }
  static Floats add(Pairs x, Pairs w, Floats sum) { return add_products(x, w, sum); }
};
#endif

template <typename Stored, typename Number>
void unpack(const char* from, int64_t numbers, char* to, int64_t ahead) {
  const int64_t blocks = numbers / Stored::NUMBERS;
  int64_t asked = 0;
  for (int64_t i = 0; i < blocks; ++i) {
    const char* block = from + i * Stored::BYTES;
    for (; asked < (i + 1) * Stored::BYTES; asked += 64) __builtin_prefetch(from + asked + ahead);
    char* out = to + i * Stored::NUMBERS * Number::SIZE;
    Number::template block<Stored>((const uint8_t*)block, out);
  }
}

// out[r, c] += x[r] . w[c] for a few rows and columns whose sums are held in registers; x_row is in
// bytes.
template <typename Number, int ROWS, int COLUMNS>
void tile(const char* x, int64_t x_row, const char* w, int64_t vectors, float* out) {
  Floats cells[ROWS * COLUMNS] = {};
  for (int64_t v = 0; v < vectors; ++v) {
    decltype(Number::get(x)) numbers[ROWS];
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r) numbers[r] = Number::get(x + r * x_row + v * Number::VECTOR);
#pragma GCC unroll 16
    for (int c = 0; c < COLUMNS; ++c) {
      const auto weight = Number::get(w + c * APART + v * Number::VECTOR);
#pragma GCC unroll 16
      for (int r = 0; r < ROWS; ++r) {
        auto& cell = cells[r * COLUMNS + c];
        cell = Number::add(numbers[r], weight, cell);
      }
    }
  }
  fold_all<1, ROWS * COLUMNS>(cells);
  float sums[ROWS * COLUMNS];
#pragma GCC unroll 16
  for (int i = 0; i < ROWS * COLUMNS / LANES; ++i)
    memcpy(sums + i * LANES, &cells[i], sizeof cells[i]);
  for (int r = 0; r < ROWS; ++r)
    for (int c = 0; c < COLUMNS; ++c) out[r * PANEL + c] += sums[r * COLUMNS + c];
}

// As many rows at a time as there are, by the largest tile of so many.
template <typename Number, int ROWS>
int64_t tiles(const char* x, int64_t x_row, const char* w, int64_t row, int64_t rows,
              int64_t vectors, float* sums) {
  for (; rows - row >= ROWS; row += ROWS)
    for (int64_t c = 0; c < PANEL; c += CELLS / ROWS)
      tile<Number, ROWS, CELLS / ROWS>(x + row * x_row, x_row, w + c * APART, vectors,
                                       sums + row * PANEL + c);
  return row;
}

// The arguments of `products`: addresses, and strides in bytes. width: numbers of a row.
struct Part {
  const char* x;
  int64_t x_row;
  const char* w;
  int64_t w_row, rows, columns, width;
  char* out;
  int64_t out_row, ahead;
};

#if defined(__AVX512BF16__)
constexpr int64_t FEW = 2;  // rows that meet the weights in registers

// cells[16 * r + c] = x[r] . w[c] for two columns from c on, as a vector of sums. What lies `ahead`
// behind the weights is asked for meanwhile.
template <typename Stored, int ROWS>
void two_columns(const Part& p, const char* x, const char* w, int64_t numbers, Floats* cells) {
  Floats sums[2][ROWS] = {};
  for (int64_t i = 0; i < numbers / Stored::NUMBERS; ++i) {
#pragma GCC unroll 2
    for (int c = 0; c < 2; ++c) {
      const char* block = w + c * p.w_row + i * Stored::BYTES;
      for (int64_t line = 0; line < Stored::BYTES; line += 64)
        __builtin_prefetch(block + line + p.ahead);
      const auto multiply = [&](int part, __m512i weights) {
        const char* from = x + 2 * i * Stored::NUMBERS + 64 * part;
        for (int r = 0; r < ROWS; ++r)
          sums[c][r] = add_products(load<Pairs>(from + r * p.x_row), weights, sums[c][r]);
      };
      Bfloat16Block<Stored>::unpack((const uint8_t*)block, multiply);
    }
  }
  for (int r = 0; r < ROWS; ++r)
    for (int c = 0; c < 2; ++c) cells[PANEL * r + c] = sums[c][r];
}

// The same sums as `panel` gives for PANEL columns and a few rows.
template <typename Stored, int ROWS>
void few_rows(const Part& p) {
  float out[ROWS * PANEL] = {};
  constexpr int64_t SOME = SLICE / 2;
  for (int64_t begin = 0; begin < p.width; begin += SOME) {
    const int64_t numbers = std::min(SOME, p.width - begin);
    const char* w = p.w + begin / Stored::NUMBERS * Stored::BYTES;
    Floats cells[ROWS * PANEL];
    for (int64_t c = 0; c < PANEL; c += 2)
      two_columns<Stored, ROWS>(p, p.x + 2 * begin, w + c * p.w_row, numbers, cells + c);
    for (int r = 0; r < ROWS; ++r) {
      fold_all<1, PANEL>(cells + PANEL * r);
      store(out + PANEL * r, load<Floats>(out + PANEL * r) + cells[PANEL * r]);
    }
  }
  for (int r = 0; r < ROWS; ++r) memcpy(p.out + r * p.out_row, out + PANEL * r, PANEL * 4);
}
#endif

// out[r, c] = x[r] . w[c] in float32, for up to CHUNK rows and PANEL columns.
template <typename Stored, typename Number>
void panel(const Part& p) {
#if defined(__AVX512BF16__)
  if constexpr (Number::SIZE == 2 && Bfloat16Block<Stored>::KNOWN)
    if (p.rows <= FEW && p.columns == PANEL)
      return p.rows == 1 ? few_rows<Stored, 1>(p) : few_rows<Stored, 2>(p);
#endif
  alignas(64) char weights[PANEL * APART];
  alignas(64) float sums[CHUNK * PANEL];
  memset(sums, 0, p.rows * PANEL * sizeof *sums);
  if (p.columns < PANEL) memset(weights, 0, sizeof weights);
  constexpr int64_t SOME = SLICE / Number::SIZE;  // numbers at a time
  for (int64_t begin = 0; begin < p.width; begin += SOME) {
    const int64_t numbers = std::min(SOME, p.width - begin);
    for (int64_t c = 0; c < p.columns; ++c)
      unpack<Stored, Number>(p.w + c * p.w_row + begin / Stored::NUMBERS * Stored::BYTES, numbers,
                             weights + c * APART, p.ahead);
    const char* x = p.x + begin * Number::SIZE;
    const int64_t vectors = numbers * Number::SIZE / Number::VECTOR;
    int64_t row = 0;
    if constexpr (CELLS == 16) row = tiles<Number, 8>(x, p.x_row, weights, row, p.rows, vectors, sums);
    row = tiles<Number, 4>(x, p.x_row, weights, row, p.rows, vectors, sums);
    row = tiles<Number, 2>(x, p.x_row, weights, row, p.rows, vectors, sums);
    tiles<Number, 1>(x, p.x_row, weights, row, p.rows, vectors, sums);
  }
  for (int64_t r = 0; r < p.rows; ++r)
    memcpy(p.out + r * p.out_row, sums + r * PANEL, p.columns * sizeof *sums);
}

template <typename Stored>
struct Tag {
  typedef Stored Type;
};

// Calls `call` with the tag of a kind: ggml's number of a type, or one of ours from 1000 on.
template <typename Call>
void by_kind(int64_t stored, Call call) {
  switch (stored) {
    case 0: return call(Tag<F32>());
    case 1: return call(Tag<F16>());
    case 2: return call(Tag<Q4_0>());
    case 3: return call(Tag<Q4_1>());
    case 8: return call(Tag<Q8_0>());
    case 12: return call(Tag<Q4_K>());
    case 13: return call(Tag<Q5_K>());
    case 14: return call(Tag<Q6_K>());
    case 30: return call(Tag<BF16>());
    case 1004: return call(Tag<Group4<32>>());
    case 1005: return call(Tag<Group4<128>>());
    case 1008: return call(Tag<Group8<32>>());
    case 1009: return call(Tag<Group8<128>>());
  }
}

// Any number of rows and columns, in parts.
template <typename Number>
void products(int64_t stored, const Part& all) {
  for (int64_t row = 0; row < all.rows; row += CHUNK)
    for (int64_t c = 0; c < all.columns; c += PANEL) {
      Part p = all;
      p.x += row * p.x_row;
      p.w += c * p.w_row;
      p.out += row * p.out_row + c * 4;
      p.rows = std::min(CHUNK, all.rows - row);
      p.columns = std::min(PANEL, all.columns - c);
      if (c + PANEL < all.columns) p.ahead = PANEL * p.w_row;
      else p.ahead = all.ahead - c * p.w_row;
      by_kind(stored, [&](auto tag) { panel<typename decltype(tag)::Type, Number>(p); });
    }
}

// A product that threads share: each takes the next columns.
struct Shared {
  int64_t next, stored;
  Part part;
};

template <typename Number>
void share(Shared* s) {
  constexpr int64_t SOME = 4 * PANEL;
  while (true) {
    const int64_t first = __atomic_fetch_add(&s->next, SOME, __ATOMIC_RELAXED);
    if (first >= s->part.columns) return;
    Part p = s->part;
    p.w += first * p.w_row;
    p.out += 4 * first;
    p.columns = std::min(SOME, p.columns - first);
    p.ahead = std::min(SOME, s->part.columns - first - p.columns) * p.w_row;
    products<Number>(s->stored, p);
  }
}

}  // namespace

extern "C" {
void unpack_float32(int64_t stored, const char* from, int64_t numbers, char* to) {
  by_kind(stored, [&](auto tag) {
    unpack<typename decltype(tag)::Type, Float32>(from, numbers, to, 0);
  });
}
void products_float32(int64_t stored, const Part* part) { products<Float32>(stored, *part); }
void share_float32(Shared* s) { share<Float32>(s); }
#if defined(__AVX512BF16__)
void products_bfloat16(int64_t stored, const Part* part) { products<BFloat16>(stored, *part); }
void share_bfloat16(Shared* s) { share<BFloat16>(s); }
#endif
}
