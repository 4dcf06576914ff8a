"""A screen that shows the run and nothing else."""

from __future__ import annotations

import os
import sys
import warnings


def quiet() -> None:
    """Keep other libraries' bars, hints and warnings off the screen; what the user has set stays.

    Call it before any of them is imported, tqdm too: they read their settings then.
    """
    for name, value in (
        ("HF_HUB_DISABLE_PROGRESS_BARS", "1"),
        ("HF_DATASETS_DISABLE_PROGRESS_BARS", "1"),
        ("TRANSFORMERS_VERBOSITY", "error"),
        ("DATASETS_VERBOSITY", "error"),
        ("TOKENIZERS_PARALLELISM", "false"),
        ("TQDM_DISABLE", "1"),  # our own bars say disable=False
    ):
        os.environ.setdefault(name, value)
    if not sys.warnoptions and "PYTHONWARNINGS" not in os.environ:
        warnings.filterwarnings(
            "ignore", module=r"(torch|transformers|datasets|huggingface_hub|reasoning_gym)(\.|$)"
        )
