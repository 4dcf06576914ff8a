"""What branches of a problem share of their prompts' KV."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Interval

from ttc.checks import Options, PositiveInt

SharingRule = Literal["exact", "none", "similar"]
Pooling = Literal["matched", "mean", "last"]


@dataclass(frozen=True)
class Sharing(Options):
    """rule="exact": the longest common prefix of tokens, whichever prompts it stands in. Lossless,
    the default.

    rule="none": nothing; every branch computes all of its KV itself, and again after each fork. A
    baseline.

    rule="similar": as exact, and ASKS (RKSC, section 2.2): a variant of a root's prompt
    (`Engine.variants`) whose hidden states are like the root's stands on the root's KV.
    **Approximate**: the root's words take the place of the variant's; `Branch.substituted` says so.
    The similarity is RKSC's Eq. 2 over the first `probe_layers` layers, as the rest is what sharing
    saves: sigma = sum_l w_l s_l, w_l proportional to exp(alpha l / L). A variant below tau is
    refused.

    rule: "exact", "none" or "similar". tau, alpha, probe_layers: of the similarity.
    pooling: how alike two prompts' states in a layer, s_l, are. "matched": each token's cosine with
        its best match in the other prompt, the mean over both (BERTScore; Zhang et al., 2020),
        states centred by the root's mean, from a few tokens before the first difference to a few
        after the last. For comparison, "mean": the cosine of the mean states there, where
        rewordings and other questions are a few hundredths apart, and "last": of the last tokens'
        states, which their punctuation decides.
    same_numbers: also refuse a variant whose numbers are others: states of such texts are closer
        than those of most rewordings. Numbers that change places pass.
    """

    setting_of: ClassVar[str] = "sharing."

    rule: SharingRule = "exact"
    tau: Annotated[float, Interval(ge=-1, le=2)] = 0.82
    alpha: Annotated[float, Interval(gt=-100, lt=100)] = 1.5
    probe_layers: PositiveInt = 2
    pooling: Pooling = "matched"
    same_numbers: bool = True
