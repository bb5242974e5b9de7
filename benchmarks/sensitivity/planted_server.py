"""Starts SGLang (0.5.23, CPU engine) with a fault planted in its cache or positions.

SGLang's processes are spawned, and a spawned process runs this file again as ``__mp_main__``: there the fault
is put in. ``TOKGATE_PLANTED`` names it, ``TOKGATE_LAUNCHER`` the engine's own launcher.
"""

from __future__ import annotations

import os
import runpy
from collections.abc import Callable
from typing import Any

LAYER = 3
"""The layer whose cache is struck."""


def lost_entries() -> None:
    """Every seventh token written to one layer's cache is lost."""

    def change(layer: int, k: Any, v: Any) -> None:
        if layer == LAYER:
            k[::7] = 0
            v[::7] = 0

    _on_write(change)


def mixed_requests() -> None:
    """In verification two requests' tokens are written to each other's places."""

    def change(layer: int, k: Any, v: Any) -> None:
        if len(k) in (8, 12, 16):
            for tensor in (k, v):
                tensor[:8] = tensor[:8].roll(4, 0).clone()

    _on_write(change)


def _on_write(change: Callable[[int, Any, Any], None]) -> None:
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool  # type: ignore[import-not-found]

    write = MHATokenToKVPool.set_kv_buffer

    def planted(self: Any, layer: Any, loc: Any, k: Any, v: Any, *more: Any, **named: Any) -> Any:
        k, v = k.clone(), v.clone()
        change(layer.layer_id, k, v)
        return write(self, layer, loc, k, v, *more, **named)

    MHATokenToKVPool.set_kv_buffer = planted


def shifted_positions() -> None:
    """In verification every token stands one position too far."""
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch  # type: ignore[import-not-found]

    make = ForwardBatch.init_new.__func__

    def planted(cls: Any, *arguments: Any, **named: Any) -> Any:
        batch = make(cls, *arguments, **named)
        if batch.forward_mode.is_target_verify() and batch.positions is not None:
            batch.positions = batch.positions + 1
        return batch

    ForwardBatch.init_new = classmethod(planted)


def stale_prefix() -> None:
    """Every other place of a cached prefix leads to the entry of the token before it.

    Places that only changed their order would be no fault: a key carries its position.
    """
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache  # type: ignore[import-not-found]

    give = UnifiedRadixCache.prefix_device_indices

    def planted(self: Any, *arguments: Any, **named: Any) -> Any:
        found = give(self, *arguments, **named).clone()
        found[1::2] = found[::2][: len(found) // 2]
        return found

    UnifiedRadixCache.prefix_device_indices = planted


PLANTED = {
    "lost-entries": lost_entries,
    "mixed-requests": mixed_requests,
    "shifted-positions": shifted_positions,
    "stale-prefix": stale_prefix,
}

# What the launcher declares must live as long as the process.
KEPT = runpy.run_path(os.environ["TOKGATE_LAUNCHER"], run_name="launcher")
if __name__ == "__main__":
    runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=False)
elif os.environ.get("TOKGATE_PLANTED"):
    PLANTED[os.environ["TOKGATE_PLANTED"]]()
