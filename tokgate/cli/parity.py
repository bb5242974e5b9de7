"""``tokgate parity``: replay a parity case against two running servers."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from tokgate.analysis.parity import (
    Floor,
    Outcome,
    Output,
    ParityResult,
    TopTwo,
    compare,
    first_difference,
    measure_floor,
)
from tokgate.analysis.parity_case import Case, CaseRequest, load_case
from tokgate.errors import LoadFault, UsageFault

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Greedy parity between two running servers."
)

_AT_ONCE = 64


@app.callback()
def parity() -> None:
    """Greedy parity between two running servers."""


@app.command()
def replay(
    file: Annotated[Path, typer.Argument(help="case file")],
    url: Annotated[list[str], typer.Option("--url", help="twice: the reference's address, then the other's")],
    timeout_s: Annotated[
        float, typer.Option("--timeout-s", help="longest wait for one answer, seconds")
    ] = 600,
) -> None:
    """Send the case to both servers and compare the token ids.

    Exit code 0: equal, or ties only; 1: diverged, or the reference is not as known beforehand; 3: undecided.
    """
    if len(url) != 2:
        raise UsageFault(f"--url must be given twice (reference, then other), got {len(url)}")
    if not timeout_s > 0:
        raise UsageFault(f"--timeout-s must be above 0, got {timeout_s:g}")
    case = load_case(file)
    reference, other = (Server(address.rstrip("/"), timeout_s) for address in url)
    if case.flush_first:
        reference.flush()
        other.flush()
    wanted = reference.answer(case, candidates=True)
    again = reference.answer(case)
    got = other.answer(case)
    pairs = [
        (output.top or {}, reference.rescore(request, output))
        for request, output in zip(case.requests, wanted, strict=True)
    ]
    floor = measure_floor(pairs)
    control = compare(wanted, again, floor, wanted_tokens=None)
    result = compare(wanted, got, floor, wanted_tokens=None)
    unlike = unlike_truth(case, wanted)
    for line in [*lines(result, control, floor), *unlike]:
        typer.echo(line)
    raise typer.Exit(1 if unlike else {"PASS": 0, "DIVERGED": 1}.get(result.verdict, 3))


def lines(result: ParityResult, control: ParityResult, floor: Floor | None) -> list[str]:
    """The report: verdict, floor, control, and every request that differs."""
    text = [f"{result.verdict} {result.headline()}"]
    if floor is None:
        text.append("  floor: not measured, no difference is forgiven")
    else:
        text.append(
            f"  floor: the reference's top-2 gaps move by up to {floor.largest:.3g} nats between decoding "
            f"and re-scoring ({floor.compared} gaps); a gap up to {floor.tolerance:.3g} is a tie"
        )
    text.append(f"  control: the reference against itself: {control.headline()}")
    text += [f"  {each.line()}" for each in result.comparisons if each.outcome is not Outcome.EQUAL]
    return text


def unlike_truth(case: Case, outputs: Sequence[Output]) -> list[str]:
    """A line for each request whose reference output is not the one known beforehand."""
    found = []
    for i, known in enumerate(case.wanted_ids or ()):
        at = first_difference(known, outputs[i].ids)
        if at is not None:
            found.append(f"  request {i}: the reference itself leaves the known output at token {at}")
    return found


@dataclass(frozen=True, slots=True)
class Server:
    """A running SGLang server.

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
        if candidates:
            body |= {"return_logprob": True, "top_logprobs_num": 2}
        answer = self._json(body)
        meta = answer["meta_info"]
        reason = meta.get("finish_reason")
        return Output(
            tuple(answer["output_ids"][-request.new_tokens :]),
            _candidates(meta.get("output_top_logprobs") or []) if candidates else None,
            stopped=isinstance(reason, dict) and reason.get("type") == "stop",
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
