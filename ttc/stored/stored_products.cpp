// Rows times the rows of a weight that stays as a .gguf file stores it: a few columns are unpacked
// at a time, into the nearest cache, and multiplied with all rows. Few rows meet weights that are
// unpacked in registers.
//
// Unpacked numbers are float32, with the very bits that gguf's own `dequantize` gives. Where the
// rows are bfloat16 they are rounded to the nearest bfloat16, and pairs of them are multiplied. Sums
// are float32, added up in one order: a row's result does not depend on the rows beside it. Tiles
// (tiles.h), which rows of bfloat16 meet, have another order.

#include "../tiles.h"
#include "kinds.h"
#include "parts.h"

namespace {

constexpr int64_t SLICE = 1024;  // bytes of a column that are unpacked at a time
constexpr int64_t APART = SLICE + 64;

}  // namespace

#include "avx512.h"

namespace {

// How the model's numbers are kept, and multiplied.

// FEW: so many rows meet weights that are unpacked in registers, AT_ONCE columns at a time; 0 for
// processors with few registers, for which this code would take a minute to compile.
struct Float32 {
  static constexpr int64_t SIZE = 4, VECTOR = 4 * LANES, AT_ONCE = 4;
  template <typename Stored>
  static constexpr int FEW = CELLS * LANES < 64 ? 0 : 4;
  template <typename Stored>
  INLINE static void block(const uint8_t* from, char* to) {
    typename Stored::Factors factors[] = {Stored::factors(from)};
    many_in_memory(factors);
    each_below<Stored::NUMBERS / 32>([&](auto number) {
      constexpr int PART = decltype(number)::value;
      const auto put = [&](int i, Floats x) { store(to + 4 * (32 * PART + i * LANES), x); };
      vectors_of<Stored, PART>(from, factors[0], put);
    });
  }
  static Floats get(const char* from) { return held(load<Floats>(from)); }
  static Floats add(Floats x, Floats w, Floats sum) { return x * w + sum; }
};

#if defined(__AVX512BF16__)
struct BFloat16 {
  static constexpr int64_t SIZE = 2, VECTOR = 64, AT_ONCE = 4;
  template <typename Stored>
  static constexpr int FEW = Stored::BITS > 0 ? 4 : 0;
  template <typename Stored>
  static void block(const uint8_t* from, char* to) {
    typedef Bfloat16Block<Stored> Block;
    typename Block::Factors factors;
    Block::read(from, factors);
    each_below<Stored::NUMBERS / 32>([&](auto number) {
      constexpr int PART = decltype(number)::value;
      store(to + 64 * PART, Block::template part<PART>(from, factors));
    });
  }
  static Pairs get(const char* from) { return held(load<Pairs>(from)); }
  static Floats add(Pairs x, Pairs w, Floats sum) { return add_products(x, w, sum); }
};
#endif

template <typename Stored, typename Number>
void unpack(const char* from, int64_t numbers, char* to, int64_t ahead) {
  const int64_t blocks = numbers / Stored::NUMBERS;
  int64_t asked = 0;
  for (int64_t i = 0; i < blocks; ++i) {
    const char* block = from + i * Stored::BYTES;
    for (; asked < (i + 1) * Stored::BYTES; asked += 64)
      __builtin_prefetch(from + asked + ahead, 0, 2);
    char* out = to + i * Stored::NUMBERS * Number::SIZE;
    Number::template block<Stored>((const uint8_t*)block, out);
  }
}

// Rows and columns whose sums are held in registers at a time. Where there are 16 registers, three
// rows and four columns need all of them, and keep the multipliers busier than eight sums.
constexpr int columns_beside(int rows) { return rows == 3 ? 4 : CELLS / rows; }

// sums[r * COLUMNS + c] += x[r] . w[c] for such rows and columns; x_row is in bytes.
template <typename Number, int ROWS, int COLUMNS>
void tile(const char* x, int64_t x_row, const char* w, int64_t vectors, float* sums) {
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
  constexpr int COUNT = ROWS * COLUMNS, SOME = COUNT & -COUNT;  // folding halves their number
  float found[COUNT + LANES];
#pragma GCC unroll 16
  for (int i = 0; i < COUNT; i += SOME) {
    fold_all<1, SOME>(cells + i);
#pragma GCC unroll 16
    for (int n = 0; n < SOME; n += LANES) store(found + i + n, cells[i + n / LANES]);
  }
#pragma GCC unroll 16
  for (int i = 0; i < COUNT; ++i) sums[i] += found[i];
}

// Calls `call` with tiles of PANEL columns and so many rows: as many rows at a time as there are,
// as a type, their first row, and their first column.
template <int ROWS, typename Call>
int64_t tiles(int64_t row, int64_t rows, Call call) {
  for (; rows - row >= ROWS; row += ROWS)
    for (int64_t c = 0; c < PANEL; c += columns_beside(ROWS))
      call(std::integral_constant<int, ROWS>(), row, c);
  return row;
}
template <typename Call>
void each_tile(int64_t rows, Call call) {
  int64_t row = 0;
  if constexpr (CELLS == 16) row = tiles<8>(row, rows, call);
  else row = tiles<3>(row, rows % 3 == 1 ? rows - 4 : rows, call);  // the last four are one tile
  row = tiles<4>(row, rows, call);
  row = tiles<2>(row, rows, call);
  tiles<1>(row, rows, call);
}

// A few columns times ROWS rows, whose weights are unpacked in registers: cells[COLUMNS * r + c] is
// a vector that adds up to x[r] . w[c]. As much memory as they take is asked for meanwhile, in the
// order in which it lies: from `soon` on.
template <typename Stored, int ROWS, int COLUMNS>
INLINE void columns(Float32, const StoredProduct& p, const char* x, const char* w, int64_t numbers,
                    const char* soon, Floats* cells) {
  Floats sums[COLUMNS][ROWS] = {};
  const int64_t x_row = p.x_row;
  for (int64_t i = 0; i < numbers / Stored::NUMBERS; ++i) {
    const uint8_t* blocks[COLUMNS];
    typename Stored::Factors factors[COLUMNS];
#pragma GCC unroll 4
    for (int c = 0; c < COLUMNS; ++c) {
      blocks[c] = (const uint8_t*)w + c * p.w_row + i * Stored::BYTES;
      factors[c] = Stored::factors(blocks[c]);
    }
    expect(soon + i * COLUMNS * Stored::BYTES, COLUMNS * Stored::BYTES);
    many_in_memory(factors);
    each_below<Stored::NUMBERS / 32>([&](auto number) {
      constexpr int PART = decltype(number)::value;
      const char* from = x + 4 * (i * Stored::NUMBERS + 32 * PART);
#pragma GCC unroll 4
      for (int c = 0; c < COLUMNS; ++c)
        vectors_of<Stored, PART>(
            blocks[c], factors[c],
            [&](int n, Floats weights) {
              for (int r = 0; r < ROWS; ++r)
                sums[c][r] += load<Floats>(from + r * x_row + 4 * LANES * n) * weights;
            });
    });
  }
  for (int r = 0; r < ROWS; ++r)
    for (int c = 0; c < COLUMNS; ++c) cells[COLUMNS * r + c] = sums[c][r];
}

#if defined(__AVX512BF16__)
template <typename Stored, int ROWS, int COLUMNS>
INLINE void columns(BFloat16, const StoredProduct& p, const char* x, const char* w, int64_t numbers,
                    const char* soon, Floats* cells) {
  typedef Bfloat16Block<Stored> Block;
  Floats sums[COLUMNS][ROWS] = {};
  const int64_t x_row = p.x_row;
  for (int64_t i = 0; i < numbers / Stored::NUMBERS; ++i) {
    const uint8_t* blocks[COLUMNS];
    typename Block::Factors factors[COLUMNS];
#pragma GCC unroll 4
    for (int c = 0; c < COLUMNS; ++c) {
      blocks[c] = (const uint8_t*)w + c * p.w_row + i * Stored::BYTES;
      Block::read(blocks[c], factors[c]);
    }
    expect(soon + i * COLUMNS * Stored::BYTES, COLUMNS * Stored::BYTES);
    each_below<Stored::NUMBERS / 32>([&](auto number) {
      constexpr int PART = decltype(number)::value;
      const char* from = x + 2 * i * Stored::NUMBERS + 64 * PART;
      Pairs rows[ROWS];
#pragma GCC unroll 4
      for (int r = 0; r < ROWS; ++r) rows[r] = held(load<Pairs>(from + r * x_row));
#pragma GCC unroll 4
      for (int c = 0; c < COLUMNS; ++c) {
        const Pairs weights = Block::template part<PART>(blocks[c], factors[c]);
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; ++r) sums[c][r] = add_products(rows[r], weights, sums[c][r]);
      }
    });
  }
  for (int r = 0; r < ROWS; ++r)
    for (int c = 0; c < COLUMNS; ++c) cells[COLUMNS * r + c] = sums[c][r];
}
#endif

// The same sums as `panel` gives for PANEL columns and a few rows: those of each SLICE of a column.
template <typename Stored, typename Number, int ROWS, int COLUMNS>
void few_rows(const StoredProduct& p) {
  constexpr int64_t SOME = SLICE / Number::SIZE;
  for (int64_t c = 0; c < PANEL; c += COLUMNS) {
    Floats out[ROWS] = {};
    for (int64_t begin = 0; begin < p.width; begin += SOME) {
      const int64_t numbers = std::min(SOME, p.width - begin);
      const int64_t before = begin / Stored::NUMBERS * Stored::BYTES;
      const char* w = p.w + c * p.w_row + before;
      const char* soon = after(p, c + COLUMNS) + COLUMNS * before;
      Floats cells[ROWS * COLUMNS];
      columns<Stored, ROWS, COLUMNS>(Number(), p, p.x + begin * Number::SIZE, w, numbers, soon,
                                     cells);
      for (int r = 0; r < ROWS; ++r) {
        fold_all<1, COLUMNS>(cells + COLUMNS * r);
        out[r] += cells[COLUMNS * r];
      }
    }
    for (int r = 0; r < ROWS; ++r) memcpy(p.out + r * p.out_row + 4 * c, &out[r], 4 * COLUMNS);
  }
}

#if defined(HAS_TILES)
// The same as `panel` gives for PANEL columns, by tiles.
template <typename Stored>
void panel_by_tiles(const StoredProduct& p) {
  constexpr int64_t SOME = SLICE / BFloat16::SIZE;
  alignas(64) char weights[PANEL * APART];
  alignas(64) float sums[CHUNK * PANEL];
  memset(sums, 0, sizeof sums);
  const int64_t x_tile = p.width * BFloat16::SIZE * TILE;
  for (int64_t begin = 0; begin < p.width; begin += SOME) {
    const int64_t numbers = std::min(SOME, p.width - begin), lines = numbers / 32;
    for (int64_t c = 0; c < PANEL; ++c)
      unpack<Stored, BFloat16>(p.w + c * p.w_row + begin / Stored::NUMBERS * Stored::BYTES, numbers,
                               weights + c * APART, p.ahead);
    const char* x = p.turned + begin * BFloat16::SIZE * TILE;
    const TileColumns w = {weights, APART};
    for (int64_t row = 0; row < p.rows; row += 2 * TILE, x += 2 * x_tile) {
      float* some = sums + row * PANEL;
      if (p.rows - row > TILE) multiply_tiles<1, 2, true>(w, w, x, x_tile, lines, 0, some);
      else multiply_tiles<1, 1, true>(w, w, x, x_tile, lines, 0, some);
    }
  }
  for (int64_t row = 0; row < p.rows; row += TILE)
    keep_sums(sums + row * PANEL, p.rows - row, (float*)(p.out + row * p.out_row), p.out_row / 4);
}
#endif

// out[r, c] = x[r] . w[c] in float32, for up to CHUNK rows and PANEL columns.
template <typename Stored, typename Number>
void panel(const StoredProduct& p) {
#if defined(HAS_TILES)
  if constexpr (Number::SIZE == BFloat16::SIZE)
    if (p.turned && p.rows >= TILE_ROWS && p.columns == PANEL) return panel_by_tiles<Stored>(p);
#endif
  if constexpr (Number::template FEW<Stored> > 0) {
    if (p.columns == PANEL && p.rows == 1) return few_rows<Stored, Number, 1, Number::AT_ONCE>(p);
    if (p.columns == PANEL && p.rows == 2) return few_rows<Stored, Number, 2, Number::AT_ONCE>(p);
    if constexpr (Number::template FEW<Stored> == 4) {
      if (p.columns == PANEL && p.rows == 3) return few_rows<Stored, Number, 3, 2>(p);
      if (p.columns == PANEL && p.rows == 4) return few_rows<Stored, Number, 4, 2>(p);
    }
  }
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
    each_tile(p.rows, [&](auto of, int64_t row, int64_t c) {
      constexpr int ROWS = decltype(of)::value;
      tile<Number, ROWS, columns_beside(ROWS)>(x + row * p.x_row, p.x_row, weights + c * APART,
                                               vectors, sums + row * PANEL + c * ROWS);
    });
  }
  each_tile(p.rows, [&](auto of, int64_t row, int64_t c) {
    constexpr int ROWS = decltype(of)::value, COLUMNS = columns_beside(ROWS);
    const int64_t count = std::min<int64_t>(COLUMNS, p.columns - c);
    for (int r = 0; r < ROWS && count > 0; ++r)
      memcpy(p.out + (row + r) * p.out_row + 4 * c,
             sums + row * PANEL + c * ROWS + r * COLUMNS, 4 * count);
  });
}

template <typename Number>
void products(int64_t stored, const StoredProduct& all) {
  by_kind(stored, [&](auto tag) {
    in_parts(all, panel<typename decltype(tag)::Type, Number>);
  });
}

}  // namespace

extern "C" {
extern const int64_t tile_rows = TILES ? TILE_ROWS : 0;

void unpack_float32(int64_t stored, const char* from, int64_t numbers, char* to) {
  by_kind(stored, [&](auto tag) {
    unpack<typename decltype(tag)::Type, Float32>(from, numbers, to, 0);
  });
}
void products_float32(int64_t stored, const StoredProduct* p) { products<Float32>(stored, *p); }
void share_float32(Shared* s) { share(s, products<Float32>); }
#if defined(__AVX512BF16__)
void products_bfloat16(int64_t stored, const StoredProduct* p) { products<BFloat16>(stored, *p); }
void share_bfloat16(Shared* s) {
  const TileState state;
  share(s, products<BFloat16>);
}
#endif
}
