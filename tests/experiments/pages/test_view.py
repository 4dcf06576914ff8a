"""`python -m experiments.view`: what the page holds, what it refuses, and that a browser shows
it."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from experiments.pages.view.command import parsed, view
from experiments.pages.view.page import distinct_labels
from search import BestOfN, solve
from tests.helpers.backends import FakeBackend
from tests.helpers.benches import save_tiny_model
from tests.helpers.configurations import configuration
from tests.helpers.run_files import record, save
from ttc import InvalidInput

EVIL = "</script><img src=x onerror=alert(1)><!-- <b>&amp; @DATA@ \u2028"


class Reader(HTMLParser):
    """The tags of a page, and what its scripts hold."""

    def __init__(self, page: str):
        super().__init__()
        self.tags: list[str] = []
        self.scripts: list[str] = []
        self.links: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "action")]
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] == "script":
            self.scripts[-1] += data


def written(folder: Path, *words: str) -> tuple[Reader, dict[str, Any]]:
    view(parsed([str(folder), *words]))
    reader = Reader((folder / "view.html").read_text(encoding="utf-8"))
    return reader, json.loads(reader.scripts[0])


def test_the_page_holds_the_run_and_its_trees(tmp_path: Path) -> None:
    failed = record("p2", False, error="TTCError: x", tree=[])
    _, data = written(save(tmp_path, [record("p0", True), record("p1", False), failed]))
    told = [data["summary"][name] for name in ("accuracy", "failures", "seconds")]
    assert told == [1 / 3, 1, 4.0]
    made = {"model": "m", "dataset": "d", "search": "BeamSearch", "verifier": "none", "seed": 0}
    assert data["made"] == made
    first, _, last = data["problems"]
    assert [n["own"] for n in first["nodes"]] == [7, 3, 3, 3, 3]
    assert [n["from"] for n in first["nodes"]] == [0, 7, 7, 10, 10]
    # its answer is the problem's, node 3's is not
    assert first["chosen"] == 4 and first["nodes"][4]["answer"] == "7"
    assert [n["correct"] for n in first["nodes"]] == [None, None, None, False, True]
    assert last["failed"] and last["nodes"] == [] and not data["left_out"]
    assert data["histogram"] == [{"from": 12, "to": 12, "right": 1, "wrong": 2}]


def test_problems_are_told_apart_by_what_differs() -> None:
    start = "State the final answer to the following arithmetic problem:"
    sums = [f"{i} + 2 =" for i in range(5)]
    assert distinct_labels([f"{start} {one}" for one in sums]) == [f"…{one}" for one in sums]
    labels = distinct_labels([f"{start} 1", f"{start} 2", "Tom has", f"{start} 3"])
    assert labels == ["…1", "…2", "Tom has", "…3"]
    for alike in ([start, start, ""], [start]):
        assert distinct_labels(alike) == alike


def test_what_a_model_wrote_stays_text(tmp_path: Path) -> None:
    reader, data = written(save(tmp_path, [record("p0", True, EVIL)]))
    assert len(reader.scripts) == 2 and "img" not in reader.tags and "<" not in reader.scripts[0]
    assert data["problems"][0]["nodes"][1]["text"] == f"first {EVIL}"
    assert "innerHTML" not in reader.scripts[1] and "document.write" not in reader.scripts[1]


def test_the_page_needs_no_network(tmp_path: Path) -> None:
    reader, _ = written(save(tmp_path, [record("p0", True)]))
    page = (tmp_path / "r" / "view.html").read_text(encoding="utf-8")
    assert reader.links == [] and "link" not in reader.tags and "@import" not in page
    # a name, which nobody fetches
    assert set(re.findall(r"https?://[^\"' ]+", page)) == {"http://www.w3.org/2000/svg"}


def test_a_long_run_is_cut_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save(tmp_path, [record(f"p{i}", i % 2 == 0) for i in range(6)])
    _, data = written(folder, "--limit", "2")
    assert [p["id"] for p in data["problems"]] == ["p0", "p1"] and data["left_out"]
    assert data["summary"]["problems"] == 6 and "2 of 6 problems" in capsys.readouterr().out
    _, data = written(folder, "--problem", "p4", "--problem", "p1")
    assert [p["id"] for p in data["problems"]] == ["p4", "p1"]


OLD = {"id": 0, "parent": None, "path": [], "tokens": 0}


@pytest.mark.parametrize(
    ("words", "change", "message"),
    [
        (["--limit", "0"], {}, "--limit=0 must be at least 1"),
        (["--problem", "p9"], {}, "--problem=p9 is not in"),
        ([], {"tree": None}, "p0 has no tree: another version wrote it"),
        ([], {"tree": [OLD]}, "no own_tokens in its tree: another version"),
    ],
)
def test_what_cannot_be_shown_is_refused(
    tmp_path: Path, words: list[str], change: Any, message: str
) -> None:
    changed = {
        k: v for k, v in (record("p0", True) | change).items() if v is not None or k == "error"
    }
    with pytest.raises(InvalidInput, match=message):
        view(parsed([str(save(tmp_path, [changed])), *words]))


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"nothing is no folder; give folders of runs"):
        view(parsed([str(tmp_path / "nothing")]))


@pytest.mark.slow
def test_a_run_of_this_version_can_be_shown(tmp_path: Path) -> None:
    from experiments.runs.problem_loop import run

    words = ["run.name=r", f"run.output_dir={tmp_path}", "run.record_tokens=true"]
    words += ["model=hf", f"model.name={save_tiny_model(tmp_path / 'model')}", "dataset.size=2"]
    words += ["search.beam_size=2", "search.beam_width=2"]
    run(configuration("run", *words, "search.max_steps=3", "search.step_tokens=12"))
    _, data = written(tmp_path / "r")
    for problem in data["problems"]:
        root, *others = problem["nodes"]
        assert root["status"] == "root" and root["own"] > 10
        assert problem["chosen"] in [n["id"] for n in others]
        assert sum(n["own"] for n in others) == problem["usage"]["generated_tokens"]
        assert all(n["logprob"] is not None and n["logprob"] <= 0 for n in others)


def test_a_browser_shows_the_tree_and_opens_a_step(tmp_path: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    browser = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    if browser is None:
        pytest.skip("no Chromium is installed")
    failed = record("p2", False, error="TTCError: x", tree=[])
    skipping = record("p3", True)
    skipping["usage"]["verifications_skipped"] = 2
    folder = save(tmp_path, [record("p0", True, EVIL), record("p1", False), failed, skipping])
    written(folder)
    wrong: list[str] = []

    def look(message: Any) -> None:
        if message.type in ("error", "warning"):
            wrong.append(message.text)

    def requested(request: Any) -> None:
        if not request.url.startswith("file:"):
            wrong.append(request.url)

    with playwright.sync_playwright() as player:
        window = player.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        page = window.new_page(viewport={"width": 1500, "height": 900})
        page.on("console", look)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", requested)
        page.on("dialog", lambda dialog: wrong.append(dialog.message))
        page.goto((folder / "view.html").as_uri())
        assert page.locator(".node").count() == 5 and page.locator(".node.pruned").count() == 1
        assert page.locator(".node.chosen").count() == 3
        page.locator('.node[data-node="1"] circle').click()
        assert page.locator("#text").text_content() == f"first {EVIL}"
        assert "of these 3 tokens, shared by 2 branches" in page.locator("#step").inner_text()
        shared = "19 tokens stored once; 36 if no branch shared any"
        assert shared in page.locator("#problem").inner_text()
        before = page.locator("#tree svg").get_attribute("viewBox")
        page.get_by_label("zoom in").click()
        assert page.locator("#tree svg").get_attribute("viewBox") != before
        page.locator("#problems button", has_text="p3").click()
        assert "The verifier was skipped 2 times" in page.locator("#problem").inner_text()
        page.locator('.node[data-node="4"]').press("Enter")
        assert page.locator("#text").text_content() == "better"
        assert "verifier skipped" in page.locator("#step").inner_text()
        page.locator("#problems button", has_text="p2").click()
        assert page.locator(".node").count() == 0
        assert "TTCError: x" in page.locator("#problem").inner_text()
        page.get_by_label("which problems").select_option("right")
        assert page.locator("#problems button").count() == 2
        window.close()
    assert wrong == []


# ---------------------------------------------------------------- results that a program has saved


def test_saved_results_are_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    search = BestOfN(n=3, max_tokens=6)
    result = solve(search, problem=EVIL, engine=FakeBackend(), verifier=Same())
    file = tmp_path / "result.json"
    file.write_text(json.dumps(result.to_dict()))
    view(parsed([str(file)]))
    page = (tmp_path / "result.html").read_text()
    assert page.count("<circle") == 4 and page.count("<details>") == 3
    assert "<script" not in page and "<img" not in page and "&lt;/script&gt;" in page
    file.write_text(json.dumps([result.to_dict(), result.to_dict()]))
    view(parsed([str(file), "--out", str(tmp_path / "two.html")]))
    assert (tmp_path / "two.html").read_text().count("<circle") == 8
    assert "2 results" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"), [("no json", "is no JSON"), ('{"a": 1}', "are no result")]
)
def test_a_file_that_holds_no_result_is_named(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(InvalidInput, match=message):
        view(parsed([str(tmp_path / "result.json")]))


class Same:
    def rate(self, branches: Any, questions: Any, backend: Any) -> list[list[float]]:
        return [[1.0] for _ in branches]
