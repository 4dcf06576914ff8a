"""What two texts of a chat template share, in whole tags and words."""

from __future__ import annotations

import re

PIECES = re.compile(r"<[^<>\s]*>?|\[/?[A-Z_]+\]|\w+|\s+|.", re.DOTALL)
"""The pieces in which texts are compared: a tag is never split."""


def common_start(one: str, other: str) -> str:
    same = 0
    for a, b in zip(PIECES.findall(one), PIECES.findall(other), strict=False):
        if a != b:
            break
        same += len(a)
    return one[:same]


def common_end(one: str, other: str) -> str:
    same = 0
    pairs = zip(reversed(PIECES.findall(one)), reversed(PIECES.findall(other)), strict=False)
    for a, b in pairs:
        if a != b:
            break
        same += len(a)
    return one[len(one) - same :]
