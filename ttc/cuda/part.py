"""CUDA: attention by Triton kernels, decode passes as CUDA graphs, and the pass ahead."""

HANDLES = {
    "attention": {"cuda": "ttc.cuda.fused_gpu:fused_attention"},
    "graphs": {"cuda": "ttc.cuda.graphs:graphs_for"},
    "ahead": {"cuda": "ttc.cuda.ahead:pass_ahead"},
}
