// Products of rows with a stored weight, in parts that fit the caches, shared by threads.

#pragma once

#include <algorithm>

#include "../vectors.h"
#include "../model/compiled/product.h"

namespace {

constexpr int64_t PANEL = 16;   // columns that are unpacked at a time
constexpr int64_t CHUNK = 128;  // rows that meet them

// Any number of rows and columns, in parts of up to CHUNK rows and PANEL columns.
template <typename Multiply>
void in_parts(const StoredProduct& all, Multiply multiply) {
  for (int64_t row = 0; row < all.rows; row += CHUNK)
    for (int64_t c = 0; c < all.columns; c += PANEL) {
      StoredProduct p = all;
      p.x += row * p.x_row;
      if (p.turned) p.turned += row * p.width * 2;
      p.w += c * p.w_row;
      p.out += row * p.out_row + c * 4;
      p.rows = std::min(CHUNK, all.rows - row);
      p.columns = std::min(PANEL, all.columns - c);
      if (c + PANEL < all.columns) p.ahead = PANEL * p.w_row;
      else p.ahead = all.ahead - c * p.w_row;
      multiply(p);
    }
}

// Where what comes after a few columns of a panel begins: the column c of it, or the next panel.
INLINE const char* after(const StoredProduct& p, int64_t c) {
  return p.w + (c < PANEL ? c * p.w_row : p.ahead);
}

// A product that threads share: each takes the next columns.
struct Shared {
  int64_t next, stored;
  StoredProduct product;
};

template <typename Multiply>
void share(Shared* s, Multiply multiply) {
  constexpr int64_t SOME = 4 * PANEL;
  while (true) {
    const int64_t first = __atomic_fetch_add(&s->next, SOME, __ATOMIC_RELAXED);
    if (first >= s->product.columns) return;
    StoredProduct p = s->product;
    p.w += first * p.w_row;
    p.out += 4 * first;
    p.columns = std::min(SOME, p.columns - first);
    p.ahead = std::min(SOME, s->product.columns - first - p.columns) * p.w_row;
    multiply(s->stored, p);
  }
}

}  // namespace
