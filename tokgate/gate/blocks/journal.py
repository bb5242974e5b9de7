"""Journal of blocks: one file a block, written whole or not at all, so that a crash loses one block at most."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokgate.errors import ResultsUnwritable, SampleFault, UsageFault
from tokgate.gate.blocks import seal
from tokgate.gate.blocks.measured import MeasuredArm, MeasuredBlock
from tokgate.gate.runs import Measured
from tokgate.gate.words import count
from tokgate.load.sample import Sample, read_samples, write_json

SCHEMA = 1


class Journal:
    """Blocks of one plan in a folder.

    Attributes:
        remarks: what a reader must know of the blocks that were taken up, one line each.

    Args:
        folder: made when there is none.
        plan: what :meth:`tokgate.gate.blocks.plan.BlockPlan.facts` gives.

    Raises:
        UsageFault: the folder holds blocks of another plan; says what differs.
        SampleFault: its ``plan.json`` cannot be read.
        ResultsUnwritable: the folder cannot be written.
    """

    def __init__(self, folder: Path, plan: Mapping[str, object]) -> None:
        self.folder = folder
        self.remarks: list[str] = []
        path = folder / "plan.json"
        wanted = json.loads(json.dumps(plan))
        if path.is_file():
            known = _read(path)
            if differing := list(_differing(known, wanted)):
                raise UsageFault(f"{folder} holds blocks of another plan", differing)
        else:
            write_json(path, wanted)

    def add(self, block: MeasuredBlock) -> None:
        """Store a block.

        Raises:
            ResultsUnwritable: disk full or folder gone.
        """
        said = {
            "schema": SCHEMA,
            "number": block.number,
            "began_at": block.began_at,
            "seconds": block.seconds,
            "orders": {name: list(order) for name, order in block.orders.items()},
            "arms": {name: self._arm(arm) for name, arm in block.arms.items()},
        }
        write_json(self._file(block.number), seal.sealed(said, self.folder, _files(block)))

    def take_up(self) -> list[MeasuredBlock]:
        """All whole blocks, in the order in which they were measured; Samples of others are moved into ``lost/``.

        Raises:
            SampleFault: a block or one of its Samples cannot be read, or was edited since it was stored.
            ResultsUnwritable: Samples cannot be moved.
        """
        blocks: list[MeasuredBlock] = []
        unsealed = 0
        for path in sorted((self.folder / "blocks").glob("[0-9]*.json")):
            data = _read(path)
            block = self._block(data, path)
            if path != self._file(block.number):
                raise SampleFault(f"{path}: holds block {block.number}", seal.advice(path))
            unsealed += not seal.is_sealed(data)
            blocks.append(block)
        self._set_aside({file for block in blocks for file in _files(block)})
        blocks.sort(key=lambda block: (block.began_at, block.number))
        self.remarks = list(_remarks([block.number for block in blocks], unsealed))
        return blocks

    def _file(self, number: int) -> Path:
        return self.folder / "blocks" / f"{number:04d}.json"

    def _arm(self, arm: MeasuredArm) -> dict[str, object]:
        def names(paths: tuple[Path, ...]) -> list[str]:
            return [str(path.relative_to(self.folder)) for path in paths]

        return {
            "workloads": {
                name: {"runs": names(measured.files), "void": names(measured.void_files)}
                for name, measured in arm.workloads.items()
            },
            "extras": dict(arm.extras),
        }

    def _block(self, data: Mapping[str, Any], path: Path) -> MeasuredBlock:
        if data.get("schema") != SCHEMA:
            raise SampleFault(f"{path}: block schema {data.get('schema')!r}, this tokgate reads {SCHEMA}")
        try:
            block = MeasuredBlock(
                number=int(data["number"]),
                began_at=data["began_at"],
                seconds=float(data["seconds"]),
                orders={name: tuple(order) for name, order in data["orders"].items()},
                arms={
                    name: MeasuredArm(
                        {
                            workload: self._measured(data, path, item["runs"], item["void"])
                            for workload, item in arm["workloads"].items()
                        },
                        arm["extras"],
                    )
                    for name, arm in data["arms"].items()
                },
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SampleFault(f"{path}: not a block: {type(error).__name__}: {error}") from error
        seal.check_block(data, path)
        return block

    def _measured(self, block: Mapping[str, Any], path: Path, runs: list[str], void: list[str]) -> Measured:
        files = tuple(self._inside(name) for name in runs)
        void_files = tuple(self._inside(name) for name in void)
        seal.check_samples(block, path, self.folder, [*runs, *void])
        return Measured(_samples(files), _samples(void_files), files, void_files)

    def _inside(self, name: str) -> Path:
        if ".." in Path(name).parts or Path(name).is_absolute():
            raise SampleFault(f"{self.folder}: a block names {name!r}, which is not below it")
        return self.folder / name

    def _set_aside(self, known: set[Path]) -> None:
        for path in sorted(self.folder.glob("*/samples/**/*.sample.json")):
            if path in known or path.is_relative_to(self.folder / "lost"):
                continue
            aside = self.folder / "lost" / path.relative_to(self.folder)
            try:
                aside.parent.mkdir(parents=True, exist_ok=True)
                path.replace(aside)
            except OSError as error:
                raise ResultsUnwritable(f"{path} cannot be moved to {aside}: {error.strerror}") from error


def _files(block: MeasuredBlock) -> list[Path]:
    """Of all its Samples, void ones included."""
    return [
        path
        for arm in block.arms.values()
        for measured in arm.workloads.values()
        for path in (*measured.files, *measured.void_files)
    ]


def _remarks(numbers: Sequence[int], unsealed: int) -> Iterator[str]:
    """What a reader must know of stored blocks.

    Args:
        numbers: of the blocks, in the order in which they were measured.
        unsealed: how many have no digests.
    """
    for place, number in enumerate(numbers):
        if later := [other for other in numbers[:place] if other > number]:
            yield f"block {number} was measured again, after block {max(later)}"
    for gone in sorted({*range(max(numbers, default=0))} - {*numbers}):
        yield f"block {gone} is gone and is measured again"
    if unsealed:
        yield (
            f"{unsealed} of {count(len(numbers), 'block')} were stored by an older tokgate, without digests: "
            "whether their samples were edited since is not known"
        )


def _samples(files: tuple[Path, ...]) -> tuple[Sample, ...]:
    return tuple(read_samples(path)[0] for path in files)


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SampleFault(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise SampleFault(f"{path}: not JSON: {error}") from error
    if not isinstance(data, dict):
        raise SampleFault(f"{path}: not an object")
    return data


def _differing(known: object, wanted: object, of: str = "") -> Iterator[str]:
    """Each value that differs, one line."""
    if isinstance(known, dict) and isinstance(wanted, dict):
        for key in sorted({*known, *wanted}):
            yield from _differing(known.get(key), wanted.get(key), f"{of}.{key}" if of else key)
    elif isinstance(known, list) and isinstance(wanted, list) and len(known) == len(wanted):
        for number, (one, other) in enumerate(zip(known, wanted, strict=True)):
            name = one.get("name", number) if isinstance(one, dict) else number
            yield from _differing(one, other, f"{of}.{name}")
    elif known != wanted:
        yield f"{of}: {known} there, {wanted} asked"
