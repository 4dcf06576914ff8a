"""A search as a model of Inspect, under names that begin with `ttc/`; Inspect finds it by its entry
point."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from threading import Lock
from typing import Any

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from inspect_ai._util.error import PrerequisiteError
from inspect_ai.log._samples import sample_active
from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessage,
    ChatMessageAssistant,
    Content,
    ContentReasoning,
    ContentText,
    GenerateConfig,
    ModelAPI,
    ModelOutput,
    ModelUsage,
    StopReason,
    modelapi,
)
from inspect_ai.tool import ToolChoice, ToolInfo
from rich.markup import escape

from experiments.integrations.solver import AnswerOptions, Solver, Verbatim
from ttc.errors import InvalidInput, TTCError, refuse, refusing
from ttc.results import Problem, Result

SAMPLING = ("temperature", "top_p", "top_k")
UNUSED = (
    "best_of",
    "frequency_penalty",
    "presence_penalty",
    "logit_bias",
    "num_choices",
    "logprobs",
    "response_schema",
)
"""What a task may ask of a model's answer, and a search does not have."""
READ = ("text", "reasoning")
"""Parts of a message that may come. A chat template is given the text alone: thoughts of earlier
turns are left out."""
CONNECTIONS = 64
"""Requests that wait side by side, unless Inspect is told another number (`--max-connections`)."""
GATHER_S = 0.05
"""How long the first of several requests waits for those that come with it."""
STOPPED: dict[str | None, StopReason] = {"eos": "stop", "end": "stop", "context": "model_length"}


class Refused(InvalidInput, PrerequisiteError):
    """Settings that can't be used, told by Inspect in a line, without a traceback."""

    def __init__(self, message: str):
        super().__init__(message)
        self.message = escape(message)


@modelapi(name="ttc")
class SearchModel(ModelAPI):
    """`ttc/MODEL`: a model by alias, folder or hub id, asked through a search.

    model_args: settings by the names of `experiments.run`, as {"search": "best_of_n", "search.n":
    8, "verifier": "arithmetic"}; greedy without any. base_url: a server that runs the model instead
    (`backend=openai`).

    `max_tokens` and a temperature above 0 are the task's where the search does not set them. A
    sample is seeded by `run.seed`, Inspect's seed, the sample, the epoch, and how often it asked
    the same before. Requests that wait at the same time are solved together.
    """

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig = GenerateConfig(),  # noqa: B008  as the base class has it
        **model_args: Any,
    ):
        super().__init__(model_name, base_url, api_key, [], config)
        server = {} if base_url is None else {"backend": "openai", "backend.base_url": base_url}
        with refusing(TTCError, "{error}", Refused):
            self.solver = Solver.of({"model.name": model_name, **server, **model_args})
        self.tokenizer = self.solver.backend.tokenizer
        self.together = CallBatcher(self._solve)
        self.repeats: Counter[tuple[Any, ...]] = Counter()
        self.limiter: CapacityLimiter | None = None

    def max_connections(self) -> int:
        return CONNECTIONS

    async def generate(
        self,
        input: list[ChatMessage],
        tools: list[ToolInfo],
        tool_choice: ToolChoice,
        config: GenerateConfig,
    ) -> ModelOutput:
        refuse(
            {
                **{
                    f"a search calls no tools, and the task offers {tool.name}; use a model "
                    "without ttc/": True
                    for tool in tools
                },
                **{
                    f"{name}={getattr(config, name)} means nothing to a search; leave it out": (
                        getattr(config, name) not in (None, False)
                    )
                    for name in UNUSED
                },
            }
        )
        request = self._problem(input, config), _options(config)
        if self.limiter is None:
            self.limiter = CapacityLimiter(config.max_connections or CONNECTIONS)
        result = await run_sync(self.together, request, limiter=self.limiter)
        return self._output(result)

    def _problem(self, messages: Sequence[ChatMessage], config: GenerateConfig) -> Problem:
        prompt = self.prompt(messages)
        active = sample_active()
        sample = (None, None) if active is None else (active.sample.id, active.epoch)
        about = (*sample, config.seed)
        self.repeats[*about, prompt] += 1
        return Problem(prompt, repr((*about, prompt, self.repeats[*about, prompt])))

    def prompt(self, messages: Sequence[ChatMessage]) -> str:
        """The messages through the model's chat template; as plain texts where it has none."""
        for message in messages:
            blocks = () if isinstance(message.content, str) else message.content
            if any(block.type not in READ for block in blocks):
                raise InvalidInput("a message holds more than text; searches read text alone")
        if getattr(self.tokenizer, "chat_template", None) is None:
            return "\n\n".join(message.text for message in messages)
        begun = messages[-1].role == "assistant"
        return str(
            self.tokenizer.apply_chat_template(
                [{"role": message.role, "content": message.text} for message in messages],
                tokenize=False,
                add_generation_prompt=not begun,
                continue_final_message=begun,
            )
        )

    def _solve(self, requests: Sequence[tuple[Problem, AnswerOptions]]) -> list[Result]:
        results: dict[str, Result] = {}
        template = Verbatim(chat_turns=getattr(self.tokenizer, "chat_template", None) is not None)
        for chosen in dict.fromkeys(chosen for _, chosen in requests):
            problems = [problem for problem, options in requests if options == chosen]
            results |= {
                result.problem.id: result
                for result in self.solver.solve(problems, template, chosen)
            }
        return [results[problem.id] for problem, _ in requests]

    def _output(self, result: Result) -> ModelOutput:
        if result.error is not None:
            raise TTCError(result.error)
        best, usage = result.best, result.usage
        content: str | list[Content] = ""
        if best is not None and best.thought:
            content = [
                ContentReasoning(reasoning=best.thought),
                ContentText(text=best.answer_text or ""),
            ]
        elif best is not None and best.answer_text != best.text:  # an empty thought
            content = best.answer_text or ""
        elif best is not None:
            content = self.tokenizer.decode(best.generated, skip_special_tokens=True)
        ended = STOPPED.get(None if best is None else best.finish_reason, "max_tokens")
        message = ChatMessageAssistant(content=content, model=self.model_name, source="generate")
        return ModelOutput(
            model=self.model_name,
            choices=[ChatCompletionChoice(message=message, stop_reason=ended)],
            usage=ModelUsage(
                input_tokens=usage.prompt_tokens,
                input_tokens_cache_read=usage.shared_tokens,
                output_tokens=usage.generated_tokens,
                total_tokens=usage.prompt_tokens + usage.shared_tokens + usage.generated_tokens,
            ),
            time=usage.wall_s,
            metadata={
                "answer": result.answer,
                "score": None if best is None else best.score,
                "branches": len(result.branches),
                "usage": usage.to_dict(),
            },
        )


class CallBatcher:
    """Calls from many threads, answered in batches: who comes first works for all who wait by
    then."""

    def __init__(self, work: Callable[[list[Any]], Sequence[Any]]):
        self.work = work
        self.turn = Lock()
        self.guard = Lock()
        self.waiting: list[tuple[Any, Future[Any]]] = []

    def __call__(self, request: Any) -> Any:
        future: Future[Any] = Future()
        with self.guard:
            self.waiting.append((request, future))
        with self.turn:
            if not future.done():
                time.sleep(GATHER_S)
                with self.guard:
                    batch, self.waiting = self.waiting, []
                self._answer(batch)
        return future.result()

    def _answer(self, batch: list[tuple[Any, Future[Any]]]) -> None:
        try:
            answers = self.work([request for request, _ in batch])
        except BaseException as error:
            for _, future in batch:
                future.set_exception(error)
        else:
            for (_, future), answer in zip(batch, answers, strict=True):
                future.set_result(answer)


def _options(config: GenerateConfig) -> AnswerOptions:
    settings = [
        (name, getattr(config, name)) for name in SAMPLING if getattr(config, name) is not None
    ]
    sampling = tuple(settings) if config.temperature else ()
    return AnswerOptions(config.max_tokens, tuple(config.stop_seqs or ()), sampling)
