"""Choices and settings that were removed are refused by name, with what to use instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.cli.choices import choices
from experiments.cli.refusals import reason
from experiments.cli.removed import REMOVED, REMOVED_SETTINGS
from experiments.runs.hydra_command import composed
from tests.experiments.test_compare import compared, record, save
from ttc.results import Problem, Result


def refusal(*words: str) -> str:
    with pytest.raises(Exception) as refused:
        composed(list(words))
    return reason(refused.value) or ""


@pytest.mark.parametrize("choice", REMOVED)
def test_a_removed_choice_is_refused_with_what_to_use_instead(choice: str) -> None:
    group, _, name = choice.partition("=")
    path, instead = REMOVED[choice]
    assert name not in choices(group)
    assert refusal(choice) == f"{choice} was removed; {instead}"
    assert refusal(f"{group}={path}") == f"{group}={path} was removed; {instead}"
    assert refusal(f"{group}._target_={path}") == f"{group}={path} was removed; {instead}"


def test_what_is_named_instead_exists() -> None:
    for _, instead in REMOVED.values():
        named = [word.strip(",;.") for word in instead.split() if "=" in word]
        assert named
        for choice in named:
            group, _, name = choice.partition("=")
            assert name in choices(group)


def test_results_with_counts_that_are_gone_are_read() -> None:
    result = Result.unsolved(Problem("1 + 1?"), 0, None)
    values = result.to_dict()
    values["usage"]["evicted_tokens"] = 7
    assert Result.from_dict(values).usage == result.usage


@pytest.mark.few
@pytest.mark.parametrize("key", REMOVED_SETTINGS)
def test_a_removed_setting_is_refused_with_what_is_done_now(key: str) -> None:
    choice = "search=phi_decoding" if key.startswith("search") else "verifier=arithmetic"
    assert f"{key} was removed: {REMOVED_SETTINGS[key]}; leave it out" in refusal(
        choice, f"{key}=0.5"
    )


def test_folders_of_runs_with_what_was_removed_can_be_compared(tmp_path: Path) -> None:
    usage = {"generated_tokens": 5, "verifier_tokens": 0, "prompt_tokens": 4, "evicted_tokens": 3}
    records = [record(f"p{i}", 1, usage=usage) for i in range(3)]
    old = save(tmp_path, "old", records, search___target_="search.ForkThink", search__forks=2)
    new = save(tmp_path, "new", [record(f"p{i}", i % 2) for i in range(3)])
    assert [row["accuracy"] for row in compared(tmp_path, old, new)["rows"]] == [1, 1 / 3]
