// What cpu_layers.cpp asks of products with stored weights (ttc/stored).

#pragma once

#include <cstdint>

namespace {

// A product of rows with a stored weight, or a part of one: addresses, and strides in bytes. width:
// numbers of a row. What lies `ahead` behind the weights is asked for meanwhile. turned: the rows
// as tiles take them (tiles.h), 16 at a time, or null.
struct StoredProduct {
  const char* x;
  int64_t x_row;
  const char* w;
  int64_t w_row, rows, columns, width;
  char* out;
  int64_t out_row, ahead;
  const char* turned;
};

}  // namespace
