// What lies around attention in a decoder of Llama's kind: a list of operations that threads share.
// `cpu_program.py` writes the list.
//
// Each operation is cut into units, which threads share; after an operation whose results the next
// one reads they wait until all of its units are done. Numbers are rounded where the modules
// of transformers round them, and sums of products are float32. A row's result does not depend on
// the number of threads, nor in float32 on the rows beside it; bfloat16 is added up in another
// order where rows are many, or meet tiles.

#include <algorithm>
#include <cmath>

#include "../../shares.h"
#include "../../tiles.h"
#include "../../vectors.h"
#include "product.h"

namespace {

// What a list says, and each operation of it: addresses, strides and widths in bytes of the model's
// numbers, columns as a number. Python reads these names from the library, so there is one list.
#define HEAD                                                                                    \
  thread, done, threads, operations, first, end, counters, counters_apart, scratch,             \
      scratch_stride, started, ended
#define OPERATION                                                                               \
  kind, no_wait, rows, input, input_row, output, output_row, width, weight, bias, weight_2,     \
      bias_2, columns, panel, residual, norm, epsilon, cos, sin, index, products, stored,       \
      stored_row, stored_2, stored_row_2, turned
#define KINDS normalise, project, project_heads, gate, narrow, attend, round, turn

struct Head {
  int64_t HEAD;
};
struct Operation {
  int64_t OPERATION;
};
namespace Kind {
enum : int64_t { KINDS };
}

constexpr int64_t LINE = 64;     // bytes of a cache line; rows of weights are whole lines
constexpr int64_t BLOCK = 32;    // rows whose results are kept in float32 at a time
constexpr int64_t CHUNK = 256;   // the most rows of a unit
constexpr int64_t SLICE = 2048;  // bytes of weights' rows at a time, about, which stay in a cache
constexpr int64_t PACKED = 384;  // words of weights' rows that are packed at a time
constexpr int64_t PACKS = 2 * LANES;  // columns that are packed at a time
// Columns that all rows of a block meet before the next ones, which are asked for meanwhile.
constexpr int64_t GROUP = CELLS == 8 ? 4 : 16;
// From so many rows of a unit on it pays to pack weights. These are fewer where few sums are held,
// and so a weight is widened again for every four rows.
constexpr int64_t MANY_ROWS = CELLS == 8 ? 24 : 96;

// ---------------------------------------------------------------- how numbers are kept

// Kept: a number of the model, as weights and states between layers. Given: the same as it is given
// to a product. A vector holds NUMBERS of them, in LANES words of 32 bits.
struct Float32 {
  typedef float Kept;
  typedef float Given;
  typedef Floats Vector;
  static constexpr int64_t NUMBERS = LANES;
  static constexpr bool ROUNDS = false;  // so sums are added up in one order, whatever the rows
  static Floats given(const Given* x) { return held(load<Floats>(x)); }
  static Floats weight(const Kept* w) { return held(load<Floats>(w)); }
  static Floats add(Floats x, Floats w, Floats sum) { return x * w + sum; }
  static Floats get(const Kept* x) { return load<Floats>(x); }
  static float get_one(const Kept* x) { return *x; }
  static void put(float* to, Floats x) { store(to, x); }
  static void put_one(float* to, float x) { *to = x; }
  static Floats round(Floats x) { return x; }
  static float round_one(float x) { return x; }
};

struct BFloat16 {
  typedef uint16_t Kept;
  static constexpr bool ROUNDS = true;
  static Floats get(const Kept* x) { return widened(load<Halves>(x)); }
  static float get_one(const Kept* x) { return widened(*x); }
  static void put(Kept* to, Floats x) { store(to, narrowed(x)); }
  static void put_one(Kept* to, float x) { *to = narrowed(x); }
  static void put(float* to, Floats x) { store(to, rounded(x)); }
  static Floats round(Floats x) { return rounded(x); }
  static float round_one(float x) { return widened(narrowed(x)); }
#if defined(MULTIPLIES_BFLOAT16)
  typedef uint16_t Given;
  typedef Pairs Vector;
  static constexpr int64_t NUMBERS = 2 * LANES;
  static Pairs given(const Given* x) { return held(load<Pairs>(x)); }
  static Pairs weight(const Kept* w) { return held(load<Pairs>(w)); }
  static Floats add(Pairs x, Pairs w, Floats sum) { return add_products(x, w, sum); }
#else
  typedef float Given;  // widened once, by who writes it; weights are widened in registers
  typedef Floats Vector;
  static constexpr int64_t NUMBERS = LANES;
  static Floats given(const Given* x) { return held(load<Floats>(x)); }
  static Floats weight(const Kept* w) { return held(get(w)); }
  static Floats add(Floats x, Floats w, Floats sum) { return x * w + sum; }
#endif
};

// ---------------------------------------------------------------- products

// Rows times columns: out[r, c] = x[r] . w[c], in float32. x: (rows, width), w: (columns, width),
// whose rows lie x_row and width numbers apart, out_row those of `out`. Memory `ahead` bytes behind
// the weights is asked for meanwhile, into the second cache: the first has no room for it beside
// the rows.
template <typename N>
struct Product {
  const typename N::Given* x;
  int64_t x_row;
  const typename N::Kept* w;
  int64_t width, rows, columns;
  float* out;
  int64_t out_row, ahead;
};

// A few rows and columns from (row, column) on, whose sums are held in registers, over numbers
// begin to end. The first rows ask for what comes next. A few whole columns are asked for in the
// order in which they lie: short ones come faster so.
template <typename N, int ROWS, int COLUMNS>
NOT_INLINE void tile(const Product<N>& p, int64_t row, int64_t column, int64_t begin, int64_t end) {
  constexpr int64_t AT_ONCE = LINE / sizeof(typename N::Kept);
  const auto* x = p.x + row * p.x_row;
  const auto* w = p.w + column * p.width;
  const bool in_order = CELLS == 8 && end - begin == p.width;
  const int64_t apart = in_order ? LINE : p.width * sizeof *w;
  const int64_t step = in_order ? COLUMNS * LINE : LINE;
  const char* soon = (const char*)(w + begin) + p.ahead;
  Floats cells[ROWS * COLUMNS] = {};
  for (int64_t line = begin; line < end; line += AT_ONCE, soon += step) {
    if (row == 0)
#pragma GCC unroll 16
      for (int c = 0; c < COLUMNS; ++c) __builtin_prefetch(soon + c * apart, 0, 2);
#pragma GCC unroll 16
    for (int64_t part = 0; part < AT_ONCE; part += N::NUMBERS) {
      const int64_t i = line + part;
      typename N::Vector given[ROWS];
#pragma GCC unroll 16
      for (int r = 0; r < ROWS; ++r) given[r] = N::given(x + r * p.x_row + i);
#pragma GCC unroll 16
      for (int c = 0; c < COLUMNS; ++c) {
        const auto weight = N::weight(w + c * p.width + i);
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; ++r) {
          Floats& cell = cells[r * COLUMNS + c];
          cell = N::add(given[r], weight, cell);
        }
      }
    }
  }
  fold_all<1, ROWS * COLUMNS>(cells);
  constexpr int VECTORS = (ROWS * COLUMNS + LANES - 1) / LANES;
  float sums[VECTORS * LANES];
#pragma GCC unroll 16
  for (int i = 0; i < VECTORS; ++i) store(sums + i * LANES, cells[i]);
  typedef float Some __attribute__((vector_size(sizeof(float) * COLUMNS)));
  float* out = p.out + row * p.out_row + column;
  const int64_t out_row = p.out_row;  // a copy: for all that GCC knows, `out` may lie over p
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r, out += out_row) {
    Some some, before;
    memcpy(&some, sums + r * COLUMNS, sizeof some);
    memcpy(&before, out, sizeof before);
    if (begin > 0) some += before;
    memcpy(out, &some, sizeof some);
  }
}

// All columns of as many rows as come ROWS at a time. Returns the first row that is left.
template <typename N, int ROWS>
int64_t tiles(const Product<N>& p, int64_t row, int64_t begin, int64_t end) {
  constexpr int COLUMNS = std::min<int>(CELLS / ROWS, GROUP);
  for (; p.rows - row >= ROWS; row += ROWS) {
    int64_t c = 0;
    for (; c + COLUMNS <= p.columns; c += COLUMNS) tile<N, ROWS, COLUMNS>(p, row, c, begin, end);
    for (; c < p.columns; ++c) tile<N, ROWS, 1>(p, row, c, begin, end);
  }
  return row;
}

template <typename N>
void multiply(const Product<N>& p) {
  constexpr int64_t LINES = SLICE / LINE, NUMBERS = LINE / sizeof(typename N::Kept);
  const int64_t lines = (p.width + NUMBERS - 1) / NUMBERS;
  const int64_t slices = std::max<int64_t>(1, (lines + LINES / 2) / LINES);
  const int64_t some = (lines + slices - 1) / slices * NUMBERS;
  for (int64_t begin = 0; begin < p.width; begin += some) {
    const int64_t end = std::min(begin + some, p.width);
    int64_t row = 0;
    if constexpr (CELLS == 16) row = tiles<N, 8>(p, row, begin, end);
    row = tiles<N, 4>(p, row, begin, end);
    row = tiles<N, 2>(p, row, begin, end);
    tiles<N, 1>(p, row, begin, end);
  }
}

// ---------------------------------------------------------------- products of many rows

// LANES columns of weights, turned: word n of each column becomes vector n, `apart` words behind
// the one before it. words: of a column, as many as are turned.
template <typename N>
void pack(const typename N::Kept* w, int64_t width, int64_t words, float* to, int64_t apart) {
  for (int64_t word = 0; word < words; word += LANES) {
    Floats columns[LANES];
    for (int c = 0; c < LANES; ++c)
      columns[c] = (Floats)N::weight(w + c * width + word * N::NUMBERS / LANES);
    transpose(columns);
    for (int i = 0; i < LANES; ++i) store(to + (word + i) * apart, columns[i]);
  }
}

// ROWS rows times PACKS columns that are packed, added to what is there if `more`. x: words, x_row
// apart. out: the sums of LANES columns for each row, out_row apart; those of the others lie
// `apart` behind them.
template <typename N, int ROWS>
void packed_tile(const float* x, int64_t x_row, const float* packed, int64_t words, float* out,
                 int64_t out_row, int64_t apart, bool more) {
  Floats cells[ROWS][2] = {};
  if (more)
    for (int r = 0; r < ROWS; ++r)
      for (int i = 0; i < 2; ++i) cells[r][i] = load<Floats>(out + r * out_row + i * apart);
  for (int64_t word = 0; word < words; ++word) {
    const auto* column = packed + word * PACKS;
    const Floats first = held(load<Floats>(column)), second = held(load<Floats>(column + LANES));
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r) {
      const auto given = (typename N::Vector)held(all_of(x + r * x_row + word));
      cells[r][0] = N::add(given, (typename N::Vector)first, cells[r][0]);
      cells[r][1] = N::add(given, (typename N::Vector)second, cells[r][1]);
    }
  }
  for (int r = 0; r < ROWS; ++r)
    for (int i = 0; i < 2; ++i) store(out + r * out_row + i * apart, cells[r][i]);
}

// The same as `multiply` for PACKS columns, LANES of them from w and LANES from w_2 on, whose sums
// lie `apart`. Where there are 16 registers, six rows keep the multipliers busier than four, and
// need all of them. Up to CELLS / 2 - 1 rows behind the last are read and written too. packed:
// memory for PACKED x PACKS words. What lies `ahead` bytes behind the weights is asked for
// meanwhile.
template <typename N>
void multiply_packed(const Product<N>& p, const typename N::Kept* w_2, int64_t apart,
                     float* packed) {
  const char *soon = (const char*)p.w + p.ahead, *soon_2 = (const char*)w_2 + p.ahead;
  constexpr int ROWS = CELLS == 8 ? 6 : CELLS / 2, LAST = CELLS / 2;
  constexpr int64_t SOME = PACKED * N::NUMBERS / LANES;
  const int64_t tiles = (p.rows + ROWS - 1) / ROWS;
  const int64_t x_row = p.x_row * sizeof *p.x / sizeof(float);
  for (int64_t begin = 0; begin < p.width; begin += SOME) {
    const int64_t numbers = std::min(SOME, p.width - begin);
    const int64_t words = numbers * LANES / N::NUMBERS;
    pack<N>(p.w + begin, p.width, words, packed, PACKS);
    pack<N>(w_2 + begin, p.width, words, packed + LANES, PACKS);
    // each tile asks for its share of the LANES rows of weights that come next
    const int64_t share = numbers * (int64_t)sizeof *p.w * LANES / tiles / LINE * LINE + LINE;
    for (int64_t row = 0; row < p.rows;) {
      for (int64_t line = 0; line < share; line += LINE) {
        __builtin_prefetch(soon + line, 0, 2);
        __builtin_prefetch(soon_2 + line, 0, 2);
      }
      soon += share;
      soon_2 += share;
      const auto* x = (const float*)(p.x + row * p.x_row + begin);
      float* out = p.out + row * p.out_row;
      if (p.rows - row >= ROWS || LAST == ROWS) {
        packed_tile<N, ROWS>(x, x_row, packed, words, out, p.out_row, apart, begin > 0);
        row += ROWS;
      } else {
        packed_tile<N, LAST>(x, x_row, packed, words, out, p.out_row, apart, begin > 0);
        row += LAST;
      }
    }
  }
}

// ---------------------------------------------------------------- what becomes of the sums

// What rounds does so after each of the modules' operations. Float32 multiplies in an order of its
// own, the one that records were made with.

// Those of one row, as the model keeps numbers, added to what is there if `add`.
template <typename N>
void keep(const float* sums, int64_t columns, bool add, typename N::Kept* out) {
  int64_t c = 0;
  for (; c + LANES <= columns; c += LANES) {
    const Floats x = N::round(load<Floats>(sums + c));
    N::put(out + c, add ? N::get(out + c) + x : x);
  }
  for (; c < columns; ++c) {
    const float x = N::round_one(sums[c]);
    N::put_one(out + c, add ? N::get_one(out + c) + x : x);
  }
}

// SiLU(gate) x up of one row (Shazeer, 2020: SwiGLU); whole vectors.
template <typename N>
void keep_gated(const float* gates, const float* ups, int64_t columns, typename N::Given* out) {
  for (int64_t c = 0; c < columns; c += LANES) {
    const Floats gate = N::round(load<Floats>(gates + c)), up = N::round(load<Floats>(ups + c));
    const Floats e = exp(gate >= 0 ? -gate : gate);
    const Floats share = gate >= 0 ? all(1.0f) : e;  // of 1 + e
    N::put(out + c, N::ROUNDS ? N::round(gate * share / (1.0f + e)) * up
                              : up * gate * share / (1.0f + e));
  }
}

template <typename N>
void add_bias(float* sums, int64_t columns, const typename N::Kept* bias) {
  if (bias)
    for (int64_t c = 0; c < columns; ++c) sums[c] += N::get_one(bias + c);
}

// What a row is multiplied by in an RMS norm (Zhang and Sennrich, 2019). at: its vector from a
// number on; numbers that fill no vector are at `rest`.
template <typename At, typename Rest>
float norm_factor(int64_t count, int64_t epsilon, At at, Rest rest) {
  Floats squares[4] = {};
  int64_t i = 0;
  for (; i + 4 * LANES <= count; i += 4 * LANES)
    for (int k = 0; k < 4; ++k) squares[k] += at(i + k * LANES) * at(i + k * LANES);
  for (; i + LANES <= count; i += LANES) squares[0] += at(i) * at(i);
  float sum = total((squares[0] + squares[1]) + (squares[2] + squares[3]));
  for (; i < count; ++i) sum += rest(i) * rest(i);
  const uint32_t bits = (uint32_t)epsilon;
  return 1.0f / std::sqrt(sum / (float)count + load<float>(&bits));
}

// A head of one row, normalised where the operation says so, in place.
template <typename N>
void normalise_head(const Operation& op, float* x) {
  const auto* scale = (const typename N::Kept*)op.norm;
  const float factor = norm_factor(
      op.panel, op.epsilon, [x](int64_t i) { return load<Floats>(x + i); },
      [x](int64_t i) { return x[i]; });
  for (int64_t d = 0; d < op.panel; ++d)
    x[d] = N::ROUNDS ? N::round_one(N::get_one(scale + d) * N::round_one(x[d] * factor))
                     : N::get_one(scale + d) * x[d] * factor;
}

// The same, rotated by the row's position (Su et al., 2021: RoFormer).
template <typename N>
void keep_rotated(const Operation& op, int64_t row, const float* x, typename N::Kept* out) {
  const int64_t dim = op.panel, half = dim / 2;
  const auto* cos = (const typename N::Kept*)op.cos + row * dim;
  const auto* sin = (const typename N::Kept*)op.sin + row * dim;
  const auto product = [](float a, const typename N::Kept* b) {
    return N::round_one(a * N::get_one(b));
  };
  for (int64_t d = 0; d < half; ++d) {
    const float a = x[d], b = x[d + half];
    N::put_one(out + d, -product(b, sin + d) + product(a, cos + d));
    N::put_one(out + d + half, product(a, sin + d + half) + product(b, cos + d + half));
  }
}

template <typename N>
void keep_head(const Operation& op, int64_t row, int64_t head, float* x) {
  auto* out = (typename N::Kept*)(op.output + row * op.output_row) + head * op.panel;
  for (int64_t d = 0; d < op.panel; ++d) x[d] = N::round_one(x[d]);
  if (op.norm) normalise_head<N>(op, x);
  if (op.cos) keep_rotated<N>(op, row, x, out);
  else keep<N>(x, op.panel, false, out);
}

// ---------------------------------------------------------------- operations

// What a linear layer's unit works on: some columns for up to CHUNK rows. skipped: columns until
// the thread's next unit.
struct Unit {
  int64_t first, columns, start, end, skipped;
};

Unit unit_of(const Operation& op, int64_t number, int64_t following) {
  const int64_t chunks = (op.rows + CHUNK - 1) / CHUNK;
  Unit u;
  u.first = number / chunks * op.panel;
  u.columns = std::min(op.panel, op.columns - u.first);
  u.start = number % chunks * CHUNK;
  u.end = std::min(u.start + CHUNK, op.rows);
  u.skipped = following / chunks * op.panel - u.first;
  return u;
}

// How many columns ahead the thread goes on after `some` columns of a unit, from c on.
int64_t ahead_of(const Unit& u, int64_t c, int64_t some) {
  return c + some < u.columns ? some : u.skipped - c;
}

// A unit's sums for some of its rows, and for both weights of a gate one after the other: the
// product p with the first weight, for all columns of the unit.
template <typename N>
void multiply_stored(const Operation& op, const Unit& u, const Product<N>& p, const char* turned) {
  const auto products = (void (*)(int64_t, const StoredProduct*))op.products;
  const auto by = [&](int64_t weight, int64_t row, int64_t stored, float* out) {
    StoredProduct product;
    product.x = (const char*)p.x;
    product.x_row = p.x_row * sizeof *p.x;
    product.w = (const char*)weight + u.first * row;
    product.w_row = row;
    product.rows = p.rows;
    product.columns = p.columns;
    product.width = p.width;
    product.out = (char*)out;
    product.out_row = p.out_row * sizeof *out;
    product.ahead = u.skipped * row;
    product.turned = turned;
    products(stored, &product);
  };
  by(op.weight, op.stored_row, op.stored, p.out);
  if (op.kind == Kind::gate) by(op.weight_2, op.stored_row_2, op.stored_2, p.out + p.columns);
}

template <typename N>
void multiply_many(const Operation& op, const Unit& u, const Product<N>& all, float* packed) {
  const bool gate = op.kind == Kind::gate;
  const int64_t some = gate ? LANES : PACKS;  // columns of the weight, or of each of the two
  const auto* weight_2 = (const typename N::Kept*)op.weight_2 + u.first * all.width;
  Product<N> p = all;
  for (int64_t c = 0; c < u.columns; c += some) {
    p.ahead = ahead_of(u, c, some) * p.width * (int64_t)sizeof *p.w;
    p.w = all.w + c * p.width;
    p.out = all.out + c;
    if (gate) multiply_packed<N>(p, weight_2 + c * p.width, u.columns, packed);
    else multiply_packed<N>(p, p.w + LANES * p.width, LANES, packed);
  }
}

// The unit's columns from `from` on.
template <typename N>
void multiply_few(const Operation& op, const Unit& u, const Product<N>& all, int64_t from = 0) {
  const auto* weight_2 = (const typename N::Kept*)op.weight_2 + u.first * all.width;
  Product<N> p = all;
  for (int64_t c = from; c < u.columns; c += GROUP) {
    p.columns = std::min(GROUP, u.columns - c);
    p.ahead = ahead_of(u, c, GROUP) * p.width * (int64_t)sizeof *p.w;
    p.w = all.w + c * p.width;
    p.out = all.out + c;
    multiply<N>(p);
    if (op.kind != Kind::gate) continue;
    p.w = weight_2 + c * p.width;
    p.out += u.columns;
    multiply<N>(p);
  }
}

// The same by tiles, for columns that come 16 at a time. x: the rows of the unit, turned.
#if defined(HAS_TILES)
template <typename N>
void multiply_by_tiles(const Operation& op, const Unit& u, const Product<N>& p, const char* x) {
  const bool gate = op.kind == Kind::gate;
  const int64_t row = p.width * (int64_t)sizeof *p.w, lines = row / TILE_LINE;
  const int64_t x_tile = lines * TILE_BYTES, some = gate ? TILE : 2 * TILE;
  const int64_t whole = u.columns / TILE * TILE;
  const auto* w = (const char*)p.w;
  const auto* weight_2 = (const char*)op.weight_2 + u.first * row;
  alignas(64) float sums[4 * TILE * TILE];
  for (int64_t r = 0; r < p.rows; r += 2 * TILE)
    for (int64_t c = 0; c < whole; c += some) {
      const char* second = gate ? weight_2 + c * row : w + (c + TILE) * row;
      const int64_t second_out = gate ? u.columns + c : c + TILE;
      const int64_t ahead = r > 0 ? 0 : ahead_of(u, c, some) * row;
      const int64_t left = p.rows - r;
      const auto by = [&](auto columns, auto rows) {
        multiply_tiles<columns, rows>({w + c * row, row}, {second, row}, x + r / TILE * x_tile,
                                      x_tile, lines, ahead, sums);
        for (int64_t k = 0; k < columns; ++k)
          for (int64_t i = 0; i < rows; ++i)
            keep_sums(sums + (k * rows + i) * TILE * TILE, left - i * TILE,
                      p.out + (r + i * TILE) * p.out_row + (k ? second_out : c), p.out_row);
      };
      constexpr std::integral_constant<int, 1> one;
      constexpr std::integral_constant<int, 2> two;
      const bool both = gate || c + TILE < whole;
      if (both && left > TILE) by(two, two);
      else if (both) by(two, one);
      else if (left > TILE) by(one, two);
      else by(one, one);
    }
  multiply_few<N>(op, u, p, whole);
}
#else
template <typename N>
void multiply_by_tiles(const Operation&, const Unit&, const Product<N>&, const char*) {}
#endif

// What becomes of one row's sums; of a gate they are those of both weights.
template <typename N>
void finish(const Operation& op, const Unit& u, int64_t row, float* gates, float* ups) {
  typedef typename N::Kept Kept;
  const auto bias = [&](int64_t at) { return at ? (const Kept*)at + u.first : nullptr; };
  char* out = (char*)op.output + row * op.output_row;
  add_bias<N>(gates, u.columns, bias(op.bias));
  if (op.kind == Kind::project_heads) return keep_head<N>(op, row, u.first / op.panel, gates);
  if (op.kind == Kind::project)
    return keep<N>(gates, u.columns, op.residual, (Kept*)out + u.first);
  add_bias<N>(ups, u.columns, bias(op.bias_2));
  keep_gated<N>(gates, ups, u.columns, (typename N::Given*)out + u.first);
}

// Whether an operation's rows are turned, and meet tiles.
bool by_tiles(const Operation& op) { return TILES && op.turned && op.rows >= TILE_ROWS; }

// Where 16 rows lie that are turned, the first of them this row.
const char* turned_row(const Operation& op, int64_t row) {
  return (const char*)op.turned + row * op.width;
}

template <typename N>
NOT_INLINE void project(const Operation& op, const Unit& u, float* scratch) {
  const bool gate = op.kind == Kind::gate;
  const int64_t width = op.width / sizeof(typename N::Kept);
  const int64_t sums_row = gate ? 2 * u.columns : u.columns;
  const bool tiles = by_tiles(op);
  const bool many = N::ROUNDS && !tiles && !op.products && u.end - u.start >= MANY_ROWS &&
                    u.columns % (gate ? LANES : PACKS) == 0;
  const int64_t block = many || tiles || op.products ? CHUNK : BLOCK;
  float* sums = scratch + PACKED * PACKS;
  for (int64_t row = u.start; row < u.end; row += block) {
    Product<N> p;
    p.x = (const typename N::Given*)(op.input + row * op.input_row);
    p.x_row = op.input_row / sizeof *p.x;
    p.w = (const typename N::Kept*)op.weight + u.first * width;
    p.width = width;
    p.rows = std::min(block, u.end - row);
    p.columns = u.columns;
    p.out = sums;
    p.out_row = sums_row;
    const char* turned = tiles ? turned_row(op, row) : nullptr;
    if (op.products) multiply_stored<N>(op, u, p, turned);
    else if (tiles) multiply_by_tiles<N>(op, u, p, turned);
    else if (many) multiply_many<N>(op, u, p, scratch);
    else multiply_few<N>(op, u, p);
    for (int64_t i = 0; i < p.rows; ++i) {
      float* gates = sums + i * sums_row;
      finish<N>(op, u, row + i, gates, gates + u.columns);
    }
  }
}

// One row's RMS norm, as it is given to a product; whole vectors.
template <typename N>
void normalise(const Operation& op, int64_t row) {
  typedef typename N::Kept Kept;
  const int64_t source = op.index ? ((const int64_t*)op.index)[row] : row;
  const int64_t count = op.width / sizeof(Kept);
  const auto* x = (const Kept*)(op.input + source * op.input_row);
  const auto* scale = (const Kept*)op.weight;
  auto* out = (typename N::Given*)(op.output + row * op.output_row);
  const float factor = norm_factor(
      count, op.epsilon, [x](int64_t i) { return N::get(x + i); },
      [x](int64_t i) { return N::get_one(x + i); });
  for (int64_t i = 0; i < count; i += LANES)
    N::put(out + i, N::ROUNDS ? N::get(scale + i) * N::round(N::get(x + i) * factor)
                              : N::get(scale + i) * N::get(x + i) * factor);
}

// One row of float32 numbers, as it is given to a product; whole vectors.
template <typename N>
void narrow(const Operation& op, int64_t row) {
  const int64_t count = op.width / sizeof(typename N::Kept);
  const auto* x = (const float*)(op.input + row * op.input_row);
  auto* out = (typename N::Given*)(op.output + row * op.output_row);
  for (int64_t i = 0; i < count; i += LANES) N::put(out + i, load<Floats>(x + i));
}

// One row, as it is given to a product, rounded by the function at `products`.
template <typename N>
void round(const Operation& op, int64_t row) {
  const auto by = (void (*)(const void*, int64_t, void*))op.products;
  const int64_t count = op.width / sizeof(typename N::Kept);
  by((const char*)(op.input + row * op.input_row), count, (char*)(op.output + row * op.output_row));
}

// 16 rows, turned. There is memory for 16.
void turn_rows(const Operation& op, int64_t unit) {
#if defined(HAS_TILES)
  const char* x = (const char*)op.input + unit * TILE * op.input_row;
  turn(x, op.input_row, op.width / 4, (char*)turned_row(op, unit * TILE));
#endif
}

// Attention has none here: its kernel returns once all of its own are done.
int64_t units_of(const Operation& op) {
  if (op.kind == Kind::attend) return 0;
  if (op.kind == Kind::turn) return by_tiles(op) ? (op.rows + TILE - 1) / TILE : 0;
  if (op.kind == Kind::normalise || op.kind == Kind::narrow || op.kind == Kind::round)
    return op.rows;
  return (op.columns + op.panel - 1) / op.panel * ((op.rows + CHUNK - 1) / CHUNK);
}

// One thread's part of an operation. Returns how many units it has done.
template <typename N>
int64_t operate(const Operation& op, Shares units, float* scratch) {
  if (op.kind == Kind::attend) {  // the kernel at `weight`, which shares out its own units
    ((void (*)(void*))op.weight)((void*)op.input);
    return 0;
  }
  int64_t done = 0;
  for (int64_t unit = units.take(), next; unit < units.units; unit = next, ++done) {
    next = units.take();
    if (op.kind == Kind::normalise) normalise<N>(op, unit);
    else if (op.kind == Kind::narrow) narrow<N>(op, unit);
    else if (op.kind == Kind::round) round<N>(op, unit);
    else if (op.kind == Kind::turn) turn_rows(op, unit);
    else project<N>(op, unit_of(op, unit, std::min(next, units.units - 1)), scratch);
  }
  return done;
}

// The processor's clock, in ticks of its own.
int64_t ticks() {
#if defined(__x86_64__)
  return __rdtsc();
#elif defined(__aarch64__)
  int64_t now;
  asm volatile("mrs %0, cntvct_el0" : "=r"(now));
  return now;
#else
  return 0;
#endif
}

// One thread's part of a list.
template <typename N>
void run(Head& shared) {
  const int64_t thread = __atomic_fetch_add(&shared.thread, 1, __ATOMIC_SEQ_CST);
  const Head head = shared;  // for other threads write to the cache line of the counters
  auto* scratch = (float*)(head.scratch + thread * head.scratch_stride);
  auto* counters = (int64_t*)head.counters;
  const bool first = thread == 0;
  if (first) shared.started = ticks();
  const TileState state;
  // those of all operations so far, and what this thread has done of them since it last waited
  int64_t units = 0, done = 0;
  for (int64_t i = head.first; i < head.end; ++i) {
    const Operation& op = ((Operation*)head.operations)[i];
    const Shares shares(counters + i, head.counters_apart, head.threads, thread, units_of(op));
    done += operate<N>(op, shares, scratch);
    units += shares.units;
    if (!op.no_wait) {
      wait_for(shared.done, done, units);
      done = 0;
    }
    if (first) ((int64_t*)head.ended)[i] = ticks();
  }
}

#define NAMES_OF(...) #__VA_ARGS__
#define NAMES(list) NAMES_OF(list)

}  // namespace

extern "C" {
void run_float32(Head* head) { run<Float32>(*head); }
void run_bfloat16(Head* head) { run<BFloat16>(*head); }

extern const char* const processor = TILES ? "AVX-512 with tiles of bfloat16 (AMX)" : PROCESSOR;
extern const char* const head_fields = NAMES(HEAD);
extern const char* const operation_fields = NAMES(OPERATION);
extern const char* const kinds = NAMES(KINDS);
extern const int64_t many_rows = MANY_ROWS;
extern const int64_t tile_rows = TILES ? TILE_ROWS : 0;
extern const int64_t bfloat16_given_bytes = sizeof(BFloat16::Given);

// The memory that a thread works in whose units have at most so many columns.
int64_t scratch_bytes(int64_t columns) {
  return sizeof(float) * (PACKED * PACKS + CHUNK * 2 * columns);
}
}
