"""Process reward models whose scores are read at a mark: which texts they read, and what of their
outputs rates a step."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

from torch import Tensor

from ttc.checks import NonEmptyText, Options, check_is, check_kind
from ttc.errors import UnsupportedModel
from ttc.text.chat import is_token
from verifiers.reward_model import MARK as CUT
from verifiers.reward_model import RewardModel

ReadAt = Literal["mark", "before", "after"]
OFFSETS: Mapping[ReadAt, int] = {"mark": -1, "before": -2, "after": -1}
"""Where a score is read, from the end of a text that ends with a mark, or with what follows it."""


@dataclass(eq=False)
class Format(Options):
    """What a model reads of a question and steps, and where it says how good a step is.

    mark: one token, put after each step.
    good, bad: what the two verdicts are: tokens, by their texts, or the numbers of a head's
        outputs. A step's score is the share of the good ones among both; with no bad ones their
        probability among all tokens, or the sigmoid of a head's one output.
    template: a text with `{question}` and then `{steps}` in it, and `{bos}` for the token that
        begins a sequence, if the tokenizer does not put it there; or the messages of a chat, whose
        contents hold these two.
    step: how each step is written, with `{step}` and then `{mark}` in it. What stands before
        `{step}` may hold `{number}`, and is left out of a step that has it already.
    read: the place of a step's score: "mark", what the model says after the mark; "before", what it
        would have said in its place; "after", at the end of what follows the mark in `step`.
    turns: each step is a message of its own, the first one in the place of `{steps}` in the last
        message of `template`, and the mark is the assistant's answer to it.
    apart: question, steps and marks become tokens one by one, and not as a whole text.
    instead: stands for a mark that the model itself wrote, unless it is read "before".
    """

    mark: NonEmptyText
    good: Any = ("+",)
    bad: Any = ("-",)
    template: Any = "{question}\n{steps}"
    step: str = "{step}{mark}"
    read: ReadAt = "mark"
    turns: bool = False
    apart: bool = False
    instead: str = " "

    def __post_init__(self) -> None:
        self.good, self.bad = _labels("good", self.good), _labels("bad", self.bad)
        check_kind("template", self.template, bool(self.contents), "a text or a list of messages")
        super().__post_init__()

    def refusals(self) -> Mapping[str, object]:
        whole = "\0".join(self.contents)
        labels = [*self.good, *self.bad]
        named = f"good={list(self.good)} and bad={list(self.bad)}"
        return {
            f"template={self.template!r:.80} must hold {{question}} once and then {{steps}} once, "
            "where they go": not _in_order(whole, "{question}", "{steps}"),
            f"step={self.step!r} must hold {{step}} once and then {{mark}} once, and {{number}} "
            "before them alone": not _in_order(self.step, "{step}", "{mark}")
            or "{number}" in self.step.partition("{step}")[2],
            f"mark={self.mark!r} is what would stand for it within a step (instead="
            f"{self.instead!r}); give another": self.mark in self.instead,
            "good names no token; give one at least": not self.good,
            f"{named} must name different tokens": len(set(labels)) < len(labels),
            f"{named} must all be texts of tokens, or all numbers of a head's outputs": len(
                set(map(type, labels))
            )
            > 1,
            f"{named} must name each output of the head, from 0 on; without bad ones there is "
            "one": self.of_head
            and (sorted(labels) != list(range(len(labels))) or not (self.bad or len(labels) == 1)),
            f"read=after, and nothing follows {{mark}} in step={self.step!r}; put it there, or "
            "use read=mark": self.read == "after" and not self.after,
            "turns=true needs a chat as template, whose last message is the user's and ends with "
            "{steps}, and a step that ends with {mark}": self.turns and not self._takes_turns,
        }

    @property
    def messages(self) -> list[Mapping[str, str]]:
        return [] if isinstance(self.template, str) else list(self.template)

    @property
    def contents(self) -> list[str]:
        if isinstance(self.template, str):
            return [self.template]
        if not isinstance(self.template, Sequence):
            return []
        contents = [m.get("content") if isinstance(m, Mapping) else None for m in self.template]
        return [text for text in contents if isinstance(text, str)] if all(contents) else []

    @property
    def _takes_turns(self) -> bool:
        last = self.messages[-1] if self.messages else {}
        ends = last.get("role") == "user" and last["content"].endswith("{steps}")
        return ends and not self.after and not self.apart

    @property
    def of_head(self) -> bool:
        """Whether the verdicts are outputs of a head."""
        return isinstance(next(iter(self.good), ""), int)

    @property
    def after(self) -> str:
        return self.step.partition("{mark}")[2]

    def written(self, steps: Sequence[str]) -> list[str]:
        """Each step as it stands before its mark."""
        head, _, rest = self.step.partition("{mark}")[0].partition("{step}")
        if self.read != "before":
            steps = [self._unmarked(step) for step in steps]
        return [text + rest for text in numbered(steps, head)]

    def _unmarked(self, step: str) -> str:
        if self.mark not in step:
            return step
        while self.mark in step:  # what is left of two may be a third
            step = step.replace(self.mark, self.instead)
        return step.strip()


def _labels(name: str, labels: Any) -> tuple[str | int, ...]:
    labels = (labels,) if isinstance(labels, str | int) else labels
    check_is(name, labels, Sequence, "a list of tokens, as ['+']")
    for label in labels:
        fits = (isinstance(label, str) and label) or (type(label) is int and label >= 0)
        check_kind(f"{name}: {label!r}", label, bool(fits), "a token's text, or an output's number")
    return tuple(labels)


def _in_order(text: str, first: str, second: str) -> bool:
    return text.count(first) == text.count(second) == 1 and text.index(first) < text.index(second)


def numbered(steps: Sequence[str], head: str = "Step {number}: ") -> list[str]:
    """Steps with a number before each that has none."""
    begins = re.compile(re.escape(head.rstrip()).replace(r"\{number\}", r"\d+"))
    has_number = "{number}" in head
    return [
        step if has_number and begins.match(step) else head.replace("{number}", str(number)) + step
        for number, step in enumerate(steps, start=1)
    ]


@dataclass(eq=False)
class MarkedSteps(RewardModel):
    """A reward model that is one `Format`. published: that of a built-in one."""

    published: ClassVar[Format]

    @property
    def format(self) -> Format:
        return self.published

    @property
    def has_head(self) -> bool:
        return self.format.of_head

    @property
    def offset(self) -> int:
        return OFFSETS[self.format.read] - self._turn_end

    @cached_property
    def _turn_end(self) -> int:
        """The tokens that the chat template writes after a mark that is a turn of its own."""
        if not self.format.turns:
            return 0
        return len(self._tokens("?", ["1"])) - len(self._tokens("?", ["1"], to_mark=True))

    def check_tokenizer(self) -> None:
        form = self.format
        self.single(form.mark, "mark")
        for name, labels in (("good", form.good), ("bad", form.bad)):
            for label in labels:
                if isinstance(label, str):
                    self.single(label, name)
        if "{bos}" in form.contents[0] and getattr(self.tokenizer, "bos_token", None) is None:
            raise UnsupportedModel(
                f"the tokenizer has no bos_token, with which {type(self).__name__}'s texts begin; "
                "give the model's"
            )
        self.closed("?", ["1", "x."])

    @cached_property
    def _bare(self) -> bool:
        """Whether the mark has no blank before it in a text, and the tokenizer another token for it
        alone, before which it puts one, as SentencePiece does."""
        alone, bare = self.single(self.format.mark), self._named(self.format.mark)
        if self.format.apart or bare == alone:
            return False
        tokens = self._tokens("?", ["1"])
        return self._ends(tokens, bare) and not self._ends(tokens, alone)

    def _named(self, text: str) -> int:
        """The token that has this name in the vocabulary, -1 for none."""
        if not is_token(text, self.tokenizer):
            return -1
        number: int = self.tokenizer.convert_tokens_to_ids(text)
        return number

    @cached_property
    def _mark(self) -> int:
        mark = self.format.mark
        return self._named(mark) if self._bare else self.single(mark)

    @cached_property
    def places(self) -> list[int]:
        """The numbers of the verdicts among the model's outputs, the good ones first."""
        form = self.format
        bare = form.read == "before" and self._bare

        def place(label: str | int) -> int:
            if isinstance(label, int):
                return label
            named = self._named(label) if bare else -1
            return self.single(label) if named < 0 else named

        return [place(label) for label in (*form.good, *form.bad)]

    def _ends(self, tokens: Sequence[int], mark: int) -> bool:
        """Whether a text ends with the mark, or what follows it."""
        if self.format.read == "after":
            return mark in tokens
        return len(tokens) > self._turn_end and tokens[-1 - self._turn_end] == mark

    def closed(self, question: str, steps: Sequence[str]) -> list[int]:
        form = self.format
        tokens = self._tokens(question, steps)
        if self._ends(tokens, self._mark) and tokens.count(self._mark) >= len(steps):
            return tokens
        if len(steps) == 1 and not steps[0] and not form.turns:  # nothing is written yet
            after = self.encode(form.after) if form.read == "after" else []
            return [*self.opened(question, steps), self._mark, *after]
        raise UnsupportedModel(
            f"the tokenizer joins the mark {form.mark!r} with what stands before it, or the chat "
            f"template leaves it out, so that {type(self).__name__} cannot read a score there; "
            "give the reward model's own tokenizer and format, or apart=true"
        )

    def opened(self, question: str, steps: Sequence[str]) -> list[int]:
        return self._tokens(question, [*steps[:-1], steps[-1] + CUT])

    def score(self, output: Tensor) -> float:
        form, places, width = self.format, self.places, output.numel()
        name = type(self).__name__
        if form.of_head and width != len(places):
            raise UnsupportedModel(
                f"the head gives {width} numbers, and {name} reads {len(places)}; give the model "
                "that it is for"
            )
        if max(places) >= width:
            raise UnsupportedModel(
                f"the model gives {width} numbers, and {name} reads number {max(places)}; give the "
                "tokenizer and the language model that belong together"
            )
        values = output.float()
        if form.of_head and not form.bad:
            return float(values.sigmoid()[places[0]])
        if form.bad:
            return float(values[places].softmax(-1)[: len(form.good)].sum())
        return float(values.softmax(-1)[places].sum())

    # ---------------------------------------------------------------- text and tokens

    def _tokens(self, question: str, steps: Sequence[str], *, to_mark: bool = False) -> list[int]:
        """The tokens up to CUT, or to the last step's mark, or what follows that where it is read.
        to_mark: without the end of a turn that is a mark."""
        form, written = self.format, self.format.written(steps)
        after = form.after if form.read == "after" else ""
        if not form.apart:
            *earlier, last = written
            end = "" if CUT in last else form.mark + after
            before = "".join(text + form.mark + form.after for text in earlier)
            whole = [before + last + end + CUT]
            return self._encoded(question, written if form.turns else whole, to_mark)
        tokens = self._encoded(question, [CUT])
        mark, between = self._mark, self.encode(form.after)
        for place, text in enumerate(written):
            tokens = [*tokens, *(between if place else ()), *self.encode(text.partition(CUT)[0])]
            if CUT not in text:
                tokens.append(mark)
        return [*tokens, *self.encode(after)] if CUT not in written[-1] else tokens

    def _encoded(self, question: str, texts: Sequence[str], to_mark: bool = False) -> list[int]:
        """The tokens of the template up to CUT. texts: the first one is in the place of the steps;
        each further one is a turn."""
        form = self.format

        def filled(text: str, content: str) -> str:
            before, here, rest = text.partition("{steps}")
            before = before.replace("{question}", question)
            return before + content + rest if here else before

        if isinstance(form.template, str):
            bos = getattr(self.tokenizer, "bos_token", None) or ""
            text = filled(form.template.replace("{bos}", bos), texts[0])
            text = text.partition(CUT)[0]
            return list(self.encode(text)) if form.apart else self.whole(text)
        chat = [{**m, "content": filled(m["content"], texts[0])} for m in form.messages]
        verdict = {"role": "assistant", "content": form.mark}
        for text in texts[1:]:
            chat += [verdict, {"role": "user", "content": text}]
        if form.turns:
            chat.append({**verdict, "content": form.mark + CUT if to_mark else form.mark})
        return self.templated(self.chat(chat))


@dataclass(eq=False)
class TokenPRM(Format, MarkedSteps):
    """The share of the good tokens among good and bad ones, at a mark after each step, by a reward
    model of your own.

    mark, good, bad, template, step, read, turns, apart, instead: see `Format`. As they stand here
    they are those of OpenRLHF's PRM trainer. The built-in process reward models are formats like
    this: `MathShepherd`, `QwenPRM`, `RLHFlowPRM` and `SkyworkPRM`.
    Raises InvalidInput for a template or a step without its places, and UnsupportedModel at loading
    for a mark or a good or bad token that is not one token of the vocabulary.

    Rates: each step: P(good) at a mark, by a reward model of your own.
    Cost: the new tokens.
    Use it where: the model rates by tokens, or by a head, and no other verifier has its format.
    """

    model: Any = "???"
    mark: NonEmptyText = "ки"
    step: str = "{step} {mark}\n"

    @property
    def format(self) -> Format:
        return self
