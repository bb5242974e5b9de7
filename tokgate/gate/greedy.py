"""Greedy outputs of a running server, with its two best candidates where they are asked for."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tokgate.analysis.parity import Output, TopTwo
from tokgate.analysis.parity_case import Case, CaseRequest
from tokgate.errors import LoadFault
from tokgate.sglang.http import read_generation

_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class GreedyClient:
    """Greedy requests to a running SGLang server, for their token ids, not their times.

    Attributes:
        address: without a trailing slash.
        timeout_s: longest wait for one answer.
    """

    address: str
    timeout_s: float

    def flush(self) -> None:
        """Empty the prefix cache.

        Raises:
            LoadFault: the server does not answer, or refuses because it is busy.
        """
        self._post("/flush_cache", None)

    def answer(self, case: Case, *, candidates: bool = False) -> list[Output]:
        """The greedy outputs of a case.

        Args:
            candidates: ask for the two best candidates at every position as well.

        Raises:
            LoadFault: the server does not answer, or not with token ids.
        """
        with ThreadPoolExecutor(min(len(case.requests), _AT_ONCE) if case.together else 1) as pool:
            return list(pool.map(lambda request: self._generate(request, candidates), case.requests))

    def rescore(self, request: CaseRequest, output: Output) -> Mapping[int, TopTwo]:
        """The two best candidates at each output position, from one prefill over prompt and output."""
        body = _body([*request.prompt_ids, *output.ids], 1) | {
            "return_logprob": True,
            "top_logprobs_num": 2,
            "logprob_start_len": len(request.prompt_ids) - 1,
        }
        found = self._json(body)["meta_info"].get("input_top_logprobs") or []
        # Entry k speaks of the token at logprob_start_len + k; the first is the prompt's last token.
        return _candidates(found[1:])

    def _generate(self, request: CaseRequest, candidates: bool) -> Output:
        body = _body(request.prompt_ids, request.new_tokens)
        if request.sampling_seed is not None:
            body["sampling_params"]["sampling_seed"] = request.sampling_seed
        if candidates:
            body |= {"return_logprob": True, "top_logprobs_num": 2}
        answer = self._json(body)
        meta = answer["meta_info"]
        read = read_generation(meta)
        return Output(
            tuple(answer["output_ids"][-request.new_tokens :]),
            _candidates(meta.get("output_top_logprobs") or []) if candidates else None,
            stopped=read.finish_reason == "stop",
            verify_count=read.verify_count,
            cached_tokens=read.cached_tokens,
        )

    def _json(self, body: Mapping[str, Any]) -> dict[str, Any]:
        text = self._post("/generate", body)
        try:
            answer = json.loads(text)
        except ValueError as error:
            raise LoadFault(f"{self.address}/generate: the answer is not JSON: {text[:80]!r}") from error
        if not isinstance(answer, dict) or "output_ids" not in answer or "meta_info" not in answer:
            raise LoadFault(f"{self.address}/generate: the answer holds no output_ids: {text[:80]!r}")
        return answer

    def _post(self, path: str, body: Mapping[str, Any] | None) -> str:
        data = b"" if body is None else json.dumps(body).encode()
        try:
            request = urllib.request.Request(
                self.address + path, data, {"Content-Type": "application/json"}, method="POST"
            )
            with urllib.request.urlopen(request, timeout=self.timeout_s) as reply:
                text: str = reply.read().decode("utf-8", "replace")
                return text
        except urllib.error.HTTPError as error:
            with error:
                detail = error.read(200).decode("utf-8", "replace")
            raise LoadFault(f"{self.address}{path}: HTTP {error.code}", [detail] if detail else []) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise LoadFault(f"{self.address}{path}: no answer: {error}") from error


def _body(ids: Sequence[int], new_tokens: int) -> dict[str, Any]:
    sampling = {"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": True}
    return {"input_ids": list(ids), "sampling_params": sampling}


def _candidates(found: Sequence[Any]) -> dict[int, TopTwo]:
    """Position -> candidates, from SGLang's [[logprob, id, text], ...] a position."""
    result = {}
    for i, entry in enumerate(found):
        if entry and len(entry) >= 2:
            (first, first_id, *_), (second, second_id, *_) = entry[:2]
            result[i] = TopTwo((int(first_id), int(second_id)), (float(first), float(second)))
    return result
