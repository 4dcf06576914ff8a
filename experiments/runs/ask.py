"""The command `ttc "question"`: one question, the tree as it grows, the answer, and what it
cost."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from experiments.cli.choices import defaults
from experiments.cli.command import perform
from experiments.cli.output import say, show
from experiments.cli.package_check import check
from ttc.errors import number_of

if TYPE_CHECKING:
    from rich.console import Console

    from search.config import SearchConfig
    from ttc.backend import Backend
    from ttc.results import Progress, Result

PAUSE_S = 0.1
"""Seconds between two pictures of the tree."""

EXAMPLES = """\
Examples
  ttc "Tom has 3 boxes of 4 apples. He eats 2. How many are left?"
  ttc "What is 17 * 23?" --model Qwen/Qwen3-0.6B --search best_of_n --verifier self search.n=8
  ttc "Which is larger, 9.9 or 9.11?" --search self_consistency run.max_generated_tokens=2000

A question that says "how many" or the like, or has numbers to compute with or to choose from, asks
for a number: the model is then told to think step by step and to end with "The answer is N.".
Other questions are sent as they are. dataset.answer_kind=number, text, choice or math decides.

SETTING=VALUE is a setting of `python -m experiments.run`: of the search (search.beam_size=8), of
the prompt (dataset.instruction="{question}"), or a budget (run.max_generated_tokens=N).
"""


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    check()
    chosen = defaults()
    parser = argparse.ArgumentParser(
        prog="ttc",
        description="Ask a model one question, and watch a search find the answer.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("question", help="the whole of it, in quotes")
    parser.add_argument(
        "settings", nargs="*", default=[], metavar="SETTING=VALUE", help="as described below"
    )
    parser.add_argument("--model", help="alias, hub id, folder or .gguf file (smollm2-135m)")
    for group, default in (("search", chosen["search"]), ("verifier", chosen["verifier"])):
        parser.add_argument(f"--{group}", default=default, help=f"as in conf/{group} ({default})")
    parser.add_argument("--seed", type=int, default=0, help="fixes the answer (0)")
    arguments, others = parser.parse_known_intermixed_args(words)
    if others:
        from experiments.cli.settings import ASK_FLAGS
        from experiments.runs.flags import unknown_flag

        parser.error(unknown_flag(others[0].partition("=")[0], ASK_FLAGS))
    return arguments


def main() -> None:
    arguments = parsed()
    perform(lambda: ask(arguments), repr(arguments.question))


def ask(arguments: argparse.Namespace) -> int:
    """Answer one question. Returns the exit code: 1 where the search failed."""
    from hydra.utils import instantiate

    from experiments.runs.build import (
        check_backend,
        make_backend,
        make_template,
        make_verifier,
        resolved,
        solve_options,
    )
    from experiments.runs.grading import AnswerReading
    from experiments.runs.hydra_command import composed
    from experiments.runs.question_kind import question_kind
    from experiments.runs.screen import show_logged
    from search.config import SearchConfig
    from ttc.errors import InvalidInput
    from ttc.protocols import misfit

    for word in arguments.settings:
        if "=" not in word:
            raise InvalidInput(f"{word!r} is no SETTING=VALUE; put the whole question into quotes")
    show_logged()
    chosen = [f"search={arguments.search}", f"verifier={arguments.verifier}"]
    config = composed([*chosen, f"run.seed={arguments.seed}", *arguments.settings], "ask")
    if arguments.model is not None:
        config.model.name = arguments.model
    if not any(re.match(r"\+*dataset(\.answer_kind|\.extract)?=", s) for s in arguments.settings):
        config.dataset.answer_kind = question_kind(arguments.question)
    config = resolved(config)
    check_backend(config)
    search = instantiate(config.search, _convert_="all")
    verifier = make_verifier(config) if search.needs_verifier else None
    template = make_template(config)
    if added := template.instruction.replace("{question}", "").strip():
        say(f"beside the question the model is told: {added}")
    if (why := misfit(verifier, config.dataset.answer_kind)) is not None:
        say(why)
    backend = make_backend(config)
    try:
        options = solve_options(config, AnswerReading.of(config.dataset), verifier, template)
        result = watched(arguments.question, SearchConfig.of(search, backend, options), backend)
    finally:
        backend.close()
    show(outcome(result, backend))
    return int(result.error is not None)


def watched(
    question: str, config: SearchConfig, backend: Backend, console: Console | None = None
) -> Result:
    """The result of a search that is shown while it runs: a tree on a terminal, else plain
    lines."""
    from rich.console import Console
    from rich.live import Live

    from experiments.cli.tree_view import drawn, steps_of, steps_under_way
    from search.admission import ProblemAdmission
    from search.driver import Driver
    from ttc.results import Problem

    console = console or Console()
    driver = Driver(backend, ProblemAdmission.of(backend, 1), strict=True)
    last_s = 0.0
    result: Result | None = None
    number = driver.add(Problem(question), config)
    try:
        with Live(console=console, auto_refresh=False, transient=False) as live:
            while driver.busy:
                for _, progress in driver.step():
                    result = progress.result or result
                    if not console.is_terminal and progress.result is None:
                        console.print(line(progress), highlight=False, markup=False, soft_wrap=True)
                paused = time.monotonic() - last_s > PAUSE_S
                if console.is_terminal and paused and number in driver.active:
                    steps = steps_under_way(driver.active[number])
                    live.update(drawn(question, steps), refresh=True)
                    last_s = time.monotonic()
            assert result is not None
            live.update(drawn(question, steps_of(result)), refresh=True)
        if not console.is_terminal:
            console.line()
    finally:
        driver.close()
    return result


def line(progress: Progress) -> str:
    scores = [node.score for node in progress.nodes if node.score is not None]
    best = f", the best with {max(scores):.2f}" if progress.did == "rated" and scores else ""
    count, tokens = len(progress.nodes), progress.usage.generated_tokens
    written = number_of(tokens, "token")
    return f"{progress.did} {number_of(count, 'branch', 'branches')}{best}; {written} so far"


def outcome(result: Result, backend: Backend) -> str:
    from experiments.runs.screen import as_bytes

    usage = result.usage
    lines = [""]
    if result.error is not None:
        lines.append(f"error: {result.error}")
    if (best := result.best) is not None:  # marks that are special tokens would be lost in its text
        texts = [best.text]
        if best.thought:
            texts = [f"thought: {best.thought.strip()}", best.answer_text or ""]
        lines.append("\n\n".join(text.strip() for text in texts if text))
    answer = result.answer or "none was read; dataset.answer_kind=text takes the whole text"
    lines.append(f"\nanswer: {answer}")
    generated = number_of(usage.generated_tokens, "generated token")
    if usage.thinking_tokens:
        generated += f" ({usage.thinking_tokens:,} of thoughts)"
    cost = [generated, number_of(usage.verifier_tokens, "verifier token")]
    if usage.tool_calls:
        cost.append(number_of(usage.tool_calls, "call of tools", "calls of tools"))
    cost += [number_of(len(result.tree), "node"), f"{usage.wall_s:.1f} s"]
    if (memory := getattr(backend, "memory", None)) is not None:
        peak = as_bytes(memory.device.peak_bytes + memory.host.peak_bytes)
        cost.append(f"at most {peak} of keys and values")
    lines.append(f"cost:   {', '.join(cost)}")
    if result.stopped is not None:
        lines.append(f"the {result.stopped} ended the search")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
