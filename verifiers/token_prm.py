"""Process reward models whose scores are read at a mark: which texts they read, and what of their
outputs rates a step."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar, Literal

from torch import Tensor

from ttc.checks import NonEmptyText, Options, check_is, check_kind
from ttc.errors import UnsupportedModel
from verifiers.reward_model import MARK as CUT
from verifiers.reward_model import RewardModel

ReadAt = Literal["mark", "before", "after"]
OFFSETS: Mapping[ReadAt, int] = {"mark": -1, "before": -2, "after": -1}
"""Where a score is read, from the end of a text that ends with a mark, or with what follows it."""


@dataclass(frozen=True)
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
    instead: stands for a mark within a step, unless it is read "before".
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
        for name in ("good", "bad"):
            object.__setattr__(self, name, _labels(name, getattr(self, name)))
        check_kind("template", self.template, bool(self.contents), "a text or a list of messages")
        super().__post_init__()

    def refusals(self) -> Mapping[str, object]:
        whole = "\0".join(self.contents)
        labels = [*self.good, *self.bad]
        named = f"good={list(self.good)} and bad={list(self.bad)}"
        return {
            f"template={self.template!r:.80} must hold {{question}} once and then {{steps}} once, "
            "where they go": not _in_order(whole, "{question}", "{steps}"),
            f"step={self.step!r} must hold {{step}} once and then {{mark}} once": not _in_order(
                self.step, "{step}", "{mark}"
            ),
            "good names no token; give one at least": not self.good,
            f"{named} must name different tokens": len(set(labels)) < len(labels),
            f"{named} must all be texts of tokens, or all numbers of a head's outputs": len(
                set(map(type, labels))
            )
            > 1,
            f"{named} must name each output of the head, from 0 on; without bad ones there is "
            "one": self.headed
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
        found = [m.get("content") if isinstance(m, Mapping) else None for m in self.template]
        return [text for text in found if isinstance(text, str)] if all(found) else []

    @property
    def _takes_turns(self) -> bool:
        last = self.messages[-1] if self.messages else {}
        ends = last.get("role") == "user" and last["content"].endswith("{steps}")
        return ends and not self.after and not self.apart

    @property
    def headed(self) -> bool:
        return isinstance(next(iter(self.good), ""), int)

    @property
    def after(self) -> str:
        return self.step.partition("{mark}")[2]

    def written(self, steps: Sequence[str]) -> list[str]:
        """Each step as it stands before its mark."""
        head, _, rest = self.step.partition("{mark}")[0].partition("{step}")
        if self.read != "before":
            steps = [step.replace(self.mark, self.instead) for step in steps]
        return [text + rest for text in numbered(steps, head)]


def _labels(name: str, given: Any) -> tuple[str | int, ...]:
    given = (given,) if isinstance(given, str | int) else given
    check_is(name, given, Sequence, "a list of tokens, as ['+']")
    for label in given:
        fits = (isinstance(label, str) and label) or (type(label) is int and label >= 0)
        check_kind(f"{name}: {label!r}", label, bool(fits), "a token's text, or an output's number")
    return tuple(given)


def _in_order(text: str, first: str, second: str) -> bool:
    return text.count(first) == text.count(second) == 1 and text.index(first) < text.index(second)


def numbered(steps: Sequence[str], head: str = "Step {number}: ") -> list[str]:
    """Steps with a number before each that has none."""
    begins = re.compile(re.escape(head.rstrip()).replace(r"\{number\}", r"\d+"))
    known = "{number}" in head
    return [
        step if known and begins.match(step) else head.replace("{number}", str(number)) + step
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
        return self.format.headed

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
        for name, labels in (("mark", (form.mark,)), ("good", form.good), ("bad", form.bad)):
            for label in labels:
                if isinstance(label, str):
                    self.single(label, name)
        if "{bos}" in form.contents[0] and getattr(self.tokenizer, "bos_token", None) is None:
            raise UnsupportedModel(
                f"the tokenizer has no bos_token, with which {type(self).__name__}'s texts begin; "
                "give the model's"
            )
        self.closed("?", ["1"])

    def closed(self, question: str, steps: Sequence[str]) -> list[int]:
        tokens, mark = self._tokens(question, steps), self.single(self.format.mark)
        last = tokens[len(tokens) - 1 - self._turn_end :][:1]
        ends = last == [mark] or self.format.read == "after"
        if not ends or tokens.count(mark) < len(steps):
            raise UnsupportedModel(
                f"the tokenizer joins the mark {self.format.mark!r} with what stands before it, or "
                f"the chat template leaves it out, so that {type(self).__name__} cannot read a "
                "score there; give the reward model's own tokenizer and format"
            )
        return tokens

    def opened(self, question: str, steps: Sequence[str]) -> list[int]:
        return self._tokens(question, [*steps[:-1], steps[-1] + CUT])

    def score(self, output: Tensor) -> float:
        form = self.format
        labels = [*form.good, *form.bad]
        if form.headed and output.numel() != len(labels):
            raise UnsupportedModel(
                f"the head gives {output.numel()} numbers, and {type(self).__name__} reads "
                f"{len(labels)}; give the model that it is for"
            )
        places = [self.single(label) if isinstance(label, str) else label for label in labels]
        values = output.float()
        if form.headed and not form.bad:
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
        mark, between = self.single(form.mark), self.encode(form.after)
        for place, text in enumerate(written):
            tokens = [*tokens, *(between if place else ()), *self.encode(text.partition(CUT)[0])]
            if CUT not in text:
                tokens.append(mark)
        return [*tokens, *self.encode(after)] if CUT not in written[-1] else tokens

    def _encoded(self, question: str, texts: Sequence[str], to_mark: bool = False) -> list[int]:
        """The tokens of the template up to CUT. texts: the first one is in the place of the steps;
        each further one is a turn."""
        form = self.format

        def filled(text: str, said: str) -> str:
            before, here, rest = text.partition("{steps}")
            before = before.replace("{question}", question)
            return before + said + rest if here else before

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
class TokenPRM(MarkedSteps):
    """The share of the good tokens among good and bad ones, at a mark after each step, by a reward
    model of your own.

    mark, good, bad, template, step, read, turns, apart: see `Format`. As they stand here they are
    those of OpenRLHF's PRM trainer. The built-in process reward models are formats like this:
    `MathShepherd`, `QwenPRM`, `RLHFlowPRM` and `SkyworkPRM`.
    Raises InvalidInput for a template or a step without its places, and UnsupportedModel at loading
    for a mark or a good or bad token that is not one token of the vocabulary.

    Rates: each step: P(good) at a mark, by a reward model of your own.
    Cost: the new tokens.
    Use it where: the model rates by tokens, or by a head, and no other verifier has its format.
    """

    model: Any = "???"
    mark: NonEmptyText = "ки"
    good: Any = ("+",)
    bad: Any = ("-",)
    template: Any = "{question}\n{steps}"
    step: str = "{step} {mark}\n"
    read: ReadAt = "mark"
    turns: bool = False
    apart: bool = False

    _own: Format = field(init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        given = [one.name for one in fields(Format) if hasattr(self, one.name)]
        self._own = Format(**{name: getattr(self, name) for name in given})

    @property
    def format(self) -> Format:
        return self._own
