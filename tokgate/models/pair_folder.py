"""A pair's folder: is there room for it, files shared with another pair, and into its place as a whole."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from tokgate.errors import ModelMissing, ResultsUnwritable, UsageFault
from tokgate.models.truth import load_truth

SPARE_BYTES = 256 << 20


def shared_target(other: Path, preset: str, seed: int, near_tie: int | None) -> dict[str, tuple[Path, str]]:
    """Files of another pair's target: name -> where it is and its digest.

    Raises:
        UsageFault: its target is another one.
        ModelMissing: no pair there, or not all of its files.
    """
    truth = load_truth(other)
    theirs = (truth.preset, truth.seed, truth.near_tie)
    ours = (preset, seed, near_tie)
    if theirs != ours:
        raise UsageFault(
            f"{other}: has another target: preset, seed, near-tie {theirs} for {ours}",
            ["a target depends on these three alone; the dial changes only the draft"],
        )
    files = {n: (other / n, digest) for n, digest in truth.files.items() if n.startswith("target/")}
    missing = [source for source, _ in files.values() if not source.is_file()]
    if missing:
        raise ModelMissing(f"{missing[0]}: is missing", ["make that pair again"])
    return files


def link(source: Path, copy: Path) -> None:
    """A hard link: the bytes stay while either pair does. A copy where there can be none."""
    copy.parent.mkdir(exist_ok=True)
    try:
        copy.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, copy)


def check_disk(folder: Path, needed: int) -> None:
    """Raises :class:`ResultsUnwritable` where ``needed`` bytes and some to spare are not free."""
    free = shutil.disk_usage(folder).free
    if free < needed + SPARE_BYTES:
        raise ResultsUnwritable(
            f"{folder}: {free / 2**30:.1f} GiB free, the pair needs {(needed + SPARE_BYTES) / 2**30:.1f} GiB",
            ["free some space, give another folder, or make a smaller preset"],
        )


def put_in_place(temporary: Path, out: Path) -> None:
    """Rename the finished folder to ``out``; an older pair there is moved aside first, then removed."""
    if not out.exists():
        temporary.rename(out)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{out.name}.old.", dir=out.parent))
    out.rename(old / out.name)
    temporary.rename(out)
    shutil.rmtree(old, ignore_errors=True)
