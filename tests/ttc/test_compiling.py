"""The line that says why the first use on a machine waits."""

from __future__ import annotations

import logging
import platform
from pathlib import Path

import pytest

from ttc.compiling import LINE, announce, cxx, library


@pytest.mark.skipif(cxx() is None, reason="there is no C++ compiler")
def test_one_line_says_that_something_is_compiled_and_none_that_it_was_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TTC_CACHE", str(tmp_path / "cache"))
    sources = [tmp_path / "one.cpp", tmp_path / "two.cpp"]
    for source in sources:
        source.write_text('extern "C" int answer() { return 42; }\n')
    announce.cache_clear()
    for said in ([LINE], []):
        library.cache_clear()
        with caplog.at_level(logging.WARNING):
            assert all(library(source) for source in sources)
        assert [record.getMessage() for record in caplog.records] == said
        caplog.clear()
        announce.cache_clear()
    library.cache_clear()


@pytest.mark.skipif(cxx() is None, reason="there is no C++ compiler")
def test_a_header_that_changes_makes_another_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TTC_CACHE", str(tmp_path / "cache"))
    header, source = tmp_path / "number.h", tmp_path / "answer.cpp"
    source.write_text('#include "number.h"\nextern "C" int answer() { return NUMBER; }\n')
    for number in (1, 2, 1):
        header.write_text(f"#define NUMBER {number}\n")
        library.cache_clear()
        built = library(source)
        assert built is not None and built.answer() == number
    assert len([*(tmp_path / "cache" / "cpp").glob("answer-*.so")]) == 2
    library.cache_clear()


@pytest.mark.skipif(cxx() is None, reason="there is no C++ compiler")
@pytest.mark.parametrize("limit", ["avx2", "default"])
def test_the_limit_of_pytorch_holds_for_our_kernels(
    limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if platform.machine() != "x86_64":
        pytest.skip("the names are of x86-64 processors")
    monkeypatch.setenv("TTC_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("TTC_CPU", raising=False)
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", limit)
    source = tmp_path / "wide.cpp"
    source.write_text(
        "#if defined(__AVX512F__)\n#define WIDE 2\n#elif defined(__AVX2__)\n#define WIDE 1\n#else\n"
        '#define WIDE 0\n#endif\nextern "C" int wide() { return WIDE; }\n'
    )
    library.cache_clear()
    built = library(source)
    assert built is not None and built.wide() == {"avx2": 1, "default": 0}[limit]
    library.cache_clear()
