"""Models named as on the Hugging Face hub, where they are already on this disk. Nothing is downloaded here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def folder(name: str, revision: str | None, env: Mapping[str, str]) -> Path | None:
    """Where a model is on this disk: a local folder, or the hub cache's snapshot of that revision.

    Args:
        name: path or hub name (``owner/model``).
        revision: branch, tag or commit; ``None`` for ``main``.
        env: of the engine; ``HF_HUB_CACHE`` and ``HF_HOME`` in it go before tokgate's own.

    Returns:
        ``None`` when it is not there.
    """
    if Path(name).is_dir():
        return Path(name)
    stored = _cache({**os.environ, **env}) / f"models--{name.replace('/', '--')}"
    wanted = revision or "main"
    try:
        commit = (stored / "refs" / wanted).read_text(encoding="utf-8").strip()
    except OSError:
        commit = wanted
    found = stored / "snapshots" / commit
    return found if (found / "config.json").is_file() else None


def _cache(env: Mapping[str, str]) -> Path:
    if env.get("HF_HUB_CACHE"):
        return Path(env["HF_HUB_CACHE"])
    home = env.get("HF_HOME") or str(Path.home() / ".cache" / "huggingface")
    return Path(home) / "hub"
