// A candidate as a program, for processors that only an emulator has. It reads rows, columns, the
// bytes of a row, x and the weight, and writes the product.

#include <cstdint>
#include <cstdio>
#include <vector>

extern "C" void KERNEL(int64_t*);

int main() {
  int64_t sizes[3];
  if (fread(sizes, sizeof sizes, 1, stdin) != 1) return 1;
  const auto [rows, columns, width] = sizes;
  std::vector<char> x(rows * width), w(columns * width), scratch(rows * width * 2);
  std::vector<float> out(rows * columns);
  if (fread(x.data(), x.size(), 1, stdin) != 1 || fread(w.data(), w.size(), 1, stdin) != 1) return 1;
  int64_t parameters[] = {0, 0, rows, columns, width, (int64_t)x.data(), (int64_t)w.data(), (int64_t)out.data(),
                          (int64_t)scratch.data()};
  KERNEL(parameters);
  return fwrite(out.data(), 4, out.size(), stdout) != out.size();
}
