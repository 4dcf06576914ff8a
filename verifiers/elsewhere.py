"""A verifier whose model runs somewhere else: a small one writes here, a large one rates there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ttc.backend import Backend, check_needs
from ttc.branch import Branch
from ttc.checks import Options, check_is, check_kind
from ttc.passes.ratings import pass_by_pass, passes_of_rating
from ttc.protocols import Verifier, score_range
from ttc.task import Passes
from ttc.text.chat import following, has_template
from ttc.text.conversation import Conversation, Talk, last_words
from ttc.text.prompt import PromptTemplate


@dataclass(eq=False)
class Elsewhere(Options):
    """Rates branches by a verifier that asks the model of another backend, a server's for example.

    verifier: one that works on a branch, as `SelfVerifier`. backend: of the model that it asks.
    template: the words around a question there.
    Each branch's question and text become a prompt in that model's tokens and under its chat
    template, which count as the verifier's.
    Raises InvalidInput where the backend lacks what the verifier needs.
    """

    verifier: Verifier
    backend: Backend
    template: PromptTemplate = field(default_factory=PromptTemplate)

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = callable(getattr(self.verifier, "rate", None))
        check_kind("verifier", self.verifier, fits, "a verifier, as SelfVerifier()")
        hint = "a backend, as ttc.RemoteBackend.connect(...)"
        check_is("backend", self.backend, Backend, hint)
        check_needs(self.verifier, self.backend)

    @property
    def score_range(self) -> tuple[float, float]:
        return score_range(self.verifier) or (0.0, 1.0)

    def _prompt(self, question: str) -> list[int]:
        template, tokenizer = self.template, self.backend.tokenizer
        if isinstance(question, Talk) and has_template(tokenizer):
            template = Conversation.of(question.messages, template)
            question = last_words(question)
        return template.tokens(question, tokenizer)

    @pass_by_pass
    def rate(
        self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend
    ) -> Passes[Sequence[Sequence[float]]]:
        tokenizer, there = self.backend.tokenizer, self.backend
        prompts = list(map(self._prompt, questions))
        texts = [following(b.text, tokenizer) if b.text else [] for b in branches]
        whole = [[*prompt, *text] for prompt, text in zip(prompts, texts, strict=True)]
        roots = yield from there.roots(whole, seeds=[0] * len(branches)).passes()
        lengths = [len(root.tokens) for root in roots]
        try:
            for root, branch, text in zip(roots, branches, texts, strict=True):
                root.count_as_written(len(text))
                root.about = branch.about
            scores: Sequence[Sequence[float]] = yield from passes_of_rating(
                self.verifier, roots, questions, there
            )
        finally:
            there.release(roots)
            for root, branch, read in zip(roots, branches, lengths, strict=True):
                spent = root.usage
                branch.usage.verifier_tokens += (
                    spent.prompt_tokens + spent.generated_tokens + spent.verifier_tokens
                )
                branch.usage.verifier_shared_tokens += (
                    read - 1 - spent.prompt_tokens + spent.verifier_shared_tokens
                )
        return scores
