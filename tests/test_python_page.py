"""All that docs/python.md shows runs as it stands there."""

from __future__ import annotations

import asyncio
import re
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from search import SelfConsistency
from tests.helpers.engines import bytes_engine, make_engine, numbers_engine
from tests.helpers.thinking import TURNS, thinker
from ttc import Engine
from ttc.parts import find
from ttc.text.prompt import PromptTemplate

PAGE = Path(__file__).parents[1] / "docs" / "python.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
TRACKERS = {"import wandb": "wandb", "import mlflow": "mlflow", "tensorboard": "tensorboard"}


def tracker_of(block: str) -> str | None:
    return next((package for mark, package in TRACKERS.items() if mark in block), None)


PAGES_OWN = [block for block in BLOCKS if tracker_of(block) is None]
RECIPES = [block for block in BLOCKS if tracker_of(block) is not None]


@pytest.fixture(autouse=True)
def small_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A small random model has the place of the one that the page names."""
    monkeypatch.setattr(Engine, "from_pretrained", lambda *args, **options: numbers_engine())
    monkeypatch.chdir(tmp_path)


def test_the_blocks_run_one_after_the_other(tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    for block in PAGES_OWN:
        if "chat = [" in block:
            chats = bytes_engine(thinker(TURNS))
            exec(compile(block, str(PAGE), "exec"), {**names, "engine": chats})
        elif "schema=" not in block:
            exec(compile(block, str(PAGE), "exec"), names)
        elif find("answers", "grammar") is not None:  # its tokens have to have known bytes
            exec(compile(block, str(PAGE), "exec"), {**names, "engine": bytes_engine()})
    assert len(PAGES_OWN) > 10 and (tmp_path / "result.json").exists()
    assert names["engine"].kv_bytes() == 0


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: str(tracker_of(recipe)))
def test_a_recipe_writes_to_its_tracker(
    recipe: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tracker_of(recipe)
    pytest.importorskip(str(package))
    monkeypatch.setenv("WANDB_MODE", "offline")
    place = (
        f"sqlite:///{tmp_path}/mlflow.db"
        if find_spec("sqlalchemy")
        else (tmp_path / "mlruns").as_uri()
    )
    monkeypatch.setenv("MLFLOW_TRACKING_URI", place)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # its small distribution has no database
    names: dict[str, Any] = {}
    exec(compile(BLOCKS[0], str(PAGE), "exec"), names)
    exec(compile(recipe, str(PAGE), "exec"), names)
    assert any(file.is_file() for file in tmp_path.rglob("*"))


def test_there_is_a_recipe_for_each_tracker() -> None:
    assert [tracker_of(recipe) for recipe in RECIPES] == ["wandb", "mlflow", "tensorboard"]
    assert all(recipe.count("\n") <= 16 for recipe in RECIPES)


@pytest.mark.parametrize("leaves", [True, False])
def test_a_client_that_leaves_a_plain_handler_ends_its_search(leaves: bool) -> None:
    applications = pytest.importorskip("starlette.applications")
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    names: dict[str, Any] = {}
    for block in (BLOCKS[0], *(block for block in PAGES_OWN if "asolve(" in block)):
        exec(compile(block.replace("asyncio.run(main())", ""), str(PAGE), "exec"), names)
    engine = make_engine(context=8192)
    template = PromptTemplate("{question}", raw=True)
    names["engine"] = engine
    names["search"] = SelfConsistency(n=2, max_tokens=4000 if leaves else 4)
    names["verifier"] = None
    solve_so = names["asolve"]
    names["asolve"] = lambda search, **options: solve_so(search, **options, template=template)
    passes, begun, gone = list[int](), threading.Event(), threading.Event()
    forward, answers = engine.runner.forward, list[Any]()

    def counted(*given: Any) -> Any:
        passes.append(1)
        begun.set()
        assert not leaves or len(passes) < 5 or gone.wait(100)
        return forward(*given)

    engine.runner.forward = counted  # type: ignore[method-assign]

    async def handler(request: Any) -> Any:
        answers.append(await names["answer_while_there"](request, "1"))
        return JSONResponse(answers[0])

    async def receive() -> Any:
        if not (leaves and begun.is_set()):
            await asyncio.sleep(60)  # cut off by whoever only looks
        gone.set()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        pass

    app = applications.Starlette(routes=[Route("/", handler)])
    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b""}
    asyncio.run(app(scope, receive, send))
    assert answers[0]["stopped"] == ("cancelled" if leaves else None)
    assert len(passes) < 4000 and not engine.live
