"""Where synthetic pairs are kept: made once a machine, by preset, seed and accept length."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from tokgate import environments
from tokgate.config.profiles import Model
from tokgate.models import maker
from tokgate.models.truth import NAME, load_truth, predicted_output, predicted_verify_count


def root() -> Path:
    """Folder of made pairs: ``$TOKGATE_HOME/models``, else ``~/.cache/tokgate/models``."""
    return environments.home() / "models"


def place(preset: str, *, seed: int, accept_length: float | None) -> Path:
    """Where a pair is, or will be."""
    length = "longest" if accept_length is None else f"{accept_length:g}"
    return root() / f"{preset}-seed{seed}-accept-{length}"


def pair(preset: str, *, seed: int, accept_length: float | None) -> Path:
    """The folder of a pair, made when it is not there.

    Raises:
        UsageFault: unknown preset, or an accept length that cannot be had.
        ResultsUnwritable: no room on the disk.
    """
    folder = place(preset, seed=seed, accept_length=accept_length)
    make = partial(maker.ensure, preset, folder, seed=seed, accept_length=accept_length)
    if (folder / NAME).is_file():
        make()
        return folder
    # In a process of its own: torch would leave a context on the GPU, 1.7 GiB that are then foreign there.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as child:
        child.submit(make).result()
    return folder


def identity(folder: Path) -> str:
    """Name and digest of a model folder, for results: equal strings mean equal models.

    For a synthetic pair the digest is that of ``truth.json``, which holds the hash of every file; for
    another folder that of the configs of target and draft.
    """
    truth = folder / "truth.json"
    if truth.is_file():
        facts = json.loads(truth.read_text(encoding="utf-8"))
        # They follow from the rest; pairs made before there were any are the same pairs.
        facts.pop("examples", None)
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]
        return f"{facts['preset']}@{digest}"
    configs = [folder / part / "config.json" for part in ("target", "draft")]
    content = b"".join(path.read_bytes() for path in configs if path.is_file())
    return f"{folder.name}@{hashlib.sha256(content).hexdigest()[:12]}"


def foretold(model: Model) -> str:
    """The identity of a configured model, as far as it is known before it is served.

    Returns:
        Of a synthetic pair that is not made yet, what stands before its digest, ``@`` included.
    """
    if model.preset is None:
        return f"{model.target}@{model.target_revision}" if model.target_revision else str(model.target)
    folder = place(model.preset, seed=model.seed, accept_length=model.accept_length)
    return identity(folder) if (folder / NAME).is_file() else f"{model.preset}@"


def vocabulary(target: Path) -> int | None:
    """``vocab_size`` of a target's ``config.json``; ``None`` where it is not on this disk or does not say."""
    try:
        size = json.loads((target / "config.json").read_text(encoding="utf-8")).get("vocab_size")
    except (OSError, ValueError, AttributeError):
        return None
    return size if isinstance(size, int) else None


def known_verify_counts(
    folder: Path | None, prompts: Sequence[Sequence[int]], new_tokens: int, steps: int
) -> list[int] | None:
    """Verify passes that a greedy request takes with a synthetic pair at topk 1, by prompt; ``None`` for
    other models and for pairs with near-ties."""
    if folder is None or not (folder / "truth.json").is_file():
        return None
    truth = load_truth(folder)
    if truth.near_tie is not None:
        return None
    return [predicted_verify_count(truth, prompt, new_tokens, steps) for prompt in prompts]


def known_outputs(
    folder: Path | None, prompts: Sequence[Sequence[int]], new_tokens: int
) -> list[list[int]] | None:
    """The outputs that a synthetic pair must give; ``None`` for other models."""
    if folder is None or not (folder / "truth.json").is_file():
        return None
    truth = load_truth(folder)
    return [predicted_output(truth, prompt, new_tokens) for prompt in prompts]
