"""Files of stored measurements, as ``tokgate judge`` and ``tokgate calibrate pool`` take them."""

from __future__ import annotations

import filecmp
import json
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from tokgate.analysis import series as stored
from tokgate.errors import SampleFault
from tokgate.load.sample import Sample, read_samples


def read(path: Path, metric: str, better: Literal["higher", "lower"] | str | None) -> stored.Series:
    """A stored series of either form.

    Raises:
        SampleFault: unreadable, or nothing that can be judged; names the file.
    """
    direction: Any = better
    data = None if path.is_dir() else _load(path)
    try:
        if isinstance(data, dict) and "launches" in data:
            found = stored.from_plain(data)
            if direction is not None and direction != found.better:
                raise SampleFault(f"says better: {found.better}, the option says {direction}")
            return found
        if isinstance(data, dict) and str(data.get("schema")).startswith("tokgate-bench/"):
            raise SampleFault(
                "written by tokgate bench, which cannot be judged: one run without a launch or a build to it",
                ["judged are Samples of a gate's run, or a list of launches"],
            )
        if data is not None and not isinstance(data, dict | list):
            raise SampleFault("neither Samples nor launches")
        samples = read_samples(path) if data is None else _samples(data)
        return stored.from_samples(samples, metric, direction)
    except SampleFault as fault:
        where = str(path)
        headline = fault.headline if fault.headline.startswith(where) else f"{where}: {fault.headline}"
        raise SampleFault(headline, fault.details) from fault


def _samples(data: list[Any] | dict[str, Any]) -> list[Sample]:
    """Samples of a file that is parsed already: one, or a list of them."""
    entries = data if isinstance(data, list) else [data]
    for i, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise SampleFault(f"entry {i + 1} is not a sample")
    return [Sample.from_json(entry) for entry in entries]


def _load(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SampleFault(f"{path}: cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise SampleFault(f"{path}: not JSON: {error}") from error


def are_the_same(a: Path, b: Path) -> bool:
    """Whether both are one file or folder, or files of the same bytes."""
    if not (a.exists() and b.exists()):
        return False
    if a.samefile(b):
        return True
    with suppress(OSError):
        # One that cannot be read is told as such when it is.
        return a.is_file() and b.is_file() and filecmp.cmp(a, b, shallow=False)
    return False
