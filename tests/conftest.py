"""One thread for each test process: pytest-xdist runs as many of them as there are processors."""

import os

import pytest
import torch

pytest.register_assert_rewrite("tests.helpers")

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("NUMBA_NUM_THREADS", "1")
