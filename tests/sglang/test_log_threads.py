"""Several servers print their arguments at the same moment: readers in threads do not disturb each other."""

from __future__ import annotations

import ast
import gc
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Literal

import pytest

from tokgate.sglang import log_events as ev
from tokgate.sglang.log_arguments import server_args

LINE = b"server_args=ServerArgs(%s)" % b", ".join(b"a%d=[%d, 'x', (1, 2)]" % (i, i) for i in range(200))
WHERE = (datetime(2026, 11, 30, tzinfo=UTC), "")


def read() -> int:
    event = server_args(LINE, WHERE)
    assert isinstance(event, ev.ServerArgs)
    return len(event.values)


@pytest.fixture
def collections_that_let_others_run() -> Iterator[None]:
    """What makes the interpreter's fault certain: every few objects a collection that gives up the GIL."""
    before = gc.get_threshold()

    def rest(_phase: str, _info: dict[str, int]) -> None:
        time.sleep(0)

    gc.callbacks.append(rest)
    gc.set_threshold(100)
    yield
    gc.set_threshold(*before)
    gc.callbacks.remove(rest)


@pytest.mark.usefixtures("collections_that_let_others_run")
def test_arguments_are_read_in_several_threads() -> None:
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda _: read(), range(20))) == [200] * 20


def test_a_tree_that_another_thread_disturbed_is_built_again(monkeypatch: pytest.MonkeyPatch) -> None:
    parse = ast.parse
    asked: list[str] = []

    def disturbed(source: str, mode: Literal["eval"]) -> ast.Expression:
        asked.append(source)
        if len(asked) == 1:
            raise SystemError("AST constructor recursion depth mismatch (before=21, after=14)")
        return parse(source, mode=mode)

    with monkeypatch.context() as within:
        within.setattr(ast, "parse", disturbed)
        fields = read()
    assert (fields, len(asked)) == (200, 2)
