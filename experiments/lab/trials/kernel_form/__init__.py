"""The form of the CPU kernels, tried on one of them: a decoding step's rows times the rows of a
weight.

The candidates do the same work by the same threads, each a C function that takes units of columns
from a counter:

- `present`: the product's own kernel, numba with LLVM instructions of AVX-512
  (`ttc.model.cpu_tiles`);
- `portable`: numba with LLVM's vectors, as long as the processor's;
- `product.cpp`: C++, once over the vectors of the headers that come with PyTorch (ATen/cpu/vec),
  and once over the compiler's own vectors. `cpp.py` builds it.

`python -m experiments.bench kernel_form` measures them in turn, with AVX-512 and with AVX2.
`emulated.py` tries them for ARM. docs/architecture.md has the decision.
"""
