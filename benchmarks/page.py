"""A page of the documentation, and the part of it that a benchmark makes."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]


def print_or_put(described: str | None, page: Path, begin: str, end: str, make: Callable[[], str]) -> int:
    """The whole command of a module that makes one part of one page: prints it, and puts it there with ``--write``.

    Args:
        described: the module's docstring; its first line is the help.
        page: below this checkout.
        begin, end: marks of the part.
        make: the part, as Markdown.

    Raises:
        SystemExit: the page lacks the marks.
    """
    parser = argparse.ArgumentParser(description=(described or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help=f"into {page.relative_to(ROOT)}")
    given = parser.parse_args()
    text = make()
    print(text)
    if given.write:
        put(page, begin, end, text)
    return 0


def put(page: Path, begin: str, end: str, text: str) -> None:
    """Replace what stands between two marks of a page.

    Raises:
        SystemExit: the page lacks the marks.
    """
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit(f"{page} lacks the marks {begin} and {end}")
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")
