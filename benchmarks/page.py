"""A page of the documentation, and the part of it that a benchmark makes."""

from __future__ import annotations

from pathlib import Path


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
