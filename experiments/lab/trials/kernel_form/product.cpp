// The C++ candidates: rows times the rows of a weight. They differ in what a vector of float32
// numbers is: PyTorch's ATen/cpu/vec (AVX-512: 16 numbers, AVX2: 8, NEON: 4), or, with
// COMPILERS_VECTORS, a type of GCC's and Clang's own.
//
// What no such vector has a name for is in `BFloat16`: instructions that multiply pairs of bfloat16
// numbers.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#ifndef COMPILERS_VECTORS
#include <ATen/cpu/vec/vec.h>

namespace {
constexpr int LANES = at::vec::Vectorized<float>::size();
// What Vectorized<float> holds: GCC keeps arrays of this in registers, but not arrays of
// Vectorized.
typedef float Floats __attribute__((vector_size(4 * LANES)));

Floats load(const char* from) { return at::vec::Vectorized<float>::loadu(from); }
Floats multiply_add(Floats a, Floats b, Floats c) { return at::vec::fmadd<float>(a, b, c); }

// The first or the second number of pairs of bfloat16 numbers, as float32.
Floats widened(const char* from, int part) {
  using Bits = at::vec::Vectorized<int32_t>;
  const Bits pairs = Bits::loadu(from);
  return at::vec::cast<float>(part == 0 ? pairs << Bits(16) : pairs & Bits(int32_t(0xFFFF0000)));
}

#else
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace {
#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif
typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef uint32_t Bits __attribute__((vector_size(4 * LANES)));

template <typename Vector = Floats>
Vector load(const char* from) {
  Vector x;
  memcpy(&x, from, sizeof x);
  return x;
}
Floats multiply_add(Floats a, Floats b, Floats c) { return a * b + c; }

// The first or the second number of pairs of bfloat16 numbers, as float32.
Floats widened(const char* from, int part) {
  const Bits pairs = load<Bits>(from);
  return (Floats)(part == 0 ? pairs << 16 : pairs & 0xFFFF0000u);
}
#endif

#if defined(__AVX2__) && !defined(__AVX512F__)
constexpr int CELLS = 8;  // of 16 vector registers; the others hold what is multiplied
#else
constexpr int CELLS = 16;  // of 32
#endif
constexpr int64_t SLICE = 2048;  // bytes of rows at a time, so that they stay in the nearest cache
constexpr int64_t BLOCK = 32;    // rows that meet some columns before the next columns
constexpr int64_t PANEL = 64;    // columns of a unit of work
constexpr int64_t GROUP = 16;    // columns that all rows of a block meet before the next ones

struct Float32 {
  static constexpr int64_t VECTOR = 4 * LANES;  // bytes of the weights at a time
  static constexpr int PARTS = 1;               // vectors of float32 that these are widened to
  static Floats row(const char* from) {
    Floats x = load(from);
#if defined(__x86_64__)
    asm("" : "+v"(x));  // or GCC would load it anew at each use
#endif
    return x;
  }
  static Floats weight(const char* from, int) { return row(from); }
  static Floats add(Floats x, Floats w, Floats sum) { return multiply_add(x, w, sum); }
};

#if defined(__AVX512BF16__)
struct BFloat16 {
  static constexpr int64_t VECTOR = 64;
  static constexpr int PARTS = 1;
  static __m512i row(const char* from) { return _mm512_loadu_si512(from); }
  static __m512i weight(const char* from, int) { return row(from); }
  static Floats add(__m512i x, __m512i w, Floats sum) {
    return _mm512_dpbf16_ps(sum, (__m512bh)x, (__m512bh)w);
  }
};
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
struct BFloat16 {
  static constexpr int64_t VECTOR = 16;
  static constexpr int PARTS = 1;
  static bfloat16x8_t row(const char* from) { return vld1q_bf16((const bfloat16_t*)from); }
  static bfloat16x8_t weight(const char* from, int) { return row(from); }
  static Floats add(bfloat16x8_t x, bfloat16x8_t w, Floats sum) { return vbfdotq_f32(sum, x, w); }
};
#else
// Pairs of numbers are widened to float32: the first of all pairs, then the second. Rows are
// widened beforehand.
struct BFloat16 : Float32 {
  static constexpr int PARTS = 2;
  static Floats weight(const char* from, int part) { return widened(from, part); }
};
#endif

template <int SPAN, std::size_t... I>
Floats fold(Floats a, Floats b, std::index_sequence<I...>) {
  return __builtin_shufflevector(a, b, (I & SPAN ? LANES + I - SPAN : I)...) +
         __builtin_shufflevector(a, b, (I & SPAN ? LANES + I : I + SPAN)...);
}

// Vectors become half as many, and lanes that are SPAN apart one sum, until lane n is the sum of
// vector n.
template <int SPAN, int COUNT>
__attribute__((always_inline)) inline void fold_all(Floats* cells) {
  if constexpr (SPAN < LANES) {
#pragma GCC unroll 16
    for (int i = 0; i < COUNT / 2; ++i) {
      cells[i] = fold<SPAN>(cells[2 * i], cells[2 * i + 1], std::make_index_sequence<LANES>());
    }
    fold_all<2 * SPAN, COUNT / 2>(cells);
  }
}

// out[r, c] = x[r] . w[c] for a few rows and columns whose sums are held in registers; strides are
// in bytes.
template <typename Number, int ROWS, int COLUMNS>
void tile(const char* x, int64_t x_row, const char* w, int64_t w_row, int64_t vectors, float* out,
          int64_t out_row, bool more, int64_t ahead) {
  Floats cells[ROWS * COLUMNS] = {};
  for (int64_t v = 0; v < vectors; ++v) {
#pragma GCC unroll 2
    for (int part = 0; part < Number::PARTS; ++part) {
      decltype(Number::row(x)) numbers[ROWS];
#pragma GCC unroll 16
      for (int r = 0; r < ROWS; ++r)
        numbers[r] = Number::row(x + r * x_row + (v * Number::PARTS + part) * Number::VECTOR);
#pragma GCC unroll 16
      for (int c = 0; c < COLUMNS; ++c) {
        const char* place = w + c * w_row + v * Number::VECTOR;
        if (part == 0) __builtin_prefetch(place + ahead);
        const auto weight = Number::weight(place, part);
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; ++r) {
          auto& cell = cells[r * COLUMNS + c];
          cell = Number::add(numbers[r], weight, cell);
        }
      }
    }
  }
  fold_all<1, ROWS * COLUMNS>(cells);
  float sums[ROWS * COLUMNS];
#pragma GCC unroll 16
  for (int i = 0; i < ROWS * COLUMNS / LANES; ++i)
    memcpy(sums + i * LANES, &cells[i], sizeof cells[i]);
  for (int r = 0; r < ROWS; ++r)
    for (int c = 0; c < COLUMNS; ++c) {
      float& place = out[r * out_row + c];
      place = sums[r * COLUMNS + c] + (more ? place : 0);
    }
}

struct Product {
  int64_t next, threads, rows, columns, width;  // width: bytes of a row of numbers
  const char *x, *w;
  float* out;  // (rows, columns)
  char* scratch;
};

// A group of columns for some rows, as many rows at a time as there are, by the largest tile of so
// many.
template <typename Number, int ROWS>
int64_t rows_of_tiles(const Product& p, const char* x, const char* w, int64_t row, int64_t end,
                      int64_t column, int64_t begin, int64_t vectors) {
  for (; end - row >= ROWS; row += ROWS)
    for (int64_t c = 0; c < GROUP; c += CELLS / ROWS)
      tile<Number, ROWS, CELLS / ROWS>(
          x + (row * p.width + begin) * Number::PARTS, p.width * Number::PARTS,
          w + c * p.width + begin, p.width, vectors, p.out + row * p.columns + column + c,
          p.columns, begin > 0, GROUP * p.width);
  return row;
}

template <typename Number>
void run(Product& p) {
  const char* x = p.x;
  const int64_t thread = __atomic_fetch_add(&p.threads, 1, __ATOMIC_RELAXED);
  if constexpr (Number::PARTS == 2) {
    char* wide = p.scratch + thread * p.rows * p.width * 2;
    for (int64_t at = 0; at < p.rows * p.width; at += Number::VECTOR) {
      const Floats first = Number::weight(x + at, 0), second = Number::weight(x + at, 1);
      memcpy(wide + 2 * at, &first, sizeof first);
      memcpy(wide + 2 * at + Number::VECTOR, &second, sizeof second);
    }
    x = wide;
  }
  while (true) {
    const int64_t first = __atomic_fetch_add(&p.next, PANEL, __ATOMIC_RELAXED);
    if (first >= p.columns) return;
    const int64_t last = std::min(first + PANEL, p.columns);
    for (int64_t block = 0; block < p.rows; block += BLOCK) {
      const int64_t end = std::min(block + BLOCK, p.rows);
      for (int64_t column = first; column < last; column += GROUP)
        for (int64_t begin = 0; begin < p.width; begin += SLICE) {
          const int64_t vectors = std::min(SLICE, p.width - begin) / Number::VECTOR;
          const char* w = p.w + column * p.width;
          int64_t row = block;
          if constexpr (CELLS == 16)
            row = rows_of_tiles<Number, 8>(p, x, w, row, end, column, begin, vectors);
          row = rows_of_tiles<Number, 4>(p, x, w, row, end, column, begin, vectors);
          row = rows_of_tiles<Number, 2>(p, x, w, row, end, column, begin, vectors);
          rows_of_tiles<Number, 1>(p, x, w, row, end, column, begin, vectors);
        }
    }
  }
}

}  // namespace

extern "C" void product_float32(Product* p) { run<Float32>(*p); }
extern "C" void product_bfloat16(Product* p) { run<BFloat16>(*p); }
