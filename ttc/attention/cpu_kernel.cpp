// The attention of a layer over the tree in one call, which threads share. `plan_arrays.py` says
// what the arrays hold.
//
// A unit of work is one task for one KV head: its queries are gathered once, its keys are read
// once, in blocks, and online softmax runs over them (Milakov and Gimelshein, 2018). Threads share
// the units; where several tasks share a row, their results are merged by log-sum-exp once all
// units are done.
//
// Sums are added up in an order that depends on neither the threads nor the length of vectors: in
// float32 all processors that multiply and add in one instruction (AVX2, AVX-512, NEON) give the
// same bits.

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "../shares.h"
#include "../tiles.h"
#include "../vectors.h"

namespace {

constexpr int64_t BLOCK = 64;        // keys at a time
constexpr int64_t KEY_ROW = BLOCK * sizeof(float);  // bytes of a row of keys as columns
constexpr int64_t FEW_QUERIES = 4;   // up to so many read values as they are stored
constexpr int64_t TILE_QUERIES = 8;  // from so many queries on tiles pay
constexpr float NOTHING = -1e30f;  // the largest score of a query that has seen no key
constexpr float HIDDEN = -3e38f;   // the score of a key that a query does not see

struct Task {
  int64_t row, end, first_piece, end_piece, slot, own_row;
};

struct Piece {
  int64_t entry, skipped, keys;
};

// Where an entry's KV of a layer is; strides count numbers.
struct Place {
  const char *key, *value;
  int64_t key_head, key_token, value_head, value_token;
};

// What threads count in a call, 0 at first: how many have come, and how many units and merges are
// done. There is one for each thread as well: how many of its own are taken.
struct Counters {
  int64_t threads, units, merges;
};

// What a call is told, 8 bytes each (`fused_cpu.describe`); strides count numbers.
struct Call {
  int64_t* counters;  // of all threads, and of each one, so many numbers apart
  int64_t counters_apart;
  char* scratch;
  int64_t scratch_bytes;  // of a thread
  int64_t threads;        // as many at most
  const Task* tasks;
  int64_t tasks_count;
  const Piece* pieces;
  const int64_t *starts, *positions, *own_starts;
  int64_t rows;
  const int64_t *part_first, *parts;  // parts: null where no tasks share a row
  float* part_out;                    // (slots, heads, value_dim)
  float (*part_sum)[2];               // (slots, heads): the largest score, and the sum of weights
  int64_t kv_heads, groups, key_dim, value_dim, most_queries;
  const Place* places;  // (entries,)
  const char* q;
  int64_t q_head, q_group, q_row;
  char* out;  // (rows, heads, value_dim), float32, or bfloat16 where it is narrow
  int64_t out_row;  // bytes
  int64_t out_narrow;
  float* lse;  // (rows, heads)
  char* own_key;
  int64_t own_key_row, own_key_head, own_key_token;
  char* own_value;
  int64_t own_value_row, own_value_head, own_value_token;
  const Place* owners;        // of each owner's storage; null where all owners are in one buffer
  const int64_t* own_firsts;  // the first own key in it, of each row
  const char* new_key;  // null where all own keys are in their places
  int64_t new_key_head, new_key_row;
  const char* new_value;
  int64_t new_value_head, new_value_row;
  int64_t window, chunk;  // 0 for none
  alignas(8) float scale;
  alignas(8) float softcap;  // 0 for none

  // The first position that a row at `position` sees; it may be negative.
  int64_t first_seen(int64_t position) const {
    const int64_t in_window = window > 0 ? position - window + 1 : 0;
    return chunk > 0 ? std::max(in_window, position - position % chunk) : in_window;
  }
};

int64_t whole(int64_t count) { return (count + LANES - 1) / LANES * LANES; }

// A thread's memory for one unit.
struct Scratch {
  float* queries;  // (queries, dim), float32 or pairs of bfloat16
  float* scores;   // (queries, BLOCK), later the weights, for tiles in parts (`split`)
  float* results;  // (queries, width): values times weights; width: value_dim in whole vectors
  float* keys;     // (dim, BLOCK), float32 or pairs of bfloat16
  float* values;   // (BLOCK, width), for tiles (BLOCK / 2, width) pairs of bfloat16
  float* tops;     // (queries,): the largest scores
  float* sums;     // (queries,): the sums of weights
  float* end;

  // Tiles read and write rows up to a multiple of 16.
  Scratch(char* memory, int64_t queries_, int64_t dim, int64_t value_dim) : end((float*)memory) {
    const int64_t count = (queries_ + TILE - 1) / TILE * TILE;
    const auto next = [&](int64_t numbers) {
      float* const begin = end;
      end += (numbers + 15) / 16 * 16;
      return begin;
    };
    const int64_t width = whole(value_dim);
    queries = next(count * dim);
    scores = next(count * BLOCK);
    results = next(count * width);
    keys = next(dim * BLOCK);
    values = next(BLOCK * width);
    tops = next(count);
    sums = next(count);
  }
};

// ---------------------------------------------------------------- numbers

// How KV is stored, and read as float32. SCALED: a float32 behind each row of numbers is their
// scale (`ttc/approximate/quantized_kv.py`).
struct Float32 {
  static constexpr int64_t SIZE = 4;
  static constexpr bool SCALED = false;
  static constexpr bool MULTIPLIED_IN_PAIRS = false;
  static Floats vector(const char* from) { return load<Floats>(from); }
  static float single(const char* from) { return load<float>(from); }
};

struct BFloat16 {
  static constexpr int64_t SIZE = 2;
  static constexpr bool SCALED = false;
#if defined(MULTIPLIES_BFLOAT16)
  static constexpr bool MULTIPLIED_IN_PAIRS = true;
#else
  static constexpr bool MULTIPLIED_IN_PAIRS = false;
#endif
  static Floats vector(const char* from) { return widened(load<Halves>(from)); }
  static float single(const char* from) { return widened(load<uint16_t>(from)); }
};

struct Float16 {
  static constexpr int64_t SIZE = 2;
  static constexpr bool SCALED = false;
  static constexpr bool MULTIPLIED_IN_PAIRS = false;
  static Floats vector(const char* from) {
    Floats x;
    for (int i = 0; i < LANES; ++i) x[i] = half(from + SIZE * i);
    return x;
  }
  static float single(const char* from) { return half(from); }
};

struct Int8 {
  static constexpr int64_t SIZE = 1;
  static constexpr bool SCALED = true;
  static constexpr bool MULTIPLIED_IN_PAIRS = false;
  static Floats of(Bits bytes) {
    return __builtin_convertvector((Ints)(bytes << 24) >> 24, Floats);
  }
  static Floats vector(const char* from) {
    return of(__builtin_convertvector(load<Bytes>(from), Bits));
  }
  static float single(const char* from) { return (float)(int8_t)*from; }
};

// float8_e4m3fn: its exponent and mantissa are put where float32 has them. What is then too small
// is too small by the difference of the two biases, also for numbers without a leading one.
struct Float8 {
  static constexpr int64_t SIZE = 1;
  static constexpr bool SCALED = true;
  static constexpr bool MULTIPLIED_IN_PAIRS = false;
  static Floats of(Bits bytes) {
    return (Floats)((bytes & 0x7F) << 20 | (bytes & 0x80) << 24) * 0x1p120f;
  }
  static Floats vector(const char* from) {
    return of(__builtin_convertvector(load<Bytes>(from), Bits));
  }
  static float single(const char* from) {
    const uint32_t byte = (uint8_t)*from, bits = (byte & 0x7F) << 20 | (byte & 0x80) << 24;
    return load<float>(&bits) * 0x1p120f;
  }
};

// Two such numbers at a time, as a pair of bfloat16, which holds them exactly.
template <typename Number>
struct Paired {
  static constexpr int64_t SIZE = 2;
  static Floats vector(const char* from) {
    const Bits two = longer(load<Halves>(from));
    return (Floats)((Bits)Number::of(two & 0xFF) >> 16 |
                    ((Bits)Number::of(two >> 8) & 0xFFFF0000u));
  }
  static float single(const char*) { return 0.0f; }  // never: such rows are whole vectors
};

// The scale of a row of `count` numbers.
template <typename Number>
INLINE float scale_of(const char* row, int64_t count) {
  if constexpr (Number::SCALED) return load<float>(row + count * Number::SIZE);
  else return 1.0f;
}

// Calls `work` with the first number of each vector of `count` numbers, at least LANES. The last
// vector may begin within the one before.
template <typename Work>
INLINE void each_vector(int64_t count, Work work) {
  for (int64_t i = 0; i < count; i += LANES) work(std::min(i, count - LANES));
}

template <typename Number>
void widen(const char* from, int64_t count, float* to) {
  const float scale = scale_of<Number>(from, count);
  if (count < LANES) {
    for (int64_t i = 0; i < count; ++i) to[i] = Number::single(from + i * Number::SIZE) * scale;
  } else {
    each_vector(count, [&](int64_t i) {
      const Floats x = Number::vector(from + i * Number::SIZE);
      store(to + i, Number::SCALED ? x * scale : x);
    });
  }
}

constexpr Ints LANE = numbered<Ints>(std::make_index_sequence<LANES>());

INLINE void put(float* to, Floats x) { store(to, x); }
INLINE void put(uint16_t* to, Floats x) { store(to, narrowed(x)); }
INLINE void put_one(float* to, float x) { *to = x; }
INLINE void put_one(uint16_t* to, float x) { *to = narrowed(x); }

// e to the x for x <= 0, to about 1e-7 of it (Cephes' expf); no less than 1e-38. Not a number stays
// one.
INLINE Floats power(Floats x) {
  x = larger(held(all(-87.0f)), x);
  const Floats n = floor(x * 1.44269504f + 0.5f);
  const Floats r = x + n * -0.693359375f + n * 2.12194440e-4f;
  Floats p = all(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = (r * r) * p + (r + 1.0f);
  return p * (Floats)((__builtin_convertvector(n, Ints) + 127) << 23);
}

float power(float x) { return power(all(x))[0]; }

// To about 1e-7 of it (Cephes' tanhf).
INLINE Floats tanh(Floats x) {
  const Bits sign = (Bits)x & 0x80000000u;
  const Floats size = (Floats)((Bits)x ^ sign), z = x * x;
  const Floats e = power(size * -2.0f);
  const Floats far = (1.0f - e) / (1.0f + e);
  Floats p = all(-5.70498872745e-3f);
  p = p * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  const Floats near = (size * z) * p + size;
  return (Floats)((Bits)(size < 0.625f ? near : far) | sign);
}

// ---------------------------------------------------------------- matrix products

// Rows of numbers that are read next, `apart` bytes from each other: they are asked for meanwhile.
struct Soon {
  const char* first = nullptr;
  int64_t apart = 0, rows = 0;

  INLINE void expect_row(int64_t row, int64_t bytes) const {
    if (row < rows) expect(first + row * apart, bytes);
  }
};

// c (rows, columns) = a (rows, terms) @ b (terms, columns), or c + that, at these distances between
// rows, in bytes for b and numbers for the others. columns: whole vectors. soon: rows as long as
// those of b.
struct Product {
  const float* a;
  int64_t a_row;
  const char* b;
  int64_t b_row;
  float* c;
  int64_t c_row, rows, terms, columns;
  bool adds;
  Soon soon = {};
};

struct Singles {
  static Floats add(Floats x, Floats y, Floats sum) { return x * y + sum; }
};

#if defined(MULTIPLIES_BFLOAT16)
struct InPairs {  // a and b hold pairs of bfloat16
  static Floats add(Floats x, Floats y, Floats sum) {
    return add_products((Pairs)x, (Pairs)y, sum);
  }
};
#else
using InPairs = Singles;  // never called
#endif

// A part of c, whose sums are held in registers. Number: of b, without scales.
template <typename Terms, typename Number, int ROWS, int VECTORS>
void tile(const Product& p, int64_t row, int64_t column) {
  const float* a = p.a + row * p.a_row;
  const char* b = p.b + column * Number::SIZE;
  float* c = p.c + row * p.c_row + column;
  Floats sums[ROWS][VECTORS] = {};
  if (p.adds)
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 16
      for (int v = 0; v < VECTORS; ++v) sums[r][v] = load<Floats>(c + r * p.c_row + v * LANES);
  const Soon soon = row == 0 && column == 0 ? p.soon : Soon{};
  for (int64_t t = 0; t < p.terms; ++t) {
    soon.expect_row(t, p.columns * Number::SIZE);
    Floats numbers[ROWS];
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r)
      numbers[r] = held((Floats)(Ints{} + load<int32_t>(a + r * p.a_row + t)));
#pragma GCC unroll 16
    for (int v = 0; v < VECTORS; ++v) {
      const Floats vector = held(Number::vector(b + t * p.b_row + v * LANES * Number::SIZE));
#pragma GCC unroll 16
      for (int r = 0; r < ROWS; ++r) sums[r][v] = Terms::add(numbers[r], vector, sums[r][v]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 16
    for (int v = 0; v < VECTORS; ++v) store(c + r * p.c_row + v * LANES, sums[r][v]);
}

// Some rows of c from a column on, as many vectors at a time as there are.
template <typename Terms, typename Number, int ROWS, int VECTORS>
void tiles(const Product& p, int64_t row, int64_t column) {
  for (; p.columns - column >= VECTORS * LANES; column += VECTORS * LANES)
    tile<Terms, Number, ROWS, VECTORS>(p, row, column);
  if constexpr (VECTORS > 1) tiles<Terms, Number, ROWS, VECTORS / 2>(p, row, column);
}

// All rows of c from a row on, as many at a time as there are. Three rows with four vectors fill 16
// registers.
template <typename Terms, typename Number = Float32, int ROWS = 4>
void multiply(const Product& p, int64_t row = 0) {
  constexpr int VECTORS = ROWS == 3 ? 4 : std::min(8, CELLS / ROWS);
  for (; p.rows - row >= ROWS; row += ROWS) tiles<Terms, Number, ROWS, VECTORS>(p, row, 0);
  if constexpr (ROWS > 1) multiply<Terms, Number, ROWS - 1>(p, row);
}

// ---------------------------------------------------------------- keys as columns

// Write number d of key k to to[d * BLOCK + k], for LANES keys at these addresses.
template <typename Number>
void pack_some(const char* const* keys, int64_t dim, float* to) {
  if (dim < LANES) {
    for (int64_t d = 0; d < dim; ++d)
      for (int k = 0; k < LANES; ++k)
        to[d * BLOCK + k] = Number::single(keys[k] + d * Number::SIZE);
    return;
  }
  each_vector(dim, [&](int64_t d) {
    Floats rows[LANES];
#pragma GCC unroll 16
    for (int k = 0; k < LANES; ++k) rows[k] = Number::vector(keys[k] + d * Number::SIZE);
    transpose(rows);
#pragma GCC unroll 16
    for (int i = 0; i < LANES; ++i) store(to + (d + i) * BLOCK, rows[i]);
  });
}

// The same for a block of keys, `token` bytes apart. The last one fills up the last vector.
template <typename Number>
void pack(const char* keys, int64_t token, int64_t count, int64_t dim, float* to, Soon soon) {
  for (int64_t first = 0; first < count; first += LANES) {
    for (int64_t k = first; k < first + LANES; ++k) soon.expect_row(k, dim * Number::SIZE);
    const char* some[LANES];
    for (int64_t k = 0; k < LANES; ++k) some[k] = keys + std::min(first + k, count - 1) * token;
    pack_some<Number>(some, dim, to + first);
  }
}

// ---------------------------------------------------------------- runs of keys

// Keys of one head with their values, at these distances in bytes.
struct Run {
  const char* key;
  int64_t key_token;
  const char* value;
  int64_t value_token;
  int64_t keys, start;  // how many, and the position of the first
  bool causal;

  // The keys and the values of its block that begins with key `from`.
  Soon keys_from(int64_t from) const { return {key + from * key_token, key_token, block(from)}; }
  Soon values_from(int64_t from) const {
    return {value + from * value_token, value_token, block(from)};
  }
  int64_t block(int64_t from) const { return std::min(BLOCK, keys - from); }
};

// What a task attends of an entry; without keys where the entry is not on the device.
template <typename Number>
Run piece_of(const Call& call, int64_t head, const Piece& piece) {
  const Place& place = call.places[piece.entry];
  const int64_t key_token = place.key_token * Number::SIZE;
  const int64_t value_token = place.value_token * Number::SIZE;
  return {place.key + head * place.key_head * Number::SIZE + piece.skipped * key_token,
          key_token,
          place.value + head * place.value_head * Number::SIZE + piece.skipped * value_token,
          value_token,
          place.key ? piece.keys : 0,
          call.starts[piece.entry] + piece.skipped,
          false};
}

// A task's own keys, those of its rows included.
template <typename Number>
Run own_keys(const Call& call, int64_t head, const Task& task) {
  const int64_t owner = task.own_row, start = call.own_starts[owner];
  const int64_t keys = call.positions[task.own_row] - start + task.end - task.own_row;
  if (call.owners) {
    const Place& place = call.owners[owner];
    const int64_t first = call.own_firsts[owner];
    return {place.key + (head * place.key_head + first * place.key_token) * Number::SIZE,
            place.key_token * Number::SIZE,
            place.value + (head * place.value_head + first * place.value_token) * Number::SIZE,
            place.value_token * Number::SIZE,
            keys,
            start,
            true};
  }
  const int64_t key = owner * call.own_key_row + head * call.own_key_head;
  const int64_t value = owner * call.own_value_row + head * call.own_value_head;
  return {call.own_key + key * Number::SIZE,
          call.own_key_token * Number::SIZE,
          call.own_value + value * Number::SIZE,
          call.own_value_token * Number::SIZE,
          keys,
          start,
          true};
}

// Put a row's new key and value behind its own ones.
template <typename Number>
void store_new(const Call& call, int64_t head, const Task& task) {
  if (!call.new_key) return;
  const Run own = own_keys<Number>(call, head, task);
  const int64_t last = own.keys - 1;
  const int64_t key = head * call.new_key_head + task.row * call.new_key_row;
  const int64_t value = head * call.new_value_head + task.row * call.new_value_row;
  memcpy((char*)own.key + last * own.key_token, call.new_key + key * Number::SIZE,
         call.key_dim * Number::SIZE);
  memcpy((char*)own.value + last * own.value_token, call.new_value + value * Number::SIZE,
         call.value_dim * Number::SIZE);
}

// Ask for the first block of a run.
template <typename Number>
void expect_first(const Call& call, const Run& run) {
  for (int64_t k = 0; k < std::min(run.keys, BLOCK); ++k) {
    expect(run.key + k * run.key_token, call.key_dim * Number::SIZE);
    expect(run.value + k * run.value_token, call.value_dim * Number::SIZE);
  }
}

// ---------------------------------------------------------------- one unit: a task for one KV head

// Write the result of a row's head: its weighted values over the sum of its weights, and the
// log-sum-exp.
void finish(const Call& call, int64_t row, int64_t head, const float* values, float top,
            float sum) {
  const int64_t dim = call.value_dim;
  const bool nothing = top <= NOTHING;
  const float share = 1.0f / sum;
  const auto write = [&](auto* out) {
    int64_t d = 0;
    for (; d + LANES <= dim; d += LANES)
      put(out + d, nothing ? Floats{} : load<Floats>(values + d) * share);
    for (; d < dim; ++d) put_one(out + d, nothing ? 0.0f : values[d] * share);
  };
  char* out = call.out + row * call.out_row;
  if (call.out_narrow) write((uint16_t*)out + head * dim);
  else write((float*)out + head * dim);
  call.lse[row * call.kv_heads * call.groups + head] = nothing ? -INFINITY : top + std::log(sum);
}

// Number: of queries, own keys and results. Stored: of entries.
template <typename Number, typename Stored>
struct Unit {
  const Call& call;
  const Task& task;
  int64_t head, queries, width;
  int64_t lowest, highest;  // positions of its rows
  bool in_pairs;            // whether queries and keys stay bfloat16
  bool tiled;               // whether tiles multiply them, and values
  Scratch at;

  Unit(const Call& call, int64_t unit, char* memory)
      : call(call),
        task(call.tasks[unit / call.kv_heads]),
        head(unit % call.kv_heads),
        queries((task.end - task.row) * call.groups),
        width(whole(call.value_dim)),
        in_pairs(Number::MULTIPLIED_IN_PAIRS && call.key_dim % (2 * LANES) == 0),
        tiled(TILES && in_pairs && call.value_dim % TILE == 0 && queries >= TILE_QUERIES),
        at(memory, call.most_queries, call.key_dim, call.value_dim) {
    const auto ends = std::minmax_element(call.positions + task.row, call.positions + task.end);
    lowest = *ends.first;
    highest = *ends.second;
  }

  void run() {
    gather_queries();
    if (task.own_row >= 0) store_new<Number>(call, head, task);
    for (int64_t i = task.first_piece; i < task.end_piece; ++i)
      attend<Stored>(piece_of<Stored>(call, head, call.pieces[i]), run_after(i));
    if (task.own_row >= 0) attend<Number>(own_keys<Number>(call, head, task), Run{});
    leave_results();
  }

  // What is attended after a piece: the next one, or own keys; without keys if nothing is.
  Run run_after(int64_t piece) const {
    if (piece + 1 < task.end_piece)
      return piece_of<Stored>(call, head, call.pieces[piece + 1]);
    return task.own_row >= 0 ? own_keys<Number>(call, head, task) : Run{};
  }

  // Calls `work` with each query's number, row (of the pass) and head (of all).
  template <typename Work>
  void each_query(Work work) {
    int64_t query = 0;
    for (int64_t row = task.row; row < task.end; ++row)
      for (int64_t g = 0; g < call.groups; ++g) work(query++, row, head * call.groups + g);
  }

  void gather_queries() {
    const int64_t dim = call.key_dim;
    each_query([&](int64_t query, int64_t row, int64_t of) {
      const int64_t place = head * call.q_head + of % call.groups * call.q_group + row * call.q_row;
      const char* from = call.q + place * Number::SIZE;
      float* to = at.queries + query * dim;
      if (in_pairs) memcpy(to, from, dim * Number::SIZE);
      else widen<Number>(from, dim, to);
    });
    std::fill_n(at.results, queries * width, 0.0f);
    std::fill_n(at.tops, queries, NOTHING);
    std::fill_n(at.sums, queries, 0.0f);
  }

  template <typename Kept>
  void attend(const Run& run, const Run& after) {
    for (int64_t first = 0; first < run.keys; first += BLOCK) {
      const int64_t begin = run.start + first, count = std::min(BLOCK, run.keys - first);
      if (run.causal && begin > highest) break;
      if (begin + count <= call.first_seen(lowest)) continue;
      const bool is_last = first + count == run.keys;
      const Run& next = is_last ? after : run;
      const int64_t next_first = is_last ? 0 : first + BLOCK;
      const bool by_tiles = tiled && Kept::MULTIPLIED_IN_PAIRS;
      multiply_keys<Kept>(run.key + first * run.key_token, run.key_token, count,
                          next.keys_from(next_first));
      int64_t query = 0;
      for (int64_t row = task.row; row < task.end; ++row) {
        const int64_t position = call.positions[row];
        const int64_t from = std::clamp<int64_t>(call.first_seen(position) - begin, 0, count);
        const int64_t end = run.causal ? std::min(count, position - begin + 1) : count;
        for (int64_t g = 0; g < call.groups; ++g) {
          weigh(query, from, end, count);
          if (by_tiles) split(query, count);
          ++query;
        }
      }
      const char* values = run.value + first * run.value_token;
      const Soon soon = next.values_from(next_first);
      if (by_tiles) multiply_values_by_tiles(values, run.value_token, count, soon);
      else multiply_values<Kept>(values, run.value_token, count, soon);
    }
  }

  // scores = queries @ keys
  template <typename Kept>
  void multiply_keys(const char* keys, int64_t token, int64_t count, Soon soon) {
    const int64_t dim = call.key_dim, terms = in_pairs ? dim / 2 : dim;
    const Product product = {at.queries, dim,     (const char*)at.keys, KEY_ROW,      at.scores,
                             BLOCK,      queries, terms,                whole(count), false};
    if (in_pairs) {
      // pairs are moved as they are
      using Pair = std::conditional_t<Kept::SCALED, Paired<Kept>, Float32>;
      pack<Pair>(keys, token, count, terms, at.keys, soon);
      if (tiled && Kept::MULTIPLIED_IN_PAIRS) multiply_keys_by_tiles(count);
      else multiply<InPairs>(product);
    } else {
      pack<Kept>(keys, token, count, terms, at.keys, soon);
      multiply<Singles>(product);
    }
    if constexpr (Kept::SCALED) scale_scores<Kept>(keys, token, count);
  }

  // Multiply each key's scores by its scale.
  template <typename Kept>
  void scale_scores(const char* keys, int64_t token, int64_t count) {
    float scales[BLOCK] = {};
    for (int64_t j = 0; j < count; ++j) scales[j] = scale_of<Kept>(keys + j * token, call.key_dim);
    for (int64_t query = 0; query < queries; ++query) {
      float* scores = at.scores + query * BLOCK;
      for (int64_t j = 0; j < count; j += LANES)
        store(scores + j, load<Floats>(scores + j) * load<Floats>(scales + j));
    }
  }

  // Make weights of a query's scores of a block, of which it sees those in [from, end); its sums so
  // far shrink where the block has a larger score.
  void weigh(int64_t query, int64_t from, int64_t end, int64_t count) {
    float* scores = at.scores + query * BLOCK;
    const bool capped = call.softcap > 0;
    if (capped) cap(scores, count);
    const float scale = capped ? 1.0f : call.scale;
    Floats tops = all(at.tops[query]);
    for (int64_t j = 0; j < count; j += LANES) {
      const Floats x = seen(load<Floats>(scores + j) * scale, j, from, end);
      tops = larger(x, tops);
      store(scores + j, x);
    }
    const float top = largest(tops);
    constexpr int SUMS = 16 / LANES;
    Floats sums[SUMS] = {};  // of 16 lanes, however long vectors are
    for (int64_t j = 0; j < count; j += LANES) {
      const Floats weights = power(load<Floats>(scores + j) - top);
      sums[j / LANES % SUMS] += weights;
      store(scores + j, weights);
    }
    if (top != at.tops[query]) shrink(query, top);
    at.sums[query] += sum_of<SUMS>(sums);
  }

  // Scale scores and press them softly into (-softcap, softcap).
  void cap(float* scores, int64_t count) {
    const float inverse = 1.0f / call.softcap;
    for (int64_t j = 0; j < count; j += LANES) {
      const Floats x = load<Floats>(scores + j) * call.scale;
      store(scores + j, tanh(x * inverse) * call.softcap);
    }
  }

  // Scores of keys from j on, hidden where they are not in [from, end).
  Floats seen(Floats scores, int64_t j, int64_t from, int64_t end) {
    const uint32_t count = (uint32_t)std::max<int64_t>(0, end - from);
    return (Bits)(LANE + (int32_t)(j - from)) < count ? scores : all(HIDDEN);
  }

  template <int COUNT>
  static float sum_of(Floats* sums) {
    if constexpr (COUNT > 1) {
      for (int i = 0; i < COUNT / 2; ++i) sums[i] += sums[i + COUNT / 2];
      return sum_of<COUNT / 2>(sums);
    } else {
      return total(*sums);
    }
  }

  // Weigh what a query has summed up by a larger score than before.
  void shrink(int64_t query, float top) {
    const float by = power(at.tops[query] - top);
    at.tops[query] = top;
    at.sums[query] *= by;
    float* results = at.results + query * width;
    for (int64_t d = 0; d < width; d += LANES) store(results + d, load<Floats>(results + d) * by);
  }

  // results += weights @ values. Whole vectors are read where they lie, unless too many queries
  // would each widen them.
  template <typename Kept>
  void multiply_values(const char* values, int64_t token, int64_t count, Soon soon) {
    Product product = {at.scores, BLOCK, values, token, at.results, width,
                       queries,   count, width,  true,  soon};
    const bool often = Kept::SIZE < 4 && queries > FEW_QUERIES;
    if constexpr (!Kept::SCALED)
      if (width == call.value_dim && !often) return multiply<Singles, Kept>(product);
    for (int64_t j = 0; j < count; ++j) {
      soon.expect_row(j, call.value_dim * Kept::SIZE);
      widen<Kept>(values + j * token, call.value_dim, at.values + j * width);
    }
    product.b = (const char*)at.values;
    product.b_row = width * sizeof *at.values;
    product.soon = {};
    multiply<Singles>(product);
  }

#if defined(HAS_TILES)
  // scores = queries @ keys, which are packed
  void multiply_keys_by_tiles(int64_t count) {
    const int64_t dim = call.key_dim, row = dim * sizeof *at.queries;
    all_is_written();
    for (int64_t q = 0; q < queries; q += TILE)
      for (int64_t k = 0; k < count; k += 2 * TILE) {
        const float *query = at.queries + q * dim, *keys = at.keys + k;
        float* scores = at.scores + q * BLOCK + k;
        _tile_zero(0);
        _tile_zero(1);
        for (int64_t i = 0; i < dim / 2; i += TILE) {
          _tile_loadd(4, query + i, row);
          _tile_loadd(6, keys + i * BLOCK, KEY_ROW);
          _tile_loadd(7, keys + i * BLOCK + TILE, KEY_ROW);
          _tile_dpbf16ps(0, 4, 6);
          _tile_dpbf16ps(1, 4, 7);
        }
        _tile_stored(0, scores, KEY_ROW);
        _tile_stored(1, scores + TILE, KEY_ROW);
      }
    all_is_written();
  }

  // A query's weights as the sums of two bfloat16 numbers, which hold 16 bits of each: the first
  // numbers of 32 weights, the second ones, then those of the next 32. What is no key weighs 0.
  void split(int64_t query, int64_t count) {
    float* scores = at.scores + query * BLOCK;
    Halves parts[2][BLOCK / LANES];
    for (int64_t v = 0; v < BLOCK / LANES; ++v) {
      const Bits key = (Bits)(LANE + (int32_t)(v * LANES));
      const Floats weight = key < (uint32_t)count ? load<Floats>(scores + v * LANES) : all(0.0f);
      const Floats first = rounded(weight);
      parts[0][v] = shorter((Bits)first >> 16);
      parts[1][v] = narrowed(weight - first);
    }
    for (int64_t v = 0; v < BLOCK / LANES; ++v)
      for (int64_t part = 0; part < 2; ++part)
        store(scores + v / 2 * 2 * TILE + part * TILE + v % 2 * LANES / 2, parts[part][v]);
  }

  // Two keys' values, side by side.
  void pair_values(const char* values, int64_t token, int64_t count, Soon soon) {
    const int64_t filled = (count + 2 * TILE - 1) / (2 * TILE) * TILE;
    for (int64_t pair = 0; pair < filled; ++pair) {
      for (int64_t j = 2 * pair; j < 2 * pair + 2; ++j) soon.expect_row(j, 2 * width);
      for (int64_t d = 0; d < width; d += LANES) {
        const char* at_d = values + 2 * pair * token + 2 * d;
        const Bits first = 2 * pair < count ? longer(load<Halves>(at_d)) : Bits{};
        const Bits second = 2 * pair + 1 < count ? longer(load<Halves>(at_d + token)) : Bits{};
        store(at.values + pair * width + d, first | second << 16);
      }
    }
  }

  // results += weights @ values, for weights that are split
  void multiply_values_by_tiles(const char* values, int64_t token, int64_t count, Soon soon) {
    const int64_t row = width * sizeof *at.results;
    constexpr int64_t WEIGHT_ROW = BLOCK * sizeof *at.scores;
    pair_values(values, token, count, soon);
    all_is_written();
    for (int64_t q = 0; q < queries; q += TILE)
      for (int64_t d = 0; d < width; d += TILE) {
        const float *weights = at.scores + q * BLOCK, *pairs = at.values + d;
        float* results = at.results + q * width + d;
        _tile_loadd(0, results, row);
        for (int64_t k = 0; k < count; k += 2 * TILE) {
          _tile_loadd(4, weights + k, WEIGHT_ROW);
          _tile_loadd(5, weights + k + TILE, WEIGHT_ROW);
          _tile_loadd(6, pairs + k / 2 * width, row);
          _tile_dpbf16ps(0, 4, 6);
          _tile_dpbf16ps(0, 5, 6);
        }
        _tile_stored(0, results, row);
      }
    all_is_written();
  }
#else
  void multiply_keys_by_tiles(int64_t) {}
  void split(int64_t, int64_t) {}
  void multiply_values_by_tiles(const char*, int64_t, int64_t, Soon) {}
#endif

  void leave_results() {
    const int64_t heads = call.kv_heads * call.groups, dim = call.value_dim;
    each_query([&](int64_t query, int64_t row, int64_t of) {
      const float* values = at.results + query * width;
      if (task.slot < 0) {
        finish(call, row, of, values, at.tops[query], at.sums[query]);
      } else {
        const int64_t place = (task.slot + row - task.row) * heads + of;
        memcpy(call.part_out + place * dim, values, dim * sizeof *values);
        call.part_sum[place][0] = at.tops[query];
        call.part_sum[place][1] = at.sums[query];
      }
    });
  }
};

// ---------------------------------------------------------------- a call

// Ask for the keys and values that a unit begins with.
template <typename Number, typename Stored>
void expect_unit(const Call& call, int64_t unit) {
  const Task& task = call.tasks[unit / call.kv_heads];
  const int64_t head = unit % call.kv_heads;
  if (task.first_piece < task.end_piece)
    expect_first<Stored>(call, piece_of<Stored>(call, head, call.pieces[task.first_piece]));
  if (task.own_row >= 0) expect_first<Number>(call, own_keys<Number>(call, head, task));
}

// Merge what several tasks found for one row and KV head, by log-sum-exp. merged: memory for
// value_dim numbers.
void merge(const Call& call, int64_t row, int64_t kv_head, float* merged) {
  const int64_t heads = call.kv_heads * call.groups, dim = call.value_dim;
  const int64_t* begin = call.parts + call.part_first[row];
  const int64_t* end = call.parts + call.part_first[row + 1];
  if (begin == end) return;
  for (int64_t head = kv_head * call.groups; head < (kv_head + 1) * call.groups; ++head) {
    float top = NOTHING, sum = 0.0f;
    for (const int64_t* slot = begin; slot < end; ++slot)
      top = std::max(top, call.part_sum[*slot * heads + head][0]);
    std::fill_n(merged, dim, 0.0f);
    for (const int64_t* slot = begin; slot < end; ++slot) {
      const int64_t place = *slot * heads + head;
      const float weight = power(call.part_sum[place][0] - top);
      sum += weight * call.part_sum[place][1];
      const float* values = call.part_out + place * dim;
      for (int64_t d = 0; d < dim; ++d) merged[d] += weight * values[d];
    }
    finish(call, row, head, merged, top, sum);
  }
}

// One thread's part of a call. Returns once all of the call is done.
template <typename Number, typename Stored>
void attend(const Call& call) {
  const TileState state;
  auto& all = *(Counters*)call.counters;
  const int64_t thread = __atomic_fetch_add(&all.threads, 1, __ATOMIC_SEQ_CST);
  char* const memory = call.scratch + thread * call.scratch_bytes;
  auto& each = *(Counters*)(call.counters + call.counters_apart);
  const auto shares = [&](int64_t& taken, int64_t count) {
    return Shares(&taken, call.counters_apart, call.threads, thread, count);
  };
  Shares units = shares(each.units, call.tasks_count * call.kv_heads);
  int64_t done = 0;
  for (int64_t unit = units.take(), soon; unit < units.units; unit = soon, ++done) {
    soon = units.take();
    if (soon < units.units) expect_unit<Number, Stored>(call, soon);
    Unit<Number, Stored>(call, unit, memory).run();
  }
  wait_for(all.units, done, units.units);
  if (!call.parts) return;
  Shares merges = shares(each.merges, call.rows * call.kv_heads);
  done = 0;
  for (int64_t unit; (unit = merges.take()) < merges.units; ++done)
    merge(call, unit / call.kv_heads, unit % call.kv_heads, (float*)memory);
  wait_for(all.merges, done, merges.units);
}

}  // namespace

extern "C" {
#if defined(PACKED)  // a library of its own, which takes twice as long to compile
void attend_float32_int8(Call* call) { attend<Float32, Int8>(*call); }
void attend_bfloat16_int8(Call* call) { attend<BFloat16, Int8>(*call); }
void attend_float16_int8(Call* call) { attend<Float16, Int8>(*call); }
void attend_float32_fp8(Call* call) { attend<Float32, Float8>(*call); }
void attend_bfloat16_fp8(Call* call) { attend<BFloat16, Float8>(*call); }
void attend_float16_fp8(Call* call) { attend<Float16, Float8>(*call); }
#else
void attend_float32(Call* call) { attend<Float32, Float32>(*call); }
void attend_bfloat16(Call* call) { attend<BFloat16, BFloat16>(*call); }
void attend_float16(Call* call) { attend<Float16, Float16>(*call); }
#endif

// How many numbers a call is told, and the bytes of a thread's memory, for the caller to use.
int64_t call_numbers() { return sizeof(Call) / 8; }
int64_t scratch_bytes(int64_t queries, int64_t dim, int64_t value_dim) {
  return (char*)Scratch(nullptr, queries, dim, value_dim).end - (char*)nullptr;
}
}
