"""What SGLang's HTTP answers say, as typed readings: ``/server_info``, ``/model_info``, ``meta_info``.

Field names changed through the versions; a field that a server did not send is ``None``, never 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tokgate.errors import EngineFault

# The names under which a figure of /generate has been sent, newest first.
_HISTOGRAM = ("spec_correct_drafts_histogram", "spec_accept_histogram")
_ACCEPTED = ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num")
_PROPOSED = ("spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num")


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """``/server_info``, whatever its shape.

    Attributes:
        version: SGLang's version, ``None`` when the answer has none.
        arguments: server arguments as resolved.
        states: the schedulers' internal states, one a data-parallel rank; empty when not sent.
    """

    version: str | None
    arguments: Mapping[str, Any]
    states: tuple[Mapping[str, Any], ...] = ()

    @property
    def max_total_tokens(self) -> int | None:
        """Tokens that the KV cache holds."""
        value = self.arguments.get("max_total_num_tokens")
        if value is None and self.states:
            value = as_mapping(self.states[0].get("memory_usage")).get("token_capacity")
        return as_int(value)

    @property
    def max_running_requests(self) -> int | None:
        """Requests that really run at once, a data-parallel rank."""
        value = self.states[0].get("effective_max_running_requests_per_dp") if self.states else None
        return as_int(value if value is not None else self.arguments.get("max_running_requests"))

    @property
    def average_accept_length(self) -> float | None:
        """The server's own running average; lags, is reset by a cache flush, and may be absent."""
        return as_float(self.states[0].get("avg_spec_accept_length")) if self.states else None

    @property
    def memory_gb(self) -> Mapping[str, float]:
        """Device memory by use (``weight``, ``kvcache``, ``graph``), GB as SGLang counts it."""
        usage = as_mapping(self.states[0].get("memory_usage")) if self.states else {}
        found = {}
        for name, value in usage.items():
            number = as_float(value)
            if number is not None and name != "token_capacity":
                found[name] = number
        return found


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """``/model_info``."""

    model_path: str | None
    model_type: str | None = None
    architectures: tuple[str, ...] = ()
    is_generation: bool | None = None


@dataclass(frozen=True, slots=True)
class Generation:
    """The ``meta_info`` of the final ``/generate`` event.

    Attributes:
        prompt_tokens, completion_tokens, cached_tokens: the server's counts.
        verify_count: verify passes of this request.
        accepted_drafts, proposed_drafts: draft tokens, bonus tokens not counted.
        accept_histogram: verify passes by number of accepted draft tokens, index 0..steps.
        reported_accept_length: the server's figure, which counts the prefill's token too.
        queue_s: seconds in the server's queue.
        finish_reason: ``length``, ``stop``, ``abort``; ``None`` on an event that is not the last.
        retractions: how often the request was taken back for want of KV cache.
    """

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    verify_count: int | None = None
    accepted_drafts: int | None = None
    proposed_drafts: int | None = None
    accept_histogram: tuple[int, ...] | None = None
    reported_accept_length: float | None = None
    queue_s: float | None = None
    e2e_s: float | None = None
    finish_reason: str | None = None
    retractions: int | None = None

    @property
    def accept_length(self) -> float | None:
        """Tokens a verify pass, bonus included: (completion tokens - 1) / verify passes.

        The first token comes from the prefill and is no pass's doing.
        """
        if self.completion_tokens is None or not self.verify_count:
            return None
        return (self.completion_tokens - 1) / self.verify_count


def read_server_info(answer: object) -> ServerInfo:
    """Read ``/server_info``: arguments at the top level or under ``server_args``, states as list or object.

    Raises:
        EngineFault: the answer is no JSON object.
    """
    if not isinstance(answer, Mapping):
        raise EngineFault(f"/server_info answered {type(answer).__name__}, expected an object")
    nested = as_mapping(answer.get("server_args"))
    arguments = {**{key: value for key, value in answer.items() if key != "internal_states"}, **nested}
    raw = answer.get("internal_states")
    states = [raw] if isinstance(raw, Mapping) else raw if isinstance(raw, list) else []
    version = answer.get("version")
    return ServerInfo(
        version=version if isinstance(version, str) else None,
        arguments=arguments,
        states=tuple(state for state in states if isinstance(state, Mapping)),
    )


def read_model_info(answer: object) -> ModelInfo:
    """Read ``/model_info``.

    Raises:
        EngineFault: the answer is no JSON object.
    """
    if not isinstance(answer, Mapping):
        raise EngineFault(f"/model_info answered {type(answer).__name__}, expected an object")
    architectures = answer.get("architectures")
    return ModelInfo(
        model_path=as_text(answer.get("model_path")),
        model_type=as_text(answer.get("model_type")),
        architectures=tuple(map(str, architectures)) if isinstance(architectures, list) else (),
        is_generation=answer.get("is_generation") if isinstance(answer.get("is_generation"), bool) else None,
    )


def read_generation(meta_info: object) -> Generation:
    """Read ``meta_info``. Speculative figures come on the final event only.

    Args:
        meta_info: as parsed from JSON; anything but an object reads as nothing reported.
    """
    meta = as_mapping(meta_info)
    histogram = _first(meta, _HISTOGRAM)
    reason = meta.get("finish_reason")
    return Generation(
        prompt_tokens=as_int(meta.get("prompt_tokens")),
        completion_tokens=as_int(meta.get("completion_tokens")),
        cached_tokens=as_int(meta.get("cached_tokens")),
        verify_count=as_int(meta.get("spec_verify_ct")),
        accepted_drafts=as_int(_first(meta, _ACCEPTED)),
        proposed_drafts=as_int(_first(meta, _PROPOSED)),
        accept_histogram=as_counts(histogram),
        reported_accept_length=as_float(meta.get("spec_accept_length")),
        queue_s=as_float(meta.get("queue_time")),
        e2e_s=as_float(meta.get("e2e_latency")),
        finish_reason=as_text(reason.get("type")) if isinstance(reason, Mapping) else as_text(reason),
        retractions=as_int(meta.get("num_retractions")),
    )


def as_mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _first(meta: Mapping[str, Any], names: Iterable[str]) -> object:
    return next((meta[name] for name in names if meta.get(name) is not None), None)


def as_int(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value)


def as_float(value: object) -> float | None:
    return None if isinstance(value, bool) or not isinstance(value, int | float) else float(value)


def as_text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def as_counts(value: object) -> tuple[int, ...] | None:
    if not isinstance(value, list | tuple):
        return None
    counts = [as_int(item) for item in value]
    return None if None in counts else tuple(count for count in counts if count is not None)
