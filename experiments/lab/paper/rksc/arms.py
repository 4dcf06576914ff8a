"""The arms: one mechanism more in each, on one code path, with the calls of each asserted (RKSC,
Tables 1 to 3)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from experiments.fit.calibrate.calibration import observe
from experiments.lab.paper.rksc.setting import HELD_OUT_SEED, Setting, loaded
from experiments.runs.data import graded
from experiments.runs.screen import with_progress
from experiments.runs.stats import wilson
from search import solve
from search.options import SolveOptions
from ttc.backend import Backend
from ttc.branch import Branch
from ttc.calibration.exit_calibration import Rating, calibrate_exit
from ttc.calibration.gate_calibration import calibrate
from ttc.calibration.layer_profile import look_layers
from ttc.engine import Engine
from ttc.results import Problem, Result
from ttc.usage import Usage
from verifiers import ConfidenceGatedVerifier, SelfVerifier
from verifiers.self_verifier import GRADER

APPROXIMATE = ("level1", "level2", "decode_gate", "lossy")
BY_PAPER = ("level1_paper", "level2_paper")
"""Levels 1 and 2 again, by RKSC's own way to choose thresholds, which bounds no disagreement."""
ARMS = ("no_kv", "exact", "verify", *APPROXIMATE, *BY_PAPER)
REGIMES: dict[str, list[str]] = {
    "t=8": ["dataset=direct_sums", "search.max_tokens=8"],
    "t=32": ["search.max_tokens=32"],
    "full": ["search.max_tokens=160"],
}
SOLVABLE = [
    "dataset.pad_chars=0",
    "dataset.params={min_terms: 2, max_terms: 2, min_digits: 1, max_digits: 1}",
    "search.hints=[]",
    "search.phrasings=['{question}', 'Please answer this. {question}', 'Here is a task. "
    "{question}']",
]
"""Sums of two one-digit numbers, each asked in three ways."""

MAX_DISAGREEMENT = 0.004
"""The largest share of held-out answers that thresholds may change: the error rate that RKSC
reports."""

TURN_TOKENS = 64
"""More than a chat template puts around a question, and far less than a prompt has."""


@dataclass
class _Watched:
    """A verifier that keeps what it was called with."""

    inner: Any
    calls: int = 0
    ratings: list[Rating] = field(default_factory=list)
    profile: bool = False

    def rate(self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend) -> Any:
        self.calls += 1
        if not self.profile:
            return self.inner.rate(branches, questions, backend)
        assert isinstance(backend, Engine)
        rating = self.inner.profiles(branches, questions, backend)
        self.ratings.append(rating)
        return [[profile.p[-1]] for profile in rating]


def thresholds(
    regime: str, overrides: Sequence[str], model: Any, tokenizer: Any, problems: int
) -> dict[str, Any]:
    """Both levels' thresholds from held-out problems of a regime, and what they did there."""
    setting = Setting.of("rksc_verify", [*REGIMES[regime], *overrides, *_held_out(problems)])
    engine, options = setting.engine(model, tokenizer), setting.solve_options()
    inner = setting.verifier
    assert isinstance(inner, SelfVerifier)
    observations, watched = [], _Watched(inner, profile=True)
    for problem in with_progress(setting.task.problems, f"thresholds, {regime}"):
        observations += observe(
            setting.search, inner, [problem], engine=engine, options=SolveOptions.of(**options)
        )
        solve(setting.search, problem=[problem], engine=engine, verifier=watched, **options)
    names = {"model": setting.config.model.name, "dataset": setting.config.dataset.name}
    cost = look_layers(engine, fmean(p.rows for rating in watched.ratings for p in rating))
    found = {}
    for way, bound in (("risk", MAX_DISAGREEMENT), ("paper", None)):
        one = calibrate(observations, **names, max_disagreement=bound)
        two = calibrate_exit(watched.ratings, **names, max_disagreement=bound, look_layers=cost)
        found[way] = {
            "problems": one.problems,
            "tau_conf": one.tau_conf,
            "r_gap": one.r_gap,
            "level1": {
                "skipped": one.skipped,
                "changed": one.disagreements,
                "checked": one.checked,
            },
            "exit": {k: v for k, v in vars(two.exit).items() if k != "positive"},
            "level2": {
                "changed": two.disagreements,
                "checked": two.checked,
                "depth": two.depth,
                "layers": two.layers,
            },
        }
    return found


def _held_out(problems: int) -> list[str]:
    return [
        f"dataset.seed={HELD_OUT_SEED}",
        f"dataset.size={problems}",
        f"dataset.limit={problems}",
    ]


@dataclass
class Arm:
    """One arm, ready to solve: its own engine and verifier over the shared model."""

    name: str
    setting: Setting
    engine: Engine
    verifier: Any
    watched: _Watched

    @classmethod
    def make(
        cls, name: str, overrides: Sequence[str], found: dict[str, Any], model: Any, tokenizer: Any
    ) -> Arm:
        more, preset = list[str](), name.removesuffix("_paper")
        if preset in APPROXIMATE:
            chosen = found["risk" if preset == name else "paper"]
            more = [f"verifier.tau_conf={chosen['tau_conf']}", f"verifier.r_gap={chosen['r_gap']}"]
            if preset != "level1":
                more += [
                    f"++verifier.inner.exit.{key}={value}" for key, value in chosen["exit"].items()
                ]
        setting = Setting.of(f"rksc_{preset}", [*overrides, *more])
        verifier: Any = setting.verifier
        if isinstance(verifier, ConfidenceGatedVerifier):
            watched = _Watched(verifier.inner)
            verifier.inner = watched
        else:
            watched = verifier = _Watched(verifier)
        return cls(name, setting, setting.engine(model, tokenizer), verifier, watched)

    def solve(self, problem: Problem) -> dict[str, Any]:
        """One problem, timed, its calls asserted; what is left of KV afterwards must be nothing."""
        calls = self.watched.calls
        options = self.setting.solve_options()
        start = time.perf_counter()
        (result,) = solve(
            self.setting.search,
            problem=[problem],
            engine=self.engine,
            verifier=self.verifier,
            **options,
        )
        seconds = time.perf_counter() - start
        assert result.error is None, result.error
        assert self.engine.kv_bytes() == 0, f"{self.name} left {self.engine.kv_bytes()} bytes"
        self._assert_calls(result, self.watched.calls - calls)
        return {
            "problem": problem.id,
            "seconds": seconds,
            "usage": result.usage.to_dict(),
        } | self._outcome(result)

    def _outcome(self, result: Result) -> dict[str, Any]:
        assert result.best is not None
        return graded(self.setting.task, result) | {"chosen": list(result.best.path)}

    def _assert_calls(self, result: Result, ratings: int) -> None:
        """What each arm must have done, and must not have done."""
        usage = result.usage
        checks = [
            ("generated what its tree holds", usage.generated_tokens == _written(result)),
            ("rated once, or skipped that", ratings + usage.verifications_skipped == 1),
            *self._approximations(result, ratings),
            *self._sharing(result),
            *self._verification(result, ratings),
        ]
        for claim, holds in checks:
            assert holds, f"{self.name}: not true that {claim}: {usage}"

    def _sharing(self, result: Result) -> list[tuple[str, bool]]:
        usage, branches = result.usage, result.branches
        prompts = sum(branch.prompt_length - 1 for branch in branches)
        if self.name == "no_kv":
            return [
                ("every branch computed its prompt", usage.prompt_tokens == prompts),
                ("nothing was shared", usage.shared_tokens == 0),
            ]
        phrasings = max(1, len(set(self.setting.config.search.phrasings)))
        return [
            (
                "the prefix was computed once",
                usage.prompt_tokens < 2 * phrasings * prompts / len(branches),
            ),
            (
                "prompts are shared or computed",
                usage.substituted_tokens > 0 or usage.shared_tokens > 0,
            ),
        ]

    def _verification(self, result: Result, ratings: int) -> list[tuple[str, bool]]:
        """A fresh prompt holds the problem and the grader's words; on a branch's own KV only the
        question is asked."""
        tokens, branches = result.usage.verifier_tokens, len(result.branches)
        asked = len(self.engine.encode(self.watched.inner.question))
        problem = len(self.engine.encode(result.problem.question))
        if not ratings:
            return [("a skipped rating costs nothing", tokens == 0)]
        if self.name == "no_kv":
            return [
                ("every verification computed the problem", tokens > branches * (problem + asked))
            ]
        if self.name == "exact":
            fresh = len(self.engine.encode(GRADER)) + problem + asked
            return [("verification computed the problem again", tokens > fresh)]
        return [
            (
                "each branch was only asked",
                branches * asked <= tokens < branches * (asked + TURN_TOKENS),
            )
        ]

    def _approximations(self, result: Result, ratings: int) -> list[tuple[str, bool]]:
        usage, preset = result.usage, self.name.removesuffix("_paper")
        gated, exits = preset in APPROXIMATE, preset in APPROXIMATE[1:]
        rows = usage.exit_layer_rows + usage.exit_layer_rows_saved
        all_rows = usage.verifier_tokens * len(self.engine.lens.layers)
        stopped = usage.gated_branches > 0
        substituted, phrasings = (
            usage.substituted_tokens,
            len(set(self.setting.config.search.phrasings)),
        )
        return [
            ("nothing was skipped", gated or usage.verifications_skipped == 0),
            ("no layer was left out", exits or usage.exit_layer_rows_saved == 0),
            (
                "every row was computed in, or left before, each layer",
                not (exits and ratings) or rows == all_rows,
            ),
            ("no branch was stopped", preset in ("decode_gate", "lossy") or not stopped),
            ("no prompt was replaced", preset == "lossy" or substituted == 0),
            (
                "phrasings that differ were replaced",
                preset != "lossy" or (substituted > 0) == (phrasings > 1),
            ),
        ]


def _written(result: Result) -> int:
    """The generated tokens of all branches, of those that a gate stopped too; each sample is one
    step."""
    return sum(node.tokens for node in result.tree)


def run(overrides: Sequence[str], problems: int, held_out: int) -> Iterator[dict[str, Any]]:
    """All regimes: per problem every arm in turn, in an order that goes round, after a warm-up that
    is not counted.

    Yields what there is after each regime."""
    base = Setting.of("rksc_verify", overrides)
    model, tokenizer = loaded(base.config)
    regimes: dict[str, Any] = {}
    for regime, settings in REGIMES.items():
        chosen = [*settings, *overrides]
        found = thresholds(regime, overrides, model, tokenizer, held_out)
        sizes = [f"dataset.size={problems + 1}", f"dataset.limit={problems + 1}"]
        arms = [Arm.make(name, [*chosen, *sizes], found, model, tokenizer) for name in ARMS]
        warm_up, *measured = arms[0].setting.task.problems
        for arm in arms:
            arm.solve(warm_up)
        rows: dict[str, list[dict[str, Any]]] = {name: [] for name in ARMS}
        for n, problem in enumerate(with_progress(measured, f"arms, {regime}")):
            for i in range(len(arms)):
                arm = arms[(n + i) % len(arms)]
                rows[arm.name].append(arm.solve(problem))
        regimes[regime] = {"thresholds": found, "arms": [_summary(name, rows) for name in ARMS]}
        yield {"regimes": regimes}


def _summary(name: str, rows: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    own = rows[name]
    total = Usage()
    for row in own:
        total += Usage(**row["usage"])
    right = sum(row["correct"] for row in own)
    return {
        "arm": name,
        "problems": len(own),
        "seconds": [row["seconds"] for row in own],
        "usage": total.to_dict(),
        "correct": [right, len(own), *wilson(right, len(own))],
        "correct_strict": sum(row["correct_strict"] for row in own),
        "changed": changes(rows["verify"], own),
    }


def changes(reference: Sequence[dict[str, Any]], other: Sequence[dict[str, Any]]) -> dict[str, int]:
    """How many problems end with another answer, and in which direction."""
    pairs = [(a, b) for a, b in zip(reference, other, strict=True) if a["answer"] != b["answer"]]
    directions = Counter((a["correct"], b["correct"]) for a, b in pairs)
    return {
        "answers": len(pairs),
        "right_to_wrong": directions[True, False],
        "wrong_to_right": directions[False, True],
    }


def answers(overrides: Sequence[str], problems: int, held_out: int) -> Iterator[dict[str, Any]]:
    """Answers that the approximate arms change against full verification, on problems of which the
    default model solves about a third (`SOLVABLE`), so that there is something to lose. Without
    padding and hints, which cost a small model nearly all of its accuracy; branches ask in
    different phrasings, so that lossy sharing acts.

    Yields what there is after each regime."""
    overrides = [*SOLVABLE, *overrides]
    model, tokenizer = loaded(Setting.of("rksc_verify", overrides).config)
    regimes: dict[str, Any] = {}
    # nearly all answers end within 32 tokens
    for regime in [name for name in REGIMES if name != "full"]:
        found = thresholds(regime, overrides, model, tokenizer, held_out)
        chosen = [
            *REGIMES[regime],
            *overrides,
            f"dataset.size={problems}",
            f"dataset.limit={problems}",
        ]
        arms = [Arm.make(name, chosen, found, model, tokenizer) for name in ARMS[2:]]
        rows = {
            arm.name: [
                arm.solve(p)
                for p in with_progress(arm.setting.task.problems, f"answers, {regime}, {arm.name}")
            ]
            for arm in arms
        }
        regimes[regime] = {"thresholds": found, "arms": [_counts(name, rows) for name in rows]}
        yield {"regimes": regimes}


def _counts(name: str, rows: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    own = rows[name]
    return {
        "arm": name,
        "problems": len(own),
        "correct": [bool(row["correct"]) for row in own],
        "substituted": sum(row["usage"]["substituted_tokens"] > 0 for row in own),
        "gated": sum(row["usage"]["gated_branches"] > 0 for row in own),
        "layer_rows_saved": sum(row["usage"]["exit_layer_rows_saved"] for row in own),
        "layer_rows": sum(row["usage"]["exit_layer_rows"] for row in own),
        "skipped": sum(row["usage"]["verifications_skipped"] for row in own),
        "changed": changes(rows["verify"], own),
    }
