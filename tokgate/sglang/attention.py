"""Whether ``speculative_attention_mode`` does anything on a given server.

For a dense model the mode acts only through the hybrid backend, which exists only when prefill and decode
have different attention backends. Some model families read the mode in code of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tokgate.sglang.version import rules_for

# Families whose model or indexer code reads the mode (deepseek_v2, DSA, the Kimi and Inkling overrides).
_OWN_CODE = re.compile(r"deepseek|kimi|inkling|glmmoedsa", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ModeEffect:
    """Whether the mode has an effect.

    Attributes:
        real: True or False, ``None`` when it cannot be told.
        why: one sentence.
        remedy: flags that would make the comparison real; empty when it is.
    """

    real: bool | None
    why: str
    remedy: str = ""


def attention_mode_effect(
    arguments: Mapping[str, Any],
    *,
    architectures: Iterable[str] = (),
    hybrid_line: bool | None = None,
    version: str | None = None,
) -> ModeEffect:
    """Judge from what a server reports.

    Args:
        arguments: resolved server arguments, as of :func:`tokgate.sglang.http.resolved`.
        architectures: of the target model, from ``/model_info`` or the log.
        hybrid_line: whether the log has the line of the hybrid backend; ``None`` when no log was read.
        version: to warn of the known crash before 0.5.17.
    """
    if not arguments.get("speculative_algorithm"):
        return ModeEffect(False, "no speculation: the mode is of speculative verification")
    if hybrid_line:
        return ModeEffect(True, "the log shows the hybrid attention backend")
    own = next((name for name in architectures if _OWN_CODE.search(name)), None)
    if own is not None:
        return ModeEffect(True, f"{own} reads the mode in code of its own")
    main = arguments.get("attention_backend")
    prefill = arguments.get("prefill_attention_backend") or main
    decode = arguments.get("decode_attention_backend") or main
    if prefill is None and decode is None:
        return ModeEffect(None, "the server does not report its attention backends")
    if prefill != decode:
        if hybrid_line is False:
            return ModeEffect(None, f"backends differ ({prefill}, {decode}), the log has no hybrid line")
        return ModeEffect(True, f"different backends for prefill ({prefill}) and decode ({decode})")
    remedy = "prefill_attention_backend: flashinfer, decode_attention_backend: triton"
    if version is not None and not rules_for(version).since(17):
        remedy += f" (may crash with EAGLE before 0.5.17, this is {version})"
    return ModeEffect(False, f"one backend ({prefill}) serves prefill and decode: the mode is inert", remedy)
