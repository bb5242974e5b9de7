"""One generation as the HTTP process sees it, and its native (`/generate`) form."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from tokgate.emulator import tokens

OLD_HISTOGRAMS_UNTIL = 21


class Generation:
    """State of a request from arrival to its last token.

    Args:
        rid: request id.
        prompt: token ids.
        steps: draft steps of the server, 0 without speculation.
        patch: release whose field names are used.
        logprobs: whether log-probabilities were asked for.
        top: how many top log-probabilities.
        input_start: first prompt position whose log-probability is wanted, -1 for none.
    """

    def __init__(
        self,
        rid: str,
        prompt: list[int],
        *,
        steps: int,
        patch: int,
        logprobs: bool = False,
        top: int = 0,
        input_start: int = -1,
    ) -> None:
        self.rid = rid
        self.prompt = prompt
        self.text = ""
        self.new_text = ""
        self.completion_tokens = 0
        self.cached_tokens = 0
        self.finish: str | None = None
        self.on_tokens: Callable[[Generation], None] = _ignore
        self.received = time.time()
        self.dispatched = self.received
        self._received_mono = time.monotonic()
        self._first_sent = 0.0
        self._finished = 0.0
        self._latency_s = 0.0
        self._ids = ""
        self._escaped = ""
        self._verify: tuple[int, list[int]] | None = None
        self._steps = steps
        self._patch = patch
        self._top = top
        self._output_logprobs: list[Any] = []
        self._output_top: list[Any] = []
        self._input_logprobs: list[Any] | None = None
        self._input_top: list[Any] = []
        if logprobs:
            self._score_prompt(input_start)

    def _score_prompt(self, start: int) -> None:
        self._input_logprobs = []
        if start < 0:
            return
        chain = tokens.Chain(self.prompt[: max(start, 1)])
        for position in range(start, len(self.prompt)):
            token = self.prompt[position]
            if position == 0:
                self._input_logprobs.append([None, token, None])
                self._input_top.append(None)
                continue
            value, ranked = tokens.logprobs_of(token, chain.state, self._top, as_prompt=True)
            chain.add(token)
            self._input_logprobs.append([value, token, None])
            self._input_top.append([[p, t, None] for p, t in ranked])

    def take(self, text: str, ids: list[int], finish: str | None, info: dict[str, Any]) -> None:
        """Tokens arrived."""
        if not self._first_sent:
            self._first_sent = time.time()
            self.cached_tokens = info.get("cached", 0)
        self.new_text = text
        self.text += text
        self._escaped += json.dumps(text)[1:-1]
        joined = ",".join(map(str, ids))
        self._ids += f",{joined}" if self._ids else joined
        self.completion_tokens += len(ids)
        if self._input_logprobs is not None:
            for token, (value, ranked) in zip(ids, info.get("logprobs", ()), strict=False):
                self._output_logprobs.append([value, token, None])
                self._output_top.append([[p, t, None] for p, t in ranked])
        if finish is not None:
            self.finish = finish
            self._verify = info.get("verify")
            self._finished = time.time()
            self._latency_s = time.monotonic() - self._received_mono
        self.on_tokens(self)

    def event(self, index: int | None = None) -> str:
        """The JSON of a native event: cumulative text and ids, and `meta_info`.

        Args:
            index: position in a batch, when several prompts came in one request.
        """
        tail = "" if index is None else f',"index":{index}'
        return f'{{"text":"{self._escaped}","output_ids":[{self._ids}],"meta_info":{{{self._meta()}}}{tail}}}'

    def _meta(self) -> str:
        reason = "null"
        if self.finish is not None:
            reason = f'{{"type":"length","length":{self.completion_tokens}}}'
        logprobs = ""
        if self._input_logprobs is not None:
            fields: dict[str, Any] = {
                "input_token_logprobs": self._input_logprobs,
                "output_token_logprobs": self._output_logprobs,
            }
            if self._top:
                fields |= {"input_top_logprobs": self._input_top, "output_top_logprobs": self._output_top}
            logprobs = f"{_inner(fields)},"
        head = (
            f'"id":"{self.rid}","finish_reason":{reason},"prompt_tokens":{len(self.prompt)},'
            f'"weight_version":"default","num_retractions":0,{logprobs}"queue_time":0.0,"reasoning_tokens":0,'
            f'"completion_tokens":{self.completion_tokens},"cached_tokens":{self.cached_tokens},'
            '"cached_tokens_details":null,"dp_rank":null'
        )
        if self.finish is not None:
            return f"{head},{_inner(self._final_fields())}"
        if self.new_text and self.text == self.new_text:
            return f'{head},"response_sent_to_client_ts":{self._first_sent}'
        return head

    def _final_fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"e2e_latency": self._latency_s}
        if self._verify is not None and self._verify[0]:
            count, histogram = self._verify
            correct = sum(accepted * passes for accepted, passes in enumerate(histogram))
            proposed = count * self._steps
            fields |= {
                "spec_accept_rate": correct / proposed,
                "spec_accept_length": self.completion_tokens / count,
                "spec_num_correct_drafts": correct,
                "spec_num_proposed_drafts": proposed,
                "spec_verify_ct": count,
            }
            if self._patch <= OLD_HISTOGRAMS_UNTIL:
                fields |= {"spec_accepted_drafts": correct, "spec_proposed_drafts": proposed}
            fields["spec_correct_drafts_histogram"] = histogram
            if self._patch <= OLD_HISTOGRAMS_UNTIL:
                fields["spec_accept_histogram"] = histogram
        decode_s = self._finished - self._first_sent
        return fields | {
            "request_received_ts": self.received,
            "api_server_dispatch_finish_ts": self.dispatched,
            "response_sent_to_client_ts": self._first_sent,
            "request_finished_ts": self._finished,
            "decode_throughput": (self.completion_tokens - 1) / decode_s if decode_s > 0 else 0.0,
        }

    @property
    def verify_count(self) -> int:
        """Verify passes, once finished."""
        return self._verify[0] if self._verify else 0

    @property
    def first_token_s(self) -> float:
        """Arrival to first token, seconds."""
        return self._first_sent - self.received

    @property
    def latency_s(self) -> float:
        """Arrival to last token, seconds; 0.0 until then."""
        return self._latency_s


def _inner(fields: dict[str, Any]) -> str:
    return json.dumps(fields, separators=(",", ":"))[1:-1]


def _ignore(generation: Generation) -> None:
    return
