// Drawing tokens on a CPU: a row of logits is read two or three times while the cache holds it.
//
// The same choice as `draw_with_torch` of sampling.py, which is the specification. "Scaled" is
// divided by the temperature, in float32. Every processor adds up in the same order, and rounds
// products before it adds them (-ffp-contract=off), so all of them draw the same tokens.

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "shares.h"
#include "vectors.h"

namespace {

typedef uint32_t HalfBits __attribute__((vector_size(2 * LANES)));
typedef uint64_t Longs __attribute__((vector_size(4 * LANES)));  // half as many numbers as others

constexpr int64_t BLOCK = 64;     // logits whose maximum is kept, so that searches skip the rest
constexpr int64_t SUMMED = 256;   // numbers that are added up in float32, before float64
constexpr int64_t AT_ONCE = 32;   // sums that these are added to in turn
constexpr int64_t BINS = 1024;    // intervals that a sum of probabilities is first found in
constexpr float LOWEST = -87.0f;  // exp() of less is no normal float32; it counts as 0
constexpr float INFINITE = std::numeric_limits<float>::infinity();

// What `Settings` of sampling.py says.
struct Settings {
  float temperature, log_min_p, head, repetition_penalty;
  int64_t top_k, confidence_k;
  double top_p;
  uint64_t tail;
};

// What threads that draw together are told, 8 bytes each (`draw_compiled`).
struct Call {
  int64_t thread;  // how many have come
  int64_t threads;
  int64_t* counters;  // see `Shares`
  int64_t counters_apart;
  const void* logits;  // (rows, vocab)
  int64_t rows, vocab;
  const Settings* settings;
  const uint64_t* states;
  const uint32_t* allowed;  // (rows, words), a bit for each token that may be drawn; null for all
  int64_t words;
  double* out;  // the columns of `Draws`, those of a row side by side: 3, or 6 with a confidence_k
  const int64_t* const* texts;  // of each row the tokens before it; null without a penalty
  const int64_t* lengths;
};

// The last token that filters leave: larger scaled logits come first, and of equal ones the earlier
// token.
struct Cut {
  float x;
  int64_t token;
  bool keeps(float other, int64_t i) const { return other > x || (other == x && i <= token); }
};

// Two numbers of each logit, and their sums.
struct Terms {
  Floats first, second;
};
struct Sums {
  double first = 0, second = 0;
};

// ---------------------------------------------------------------- numbers

INLINE Floats floats(const float* x) { return load<Floats>(x); }
INLINE Floats floats(const uint16_t* x) { return widened(load<Halves>(x)); }
INLINE float number(float x) { return x; }
INLINE float number(uint16_t x) { return widened(x); }

// e to the x for x <= 0, to 6e-7 of it down to -10 and to 5e-6 beyond (Cephes' expf, but with
// ln 2 as one number). 0 below LOWEST.
INLINE Floats weight(Floats x) {
  const Floats inside = larger(x, all(LOWEST));
  const Floats n = floor(inside * 1.44269504f + 0.5f);
  const Ints power = __builtin_convertvector(n, Ints);
  const Floats r = inside - n * 0.69314718f;
  Floats p = all(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = (r + 1.0f) + (r * r) * p;
  return x >= LOWEST ? p * (Floats)((power + 127) << 23) : Floats{};
}

INLINE float weight(float x) { return weight(all(x))[0]; }

// Output number `counter` of a state, as in sampling.py (SplitMix64); of many counters at a time.
template <typename Number>
INLINE Number mixed(uint64_t state, Number counter) {
  Number x = state + (counter + 1) * 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// A number in (0, 1) for each counter.
INLINE double uniform(uint64_t state, uint64_t counter) {
  return ((double)(mixed(state, counter) >> 11) + 0.5) * 0x1p-53;
}

// What 1 - `uniform` is more than, by less than 2^-24, for LANES counters from one on.
INLINE Floats left_of_one(uint64_t state, uint64_t first) {
  constexpr Longs NUMBER = numbered<Longs>(std::make_index_sequence<LANES / 2>());
  Ints bits;
  for (int half = 0; half < 2; ++half) {
    const Longs mixed_bits = mixed(state, NUMBER + (first + half * LANES / 2));
    const HalfBits leading = __builtin_convertvector(mixed_bits >> 40, HalfBits);
    memcpy((char*)&bits + half * sizeof leading, &leading, sizeof leading);
  }
  return __builtin_convertvector(0xFFFFFF - bits, Floats) * 0x1p-24f;
}

// AT_ONCE lanes become one sum, half to half.
INLINE float folded(Floats* lanes) {
#pragma GCC unroll 16
  for (int half = AT_ONCE / LANES / 2; half > 0; half /= 2) {
#pragma GCC unroll 16
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return total(lanes[0]);
}

// A sum, and fewer than AT_ONCE numbers: eight at a time, then one by one.
float add(float sum, const float* x, int64_t count) {
  float lanes[8] = {sum};
  int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    for (int lane = 0; lane < 8; ++lane) lanes[lane] += x[i + lane];
  for (int half = 4; half > 0; half /= 2)
    for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  sum = lanes[0];
  for (; i < count; ++i) sum += x[i];
  return sum;
}

// Moves the k largest to the end, the smallest of them first (Hoare's quickselect). Leaves these.
void select(std::vector<float>& values, int64_t k) {
  int64_t first = 0, last = values.size() - 1, place = values.size() - k;
  while (first < last) {
    const float pivot = values[(first + last) / 2];
    int64_t i = first, j = last;
    while (i <= j) {
      while (values[i] < pivot) ++i;
      while (values[j] > pivot) --j;
      if (i <= j) std::swap(values[i++], values[j--]);
    }
    if (place <= j) last = j;
    else if (place >= i) first = i;
    else break;
  }
  values.erase(values.begin(), values.end() - k);
}

// ---------------------------------------------------------------- a row

template <typename Number>
struct Row {
  const Number* logits;
  int64_t count;
  float largest;              // NaN if there is a NaN
  std::vector<float> maxima;  // the largest logit of each block

  Row(const Number* logits, int64_t count) : logits(logits), count(count) {
    const int64_t blocks = (count + BLOCK - 1) / BLOCK;
    maxima.reserve(blocks);
    Ints magnitude{};
    for (int64_t block = 0; block < blocks; ++block) {
      Floats x[BLOCK / LANES], top = all(-INFINITE);
      read<BLOCK>(block * BLOCK, x);
#pragma GCC unroll 16
      for (Floats some : x) {
        const Ints bits = (Ints)some & 0x7FFFFFFF;
        magnitude = bits > magnitude ? bits : magnitude;
        top = larger(top, some);
      }
      maxima.push_back(::largest(top));
    }
    largest = *std::max_element(maxima.begin(), maxima.end());
    for (int i = 0; i < LANES; ++i)
      if (magnitude[i] > 0x7F800000) largest = NAN;
  }

  // COUNT logits from one on; -inf behind the last.
  template <int COUNT>
  INLINE void read(int64_t begin, Floats* x) const {
    if (begin + COUNT <= count) {
#pragma GCC unroll 16
      for (int i = 0; i < COUNT / LANES; ++i) x[i] = floats(logits + begin + i * LANES);
      return;
    }
    float some[COUNT];
    for (int i = 0; i < COUNT; ++i)
      some[i] = begin + i < count ? number(logits[begin + i]) : -INFINITE;
    memcpy(x, some, sizeof some);
  }

  // The sums of what `terms` makes of each logit.
  template <typename Make>
  Sums sums(Make terms) const {
    constexpr int VECTORS = AT_ONCE / LANES;
    Sums both;
    for (int64_t start = 0; start < count; start += SUMMED) {
      const int64_t end = std::min(start + SUMMED, count);
      Floats x[VECTORS], first[VECTORS] = {}, second[VECTORS] = {};
      int64_t i = start;
      for (; i + AT_ONCE <= end; i += AT_ONCE) {
#pragma GCC unroll 16
        for (int v = 0; v < VECTORS; ++v) {
          const Terms of_v = terms(floats(logits + i + v * LANES));
          first[v] += of_v.first;
          second[v] += of_v.second;
        }
      }
      float sum = folded(first), other = folded(second);
      if (i < end) {
        read<AT_ONCE>(i, x);
        for (int v = 0; v < VECTORS; ++v) {
          const Terms of_v = terms(x[v]);
          first[v] = of_v.first;
          second[v] = of_v.second;
        }
        sum = add(sum, (const float*)first, end - i);
        other = add(other, (const float*)second, end - i);
      }
      both.first += sum;
      both.second += other;
    }
    return both;
  }

  // Sums of exp(scaled - top): over the row, and over low <= scaled <= high.
  Sums masses(float temperature, float top, float low, float high) const {
    return sums([=](Floats x) {
      if (temperature != 1) x = x / temperature;  // it takes as long as ten other operations
      const Floats mass = weight(x - top);
      return Terms{mass, ((x >= low) & (x <= high)) ? mass : Floats{}};
    });
  }

  // Sums of exp(logit - largest) * (logit - largest), and of logit - largest.
  Sums distances() const {
    return sums([top = largest](Floats x) {
      const Floats distance = x - top, inside = larger(distance, all(LOWEST));
      return Terms{weight(inside) * inside, distance};
    });
  }

  // Calls `visit` with the first token of each vector and their scaled logits, in blocks whose
  // largest is `wanted`; -inf behind the last.
  template <typename Wanted, typename Visit>
  INLINE void each_vector(float temperature, Wanted wanted, Visit visit) const {
    // a division takes as long as ten other operations
    const auto scaled = [=](auto x) { return temperature == 1 ? x : x / temperature; };
    for (int64_t block = 0; block < (int64_t)maxima.size(); ++block) {
      if (!wanted(scaled(maxima[block]))) continue;
      Floats vectors[BLOCK / LANES];
      read<BLOCK>(block * BLOCK, vectors);
      for (int i = 0; i < BLOCK / LANES; ++i)
        visit(block * BLOCK + i * LANES, scaled(vectors[i]));
    }
  }

  // Calls `visit` with each token and its scaled logit, in such blocks.
  template <typename Wanted, typename Visit>
  INLINE void each(float temperature, Wanted wanted, Visit visit) const {
    each_vector(temperature, wanted, [&](int64_t first, Floats x) {
      const int64_t some = std::min<int64_t>(LANES, count - first);
      for (int64_t i = 0; i < some; ++i) visit(first + i, x[i]);
    });
  }

  // The k largest scaled logits, the smallest of them first. Each of k blocks has one as large as
  // the k-th largest of the blocks' maxima, so only larger ones are looked at.
  std::vector<float> likeliest(float temperature, int64_t k) const {
    float least = -INFINITE;
    if (k <= (int64_t)maxima.size()) {
      std::vector<float> tops = maxima;
      select(tops, k);
      least = tops[0] / temperature;
    }
    std::vector<float> values;
    const auto large = [=](float x) { return x >= least; };
    each(temperature, large, [&](int64_t, float x) {
      if (large(x)) values.push_back(x);
    });
    select(values, k);
    return values;
  }

  // Top-p among scaled logits >= floor. A token is kept while the sum of exp(scaled - top) over
  // those before it is less than `target`. First the interval of scaled logits where the sum
  // reaches it is found, within `head` of the maximum if it lies there; only its tokens are sorted.
  Cut cut_at_mass(float temperature, float top, float floor, double target, float head) const {
    float start = 0, width = head, scale = 0;
    double before = 0;
    int64_t crossing = 0;
    const auto near = [&](float x) { return !(top - x >= start + width); };
    const auto bin = [&](float x) {  // -1: beyond them
      const float distance = top - x;
      if (!(x >= floor && start <= distance && distance < start + width)) return (int64_t)-1;
      return std::min((int64_t)((distance - start) * scale), BINS - 1);
    };
    for (int attempt = 0; attempt < 2; ++attempt) {
      double masses[BINS] = {};
      scale = BINS / width;
      each(temperature, near, [&](int64_t, float x) {
        const int64_t of_x = bin(x);
        if (of_x >= 0) masses[of_x] += weight(x - top);
      });
      crossing = 0;
      while (crossing < BINS && before + masses[crossing] < target) before += masses[crossing++];
      if (crossing < BINS) break;
      start = head;
      width = -LOWEST;
    }
    if (crossing == BINS) return {floor, count};  // everything is kept, by rounding
    std::vector<Cut> tokens;
    each(temperature, near, [&](int64_t token, float x) {
      if (bin(x) == crossing) tokens.push_back({x, token});
    });
    std::stable_sort(tokens.begin(), tokens.end(), [](Cut a, Cut b) { return a.x > b.x; });
    Cut last = tokens[0];
    for (const Cut token : tokens) {
      if (before >= target) break;
      last = token;
      before += weight(token.x - top);
    }
    return last;
  }

  // What top-k, top-p and min-p leave. top: the largest scaled logit. total: the sum of
  // exp(logit - largest), at temperature 1.
  Cut cut(const Settings& s, float top, double total) const {
    Cut cut{-INFINITE, count};
    if (0 < s.top_k && s.top_k < count) cut.x = likeliest(s.temperature, s.top_k)[0];
    if (s.top_p < 1) {
      if (cut.x > -INFINITE || s.temperature != 1)
        total = masses(s.temperature, top, cut.x, top).second;
      cut = cut_at_mass(s.temperature, top, cut.x, s.top_p * total, s.head);
    }
    const float floor = top + s.log_min_p;
    return floor > cut.x ? Cut{floor, count} : cut;
  }

  // The kept token with above < scaled <= upto whose scaled logit - top plus Gumbel noise is
  // largest, or -1; and that sum. The sum beats `best` if -log(u) < exp(x - top - best), and
  // -log(u) >= 1 - u: few tokens need a logarithm.
  std::pair<int64_t, double> race(float temperature, float top, Cut cut, float above, float upto,
                                  uint64_t state) const {
    int64_t winner = -1;
    double best = -INFINITE, bound = INFINITE;
    const auto meet = [&](int64_t token, float x) {
      const double u = uniform(state, token);
      if (1 - u > bound * weight(x - top)) return;
      const double score = (double)(x - top) - std::log(-std::log(u));
      if (!(score > best)) return;
      winner = token;
      best = score;
      bound = std::exp(-score) * 1.00001;
    };
    const auto wanted = [=](float x) { return !(x <= above || x < cut.x); };
    each_vector(temperature, wanted, [&](int64_t first, Floats x) {
      const Ints inside = (x > above) & (x <= upto) & (x >= cut.x);
      if (!any(inside)) return;
      // a little more than the bound, for rounding
      const Floats most = weight(x - top) * ((float)bound * 1.000001f);
      const Ints left = inside & ~(left_of_one(state, first) > most);
      if (!any(left)) return;
      for (int i = 0; i < LANES; ++i)
        if (left[i] && cut.keeps(x[i], first + i)) meet(first + i, x[i]);
    });
    return {winner, best};
  }

  // The first token with the largest logit.
  int64_t first() const {
    const int64_t block = std::find(maxima.begin(), maxima.end(), largest) - maxima.begin();
    int64_t token = block * BLOCK;
    while (number(logits[token]) != largest) ++token;
    return token;
  }

  // The token that is drawn. total: as in `cut`. beyond: the part of it that lies beyond the head.
  int64_t draw(const Settings& s, uint64_t state, float top, double total, double beyond) const {
    const float t = s.temperature, limit = top - s.head;
    const Cut cut = this->cut(s, top, total);
    const auto [token, best] = race(t, top, cut, limit, top, state);
    // The tokens beyond the head take part as one. Filters and temperatures below 1 leave them less
    // than `beyond`.
    const double noise = -std::log(-std::log(uniform(state, s.tail)));
    if (cut.x > limit) return token;
    if (t <= 1 && !(beyond > 0 && std::log(1.001 * beyond) + noise > best)) return token;
    if (cut.x > -INFINITE || t != 1) beyond = masses(t, top, cut.x, limit).second;
    for (int64_t i = cut.token + 1; i < count; ++i)
      if (number(logits[i]) / t == cut.x) beyond -= weight(cut.x - top);
    if (!(beyond > 0 && std::log(beyond) + noise > best)) return token;
    const int64_t other = race(t, top, cut, top + LOWEST, limit, state).first;
    return other < 0 ? token : other;
  }
};

// ---------------------------------------------------------------- rows

struct Drawn {
  int64_t token;
  double total;  // the sum of exp(logit - largest), at temperature 1
};

// The next token by these logits, whose largest is finite.
template <typename Number>
Drawn drawn(const Row<Number>& row, const Settings& s, uint64_t state) {
  const float largest = row.largest, t = s.temperature;
  const float top = t > 0 ? largest / t : largest, limit = top - s.head;
  // At a lower temperature the head ends at another logit, and some more tokens are counted in, for
  // rounding.
  const float edge = t == 1 ? limit : largest - s.head * t * (float)(1 - 1e-5);
  const auto [total, beyond] = row.masses(1, largest, -INFINITE, edge);
  // so low a temperature is greedy: the noise is lost in rounding
  const bool greedy = t == 0 || limit >= top;
  return {greedy ? row.first() : row.draw(s, state, top, total, beyond), total};
}

// What the token of a row is drawn by: the logits of the tokens that are allowed, in float32, those
// of its text with the penalty of Keskar et al. (2019).
template <typename Number>
void score(const Number* logits, const Call& call, int64_t row, std::vector<float>& scores) {
  const int64_t vocab = call.vocab;
  scores.assign(vocab, -INFINITE);
  if (call.allowed == nullptr) {
    for (int64_t i = 0; i < vocab; ++i) scores[i] = number(logits[i]);
  } else {
    const uint32_t* allowed = call.allowed + row * call.words;
    for (int64_t first = 0; first < vocab; first += 32)
      for (uint32_t word = allowed[first / 32]; word != 0; word &= word - 1) {
        const int64_t token = first + __builtin_ctz(word);
        if (token < vocab) scores[token] = number(logits[token]);
      }
  }
  if (call.texts == nullptr) return;
  const float penalty = call.settings->repetition_penalty;
  for (int64_t i = 0; i < call.lengths[row]; ++i) {
    const int64_t token = call.texts[row][i];
    if (token < 0 || token >= vocab || scores[token] == -INFINITE) continue;
    const float x = number(logits[token]);
    scores[token] = x < 0 ? x * penalty : x / penalty;
  }
}

// Fills in the columns of `Draws`: 3, or 6 where `confidence_k` is above 0; -1 where the logits are
// not finite, and where the scores leave no token. scores: what the token is drawn by in place of
// the logits, or null; the figures are those of the logits.
template <typename Number>
void draw_row(const Number* logits, int64_t vocab, const Settings& s, uint64_t state,
              const float* scores, double* out) {
  const Row<Number> row(logits, vocab);
  const float largest = row.largest;
  Drawn chosen{-1, 0};
  if (scores == nullptr && std::isfinite(largest)) {
    chosen = drawn(row, s, state);
  } else if (std::isfinite(largest)) {
    const Row<float> left(scores, vocab);
    if (std::isfinite(left.largest)) chosen.token = drawn(left, s, state).token;
    chosen.total = row.masses(1, largest, -INFINITE, largest).first;
  }
  const auto [token, total] = chosen;
  if (token < 0) {
    std::fill(out, out + (s.confidence_k > 0 ? 6 : 3), -1.0);
    return;
  }
  out[0] = token;
  out[1] = number(logits[token]) - largest - std::log(total);
  out[2] = 1 / total;
  if (s.confidence_k == 0) return;
  const auto [weighted, plain] = row.distances();
  const int64_t k = std::min(s.confidence_k, vocab);
  out[3] = std::log(total) - weighted / total;
  out[4] = -std::log(total);
  for (const float x : row.likeliest(1, k)) out[4] += (double)(x - largest) / k;
  out[5] = std::log(total) - plain / vocab - std::log((double)vocab);
}

// One thread's part of a call.
template <typename Number>
void draw_rows(Call& call) {
  const int64_t thread = __atomic_fetch_add(&call.thread, 1, __ATOMIC_SEQ_CST);
  const int64_t columns = call.settings->confidence_k > 0 ? 6 : 3;
  const Settings& settings = *call.settings;
  std::vector<float> scores;
  Shares rows(call.counters, call.counters_apart, call.threads, thread, call.rows);
  for (int64_t row; (row = rows.take()) < rows.units;) {
    const auto* logits = (const Number*)call.logits + row * call.vocab;
    const bool changed = call.texts != nullptr || call.allowed != nullptr;
    if (changed) score(logits, call, row, scores);
    draw_row(logits, call.vocab, settings, call.states[row], changed ? scores.data() : nullptr,
             call.out + row * columns);
  }
}

}  // namespace

extern "C" {

void draw_float32(Call* call) { draw_rows<float>(*call); }
void draw_bfloat16(Call* call) { draw_rows<uint16_t>(*call); }

// What the filters leave of a row: the last token's scaled logit. Returns the token.
int64_t cut_float32(const float* logits, int64_t vocab, const Settings* s, float* x) {
  const Row<float> row(logits, vocab);
  const double total = row.masses(1, row.largest, -INFINITE, INFINITE).first;
  const Cut cut = row.cut(*s, row.largest / s->temperature, total);
  *x = cut.x;
  return cut.token;
}

}  // extern "C"
