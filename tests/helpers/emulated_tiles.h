// Intel's tiles in plain C++, for processors that have none: what `ttc/tiles.h` uses of them.

#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#define EMULATED_TILES

namespace emulated {

struct Tiles {
  char bytes[8][1024];
  uint8_t shapes[64];
};
inline Tiles& tiles() {
  static thread_local Tiles of_thread = {};
  return of_thread;
}

inline void load(int tile, const void* from, int64_t stride) {
  for (int r = 0; r < 16; ++r)
    memcpy(tiles().bytes[tile] + 64 * r, (const char*)from + r * stride, 64);
}

inline void store(int tile, void* to, int64_t stride) {
  for (int r = 0; r < 16; ++r) memcpy((char*)to + r * stride, tiles().bytes[tile] + 64 * r, 64);
}

inline float number(const char* tile, int row, int place) {
  uint16_t half;
  memcpy(&half, tile + 64 * row + 2 * place, 2);
  const uint32_t bits = (uint32_t)half << 16;
  float x;
  memcpy(&x, &bits, 4);
  return x;
}

inline void add_products(int sums, int a, int b) {
  const char *left = tiles().bytes[a], *right = tiles().bytes[b];
  auto* c = (float(*)[16])tiles().bytes[sums];
  for (int m = 0; m < 16; ++m)
    for (int k = 0; k < 16; ++k)
      for (int n = 0; n < 16; ++n)
        for (int half = 0; half < 2; ++half)
          c[m][n] += number(left, m, 2 * k + half) * number(right, k, 2 * n + half);
}

inline void zero(int tile) { memset(tiles().bytes[tile], 0, 1024); }
inline void load_config(const void* from) { memcpy(tiles().shapes, from, 64); }
inline void store_config(void* to) { memcpy(to, tiles().shapes, 64); }
inline void release() { tiles() = {}; }

}  // namespace emulated

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#define _tile_loadd(tile, from, stride) emulated::load(tile, from, stride)
#define _tile_stored(tile, to, stride) emulated::store(tile, to, stride)
#define _tile_zero(tile) emulated::zero(tile)
#define _tile_dpbf16ps(sums, a, b) emulated::add_products(sums, a, b)
#define _tile_loadconfig emulated::load_config
#define _tile_storeconfig emulated::store_config
#define _tile_release emulated::release
