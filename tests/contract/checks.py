"""The contract: what `tokgate.sglang` relies on, one function a claim. Each takes one server's transcript.

The same functions judge the recordings, the live CPU engine and the emulated engine. Where the engines
must differ (graphs exist on a GPU only) the function says so.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any, TypeVar

from tests.contract.launches import STEPS
from tests.contract.transcript import NEW_TOKENS, PROMPT, STREAMED, Transcript
from tokgate.sglang import log_events as ev
from tokgate.sglang.http import (
    graphs,
    overrides,
    read_generation,
    read_model_info,
    read_server_info,
    resolved,
)
from tokgate.sglang.log import LogReader
from tokgate.sglang.metrics import graph_passes, read_counters

Check = Callable[[Transcript], None]
CHECKS: dict[str, Check] = {}
Found = TypeVar("Found", bound=ev.Event)


def claim(function: Check) -> Check:
    CHECKS[function.__name__] = function
    return function


def events(transcript: Transcript) -> tuple[ev.Event, ...]:
    """The log's events."""
    return _events(transcript.log)


@cache
def _events(log: bytes) -> tuple[ev.Event, ...]:
    reader = LogReader()
    return tuple(reader.feed(log) + reader.close())


def of_kind(transcript: Transcript, kind: type[Found]) -> list[Found]:
    return [event for event in events(transcript) if isinstance(event, kind)]


def sse(body: bytes) -> list[Any]:
    """The JSON of each event of a stream that must end with ``[DONE]``."""
    *parts, done, rest = body.decode().split("\n\n")
    assert rest == "" and done == "data: [DONE]", body[-200:]
    assert all(part.startswith("data: ") for part in parts)
    return [json.loads(part.removeprefix("data: ")) for part in parts]


# -------------------------------------------------------------------------------- /server_info, /model_info


@claim
def server_info_names_the_version(t: Transcript) -> None:
    assert read_server_info(t.server_info).version == t.version


@claim
def server_runs_as_asked(t: Transcript) -> None:
    assert overrides(t.profile, t.server_info) == []


@claim
def server_info_tells_what_changes_the_measurement(t: Transcript) -> None:
    found = resolved(t.server_info)
    asked = t.profile.speculation
    wanted: dict[str, object] = {
        "attention_backend": found.get("attention_backend"),
        "sampling_backend": found.get("sampling_backend"),
        "dtype": found.get("dtype"),
        "max_running_requests": 8,
        "effective_max_running_requests": 8,
        "decode_log_interval": 8,
        "tp_size": 1,
        "page_size": 1,
        "disable_radix_cache": False,
        "chunked_prefill_size": found.get("chunked_prefill_size"),
        "schedule_policy": "fcfs",
        "stream_interval": 1,
        "cuda_graph_decode": "disabled",
        "cuda_graph_prefill": "disabled",
        "speculative_algorithm": "EAGLE3" if asked else None,
        "speculative_num_steps": STEPS if asked else None,
        "speculative_eagle_topk": 1 if asked else None,
        "speculative_num_draft_tokens": STEPS + 1 if asked else None,
        "speculative_attention_mode": "prefill",
    }
    assert {name: found.get(name, "absent") for name in wanted} == wanted
    for name in ("attention_backend", "sampling_backend", "dtype", "chunked_prefill_size"):
        assert found[name] is not None, name
    assert isinstance(found["disable_overlap_schedule"], bool)


@claim
def graphs_are_off(t: Transcript) -> None:
    found = graphs(read_server_info(t.server_info))
    assert (found.decode_on, found.prefill_on) == (False, False)


@claim
def server_info_tells_capacity_and_memory(t: Transcript) -> None:
    info = read_server_info(t.server_info)
    assert info.max_total_tokens is not None and info.max_total_tokens >= 4096
    assert {"weight", "kvcache"} <= info.memory_gb.keys()


@claim
def server_info_tells_the_average_accept_length(t: Transcript) -> None:
    average = read_server_info(t.server_info).average_accept_length
    if t.profile.speculation is None:
        assert average is None
    else:
        assert average is not None and 1.0 < average <= STEPS + 1


@claim
def model_info_names_the_model(t: Transcript) -> None:
    info = read_model_info(t.model_info)
    assert info.model_path is not None and info.model_path.endswith("/target")
    assert info.is_generation is True


# -------------------------------------------------------------------------------- /generate


@claim
def generation_is_counted(t: Transcript) -> None:
    assert len(t.generated["output_ids"]) == NEW_TOKENS
    found = read_generation(t.generated["meta_info"])
    assert (found.prompt_tokens, found.completion_tokens, found.cached_tokens) == (len(PROMPT), NEW_TOKENS, 0)
    assert found.finish_reason == "length"
    assert found.retractions == 0
    assert found.e2e_s is not None and found.e2e_s > 0
    assert found.queue_s is not None and 0 <= found.queue_s < found.e2e_s


@claim
def speculation_is_counted(t: Transcript) -> None:
    found = read_generation(t.generated["meta_info"])
    if t.profile.speculation is None:
        assert found.verify_count is None and found.accept_histogram is None and found.accept_length is None
        return
    assert found.verify_count and found.accept_histogram is not None
    assert found.accepted_drafts is not None and found.proposed_drafts is not None
    histogram = found.accept_histogram
    assert sum(histogram) == found.verify_count
    assert sum(index * count for index, count in enumerate(histogram)) == found.accepted_drafts
    assert found.proposed_drafts == found.verify_count * STEPS
    # The last pass may accept more than was asked for: those tokens are cut off.
    beyond = found.verify_count + found.accepted_drafts - (NEW_TOKENS - 1)
    assert 0 <= beyond <= STEPS
    assert found.reported_accept_length is not None
    assert abs(found.reported_accept_length - NEW_TOKENS / found.verify_count) < 0.01


@claim
def stream_is_cumulative(t: Transcript) -> None:
    found = sse(t.streamed)
    counts = [event["meta_info"]["completion_tokens"] for event in found]
    assert counts == sorted(set(counts)) and counts[-1] == NEW_TOKENS
    for earlier, later in pairwise(found):
        assert later["text"].startswith(earlier["text"])
        assert later["output_ids"][: len(earlier["output_ids"])] == earlier["output_ids"]
    assert all(len(event["output_ids"]) == count for event, count in zip(found, counts, strict=True))
    # A step is sent at once. Where SGLang's front process is late it sends only the newest of several (it takes the
    # last of its out_list), so not each event is one step: a single one in mid-stream shows the interval.
    middle = [later - earlier for earlier, later in pairwise(counts)][1:-1]
    assert min(middle) <= (STEPS + 1 if t.profile.speculation else 1)


@claim
def stream_ends_with_the_figures(t: Transcript) -> None:
    *found, last = (read_generation(event["meta_info"]) for event in sse(t.streamed))
    assert last.finish_reason == "length"
    assert (last.prompt_tokens, last.cached_tokens) == (len(STREAMED), 0)
    assert all(event.finish_reason is None for event in found)
    assert all(event.verify_count is None and event.e2e_s is None for event in found), "final event only"
    assert (last.verify_count is not None) == (t.profile.speculation is not None)


@claim
def completions_stream_ends_with_usage(t: Transcript) -> None:
    found = sse(t.completion)
    *pieces, last, usage = found
    assert all(len(event["choices"]) == 1 and event["usage"] is None for event in [*pieces, last])
    assert last["choices"][0]["finish_reason"] == "length"
    assert "".join(event["choices"][0]["text"] for event in [*pieces, last])
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == NEW_TOKENS
    assert usage["usage"]["prompt_tokens"] > 0


@claim
def health_and_flush_answer(t: Transcript) -> None:
    assert (t.health, t.flush) == (200, 200)


# -------------------------------------------------------------------------------- /metrics


@claim
def metrics_count_tokens(t: Transcript) -> None:
    before, after = read_counters(t.before), read_counters(t.after)
    assert before.generated_tokens is not None and after.generated_tokens is not None
    assert after.generated_tokens - before.generated_tokens == 3 * NEW_TOKENS
    assert before.prompt_tokens is not None and after.prompt_tokens is not None
    text_tokens = sse(t.completion)[-1]["usage"]["prompt_tokens"]
    assert after.prompt_tokens - before.prompt_tokens == len(PROMPT) + len(STREAMED) + text_tokens


@claim
def metrics_count_retracted_requests(t: Transcript) -> None:
    assert read_counters(t.after).retracted_requests == 0


@claim
def metrics_count_verify_passes(t: Transcript) -> None:
    before, after = read_counters(t.before), read_counters(t.after)
    if t.profile.speculation is None:
        assert after.verify_calls is None and after.accept_length is None
        return
    assert before.verify_calls is not None and after.verify_calls is not None
    last = read_generation(sse(t.streamed)[-1]["meta_info"]).verify_count
    first = read_generation(t.generated["meta_info"]).verify_count
    assert first is not None and last is not None
    assert after.verify_calls - before.verify_calls > first + last  # and those of the completion
    assert after.accept_length is not None and 1.0 < after.accept_length <= STEPS + 1


@claim
def metrics_count_passes_by_graph(t: Transcript) -> None:
    found = graph_passes(read_counters(t.before), read_counters(t.after))
    assert found is not None
    assert (found.decode_graph, found.prefill_graph) == (0, 0)
    assert found.prefill_eager == 3
    # A decode pass is a step: one token each, or one verify pass. The overlapped scheduler of 0.5.15 starts
    # one pass a request before it knows that the request has ended.
    if t.profile.speculation is None:
        assert 3 * (NEW_TOKENS - 1) <= found.decode_eager <= 3 * NEW_TOKENS
    else:
        before, after = read_counters(t.before), read_counters(t.after)
        assert found.decode_eager == (after.verify_calls or 0) - (before.verify_calls or 0)


# -------------------------------------------------------------------------------- log


@claim
def log_shows_the_start_in_order(t: Transcript) -> None:
    order = [ev.ServerArgs, ev.WeightsBegin, ev.WeightsEnd, ev.KvCache, ev.Capacity, ev.Serving, ev.Ready]
    firsts = [next(i for i, event in enumerate(events(t)) if isinstance(event, kind)) for kind in order]
    assert firsts == sorted(firsts)
    counts = Counter(type(event) for event in events(t))
    models = 2 if t.profile.speculation else 1
    assert (counts[ev.WeightsBegin], counts[ev.WeightsEnd], counts[ev.KvCache]) == (models, models, models)
    assert (counts[ev.ServerArgs], counts[ev.Capacity], counts[ev.Ready]) == (1, 1, 1)


@claim
def log_names_the_models(t: Transcript) -> None:
    target, *draft = (event.model for event in of_kind(t, ev.WeightsEnd))
    assert (target,) == read_model_info(t.model_info).architectures
    assert draft == (["LlamaForCausalLMEagle3"] if t.profile.speculation else [])
    assert all(event.seconds is not None for event in of_kind(t, ev.WeightsEnd))


@claim
def log_and_server_info_agree(t: Transcript) -> None:
    (capacity,) = of_kind(t, ev.Capacity)
    info = read_server_info(t.server_info)
    assert capacity.max_total_tokens == info.max_total_tokens
    assert capacity.max_running_requests == info.max_running_requests
    assert {event.tokens for event in of_kind(t, ev.KvCache)} == {info.max_total_tokens}
    (arguments,) = of_kind(t, ev.ServerArgs)
    assert arguments.values["port"] == info.arguments["port"]
    assert arguments.values["speculative_algorithm"] == info.arguments["speculative_algorithm"]


@claim
def log_shows_no_capture_where_graphs_are_off(t: Transcript) -> None:
    assert not of_kind(t, ev.CaptureBegin) and not of_kind(t, ev.CaptureEnd)


@claim
def log_shows_decode_batches(t: Transcript) -> None:
    found = of_kind(t, ev.DecodeBatch)
    assert len(found) >= 3 * NEW_TOKENS // (STEPS + 1) // 8
    assert max(line.tokens or 0 for line in found) > len(PROMPT)
    for line in found:
        assert (line.running, line.queue, line.graph) == (1, 0, False)
        assert line.graph_device == ("cpu" if t.engine == "cpu" else "cuda")
        # Printed after a request's last step, the line counts no token any more.
        assert line.gen_tok_s > 0 and line.tokens is not None
        if t.profile.speculation is None:
            assert line.accept_length is None
        else:
            assert line.accept_length is not None and 1.0 <= line.accept_length <= STEPS + 1


@claim
def log_shows_prefill_batches(t: Transcript) -> None:
    found = of_kind(t, ev.PrefillBatch)
    assert [line.new_tokens for line in found].count(len(PROMPT)) == 2
    assert all((line.new_sequences, line.running, line.queue) == (1, 0, 0) for line in found)
    assert all(line.cached_tokens == 0 for line in found)


@claim
def log_of_a_healthy_server_raises_no_suspicion(t: Transcript) -> None:
    alarming = (
        ev.Fatal,
        ev.ExceptionSeen,
        ev.Suspect,
        ev.Watchdog,
        ev.Retraction,
        ev.HealthFailure,
        ev.Shutdown,
    )
    assert [event for event in events(t) if isinstance(event, alarming)] == []
