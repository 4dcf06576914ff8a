"""Markdown tables of what `experiments.paper rksc` has measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from experiments.lab.paper.rksc.intervals import speedups
from experiments.runs.bootstrap import difference
from ttc.calibration.error_bounds import clopper_pearson

Result = dict[str, Any]

NAMES = {
    "no_kv": "No-KV",
    "exact": "token-exact",
    "verify": "+ verify on the branch's KV",
    "level1": "+ level 1",
    "level2": "+ level 2",
    "decode_gate": "+ decode gate",
    "lossy": "+ lossy sharing",
    "level1_paper": "level 1 by RKSC's percentiles",
    "level2_paper": "levels 1 and 2 by RKSC's rules",
}


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def arms(result: Result) -> str:
    head = [
        "regime",
        "arm",
        "s per problem",
        "over No-KV",
        "over token-exact",
        "right",
        "answers changed",
        "skipped",
    ]
    rows = []
    for regime, found in result["regimes"].items():
        ratios = zip(*(speedups(found["arms"], base) for base in ("no_kv", "exact")), strict=True)
        for arm, (over_no_kv, over_exact) in zip(found["arms"], ratios, strict=True):
            n = arm["problems"]
            rows.append(
                [
                    regime,
                    NAMES[arm["arm"]],
                    f"{median(arm['seconds']):.2f}",
                    _ratio(over_no_kv),
                    _ratio(over_exact),
                    f"{arm['correct'][0]} of {n}",
                    _changed(arm),
                    f"{arm['usage']['verifications_skipped']} of {n}",
                ]
            )
    return markdown(head, rows)


def _ratio(found: Sequence[float]) -> str:
    return "{:.2f}x [{:.2f}, {:.2f}]".format(*found)


def _changed(arm: Result) -> str:
    changed = arm["changed"]
    return (
        f"{changed['answers']} ({changed['right_to_wrong']} lost, {changed['wrong_to_right']} won)"
    )


def answers(result: Result) -> str:
    head = [
        "regime",
        "arm",
        "right",
        "against full verification",
        "answers changed",
        "not verified",
    ]
    head += ["layers left out", "some branch stopped", "some prompt replaced"]
    rows = []
    for regime, found in result["regimes"].items():
        (full,) = [arm["correct"] for arm in found["arms"] if arm["arm"] == "verify"]
        for arm in found["arms"]:
            row = [regime, NAMES[arm["arm"]]]
            n = arm["problems"]
            computed = arm["layer_rows"] + arm["layer_rows_saved"]
            gap, low, high = difference(full, arm["correct"])
            rows.append(
                [
                    *row,
                    f"{sum(arm['correct'])} of {n}",
                    "" if arm["arm"] == "verify" else f"{gap:+.1%} [{low:+.1%}, {high:+.1%}]",
                    _changed(arm),
                    f"{arm['skipped'] / n:.0%}",
                    f"{arm['layer_rows_saved'] / computed:.0%}" if computed else "",
                    f"{arm['gated'] / n:.0%}",
                    f"{arm['substituted'] / n:.0%}",
                ]
            )
    return markdown(head, rows)


def thresholds(result: Result) -> str:
    """What was found on held-out problems, and how it did on those that it was not found on."""
    ways = {"risk": "risk-controlled", "paper": "RKSC's"}
    head = ["regime", "thresholds", "level 1", "skipped", "changed", "at most", "level 2", "layers"]
    head += ["changed", "at most"]
    rows = []
    for regime, of in result["regimes"].items():
        for way, found in of["thresholds"].items():
            one, two = found["level1"], found["level2"]
            never = found["tau_conf"] > 1
            rows.append(
                [
                    regime,
                    ways[way],
                    "never skips"
                    if never
                    else f"tau {found['tau_conf']:.3f}, gap {found['r_gap']:.3f}",
                    f"{one['skipped']} of {one['checked']}",
                    *_bounded(one),
                    _rule(found["exit"]) if two["depth"] < two["layers"] else "never leaves",
                    f"{two['depth']:.1f} of {two['layers']}",
                    *_bounded(two),
                ]
            )
    return markdown(head, rows)


def _bounded(level: Result) -> tuple[str, str]:
    """What was changed, and the 95% upper bound of its share by Clopper and Pearson."""
    changed, checked = level["changed"], level["checked"]
    return f"{changed} of {checked}", f"{clopper_pearson(changed, checked):.0%}"


def _rule(exit: Result) -> str:
    if exit["rule"] == "ranking":
        return f"ranking, l_min {exit['l_min']}, patience {exit['patience']}"
    return f"entropy, l_min {exit['l_min']}, theta {exit['theta']:.2f}, eps {exit['eps']:.2f}"


def prefix(result: Result) -> str:
    head = [
        "prefix",
        "every branch computes it",
        "once",
        "suffixes on it",
        "gain",
        "B*",
        "sharing pays",
    ]
    rows = [
        [
            f"{row['tokens']:,}",
            f"{row['full_s']:.3f} s",
            f"{row['prefix_s']:.3f} s",
            f"{row['suffix_s']:.3f} s",
            f"{row['speedup']:.2f}x",
            f"{row['break_even_branches']:.2f}",
            "yes" if row["beneficial"] else "no",
        ]
        for row in result["rows"]
    ]
    fit = result["fit"]
    linear = fit["c1"] / (fit["c1"] + fit["c2"] * 1024)
    return (
        markdown(head, rows)
        + f"\n\nA prefill takes c1 n + c2 n², c1 = {fit['c1'] * 1e6:.1f} µs, c2 = {fit['c2'] * 1e9:.1f} ns (least "
        f"squares on relative errors), so that the linear term is {linear:.0%} of 1,024 tokens' "
        f"prefill; n* = {result['n_star']:.0f} tokens for 8 branches."
    )


def asks(result: Result) -> str:
    head = ["tokens of a prompt", "8 phrasings, exact", "similar", "faster", "substituted"]
    return markdown(
        [*head, "their answers changed"],
        [
            [
                f"{row['tokens']:.0f}",
                f"{row['exact_s']:.2f} s",
                f"{row['similar_s']:.2f} s",
                f"{row['faster']:.1f}x",
                f"{row['substituted']:.0%}",
                f"{row['answers_changed']:.0%}",
            ]
            for row in result["rows"]
        ],
    )


def phrasings(result: Result) -> str:
    measures = ["matched", "mean", "last"]
    head = ["variant", "prompts", "shared exactly", *measures, "matched, all layers", "KL (nats)"]
    head += ["KL along the text", "answers changed"]
    levels = markdown(
        head,
        [
            [
                row["kind"],
                f"{row['prompts']}",
                f"{row['shared_exactly']:.0%}",
                *(_spread(row[measure]) for measure in measures),
                _spread(row["all_layers"]) if "all_layers" in row else "",
                f"{row['kl']:.3f}",
                f"{row['kl_along']:.3f}" if "kl_along" in row else "",
                f"{row['answers_changed']:.0%}",
            ]
            for row in result["rows"]
        ],
    )
    head = [
        "tau",
        "substituted",
        "of the prefill left",
        "of all prefill",
        "KL (nats)",
        "answers changed",
        "lost / won",
    ]
    controls = list(result["taus"][0]["controls_passed"])
    taus = markdown(
        [*head, *controls],
        [
            [
                f"{row['tau']:.2f}",
                f"{row['substituted']:.0%}",
                f"{row['saved_of_rest']:.0%}",
                f"{row['saved_of_all']:.0%}",
                f"{row['kl']:.3f}",
                f"{row['answers_changed']:.0%}",
                f"{row['right_to_wrong']} / {row['wrong_to_right']}",
                *(f"{row['controls_passed'][control]:.0%}" for control in controls),
            ]
            for row in result["taus"]
        ],
    )
    return f"{levels}\n\n{taus}"


def _spread(values: Sequence[float]) -> str:
    return "{1:.3f} ({0:.3f} to {2:.3f})".format(*values)


def verification(result: Result) -> str:
    cost = markdown(
        [
            "prompt",
            "problems",
            "tokens, own KV",
            "tokens, fresh prompt",
            "own KV",
            "fresh prompt",
            "gain",
        ],
        [
            [
                row["prompt"],
                f"{row['problems']}",
                f"{row['own_tokens']:.0f}",
                f"{row['fresh_tokens']:.0f}",
                f"{row['own_ms']:.0f} ms",
                f"{row['fresh_ms']:.0f} ms",
                f"{row['fresh_ms'] / row['own_ms']:.1f}x",
            ]
            for row in result["cost"]
        ],
    )
    names = {
        "own": "asked on the branch's KV",
        "fresh": "asked on a fresh prompt",
        "p": "mean top-1 probability",
    }
    quality = markdown(
        [
            "rated by",
            "right outranks wrong",
            "pairs",
            "right if chosen so",
            "right on average",
            "any right",
        ],
        [
            [
                names[row["way"]],
                "{:.3f} [{:.2f}, {:.2f}]".format(*row["auc"]),
                f"{row['pairs']:,}",
                "{:.0%} [{:.0%}, {:.0%}]".format(*row["accuracy"]),
                f"{row['mean_accuracy']:.0%}",
                f"{row['oracle']:.0%}",
            ]
            for row in result["quality"]
        ],
    )
    exits = markdown(
        ["leaves by", "rule", "depth on average", "problems", "another branch comes first"],
        [
            [
                {"entropy": "RKSC's rule", "ranking": "stable ranking"}[row["exit"]],
                _rule(result["exits"][row["exit"]]),
                f"{row['depth']:.1f} of {len(result['layers']['entropy'])}",
                f"{row['problems']}",
                f"{row['changed']}",
            ]
            for row in result["exit_depths"]
        ],
    )
    difficulty = markdown(
        ["sums", "problems", "right", "largest p", "would be skipped"],
        [
            [
                row["difficulty"],
                f"{row['problems']}",
                f"{row['accuracy']:.0%}",
                f"{row['max_p']:.3f}",
                f"{row['skipped']:.0%}",
            ]
            for row in result["difficulty"]
        ],
    )
    return f"{cost}\n\n{quality}\n\n{exits}\n\n{difficulty}"


def stress(result: Result) -> str:
    head = [
        "problems",
        "evictions",
        "expected",
        "KV left, of all",
        "evicting costs",
        "coming back costs",
    ]
    row = [
        f"{result['problems']}",
        f"{result['evictions']}",
        f"{result['expected']}",
        f"{result['kv_of_unlimited']:.0%}",
        *(f"{ms:+.1f} ms" for ms in result["overhead_ms"]),
        f"{result['changed']}",
    ]
    return markdown([*head, "problems changed"], [row])


TABLES: dict[str, Callable[[Result], str]] = {
    "arms": arms,
    "answers": answers,
    "prefix": prefix,
    "phrasings": phrasings,
    "asks": asks,
    "verification": verification,
    "stress": stress,
}
