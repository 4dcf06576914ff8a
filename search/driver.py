"""The driver: advances the searches of many problems together, each as soon as its own request is answered.

All branches decode in one batch. A search whose branches have ended their step goes on (is rated, lets branches go,
expands others) while those of other problems decode, and new problems begin as soon as there is room. Problems may be
added and cancelled at any time, and each has a configuration of its own; its result depends on nothing else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from search.active_search import ActiveSearch, Chat, steps_of
from search.admission import Admission
from search.config import SearchConfig
from search.rating import aggregate
from ttc.errors import BranchRefused, InvalidInput, RemoteError, VerifierError
from ttc.protocols import Aggregation, Append, Backend, Expand, Problem, Rate, Release, Vary
from ttc.results import Did, Progress, Result
from ttc.tree.branch import Branch
from ttc.tree.segment import common_prefix

Events = Generator[tuple[int, Progress], None, None]
"""What happened, each with the number of its problem."""


class Given(NamedTuple):
    """What an `Append` puts after the first `keep` tokens of a branch."""

    keep: int
    tokens: list[int]


class Family(NamedTuple):
    """The children of one `Append`, and the tokens that each is given."""

    active: ActiveSearch
    request: Append
    children: list[Branch]
    tokens: list[list[int]]


Report = Callable[[ActiveSearch, Did, Sequence[Branch]], None]


@dataclass
class Driver:
    """Answers the requests of searches. One per call of `solve`, `solve_each` or `stream`, and one per server.

    strict: a problem that cannot be used raises, rather than having a result that says so. contained: so it is with an
        error that a search raises, which else ends all.
    waiting: the problems that have not begun, by their numbers. active: those that have.
    decoding: the branches whose step is under way, and the problem of each.
    """

    engine: Backend
    admission: Admission
    strict: bool = False
    contained: bool = False
    waiting: dict[int, tuple[Problem, SearchConfig]] = field(default_factory=dict)
    active: dict[int, ActiveSearch] = field(default_factory=dict)
    decoding: dict[Branch, ActiveSearch] = field(default_factory=dict)
    added: int = 0

    def add(self, problem: Problem, config: SearchConfig) -> int:
        """Let a problem begin as soon as there is room. Returns its number: how many were added before."""
        self.waiting[self.added] = problem, config
        self.added += 1
        return self.added - 1

    def cancel(self, index: int) -> None:
        """Let go of a problem, waiting or under way, and of all that it holds. Nothing more is said of it."""
        self.waiting.pop(index, None)
        if (active := self.active.pop(index, None)) is not None:
            for child in active.growing:
                self.decoding.pop(child, None)
            self.admission.forget(active.growing)
            try:
                active.steps.close()
            finally:
                self._release([active])

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
            yield from self._finish(self._done())  # what others have come to is not lost
            raise
        finally:
            self.close()

    def step(self) -> Events:
        """Give the results of searches that have ended; then answer the requests of those who don't decode. Where there
        are none, new problems begin; where none can, all branches that decode get a token."""
        yield from self._finish(self._done())
        busy = set(self.decoding.values())
        if resting := [active for active in self.active.values() if active not in busy]:
            yield from self._serve(resting)
        elif count := self.admission.count(len(self.active), len(self.waiting)):
            yield from self._start(list(self.waiting)[:count])
        else:
            yield from self.decode()

    def close(self) -> None:
        """Break off whatever is under way, and free all of it."""
        self.decoding.clear()
        self.waiting.clear()
        try:
            self.admission.batch.close()
        finally:
            searches = list(self.active.values())
            self.active.clear()
            self._release(searches)

    # ------------------------------------------------------------ start and finish

    def _done(self) -> list[ActiveSearch]:
        return [active for active in self.active.values() if active.done]

    def _finish(self, ended: Sequence[ActiveSearch]) -> Events:
        """The results of searches that have ended; a search may first spend its reserve."""
        for active in ended:
            active.close()
            if active.done:
                result = active.result()
                self._release([active])
                del self.active[active.index]
                self.admission.note_end()
                yield active.index, active.progress("finished", result=result)

    def _start(self, indices: Sequence[int]) -> list[tuple[int, Progress]]:
        """Let these problems begin, and say why those fail whose prompts cannot be used."""
        failed = list[tuple[int, Progress]]()
        prompts: dict[int, list[int]] = {}
        batch = {index: self.waiting.pop(index) for index in indices}
        for index, (problem, config) in batch.items():
            try:
                prompts[index] = config.template.tokens(problem.question, self.engine.tokenizer)
            except InvalidInput as error:
                if self.strict:
                    raise
                failed.append((index, _failure(problem, config, error)))
        roots = self._roots(batch, prompts, failed)
        try:
            for index, root in roots.items():
                problem, config = batch[index]
                case = config.case(problem)
                steps = steps_of(config.search, root, case)
                active = ActiveSearch(problem, index, root, case, steps, config, contained=self.contained)
                active.record(root, None)
                active.begin_turn(root, Chat(config.template, (), len(root.tokens)), self.engine.tokenizer)
                active.advance(None)
                self.active[index] = active
        except BaseException:
            self.engine.release([root for index, root in roots.items() if index not in self.active])
            raise
        return failed

    def _roots(
        self,
        batch: Mapping[int, tuple[Problem, SearchConfig]],
        prompts: dict[int, list[int]],
        failed: list[tuple[int, Progress]],
    ) -> dict[int, Branch]:
        """A root for each prompt; a prompt that cannot be used becomes a failure."""
        seeds = {index: batch[index][1].seed_of(batch[index][0]) for index in prompts}  # of usable text alone
        try:
            roots = self.engine.roots(list(prompts.values()), seeds=[seeds[index] for index in prompts])
            return dict(zip(prompts, roots, strict=True))
        except InvalidInput:
            usable: dict[int, Branch] = {}
        try:
            for index, tokens in prompts.items():  # one by one, to say which cannot be used
                try:
                    usable[index] = self.engine.root(tokens, seed=seeds[index])
                except InvalidInput as error:
                    if self.strict:
                        raise
                    failed.append((index, _failure(*batch[index], error)))
        except BaseException:
            self.engine.release(list(usable.values()))
            raise
        return usable

    def _release(self, searches: Sequence[ActiveSearch]) -> None:
        """Free what these problems still hold; the engine first, whatever the verifiers do."""
        retired = {active: active.retire(list(active.live)) for active in searches}
        self.engine.release([branch for branches in retired.values() for branch in branches])
        for active, branches in retired.items():
            active.config.rater.released(branches)

    # ------------------------------------------------------------ requests

    def _serve(self, resting: list[ActiveSearch]) -> list[tuple[int, Progress]]:
        """Answer the requests of those who don't decode, equal kinds merged, and say what was done."""
        done: list[tuple[int, Progress]] = []

        def report(active: ActiveSearch, did: Did, branches: Sequence[Branch]) -> None:
            done.append((active.index, active.progress(did, branches)))

        for active in resting:
            while isinstance(active.request, Release):
                branches = active.released(active.request.branches)
                self.engine.release(branches)
                active.config.rater.released(branches)
                active.advance(None)
        pending = [(active, active.request) for active in resting]
        for active, request in pending:
            if isinstance(request, Vary):
                self._vary(active, request, report)
        self._append([(active, request) for active, request in pending if isinstance(request, Append)], report)
        rates: dict[tuple[int, Aggregation], list[tuple[ActiveSearch, Rate]]] = defaultdict(list)
        for active, request in pending:
            if isinstance(request, Expand):
                self._expand(active, request)
            elif isinstance(request, Rate):
                rates[id(active.config.rater.verifier), request.aggregation].append((active, request))
        for (_, aggregation), rated in rates.items():
            self._rate(rated, aggregation, report)
        return done

    def _vary(self, active: ActiveSearch, request: Vary, report: Report) -> None:
        template = active.config.template
        templates = [replace(template, instruction=phrasing) for phrasing in request.phrasings] or [template]
        question, tokenizer = active.problem.question, self.engine.tokenizer
        phrased = [template.tokens(question, tokenizer) for template in templates]
        hints = [self.engine.encode(hint) for hint in request.hints] or [[]]
        prompts = [phrased[i % len(phrased)] for i in range(request.n)]
        suffixes = [hints[i % len(hints)] for i in range(request.n)]
        try:
            branches = self.engine.variants(request.root, prompts, suffixes)
        except InvalidInput as error:
            active.fail(f"{type(error).__name__}: {error}")
            return
        for place, branch in enumerate(branches):
            active.record(branch, request.root)
            start = len(branch.tokens) - len(suffixes[place])
            active.begin_turn(branch, Chat(templates[place % len(templates)], (), start), tokenizer)
        report(active, "prompted", branches)
        active.advance(branches)

    def _append(self, requests: Sequence[tuple[ActiveSearch, Append]], report: Report) -> None:
        """Children with the given text, all problems' in one pass where none of them is refused."""
        families: list[Family] = []
        for active, request in requests:
            try:
                texts = request.texts()
                given = [
                    self._given(active, branch, text, request)
                    for branch, text in zip(request.branches, texts, strict=True)
                ]
            except InvalidInput as error:
                active.refuse(error)
                continue
            families.append(self._forked(active, request, given))
        for active, request, children, tokens in self._extended(families):
            for child, text, added in zip(children, request.texts(), tokens, strict=True):
                if request.turn:
                    template, said, _ = active.chats[child]
                    chat = Chat(template, (*said, text), len(child.tokens))
                    active.begin_turn(child, chat, self.engine.tokenizer)
                active.wrote(child, self.engine.decode(added))
            report(active, "appended", children)
            active.advance(children)

    def _forked(self, active: ActiveSearch, request: Append, given: Sequence[Given]) -> Family:
        """A child of each branch, ready for its text. given: what `_given` says of each branch."""
        children = []
        for branch, (keep, _) in zip(request.branches, given, strict=True):
            dropped, ended = len(branch.tokens) - keep, branch.finish_reason == "eos"
            differs = request.turn and dropped > ended  # the whole chat begins otherwise
            (child,) = self.engine.fork(branch, 1, keep) if differs else self.engine.fork(branch, 1)
            children.append(active.record(child, branch))
            child.reopen(0 if differs else dropped)
            if request.turn:
                template, said, _ = active.chats[branch]
                active.chats[child] = Chat(template, (*said, self._answer(active, branch)), keep)
                child.begin_answer()
            if request.ends_thinking:
                child.thinking_ended = len(child.tokens)
        return Family(active, request, children, [tokens for _, tokens in given])

    def _extended(self, families: Sequence[Family]) -> list[Family]:
        """The families whose children have their texts. Where not all can have it, each is tried by itself."""
        if not families:
            return []
        try:
            self._extend(families)
            return list(families)
        except InvalidInput:
            extended: list[Family] = []
        for family in families:
            try:
                self._extend([family])
                extended.append(family)
            except InvalidInput as error:
                self.engine.release(family.active.retire(family.children))
                family.active.refuse(error)
        return extended

    def _extend(self, families: Sequence[Family]) -> None:
        children = [child for family in families for child in family.children]
        tokens = [given for family in families for given in family.tokens]
        self.engine.extend(children, tokens, purpose="prompt")

    def _given(self, active: ActiveSearch, branch: Branch, text: str, request: Append) -> Given:
        """How many tokens of a branch stay before a text, and the text's tokens."""
        if request.turn:
            return self._next_turn(active, branch, text)
        given, eos = self.engine.encode(text), branch.finish_reason == "eos"
        if not request.drop or not self._drops(branch, request.drop):
            return Given(len(branch.tokens) - eos, given)
        return Given(len(branch.tokens) - 1, given)

    def _drops(self, branch: Branch, drop: str) -> bool:
        """Whether the last token of a branch holds the text that is to give way, and nothing else."""
        eos, generated = branch.finish_reason == "eos", branch.generated
        if not eos and generated and generated[-1:] == self.engine.encode(drop):
            return True
        words = self.engine.decode(generated[:-1] if eos else generated)
        if not words.endswith(drop):
            return False
        if eos or self.engine.decode(generated[:-1]).rstrip() != words.removesuffix(drop).rstrip():
            raise InvalidInput(
                f"drop={drop!r} is more than the last token of {branch!r}, and no other can be taken back; "
                "leave it out, or let steps end with it"
            )
        return True

    def _next_turn(self, active: ActiveSearch, branch: Branch, words: str) -> Given:
        """The tokens of a branch that the prompt with the user's next words begins with, and the rest of that."""
        template, said, _ = active.chats[branch]
        before = branch.tokens[: len(branch.tokens) - (branch.finish_reason == "eos")]
        said, question = (*said, self._answer(active, branch)), active.problem.question
        prompt = template.next_prompt(words, self.engine.tokenizer, question, said, before)
        keep = min(common_prefix(before, prompt), len(prompt) - 1)
        return Given(keep, prompt[keep:])

    def _answer(self, active: ActiveSearch, branch: Branch) -> str:
        """The model's last answer as a message of a chat: all that follows the prompt, without an end of sequence.

        Where the marks of thoughts are special tokens, which no message holds, it is what follows the thought."""
        start, thoughts = active.chats[branch].start, branch.thoughts
        tokens = branch.tokens[start : len(branch.tokens) - (branch.finish_reason == "eos")]
        if thoughts is not None and thoughts.hidden:
            answer = thoughts.split(tokens, branch.thinks_at(start, thoughts)).answer
            return self.engine.decode(tokens) if answer is None else answer
        return self.engine.decode(tokens)

    def _expand(self, active: ActiveSearch, request: Expand) -> None:
        """Let the next children that the budget pays for decode their step."""
        if not active.waiting:
            active.advance([])
            return
        step = request.step
        kept = len(active.live) - 1
        self.admission.note_expansion(len(active.waiting), len(active.root.tokens), step.max_tokens, kept)
        count, max_tokens = active.next_part(self._price(active))
        if count:
            children = []
            for parent in active.waiting[:count]:
                (child,) = self.engine.fork(parent, 1)
                children.append(active.record(child, parent))
            active.growing = children
            self.decoding.update(dict.fromkeys(children, active))
            self.admission.batch.add(children, replace(step, max_tokens=max_tokens), request.sampling)
        elif active.made:
            active.cut_short()
        else:
            active.run_out()

    def decode(self) -> list[tuple[int, Progress]]:
        """The next token of all that decode. A search goes on once all of its children have ended their step."""
        done: list[tuple[int, Progress]] = []
        try:
            ended = self.admission.batch.step()
        except BranchRefused as refusal:
            self._refuse(refusal)
            return done
        for active in dict.fromkeys(self.decoding.pop(child) for child in ended):
            if any(child in self.decoding for child in active.growing):
                continue
            children, active.growing = active.growing, []
            for child in children:
                child.leave_out(active.config.stops)
                active.wrote(child, child.steps[-1])
            del active.waiting[: len(children)]
            active.made += children
            done.append((active.index, active.progress("expanded", children)))
            if not active.waiting:
                active.advance(active.made)
        return done

    def _refuse(self, refusal: BranchRefused) -> None:
        """End the problem of a branch that a server refuses; the others go on."""
        active = self.decoding[refusal.branch]
        for child in active.growing:
            self.decoding.pop(child, None)
        active.fail(f"{RemoteError.__name__}: {refusal}")

    def _price(self, active: ActiveSearch) -> int:
        """What rating the next child costs, as far as its parent shows."""
        if active.tokens_left is None or active.closing is not None:
            return 0
        return active.config.rater.price([active.waiting[0]], active.problem.question, self.engine)

    def _rate(self, requests: Sequence[tuple[ActiveSearch, Rate]], aggregation: Aggregation, report: Report) -> None:
        paid: list[tuple[ActiveSearch, Rate]] = []
        for active, request in requests:
            question, free, rater = active.problem.question, active.tokens_left is None, active.config.rater
            if active.pays(0 if free else rater.price(request.branches, question, self.engine)):
                paid.append((active, request))
            else:
                active.run_out()
        for (active, request), scores in zip(paid, self._scores(paid), strict=True):
            try:
                if isinstance(scores, VerifierError):
                    raise scores
                if aggregation == "product":
                    active.config.rater.check_product(scores)
                for branch, step_scores in zip(request.branches, scores, strict=True):
                    branch.step_scores = step_scores
                    branch.score = aggregate(step_scores, aggregation)
                    active.rated(branch)
                report(active, "rated", request.branches)
                active.advance([branch.score for branch in request.branches])
            except VerifierError as error:  # a search may say so too, of ratings that it cannot use
                active.fail(f"{VerifierError.__name__}: {error}")

    def _scores(self, requests: Sequence[tuple[ActiveSearch, Rate]]) -> list[list[list[float]] | VerifierError]:
        """The step scores of each problem's branches, or why there are none; all have one verifier. One problem does
        not stop the others."""
        pairs = [(branch, active.problem.question) for active, request in requests for branch in request.branches]
        before = [replace(active.root.usage) for active, _ in requests]
        try:
            branches, questions = [branch for branch, _ in pairs], [question for _, question in pairs]
            scores = requests[0][0].config.rater.scores(branches, questions, self.engine) if pairs else []
        except VerifierError as failure:
            if len(requests) == 1:
                return [failure]
            for (active, _), usage in zip(requests, before, strict=True):
                vars(active.root.usage).update(vars(usage))  # nor do the others pay for the attempt
            return [self._scores([request])[0] for request in requests]
        remaining = iter(scores)
        return [[next(remaining) for _ in request.branches] for _, request in requests]


def _failure(problem: Problem, config: SearchConfig, error: InvalidInput) -> Progress:
    result = Result.failed(problem, f"{type(error).__name__}: {error}", config.options.seed)
    return Progress(problem, 0, "finished", [], result.usage, result)
