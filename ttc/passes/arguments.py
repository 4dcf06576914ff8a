"""What every backend checks of the branches and tokens that it is given."""

from __future__ import annotations

from collections.abc import Sequence

from ttc.backend import Purpose, Tokens
from ttc.branch import Branch
from ttc.checks import check_flag, check_is, check_one_each, check_whole
from ttc.errors import InvalidInput
from ttc.model.limits import ModelLimits
from ttc.sampling import Sampling
from ttc.step import Step, check_strings
from ttc.text.encodable import check_encodable
from ttc.tree.branch import check_live


def checked_prompts(
    limits: ModelLimits, prompts: Sequence[Tokens], seeds: Sequence[int] | None
) -> tuple[list[list[int]], Sequence[int]]:
    """Prompts that leave room to generate, and a seed for each: by default their numbers."""
    seeds = range(len(prompts)) if seeds is None else [check_whole("seed", seed) for seed in seeds]
    check_one_each(len(prompts), "prompts", len(seeds), "seeds")
    checked = [limits.checked(prompt, "prompt") for prompt in prompts]
    for prompt in checked:
        limits.check_prompt(len(prompt))
    return checked, seeds


def checked_variants(
    limits: ModelLimits, root: Branch, prompts: Sequence[Tokens], suffixes: Sequence[Tokens] | None
) -> tuple[list[list[int]], list[list[int]]]:
    """Prompts in place of the root's, and what follows each: by default nothing."""
    check_live([root])
    if root.generated:
        raise InvalidInput(
            f"{root!r} has generated tokens, so its prompt cannot be varied; give the root itself"
        )
    checked = [limits.checked(prompt, "prompt") for prompt in prompts]
    after = [
        limits.checked(suffix, "suffix") if suffix else []
        for suffix in suffixes or [[]] * len(checked)
    ]
    check_one_each(len(checked), "prompts", len(after), "suffixes", "[] for none")
    for prompt, suffix in zip(checked, after, strict=True):
        limits.check_prompt(len(prompt) + len(suffix))
    return checked, after


def checked_side_prompts(
    limits: ModelLimits, branches: Sequence[Branch], prompts: Sequence[Tokens], *, grow: bool
) -> list[list[int]]:
    """A verifier's prompt for each branch. grow: each leaves room to generate."""
    check_one_each(len(branches), "branches", len(prompts), "prompts")
    checked = [limits.checked(prompt, "prompt") for prompt in prompts]
    for prompt in checked:
        (limits.check_prompt if grow else limits.check_context)(len(prompt))
    return checked


def checked_extensions(
    limits: ModelLimits,
    branches: Sequence[Branch],
    tokens_per_branch: Sequence[Tokens],
    purpose: Purpose,
) -> list[list[int]]:
    """Given tokens for each branch. Those of a prompt leave room to generate."""
    check_live(branches)
    check_one_each(len(branches), "branches", len(tokens_per_branch), "token lists")
    added = [limits.checked(tokens, "extension") for tokens in tokens_per_branch]
    check = limits.check_prompt if purpose == "prompt" else limits.check_context
    for branch, tokens in zip(branches, added, strict=True):
        check(len(branch.tokens) + len(tokens))
    return added


def checked_continuations(
    limits: ModelLimits,
    branches: Sequence[Branch],
    continuations: Sequence[Sequence[Tokens]],
    contexts: Sequence[Tokens] | None,
    singles: bool,
) -> tuple[list[list[int]], list[list[list[int]]]]:
    """What `Engine.score` is given, and the continuations. singles: refuse longer ones."""
    check_one_each(len(branches), "branches", len(continuations), "lists of continuations")
    if contexts is not None:
        check_one_each(len(branches), "branches", len(contexts), "lists of given tokens")
    between = [
        limits.checked(context, "list of given tokens") if context else []
        for context in contexts or [[]] * len(branches)
    ]
    checked = [[limits.checked(c, "continuation") for c in group] for group in continuations]
    for branch, group, tokens in zip(branches, checked, between, strict=True):
        if not group:
            raise InvalidInput("a branch came with no continuation to score")
        longest = max(map(len, group))
        # the last token is not fed
        limits.check_context(len(branch.tokens) + len(tokens) + longest - 1)
        if singles and longest > 1:
            raise InvalidInput(
                f"a continuation has {longest} tokens; with an early exit only single tokens can "
                "be scored, so put what comes before them into `given`"
            )
    return between, checked


def check_step(
    model: ModelLimits,
    branches: Sequence[Branch],
    step: Step,
    sampling: Sampling,
    limits: Sequence[int] | None = None,
) -> list[int]:
    """The largest number of tokens of each branch. Refuses a step that cannot be made."""
    check_is("step", step, Step, "a ttc.Step(max_tokens=...)")
    limits = [step.max_tokens] * len(branches) if limits is None else list(limits)
    check_one_each(len(branches), "branches", len(limits), "values of max_tokens")
    step_tokens = [check_whole("max_tokens", tokens, 1) for tokens in limits]
    check_is("sampling", sampling, Sampling, "a ttc.Sampling(temperature=...)")
    check_flag("statistics", step.statistics)
    if isinstance(step.delimiter, str):
        check_encodable(step.delimiter, "delimiter")
    elif step.delimiter is not None:
        check_strings("delimiter", step.delimiter)
    check_strings("end", step.end)
    for branch in branches:
        if branch.finished:
            raise InvalidInput(f"{branch!r} is finished and cannot go on; leave it out")
        if model.left(len(branch.tokens)) == 0:
            raise InvalidInput(
                f"{branch!r} fills the model's context of {model.context_length} tokens already"
            )
    return step_tokens
