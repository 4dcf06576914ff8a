"""The driver: advances the searches of many problems together, each as soon as its own request is answered.

All branches decode in one batch. A search whose branches have ended their step goes on (is rated, lets branches go,
expands others) while those of other problems decode, and new problems begin as soon as there is room. Problems may be
added and cancelled at any time, and each has a recipe of its own; its result depends on nothing else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from search.batching import Room
from search.options import statistics_option
from search.rating import aggregate
from search.recipe import Recipe
from search.run import Run, steps_of
from ttc.errors import BranchRefused, InvalidInput, RemoteError, VerifierError
from ttc.protocols import Aggregation, Append, Backend, Expand, Problem, Rate, Release, Vary
from ttc.results import Did, Progress, Result
from ttc.tree.branch import Branch

Events = Generator[tuple[int, Progress], None, None]
"""What happened, each with the number of its problem."""

Tell = Callable[[Run, Did, Sequence[Branch]], None]


@dataclass
class Driver:
    """Answers the requests of searches. One per call of `solve`, `solve_each` or `stream`, and one per server.

    strict: a problem that cannot be used raises, rather than having a result that says so. contained: so it is with an
        error that a search raises, which else ends all.
    waiting: the problems that have not begun, by their numbers. active: those that have.
    decoding: the branches whose step is under way, and the problem of each.
    """

    engine: Backend
    room: Room
    strict: bool = False
    contained: bool = False
    waiting: dict[int, tuple[Problem, Recipe]] = field(default_factory=dict)
    active: dict[int, Run] = field(default_factory=dict)
    decoding: dict[Branch, Run] = field(default_factory=dict)
    added: int = 0

    def add(self, problem: Problem, recipe: Recipe) -> int:
        """Let a problem begin as soon as there is room. Returns its number: how many were added before."""
        self.waiting[self.added] = problem, recipe
        self.added += 1
        return self.added - 1

    def cancel(self, index: int) -> None:
        """Let go of a problem, waiting or under way, and of all that it holds. Nothing more is said of it."""
        self.waiting.pop(index, None)
        if (run := self.active.pop(index, None)) is not None:
            for child in run.growing:
                self.decoding.pop(child, None)
            self.room.forget(run.growing)
            try:
                run.steps.close()
            finally:
                self._let_go([run])

    @property
    def busy(self) -> bool:
        """Whether there is anything left to do."""
        return bool(self.waiting or self.active)

    def events(self) -> Events:
        """Do all that there is to do, then close."""
        try:
            while self.busy:
                yield from self.step()
        except Exception:
            yield from self._finish([run for run in self.active.values() if run.done])  # what others found is not lost
            raise
        finally:
            self.close()

    def step(self) -> Events:
        """Give the results of searches that have ended; then answer the requests of those who don't decode. Where there
        are none, new problems begin; where none can, all branches that decode get a token."""
        yield from self._finish([run for run in self.active.values() if run.done])
        busy = set(self.decoding.values())
        if resting := [run for run in self.active.values() if run not in busy]:
            yield from self._serve(resting)
        elif count := self.room.problems(len(self.active), len(self.waiting)):
            yield from self._start(list(self.waiting)[:count])
        else:
            yield from self._decode()

    def close(self) -> None:
        """Break off whatever is under way, and free all of it."""
        self.decoding.clear()
        self.waiting.clear()
        try:
            self.room.batch.close()
        finally:
            runs = list(self.active.values())
            self.active.clear()
            self._let_go(runs)

    # ------------------------------------------------------------ start and finish

    def _finish(self, ended: Sequence[Run]) -> Events:
        """The results of searches that have ended; a search may first spend its reserve."""
        for run in ended:
            run.close()
            if run.done:
                result = run.result()
                self._let_go([run])
                del self.active[run.index]
                self.room.ended()
                yield run.index, run.progress("finished", result=result)

    def _start(self, indices: Sequence[int]) -> list[tuple[int, Progress]]:
        """Let these problems begin, and say why those fail whose prompts cannot be used."""
        failed = list[tuple[int, Progress]]()
        prompts: dict[int, list[int]] = {}
        batch = {index: self.waiting.pop(index) for index in indices}
        for index, (problem, recipe) in batch.items():
            try:
                prompts[index] = recipe.template.tokens(problem.question, self.engine.tokenizer)
            except InvalidInput as error:
                if self.strict:
                    raise
                failed.append((index, _failure(problem, recipe, error)))
        roots = self._roots(batch, prompts, failed)
        try:
            for index, root in roots.items():
                problem, recipe = batch[index]
                root.thoughts = recipe.thoughts
                case = recipe.case(problem)
                run = Run(
                    problem, index, root, case, steps_of(recipe.search, root, case), recipe, contained=self.contained
                )
                run.record(root, None)
                run.advance(None)
                self.active[index] = run
        except BaseException:
            self.engine.release([root for index, root in roots.items() if index not in self.active])
            raise
        return failed

    def _roots(
        self,
        batch: Mapping[int, tuple[Problem, Recipe]],
        prompts: dict[int, list[int]],
        failed: list[tuple[int, Progress]],
    ) -> dict[int, Branch]:
        """A root for each prompt; a prompt that cannot be used becomes a failure."""
        seeds = {index: batch[index][1].seed_of(batch[index][0]) for index in prompts}  # of usable text alone
        try:
            roots = self.engine.roots(list(prompts.values()), seeds=[seeds[index] for index in prompts])
            return dict(zip(prompts, roots, strict=True))
        except InvalidInput:
            found: dict[int, Branch] = {}
        try:
            for index, tokens in prompts.items():  # find out which
                try:
                    found[index] = self.engine.root(tokens, seed=seeds[index])
                except InvalidInput as error:
                    if self.strict:
                        raise
                    failed.append((index, _failure(*batch[index], error)))
        except BaseException:
            self.engine.release(list(found.values()))
            raise
        return found

    def _let_go(self, runs: Sequence[Run]) -> None:
        """Free what these problems still hold; the engine first, whatever the verifiers do."""
        lost = {run: run.let_go(list(run.live)) for run in runs}
        self.engine.release([branch for branches in lost.values() for branch in branches])
        for run, branches in lost.items():
            run.recipe.rater.released(branches)

    # ------------------------------------------------------------ requests

    def _serve(self, resting: list[Run]) -> list[tuple[int, Progress]]:
        """Answer the requests of those who don't decode, equal kinds merged, and say what was done."""
        done: list[tuple[int, Progress]] = []

        def tell(run: Run, did: Did, branches: Sequence[Branch]) -> None:
            done.append((run.index, run.progress(did, branches)))

        for run in resting:
            while isinstance(run.request, Release):
                lost = run.released(run.request.branches)
                self.engine.release(lost)
                run.recipe.rater.released(lost)
                run.advance(None)
        pending = [(run, run.request) for run in resting]
        for run, request in pending:
            if isinstance(request, Vary):
                self._vary(run, request, tell)
        self._append([(run, request) for run, request in pending if isinstance(request, Append)], tell)
        rates: dict[tuple[int, Aggregation], list[tuple[Run, Rate]]] = defaultdict(list)
        for run, request in pending:
            if isinstance(request, Expand):
                self._expand(run, request)
            elif isinstance(request, Rate):
                rates[id(run.recipe.rater.verifier), request.aggregation].append((run, request))
        for (_, aggregation), rated in rates.items():
            self._rate(rated, aggregation, tell)
        return done

    def _vary(self, run: Run, request: Vary, tell: Tell) -> None:
        usual = run.recipe.template
        templates = [replace(usual, instruction=p) for p in request.phrasings] or [usual]
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
            try:
                texts = [
                    self._given(run, branch, text, request)
                    for branch, text in zip(request.branches, request.texts(), strict=True)
                ]
            except InvalidInput as error:
                run.refuse(error)
                continue
            children = []
            for branch, words, (dropped, _) in zip(request.branches, request.texts(), texts, strict=True):
                (child,) = self.engine.fork(branch, 1)
                children.append(run.record(child, branch))
                if request.turn:
                    run.said[child] = (*self._said(run, branch), words)
                child.reopen(dropped)
                if request.turn:
                    child.begin_answer()
                if request.ends_thinking:
                    child.thinking_ended = len(child.tokens)
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

    def _given(self, run: Run, branch: Branch, text: str, request: Append) -> tuple[int, list[int]]:
        """How many last tokens of a branch give way to a text, and the text's tokens."""
        eos, own = branch.finish_reason == "eos", branch.generated
        if request.turn:
            before, said = branch.tokens[: len(branch.tokens) - eos], self._said(run, branch)
            template, question = run.recipe.template, run.problem.question
            return int(eos), template.next_turn_tokens(text, self.engine.tokenizer, question, said, before)
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

    def _said(self, run: Run, branch: Branch) -> tuple[str, ...]:
        """A branch's chat after the question, its answer last: all that it has written, without an end of sequence."""
        own = branch.generated[:-1] if branch.finish_reason == "eos" else branch.generated
        return (*run.said.get(branch, ()), self.engine.decode(own))

    def _expand(self, run: Run, request: Expand) -> None:
        """Let the next children that the budget pays for decode their step."""
        if not run.waiting:
            run.advance([])
            return
        step = request.step
        self.room.asked(len(run.waiting), len(run.root.tokens), step.max_tokens, len(run.live) - 1)
        count, limit = run.next_part(self._price(run))
        if count:
            children = []
            for parent in run.waiting[:count]:
                (child,) = self.engine.fork(parent, 1)
                children.append(run.record(child, parent))
            run.growing = children
            self.decoding.update(dict.fromkeys(children, run))
            stop, more = (step.delimiter,) if step.delimiter else (), statistics_option(self.engine, step)
            self.room.batch.add(children, limit, stop=stop, end=step.end, sampling=request.sampling, **more)
        elif run.made:
            run.cut_short()
        else:
            run.run_out()

    def _decode(self) -> list[tuple[int, Progress]]:
        """The next token of all that decode. A search goes on once all of its children have ended their step."""
        done: list[tuple[int, Progress]] = []
        try:
            ended = self.room.batch.step()
        except BranchRefused as refusal:
            self._refuse(refusal)
            return done
        for run in dict.fromkeys(self.decoding.pop(child) for child in ended):
            if any(child in self.decoding for child in run.growing):
                continue
            children, run.growing = run.growing, []
            for child in children:
                child.leave_out(run.recipe.stops)
                run.wrote(child, child.steps[-1])
            del run.waiting[: len(children)]
            run.made += children
            done.append((run.index, run.progress("expanded", children)))
            if not run.waiting:
                run.advance(run.made)
        return done

    def _refuse(self, refusal: BranchRefused) -> None:
        """End the problem of a branch that a server refuses; the others go on."""
        run = self.decoding[refusal.branch]
        for child in run.growing:
            self.decoding.pop(child, None)
        run.fail(f"{RemoteError.__name__}: {refusal}")

    def _price(self, run: Run) -> int:
        """What rating the next child costs, as far as its parent shows."""
        if run.tokens_left is None or run.closing is not None:
            return 0
        return run.recipe.rater.price([run.waiting[0]], run.problem.question, self.engine)

    def _rate(self, requests: Sequence[tuple[Run, Rate]], aggregation: Aggregation, tell: Tell) -> None:
        paid: list[tuple[Run, Rate]] = []
        for run, request in requests:
            question, free, rater = run.problem.question, run.tokens_left is None, run.recipe.rater
            if run.pays(0 if free else rater.price(request.branches, question, self.engine)):
                paid.append((run, request))
            else:
                run.run_out()
        for (run, request), scores in zip(paid, self._scores(paid), strict=True):
            try:
                if isinstance(scores, VerifierError):
                    raise scores
                if aggregation == "product":
                    run.recipe.rater.check_product(scores)
                for branch, step_scores in zip(request.branches, scores, strict=True):
                    branch.step_scores = step_scores
                    branch.score = aggregate(step_scores, aggregation)
                    run.rated(branch)
                tell(run, "rated", request.branches)
                run.advance([branch.score for branch in request.branches])
            except VerifierError as error:  # a search may say so too, of ratings that it cannot use
                run.fail(f"{VerifierError.__name__}: {error}")

    def _scores(self, requests: Sequence[tuple[Run, Rate]]) -> list[list[list[float]] | VerifierError]:
        """The step scores of each problem's branches, or why there are none; all have one verifier. One problem does
        not stop the others."""
        pairs = [(branch, run.problem.question) for run, request in requests for branch in request.branches]
        before = [replace(run.root.usage) for run, _ in requests]
        try:
            branches, questions = [branch for branch, _ in pairs], [question for _, question in pairs]
            scores = requests[0][0].recipe.rater.scores(branches, questions, self.engine) if pairs else []
        except VerifierError as failure:
            if len(requests) == 1:
                return [failure]
            for (run, _), usage in zip(requests, before, strict=True):
                vars(run.root.usage).update(vars(usage))  # nor do the others pay for the attempt
            return [self._scores([request])[0] for request in requests]
        found = iter(scores)
        return [[next(found) for _ in request.branches] for _, request in requests]


def _failure(problem: Problem, recipe: Recipe, error: InvalidInput) -> Progress:
    result = Result.failed(problem, f"{type(error).__name__}: {error}", recipe.seed)
    return Progress(problem, 0, "finished", [], result.usage, result)
