"""Make a pair on disk: in shards, by several processes, atomically, with the same bytes on every machine."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tokgate.errors import ResultsUnwritable, UsageFault
from tokgate.models.backends import Backend, NumpyBackend, choose
from tokgate.models.config_file import model_config
from tokgate.models.dial import Dial, choose_dial
from tokgate.models.draft import draft_tensors
from tokgate.models.layout import build_layout
from tokgate.models.pair_folder import check_disk, link, put_in_place, shared_target
from tokgate.models.presets import find_preset
from tokgate.models.rule import Rule, build_rule
from tokgate.models.safetensors import INDEX, header_bytes
from tokgate.models.target import target_tensors
from tokgate.models.tensors import Tensor
from tokgate.models.tokenizer import tokenizer_files
from tokgate.models.truth import NAME, Truth, describe, dump, load_truth

SHARD_BYTES = 1 << 30
IN_PROCESS_BYTES = 256 << 20

Progress = Callable[[int, int], None]
"""Called with bytes done and bytes in all."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that decides a pair's bytes."""

    preset: str
    seed: int
    dial: Dial
    near_tie: int | None

    def rule(self) -> Rule:
        return build_rule(find_preset(self.preset), self.seed, self.dial, self.near_tie)


@dataclass(frozen=True, slots=True)
class Shard:
    """One weight file: where it goes, and which tensors it holds by their number in file order."""

    path: str
    numbers: tuple[int, ...]
    nbytes: int


def make(
    preset: str,
    out: Path,
    *,
    seed: int = 0,
    accept_length: float | None = None,
    agreement: float | None = None,
    wrong_every: int | None = None,
    steps: int = 3,
    near_tie: int | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
    target_of: Path | None = None,
    backend: str = "auto",
) -> Truth:
    """Write ``out/target``, ``out/draft`` and ``out/truth.json``.

    The target depends on preset, seed and near-tie alone; the dial changes only the draft.

    Args:
        accept_length, agreement, wrong_every: the dial, at most one; by default the draft is always right.
        steps: draft steps for which the accept length holds (topk 1).
        near_tie: every n-th phase ends in a near-tie.
        workers: processes, or threads that feed a GPU; by default one a core.
        target_of: a pair with the same target, whose files are linked (copied to another disk) instead of
            made; its digests are taken over, not checked.
        backend: where the noise is made; the bytes are the same. ``auto`` takes a GPU where torch sees one
            and the pair is large.

    Raises:
        UsageFault: an unknown preset, a dial that cannot be had, ``out`` holds something else,
            ``target_of`` has another target, or the back-end asked for is not there.
        ModelMissing: ``target_of`` holds no pair, or not all of its files.
        ResultsUnwritable: too little space, or the folder cannot be written.
    """
    dial = choose_dial(accept_length, agreement, wrong_every, steps)
    recipe = Recipe(preset, seed, dial, near_tie)
    found = find_preset(preset)
    dial.check(found.phases)
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not (out / NAME).is_file())):
        raise UsageFault(f"{out}: exists and is not a pair; give another folder")
    shared = {} if target_of is None else shared_target(target_of, preset, seed, near_tie)
    plans = _plans(recipe)
    if shared:
        del plans["target"]
    total = sum(shard.nbytes for shards in plans.values() for shard in shards)
    small = total <= IN_PROCESS_BYTES
    used = choose("numpy" if backend == "auto" and small else backend)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        check_disk(out.parent, total)
        temporary = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    except OSError as error:
        raise ResultsUnwritable(f"{out}: cannot be written: {error.strerror}") from error
    try:
        digests = _write(recipe, plans, temporary, used, workers, progress)
        for name, (source, digest) in shared.items():
            link(source, temporary / name)
            digests[name] = digest
        truth = describe(recipe.rule(), near_tie, dict(sorted(digests.items())))
        _write_text(temporary / NAME, dump(truth))
        temporary.chmod(0o755)
        put_in_place(temporary, out)
    except OSError as error:
        raise ResultsUnwritable(f"{out}: cannot be written: {error.strerror}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return truth


def ensure(
    preset: str, out: Path, *, seed: int = 0, accept_length: float | None = None, steps: int = 3
) -> Truth:
    """The pair in ``out`` when it is this one already, else made anew.

    Raises:
        UsageFault, ResultsUnwritable: as :func:`make`.
    """
    if (out / NAME).is_file():
        try:
            truth = load_truth(out)
        except UsageFault:
            truth = None
        dial = choose_dial(accept_length, None, None, steps)
        if (
            truth is not None
            and (truth.preset, truth.seed, truth.near_tie) == (preset, seed, None)
            and Dial(**truth.dial.model_dump()) == dial
            and all((out / name).is_file() for name in truth.files)
        ):
            return truth
    return make(preset, out, seed=seed, accept_length=accept_length, steps=steps)


def tensors_of(rule: Rule, part: str) -> Iterator[Tensor]:
    """The tensors of ``target`` or ``draft``."""
    layout = build_layout(rule.preset)
    return target_tensors(rule, layout) if part == "target" else draft_tensors(rule, layout)


def _plans(recipe: Recipe) -> dict[str, list[Shard]]:
    rule = recipe.rule()
    plans = {}
    for part in ("target", "draft"):
        groups: list[list[int]] = []
        sizes: list[int] = []
        for number, tensor in enumerate(tensors_of(rule, part)):
            if not groups or sizes[-1] + tensor.nbytes > SHARD_BYTES:
                groups.append([])
                sizes.append(0)
            groups[-1].append(number)
            sizes[-1] += tensor.nbytes
        count = len(groups)
        names = (
            ["model.safetensors"]
            if count == 1
            else [f"model-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)]
        )
        plans[part] = [
            Shard(f"{part}/{name}", tuple(group), size)
            for name, group, size in zip(names, groups, sizes, strict=True)
        ]
    return plans


def _write(
    recipe: Recipe,
    plans: Mapping[str, list[Shard]],
    folder: Path,
    backend: Backend,
    workers: int | None,
    progress: Progress | None,
) -> dict[str, str]:
    preset = find_preset(recipe.preset)
    digests: dict[str, str] = {}
    for part, shards in plans.items():
        (folder / part).mkdir()
        files = {"config.json": json.dumps(model_config(preset, draft=part == "draft"), indent=1) + "\n"}
        files |= tokenizer_files(preset)
        if len(shards) > 1:
            files[INDEX] = _index(recipe, part, shards)
        for name, text in files.items():
            digests[f"{part}/{name}"] = _write_text(folder / part / name, text)
    shards = sorted((s for each in plans.values() for s in each), key=lambda s: -s.nbytes)
    total, done = sum(shard.nbytes for shard in shards), 0
    at_once = min(workers or os.cpu_count() or 1, len(shards))
    with _pool(backend, 1 if total <= IN_PROCESS_BYTES else at_once) as pool:
        running = {pool.submit(write_shard, recipe, shard, folder, backend): shard for shard in shards}
        try:
            for future in as_completed(running):
                digests[running[future].path] = future.result()
                done += running[future].nbytes
                if progress:
                    progress(done, total)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return digests


def _pool(backend: Backend, at_once: int) -> Executor:
    """Processes for numpy; threads for a GPU, where only hashing and writing is left to the CPU."""
    if at_once == 1 or not isinstance(backend, NumpyBackend):
        return ThreadPoolExecutor(at_once)
    return ProcessPoolExecutor(at_once, mp_context=multiprocessing.get_context("spawn"))


@lru_cache(maxsize=1)
def _rule(recipe: Recipe) -> Rule:
    return recipe.rule()


def write_shard(recipe: Recipe, shard: Shard, folder: Path, backend: Backend) -> str:
    """Write one weight file and return its SHA-256. May run in a worker process."""
    rule = _rule(recipe)
    wanted = set(shard.numbers)
    part = shard.path.partition("/")[0]
    tensors = [tensor for i, tensor in enumerate(tensors_of(rule, part)) if i in wanted]
    digest = hashlib.sha256()
    with (folder / shard.path).open("wb") as file:
        for block in _file_blocks(tensors, rule.seed, part, backend):
            digest.update(block)
            file.write(block)
    return digest.hexdigest()


def _file_blocks(
    tensors: list[Tensor], seed: int, part: str, backend: Backend
) -> Iterator[bytes | memoryview]:
    yield header_bytes(tensors)
    for tensor in tensors:
        yield from tensor.blocks(seed, part, backend)


def _index(recipe: Recipe, part: str, shards: list[Shard]) -> str:
    place = {number: Path(shard.path).name for shard in shards for number in shard.numbers}
    names = [tensor.name for tensor in tensors_of(recipe.rule(), part)]
    total = sum(shard.nbytes for shard in shards)
    body = {
        "metadata": {"total_size": total},
        "weight_map": {name: place[i] for i, name in enumerate(names)},
    }
    return json.dumps(body, indent=1) + "\n"


def _write_text(path: Path, text: str) -> str:
    data = text.encode()
    path.write_bytes(data)
    return hashlib.sha256(data).hexdigest()
