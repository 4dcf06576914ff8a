"""The driver: advances the searches of many problems together, each as soon as its own request is answered.

All branches decode in one batch. A search whose branches have ended their step goes on (is rated, lets branches go,
expands others) while those of other problems decode, and new problems begin as soon as there is room.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from search.base import Case, Search
from search.batching import Room
from search.options import as_strings, check_parts, check_reading, statistics_option
from search.rating import Rater, aggregate
from search.run import Budget, Run, steps_of
from ttc.errors import InvalidInput, VerifierError
from ttc.protocols import Aggregation, Append, Backend, Batch, Expand, Extract, Problem, Rate, Release, Vary, Verifier
from ttc.results import Did, Progress, Result
from ttc.sampling import random_key
from ttc.text.answers import extract_answer
from ttc.text.prompt import PromptTemplate
from ttc.tree.branch import Branch


def __getattr__(name: str) -> Any:
    if name == "solve":
        warnings.warn("search.driver.solve is now search.solve", DeprecationWarning, stacklevel=2)
        return import_module("search.solving").solve
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


Events = Generator[tuple[int, Progress], None, None]
"""What happened, each with the place of its problem in the list."""

Tell = Callable[[Run, Did, Sequence[Branch]], None]


@dataclass
class Driver:
    """Answers the requests of searches. One per call of `solve`, `solve_each` or `stream`.

    decoding: the branches whose step is under way, and the problem of each.
    """

    search: Search
    engine: Backend
    rater: Rater
    seed: int
    template: PromptTemplate
    extract: Extract
    end: tuple[str, ...]
    budget: Budget
    decoding: dict[Branch, Run] = field(default_factory=dict)

    @classmethod
    def make(
        cls,
        search: Search,
        engine: Backend,
        *,
        verifier: Verifier | None = None,
        seed: int = 0,
        template: PromptTemplate | None = None,
        answer_kind: str = "number",
        extract: Extract | None = None,
        end: Sequence[str] = (),
        max_tokens: int | None = None,
        max_generated_tokens: int | None = None,
        max_calls: int | None = None,
        max_wall_s: float | None = None,
        reserve: int = 0,
        final_text: str = "",
    ) -> Driver:
        check_parts(search, engine, verifier)
        check_reading(template, extract, answer_kind, seed)
        budget = Budget(max_tokens, max_generated_tokens, max_calls, max_wall_s, reserve, final_text)
        extract_answer("", answer_kind)  # refuses an unknown kind before any work
        extract = extract or partial(extract_answer, kind=answer_kind)
        return cls(
            search, engine, Rater(verifier), seed, template or PromptTemplate(), extract, as_strings("end", end), budget
        )

    def events(
        self, problems: list[Problem], concurrency: int | None, strict: bool, watched: bool, max_rows: int | None = None
    ) -> Events:
        """Solve the problems, and give what was done after each of their requests.

        concurrency, max_rows: see `Room`. watched: whether anyone wants more than the results.
        """
        room = Room.of(self.engine, concurrency, max_rows)
        waiting, active = list(enumerate(problems)), list[Run]()
        try:
            while waiting or active:
                yield from self._finish(active, room)
                busy = set(self.decoding.values())
                if resting := [run for run in active if run not in busy]:
                    done = self._serve(resting, room)
                elif count := room.problems(len(active), len(waiting)):
                    started, done = self._start(waiting[:count], strict)
                    del waiting[:count]
                    active += started
                else:
                    done = self._decode(room.batch)
                yield from (event for event in done if watched or event[1].result is not None)
        except Exception:
            yield from self._finish([run for run in active if run.done], room)  # what the others have found is not lost
            raise
        finally:
            self.decoding.clear()
            try:
                room.batch.close()
            finally:
                self._let_go(active)

    # ------------------------------------------------------------ start and finish

    def _finish(self, active: list[Run], room: Room) -> Events:
        """The results of searches that have ended; a search may first spend its reserve."""
        for run in [r for r in active if r.done]:
            run.close(self.search)
            if run.done:
                result = run.result(self.search)
                self._let_go([run])
                active.remove(run)
                room.ended()
                yield run.index, run.progress("finished", result=result)

    def _start(self, batch: list[tuple[int, Problem]], strict: bool) -> tuple[list[Run], list[tuple[int, Progress]]]:
        """The problems whose prompts can be used, on their way, and what there is to say of the others."""
        runs, failed = list[Run](), list[tuple[int, Progress]]()
        prompts: list[tuple[int, Problem, list[int]]] = []
        for index, problem in batch:
            try:
                tokens = self.template.tokens(problem.question, self.engine.tokenizer)
                prompts.append((index, problem, tokens))
            except InvalidInput as error:
                if strict:
                    raise
                failed.append((index, self._failed(problem, error)))
        roots = self._roots(prompts, failed, strict)
        try:
            for (index, problem, _), root in zip(prompts, roots, strict=True):
                rng = np.random.default_rng(random_key(self._seed(problem), "search"))
                case = Case(problem.question, self.end, self.extract, rng)
                run = Run(problem, index, root, case, steps_of(self.search, root, case), self.budget, self.seed)
                run.record(root, None)
                run.advance(None)
                runs.append(run)
        except BaseException:
            self.engine.release(roots)
            raise
        return runs, failed

    def _roots(
        self, prompts: list[tuple[int, Problem, list[int]]], failed: list[tuple[int, Progress]], strict: bool
    ) -> list[Branch]:
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
                    failed.append((index, self._failed(problem, error)))
                    prompts.remove((index, problem, tokens))
        except BaseException:
            self.engine.release(roots)
            raise
        return roots

    def _seed(self, problem: Problem) -> int:
        return random_key(self.seed, problem.id or problem.question)

    def _failed(self, problem: Problem, error: InvalidInput) -> Progress:
        result = Result.failed(problem, f"{type(error).__name__}: {error}", self.seed)
        return Progress(problem, 0, "finished", [], result.usage, result)

    def _let_go(self, runs: Sequence[Run]) -> None:
        """Free what these problems still hold; the engine first, whatever the verifier does."""
        lost = [branch for run in runs for branch in run.let_go(list(run.live))]
        self.engine.release(lost)
        self.rater.released(lost)

    # ------------------------------------------------------------ requests

    def _serve(self, resting: list[Run], room: Room) -> list[tuple[int, Progress]]:
        """Answer the requests of those who don't decode, equal kinds merged, and say what was done."""
        done: list[tuple[int, Progress]] = []

        def tell(run: Run, did: Did, branches: Sequence[Branch]) -> None:
            done.append((run.index, run.progress(did, branches)))

        for run in resting:
            while isinstance(run.request, Release):
                lost = run.let_go(run.request.branches)
                self.engine.release(lost)
                self.rater.released(lost)
                run.advance(None)
        pending = [(run, run.request) for run in resting]
        for run, request in pending:
            if isinstance(request, Vary):
                self._vary(run, request, tell)
        self._append([(run, request) for run, request in pending if isinstance(request, Append)], tell)
        rates: dict[Aggregation, list[tuple[Run, Rate]]] = defaultdict(list)
        for run, request in pending:
            if isinstance(request, Expand):
                self._expand(run, request, room)
            elif isinstance(request, Rate):
                rates[request.aggregation].append((run, request))
        for aggregation, rated in rates.items():
            self._rate(rated, aggregation, tell)
        return done

    def _vary(self, run: Run, request: Vary, tell: Tell) -> None:
        templates = [replace(self.template, instruction=p) for p in request.phrasings] or [self.template]
        question, tokenizer = run.problem.question, self.engine.tokenizer
        own = [template.tokens(question, tokenizer) for template in templates]
        hints = [self.engine.encode(hint) for hint in request.hints] or [[]]
        prompts = [own[i % len(own)] for i in range(request.n)]
        suffixes = [hints[i % len(hints)] for i in range(request.n)]
        try:
            branches = self.engine.variants(request.root, prompts, suffixes)
        except InvalidInput as error:
            run.fail(f"{type(error).__name__}: {error}")
            return
        for branch in branches:
            run.record(branch, request.root)
        tell(run, "prompted", branches)
        run.advance(branches)

    def _append(self, requests: Sequence[tuple[Run, Append]], tell: Tell) -> None:
        """Children with the given text, all problems' in one pass where none of them is refused."""
        families: list[tuple[Run, list[Branch], list[list[int]]]] = []
        for run, request in requests:
            run.check_live(request.branches, "appended to")
            try:
                texts = [
                    self._given(branch, text, request)
                    for branch, text in zip(request.branches, request.texts(), strict=True)
                ]
            except InvalidInput as error:
                run.refuse(error)
                continue
            children = []
            for branch, (dropped, _) in zip(request.branches, texts, strict=True):
                (child,) = self.engine.fork(branch, 1)
                children.append(run.record(child, branch))
                child.reopen(dropped)
                if request.turn:
                    child.begin_answer()
            families.append((run, children, [tokens for _, tokens in texts]))
        if not families:
            return
        try:
            self._extend(families)
        except InvalidInput:
            for family in list(families):  # find out which
                run, children, _ = family
                try:
                    self._extend([family])
                except InvalidInput as error:
                    families.remove(family)
                    self.engine.release(run.let_go(children))
                    run.refuse(error)
        for run, children, tokens in families:
            for child, given in zip(children, tokens, strict=True):
                run.wrote(child, self.engine.decode(given))
            tell(run, "appended", children)
            run.advance(children)

    def _extend(self, families: Sequence[tuple[Run, list[Branch], list[list[int]]]]) -> None:
        children = [child for _, children, _ in families for child in children]
        self.engine.extend(children, [given for *_, tokens in families for given in tokens], purpose="prompt")

    def _given(self, branch: Branch, text: str, request: Append) -> tuple[int, list[int]]:
        """How many last tokens of a branch give way to a text, and the text's tokens."""
        eos, own = branch.finish_reason == "eos", branch.generated
        if request.turn:
            return int(eos), self.engine.encode(self.template.next_turn(text, self.engine.tokenizer))
        given = self.engine.encode(text)
        if not request.drop:
            return int(eos), given
        if not eos and own and own[-1:] == self.engine.encode(request.drop):
            return 1, given
        words = self.engine.decode(own[:-1] if eos else own)
        if not words.endswith(request.drop):
            return int(eos), given
        if eos or self.engine.decode(own[:-1]).rstrip() != words.removesuffix(request.drop).rstrip():
            raise InvalidInput(
                f"drop={request.drop!r} is more than the last token of {branch!r}, and no other can be taken back; "
                "leave it out, or let steps end with it"
            )
        return 1, given

    def _expand(self, run: Run, request: Expand, room: Room) -> None:
        """Let the next children that the budget pays for decode their step."""
        if not run.waiting:
            run.advance([])
            return
        step = request.step
        room.asked(len(run.waiting), len(run.root.tokens), step.max_tokens, len(run.live) - 1)
        count, limit = run.next_part(self._price(run))
        if count:
            children = []
            for parent in run.waiting[:count]:
                (child,) = self.engine.fork(parent, 1)
                children.append(run.record(child, parent))
            run.growing = children
            self.decoding.update(dict.fromkeys(children, run))
            stop, more = (step.delimiter,) if step.delimiter else (), statistics_option(self.engine, step)
            room.batch.add(children, limit, stop=stop, end=step.end, sampling=request.sampling, **more)
        elif run.made:  # the search goes on with fewer
            run.stopped = "budget"
            run.advance(run.made)
        else:
            run.run_out()

    def _decode(self, batch: Batch) -> list[tuple[int, Progress]]:
        """The next token of all that decode. A search goes on once all of its children have ended their step."""
        done: list[tuple[int, Progress]] = []
        for run in dict.fromkeys(self.decoding.pop(child) for child in batch.step()):
            if any(child in self.decoding for child in run.growing):
                continue
            children, run.growing = run.growing, []
            for child in children:
                run.wrote(child, child.steps[-1])
            del run.waiting[: len(children)]
            run.made += children
            done.append((run.index, run.progress("expanded", children)))
            if not run.waiting:
                run.advance(run.made)
        return done

    def _price(self, run: Run) -> int:
        """What rating the next child costs, as far as its parent shows."""
        if run.tokens_left is None or run.closing is not None:
            return 0
        return self.rater.price([run.waiting[0]], run.problem.question, self.engine)

    def _rate(self, requests: Sequence[tuple[Run, Rate]], aggregation: Aggregation, tell: Tell) -> None:
        paid: list[tuple[Run, Rate]] = []
        for run, request in requests:
            run.check_live(request.branches, "rated")
            question, free = run.problem.question, run.tokens_left is None
            if run.pays(0 if free else self.rater.price(request.branches, question, self.engine)):
                paid.append((run, request))
            else:
                run.run_out()
        for (run, request), scores in zip(paid, self._scores(paid), strict=True):
            try:
                if isinstance(scores, VerifierError):
                    raise scores
                if aggregation == "product":
                    self.rater.check_product(scores)
                for branch, step_scores in zip(request.branches, scores, strict=True):
                    branch.step_scores = step_scores
                    branch.score = aggregate(step_scores, aggregation)
                    run.rated(branch)
                tell(run, "rated", request.branches)
                run.advance([branch.score for branch in request.branches])
            except VerifierError as error:  # a search may say so too, of ratings that it cannot use
                run.fail(f"{VerifierError.__name__}: {error}")

    def _scores(self, requests: Sequence[tuple[Run, Rate]]) -> list[list[list[float]] | VerifierError]:
        """The step scores of each problem's branches, or why there are none. One problem does not stop the others."""
        pairs = [(branch, run.problem.question) for run, request in requests for branch in request.branches]
        before = [replace(run.root.usage) for run, _ in requests]
        try:
            scores = self.rater.scores([b for b, _ in pairs], [q for _, q in pairs], self.engine) if pairs else []
        except VerifierError as failure:
            if len(requests) == 1:
                return [failure]
            for (run, _), usage in zip(requests, before, strict=True):
                vars(run.root.usage).update(vars(usage))  # nor do the others pay for the attempt
            return [self._scores([request])[0] for request in requests]
        found = iter(scores)
        return [[next(found) for _ in request.branches] for _, request in requests]
