// Intel's tiles (AMX): products of 16 rows with 16 columns, 32 bfloat16 numbers of each at a time,
// whose sums are float32.
//
// A tile of weights is 16 columns of them as they lie. The rows that they meet are turned first:
// word n of 16 rows, two numbers each, lies in one cache line, and word n + 1 in the next one.

#pragma once

#include "vectors.h"

#if defined(EMULATED_TILES)  // by a test, for processors without any
#define HAS_TILES
#elif defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#define HAS_TILES
#endif

namespace {

constexpr int64_t TILE = 16;        // rows, and columns
constexpr int64_t TILE_LINE = 64;   // bytes of a column, or of a word of all rows, in a tile
constexpr int64_t TILE_BYTES = TILE * TILE_LINE;
constexpr int64_t TILE_ROWS = 3;    // from so many rows on tiles pay

#if defined(HAS_TILES)

// Whether the operating system lets this process have tiles. They are asked for, as their state is
// large.
bool ask_for_tiles() {
#if defined(EMULATED_TILES)
  return true;
#else
  constexpr long REQUEST = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
#endif
}
const bool TILES = ask_for_tiles();

// GCC does not know what the instructions of tiles read and write: it is told that anything may be
// read and written here, what is `at` an address included.
INLINE void all_is_written(const void* at = nullptr) { asm volatile("" ::"r"(at) : "memory"); }

// While this lives, the thread's tiles are all of TILE_BYTES. One may live within another, and
// what another library left behind comes back afterwards.
struct TileState {
  static constexpr int SIZE = 64;  // bytes: a number, 0 for no shapes, then those of eight tiles
  alignas(64) uint8_t before[SIZE];
  bool changed = false;

  TileState() {
    if (!TILES) return;
    alignas(64) uint8_t shapes[SIZE] = {1};
    for (int i = 0; i < 8; ++i) {
      shapes[16 + 2 * i] = TILE_LINE;
      shapes[48 + i] = TILE;
    }
    _tile_storeconfig(before);
    all_is_written(before);
    changed = memcmp(before, shapes, SIZE) != 0;
    all_is_written(shapes);
    if (changed) _tile_loadconfig(shapes);
  }
  ~TileState() {
    if (!changed) return;
    all_is_written(before);
    if (before[0]) _tile_loadconfig(before);
    else _tile_release();
  }
};

// 16 rows, x_row bytes apart, turned. words: of a row, a multiple of 16.
INLINE void turn(const char* x, int64_t x_row, int64_t words, char* to) {
  for (int64_t word = 0; word < words; word += LANES) {
    Floats rows[LANES];
    for (int r = 0; r < LANES; ++r) rows[r] = load<Floats>(x + r * x_row + 4 * word);
    transpose(rows);
    for (int i = 0; i < LANES; ++i) store(to + (word + i) * TILE_LINE, rows[i]);
  }
}

// The sums of 16 columns and 16 rows, of which the first `rows` are wanted: out[r] are those of row
// r, out_row numbers apart.
INLINE void keep_sums(const float* sums, int64_t rows, float* out, int64_t out_row) {
  Floats turned[LANES];
  for (int c = 0; c < LANES; ++c) turned[c] = load<Floats>(sums + c * LANES);
  transpose(turned);
  if (rows >= LANES)
    for (int r = 0; r < LANES; ++r) store(out + r * out_row, turned[r]);
  else
    for (int r = 0; r < rows; ++r) store(out + r * out_row, turned[r]);
}

// Where a product's weights lie: 16 columns from `at` on, `row` bytes apart.
struct TileColumns {
  const char* at;
  int64_t row;
};

// COLUMNS times 16 columns and ROWS times 16 rows. x: rows that are turned, the second 16 of them
// x_tile bytes behind the first. lines: of each column. sums: TILE x TILE for each 16 columns and
// each 16 rows of them; what is there is added to if MORE. Memory `ahead` bytes behind the weights
// is asked for meanwhile, if not 0.
template <int COLUMNS, int ROWS, bool MORE = false>
INLINE void multiply_tiles(TileColumns w, TileColumns w_2, const char* x, int64_t x_tile,
                           int64_t lines, int64_t ahead, float* sums) {
  constexpr int64_t SUMS = TILE * TILE;
  all_is_written();
  if constexpr (MORE) {
    _tile_loadd(0, sums, TILE_LINE);
    if constexpr (ROWS == 2) _tile_loadd(1, sums + SUMS, TILE_LINE);
    if constexpr (COLUMNS == 2) _tile_loadd(2, sums + ROWS * SUMS, TILE_LINE);
    if constexpr (COLUMNS * ROWS == 4) _tile_loadd(3, sums + 3 * SUMS, TILE_LINE);
  } else {
    _tile_zero(0);
    if constexpr (ROWS == 2) _tile_zero(1);
    if constexpr (COLUMNS == 2) _tile_zero(2);
    if constexpr (COLUMNS * ROWS == 4) _tile_zero(3);
  }
  for (int64_t i = 0; i < lines; ++i) {
    const int64_t at = i * TILE_LINE;
    _tile_loadd(6, x + i * TILE_BYTES, TILE_LINE);
    if constexpr (ROWS == 2) _tile_loadd(7, x + x_tile + i * TILE_BYTES, TILE_LINE);
    _tile_loadd(4, w.at + at, w.row);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (ROWS == 2) _tile_dpbf16ps(1, 4, 7);
    if constexpr (COLUMNS == 2) {
      _tile_loadd(5, w_2.at + at, w_2.row);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (ROWS == 2) _tile_dpbf16ps(3, 5, 7);
    }
    if (ahead)
      for (int c = 0; c < TILE; ++c) {
        __builtin_prefetch(w.at + at + c * w.row + ahead, 0, 2);
        if constexpr (COLUMNS == 2) __builtin_prefetch(w_2.at + at + c * w_2.row + ahead, 0, 2);
      }
  }
  _tile_stored(0, sums, TILE_LINE);
  if constexpr (ROWS == 2) _tile_stored(1, sums + SUMS, TILE_LINE);
  if constexpr (COLUMNS == 2) _tile_stored(2, sums + ROWS * SUMS, TILE_LINE);
  if constexpr (COLUMNS * ROWS == 4) _tile_stored(3, sums + 3 * SUMS, TILE_LINE);
  all_is_written();
}

#else
constexpr bool TILES = false;
struct TileState {};
#endif

}  // namespace
