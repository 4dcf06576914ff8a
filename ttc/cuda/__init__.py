"""What only a CUDA device has: Triton kernels, CUDA graphs, and a pass that runs ahead."""
