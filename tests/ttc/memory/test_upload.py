"""Small arrays on their way to the device."""

from __future__ import annotations

import numpy as np
import torch

from ttc.memory.upload import upload


def test_each_array_arrives_whole_and_aligned() -> None:
    arrays = [np.arange(n, dtype=np.int64).reshape(-1, 1) + 10 * n for n in (3, 0, 1, 4)]
    for array, part in zip(arrays, upload(arrays, torch.device("cpu")), strict=True):
        assert part.tolist() == array.ravel().tolist()
        assert part.data_ptr() % 16 == 0
