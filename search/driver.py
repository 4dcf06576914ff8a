"""The driver: advances the searches of many problems together and merges their requests."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, overload

from search.base import Plan, Request, Search, ranked
from ttc.errors import BudgetExceeded, InvalidInput, VerifierError
from ttc.protocols import Aggregation, Backend, Expand, Extract, Problem, Rate, Release, Result, Vary, Verifier
from ttc.sampling import random_key
from ttc.text.answers import extract_answer
from ttc.text.prompt import PromptTemplate
from ttc.tree.branch import Branch
from ttc.usage import Usage


@overload
def solve(search: Search, *, problem: str | Problem, engine: Backend, **options: Any) -> Result: ...
@overload
def solve(search: Search, *, problem: Sequence[str | Problem], engine: Backend, **options: Any) -> list[Result]: ...
def solve(  # type: ignore[misc]  # the overloads spell out only what decides the result's type
    search: Search,
    *,
    problem: str | Problem | Sequence[str | Problem],
    engine: Backend,
    verifier: Verifier | None = None,
    seed: int = 0,
    template: PromptTemplate | None = None,
    answer_kind: str = "number",
    extract: Extract | None = None,
    end: Sequence[str] = (),
    max_tokens: int | None = None,
    max_calls: int | None = None,
    concurrency: int = 16,
    on_result: Callable[[Result], None] | None = None,
) -> Result | list[Result]:
    """Run `search` on one problem, or on a list of problems in merged batches.

    seed: with the problem's id (or question) it fixes every sampled token. end: strings that finish a branch.
    max_tokens, max_calls: budgets per problem, in generated plus verifier tokens and in expansions; a search that
    exceeds one stops with what it has and says so in `Result.error`. concurrency: the most problems under way at
    once. on_result: called as each problem finishes.
    With a list, a problem that cannot be used or whose verifier fails gives a Result with `error`; alone it raises
    what stopped it before any branch existed.
    """
    if search.needs_verifier and verifier is None:
        raise InvalidInput(f"{type(search).__name__} selects by score; give it verifier=...")
    for name, value in (("concurrency", concurrency), ("max_tokens", max_tokens), ("max_calls", max_calls)):
        if value is not None and value < 1:
            raise InvalidInput(f"{name}={value} must be at least 1")
    if isinstance(end, str):
        raise InvalidInput(f"end={end!r} is one string; give a list of strings")
    extract_answer("", answer_kind)  # refuses an unknown kind before any work
    single = isinstance(problem, str | Problem)
    given = [problem] if isinstance(problem, str | Problem) else problem
    problems = [p if isinstance(p, Problem) else Problem(p) for p in given]
    driver = _Driver(
        search,
        engine,
        verifier,
        seed,
        template or PromptTemplate(),
        extract or partial(extract_answer, kind=answer_kind),
        tuple(end),
        max_tokens,
        max_calls,
    )
    results = driver.run(problems, concurrency, on_result, strict=single)
    return results[0] if single else results


@dataclass
class _Run:
    """One problem on its way."""

    problem: Problem
    index: int
    root: Branch
    plan: Plan
    started: float
    request: Request | None = None
    live: dict[int, Branch] = field(default_factory=dict)
    everyone: list[Branch] = field(default_factory=list)  # keeps ids unique
    nodes: dict[int, dict[str, Any]] = field(default_factory=dict)
    expanded: set[int] = field(default_factory=set)  # the ids of nodes with children
    calls: int = 0
    error: str | None = None
    candidates: list[Branch] | None = None

    @property
    def done(self) -> bool:
        return self.request is None

    def advance(self, answer: Any) -> None:
        try:
            self.request = self.plan.send(answer)
        except StopIteration as stop:
            self.request, self.candidates = None, stop.value

    def stop(self, error: str) -> None:
        """End the search with what it has."""
        self.plan.close()
        self.request, self.error = None, error


@dataclass
class _Driver:
    search: Search
    engine: Backend
    verifier: Verifier | None
    seed: int
    template: PromptTemplate
    extract: Extract
    end: tuple[str, ...]
    max_tokens: int | None
    max_calls: int | None

    def run(
        self, problems: list[Problem], concurrency: int, on_result: Callable[[Result], None] | None, strict: bool
    ) -> list[Result]:
        results: dict[int, Result] = {}
        waiting, active = list(enumerate(problems)), list[_Run]()
        try:
            while waiting or active:
                batch = waiting[: concurrency - len(active)]
                del waiting[: len(batch)]
                started, failed = self._start(batch, strict)
                active += started
                for run in [r for r in active if r.done] + failed:
                    result = self._finish(run)
                    results[run.index] = result
                    if on_result is not None:
                        on_result(result)
                active = [r for r in active if not r.done]
                self._serve(active)
        finally:
            for run in active:
                self.engine.release(list(run.live.values()))
        return [results[i] for i in range(len(problems))]

    # ------------------------------------------------------------ start and finish

    def _start(self, batch: list[tuple[int, Problem]], strict: bool) -> tuple[list[_Run], list[_Run]]:
        runs: list[_Run] = []
        failed: list[_Run] = []
        prompts: list[tuple[int, Problem, list[int]]] = []
        for index, problem in batch:
            try:
                tokens = self.template.tokens(problem.question, self.engine.tokenizer)
                prompts.append((index, problem, tokens))
            except InvalidInput as error:
                if strict:
                    raise
                failed.append(self._failed(index, problem, error))
        roots = self._roots(prompts, failed, strict)
        try:
            for (index, problem, _), root in zip(prompts, roots, strict=True):
                run = _Run(problem, index, root, self.search.run(root, self.end), time.perf_counter())
                self._record(run, root, None)
                run.advance(None)
                runs.append(run)
        except BaseException:
            self.engine.release(roots)
            raise
        return runs, failed

    def _roots(self, prompts: list[tuple[int, Problem, list[int]]], failed: list[_Run], strict: bool) -> list[Branch]:
        """A root for each prompt; a prompt that cannot be used leaves the list and becomes a failure."""
        try:
            return self.engine.roots([t for *_, t in prompts], seeds=[self._seed(p) for _, p, _ in prompts])
        except InvalidInput:
            roots: list[Branch] = []
        try:
            for index, problem, tokens in list(prompts):  # find out which
                try:
                    roots.append(self.engine.root(tokens, seed=self._seed(problem)))
                except InvalidInput as error:
                    if strict:
                        raise
                    failed.append(self._failed(index, problem, error))
                    prompts.remove((index, problem, tokens))
        except BaseException:
            self.engine.release(roots)
            raise
        return roots

    def _seed(self, problem: Problem) -> int:
        return random_key(self.seed, problem.id or problem.question)

    def _failed(self, index: int, problem: Problem, error: InvalidInput) -> _Run:
        nothing = Branch([], None, 0, Usage(), lambda tokens: "")

        def empty() -> Plan:
            return []
            yield

        return _Run(problem, index, nothing, empty(), time.perf_counter(), error=f"{type(error).__name__}: {error}")

    def _finish(self, run: _Run) -> Result:
        candidates = run.candidates
        if candidates is None:  # stopped: what is live, the root left out
            candidates = [b for b in run.live.values() if b is not run.root and b.generated]
        candidates = ranked(candidates)
        for branch in run.live.values():
            if branch is not run.root:
                run.nodes[id(branch)]["status"] = "finished" if branch.finished else "kept"
        best, answer = self.search.choose(candidates, self.extract)
        self.engine.release(list(run.live.values()))
        usage = replace(run.root.usage, wall_s=time.perf_counter() - run.started)
        tree = list(run.nodes.values())
        return Result(run.problem, best, candidates, answer, usage, tree, self.seed, run.error)

    # ------------------------------------------------------------ requests

    def _serve(self, active: list[_Run]) -> None:
        """Answer every pending request, equal kinds merged."""
        for run in active:
            if isinstance(run.request, Release):
                self._release(run, run.request.branches)
                run.advance(None)
        for run in active:
            if isinstance(run.request, Vary):
                self._vary(run, run.request)
        expands: dict[tuple[Any, ...], list[_Run]] = defaultdict(list)
        rates: dict[Aggregation, list[_Run]] = defaultdict(list)
        for run in active:
            if isinstance(run.request, Expand):
                if self._within_budget(run, run.request):
                    expands[run.request.step, run.request.sampling].append(run)
            elif isinstance(run.request, Rate):
                rates[run.request.aggregation].append(run)
        for group in expands.values():
            self._expand(group)
        for aggregation, group in rates.items():
            self._rate(group, aggregation)

    def _vary(self, run: _Run, request: Vary) -> None:
        templates = [replace(self.template, instruction=p) for p in request.phrasings] or [self.template]
        question, tokenizer = run.problem.question, self.engine.tokenizer
        own = [template.tokens(question, tokenizer) for template in templates]
        hints = [self.engine.encode(hint) for hint in request.hints] or [[]]
        prompts = [own[i % len(own)] for i in range(request.n)]
        suffixes = [hints[i % len(hints)] for i in range(request.n)]
        try:
            branches = self.engine.variants(run.root, prompts, suffixes)
        except InvalidInput as error:
            run.stop(f"{type(error).__name__}: {error}")
            return
        for branch in branches:
            self._record(run, branch, run.root)
        run.advance(branches)

    def _within_budget(self, run: _Run, request: Expand) -> bool:
        spent = self._spent(run)
        wanted = spent + request.n * len(request.branches) * request.step.max_tokens
        run.calls += 1
        if self.max_calls is not None and run.calls > self.max_calls:
            run.stop(
                f"{BudgetExceeded.__name__}: the search asked for more than max_calls={self.max_calls} model calls"
            )
        elif self.max_tokens is not None and wanted > self.max_tokens:
            run.stop(
                f"{BudgetExceeded.__name__}: {spent} tokens are spent and the next step may take {wanted - spent}, "
                f"over max_tokens={self.max_tokens}"
            )
        return not run.done

    @staticmethod
    def _spent(run: _Run) -> int:
        return run.root.usage.generated_tokens + run.root.usage.verifier_tokens

    def _expand(self, runs: list[_Run]) -> None:
        step, sampling = runs[0].request.step, runs[0].request.sampling  # type: ignore[union-attr]
        families: list[list[Branch]] = []
        for run in runs:
            children: list[Branch] = []
            for branch in run.request.branches:  # type: ignore[union-attr]
                for child in self.engine.fork(branch, run.request.n):  # type: ignore[union-attr]
                    self._record(run, child, branch)
                    children.append(child)
            families.append(children)
        stop = (step.delimiter,) if step.delimiter else ()
        everyone = [child for children in families for child in children]
        self.engine.generate(everyone, step.max_tokens, stop=stop, end=step.end, sampling=sampling)
        for run, children in zip(runs, families, strict=True):
            for child in children:
                run.nodes[id(child)] |= {"text": child.steps[-1], "tokens": len(child.generated)}
            run.advance(children)

    def _rate(self, runs: list[_Run], aggregation: Aggregation) -> None:
        before = [replace(run.root.usage) for run in runs]
        scores: list[list[float]] = []
        try:
            scores = self._scores(runs)
        except VerifierError as failure:
            if len(runs) == 1:
                runs[0].stop(f"{VerifierError.__name__}: {failure}")
                return
            for run, usage in zip(runs, before, strict=True):  # one must not stop the others: ask for each alone
                vars(run.root.usage).update(vars(usage))  # nor must they pay for the attempt
                try:
                    scores += self._scores([run])
                except VerifierError as error:
                    run.stop(f"{VerifierError.__name__}: {error}")
        for run in runs:
            if run.done:
                continue
            answer = []
            mine, scores = scores[: (n := len(run.request.branches))], scores[n:]  # type: ignore[union-attr]
            if aggregation == "product" and min(map(min, mine), default=0.0) < 0:
                run.stop(
                    f"{VerifierError.__name__}: {type(self.verifier).__name__} gives scores below zero, and their "
                    "product would rank by how many there are; use aggregation=mean, min or last"
                )
                continue
            for branch, step_scores in zip(run.request.branches, mine, strict=True):  # type: ignore[union-attr]
                branch.step_scores = step_scores
                branch.score = aggregate(step_scores, aggregation)
                run.nodes[id(branch)] |= {"score": branch.score, "step_scores": branch.step_scores}
                answer.append(branch.score)
            spent = self._spent(run)
            if self.max_tokens is not None and spent > self.max_tokens:
                run.stop(f"{BudgetExceeded.__name__}: {spent} tokens are spent, over max_tokens={self.max_tokens}")
            else:
                run.advance(answer)

    def _scores(self, runs: list[_Run]) -> list[list[float]]:
        pairs = [(b, run.problem.question) for run in runs for b in run.request.branches]  # type: ignore[union-attr]
        if self.verifier is None:
            raise VerifierError(f"{type(self.search).__name__} asked for scores, and there is no verifier")
        name = type(self.verifier).__name__
        try:
            found = self.verifier.rate([b for b, _ in pairs], [q for _, q in pairs], self.engine)
            scores = [[float(score) for score in steps] for steps in found]
        except Exception as error:
            raise VerifierError(f"{name} raised {type(error).__name__}: {error}") from error
        if len(scores) != len(pairs) or not all(scores):
            raise VerifierError(f"{name} returned {sum(map(bool, scores))} ratings for {len(pairs)} branches")
        for steps in scores:
            if not all(map(math.isfinite, steps)):
                raise VerifierError(f"{name} returned the score {steps}; scores must be finite")
        return scores

    def _release(self, run: _Run, branches: Sequence[Branch]) -> None:
        for branch in branches:
            if run.live.pop(id(branch), None) is not None and branch is not run.root:
                node = run.nodes[id(branch)]
                node["status"] = "expanded" if node["id"] in run.expanded else "pruned"
        self.engine.release(branches)

    @staticmethod
    def _record(run: _Run, branch: Branch, parent: Branch | None) -> None:
        run.live[id(branch)] = branch
        above = None if parent is None else run.nodes[id(parent)]["id"]
        if above is not None:
            run.expanded.add(above)
        run.nodes[id(branch)] = {
            "id": len(run.nodes),
            "parent": above,
            "path": list(branch.path),
            "text": "",
            "tokens": 0,
            "score": None,
            "step_scores": [],
            "status": "root" if parent is None else "kept",
        }
        run.everyone.append(branch)


def aggregate(step_scores: Sequence[float], how: Aggregation) -> float:
    """One score from a branch's step scores: the smallest, the product, the last or the mean."""
    if how == "min":
        return min(step_scores)
    if how == "product":
        return math.prod(step_scores)
    if how == "mean":
        return sum(step_scores) / len(step_scores)
    return step_scores[-1]
