"""The generating routes: `/generate` and the OpenAI-compatible ones, streamed or whole, single or batched."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tokgate.emulator import openai, tokens
from tokgate.emulator.front import Front
from tokgate.emulator.generation import Generation
from tokgate.emulator.http import Exchange
from tokgate.emulator.log_lines import Log

DEFAULT_NEW_TOKENS = 128
MAX_BATCH = 4096


class RequestFault(ValueError):
    """A request that SGLang answers with status 400."""


@dataclass(slots=True)
class Ask:
    """One request, after reading: prompts and what is wanted of each."""

    prompts: list[list[int]]
    batched: bool
    stream: bool
    max_new: list[int]
    temperature: float = 0.0
    rid: str | None = None
    logprobs: bool = False
    top: int = 0
    input_start: int = -1
    generations: list[Generation] = field(default_factory=list)


class Inference:
    """Answers generating requests.

    Args:
        front: the engine.
        log: of the HTTP process.
    """

    def __init__(self, front: Front, log: Log) -> None:
        self._front = front
        self._log = log
        self._args = front.settings.args
        self._count = 0

    def native(self, exchange: Exchange) -> None:
        """`/generate`."""
        if (ask := self._read(exchange, self._read_native)) is None:
            return
        if ask.stream:
            self._stream(exchange, ask, lambda i, g: g.event(i if ask.batched else None), None)
            return

        def done() -> None:
            bodies = [generation.event() for generation in ask.generations]
            text = f"[{','.join(bodies)}]" if ask.batched else bodies[0]
            exchange.respond(200, text.encode())

        self._whole(exchange, ask, done)

    def completion(self, exchange: Exchange) -> None:
        """`/v1/completions`."""
        self._openai(exchange, chat=False)

    def chat(self, exchange: Exchange) -> None:
        """`/v1/chat/completions`."""
        self._openai(exchange, chat=True)

    def _openai(self, exchange: Exchange, *, chat: bool) -> None:
        def read(body: dict[str, Any]) -> Ask:
            return self._read_openai(body, chat)

        if (ask := self._read(exchange, read)) is None:
            return
        body = json.loads(exchange.body)
        model = body.get("model") or self._args["served_model_name"]
        options = body.get("stream_options") or {}
        if ask.stream:
            self._stream(exchange, ask, lambda i, g: form.chunk(i, g), lambda: form)
            form = openai.Form(chat, model, options, ask.generations[0].rid)
            return
        form = openai.Form(chat, model, options, "")

        def done() -> None:
            whole = openai.Form(chat, model, options, ask.generations[0].rid)
            exchange.respond_json(200, whole.whole(ask.generations))

        self._whole(exchange, ask, done)

    # --- reading --------------------------------------------------------------------------------

    def _read(self, exchange: Exchange, reader: Callable[[dict[str, Any]], Ask]) -> Ask | None:
        try:
            body = json.loads(exchange.body)
        except ValueError:
            exchange.respond_json(
                422, {"detail": [{"type": "json_invalid", "loc": ["body"], "msg": "JSON decode error"}]}
            )
            return None
        self._count += 1
        every = self._front.settings.faults.number("http-500")
        if every and self._count % int(every) == 0:
            exchange.respond(500, b"Internal Server Error", "text/plain; charset=utf-8")
            return None
        try:
            if not isinstance(body, dict):
                raise RequestFault("the body must be an object")
            ask = reader(body)
            self._bound(ask)
        except (RequestFault, ValueError) as error:
            exchange.respond_json(400, {"error": {"message": str(error)}})
            return None
        return ask

    def _bound(self, ask: Ask) -> None:
        if not 0 < len(ask.prompts) <= MAX_BATCH:
            raise RequestFault(f"a batch holds 1 to {MAX_BATCH} prompts")
        context = self._args["context_length"]
        for i, prompt in enumerate(ask.prompts):
            if not prompt or not all(isinstance(t, int) and 0 <= t < (1 << 31) for t in prompt):
                raise RequestFault("input_ids must be a non-empty list of token ids")
            if len(prompt) > context - 6:
                raise RequestFault(
                    f"Input length ({len(prompt)} tokens) exceeds the maximum allowed length "
                    f"({context - 6} tokens). Use a shorter input or enable --allow-auto-truncate."
                )
            if ask.max_new[i] < 1:
                raise RequestFault(f"max_new_tokens must be at least 1, got {ask.max_new[i]}")
            ask.max_new[i] = min(ask.max_new[i], context - len(prompt) - 1)

    def _read_native(self, body: dict[str, Any]) -> Ask:
        text, ids = body.get("text"), body.get("input_ids")
        if (text is None) == (ids is None):
            raise RequestFault("Either text, input_ids or input_embeds should be provided.")
        given = text if ids is None else ids
        batched = isinstance(given, list) and (ids is None or (bool(given) and isinstance(given[0], list)))
        many: list[Any] = given if batched and isinstance(given, list) else [given]
        prompts = [tokens.tokenize(_text(one)) if ids is None else _ids(one) for one in many]
        params = body.get("sampling_params") or {}
        each: list[Any] = params if isinstance(params, list) else [params] * len(prompts)
        if len(each) != len(prompts) or not all(isinstance(one, dict) for one in each):
            raise RequestFault("sampling_params must be one object, or one for each prompt")
        temperature = float(each[0].get("temperature", 1.0)) if each else 0.0
        logprobs = bool(body.get("return_logprob"))
        return Ask(
            prompts,
            batched,
            bool(body.get("stream")),
            [int(one.get("max_new_tokens", DEFAULT_NEW_TOKENS)) for one in each],
            temperature,
            None if batched else body.get("rid"),
            logprobs,
            int(body.get("top_logprobs_num") or 0) if logprobs else 0,
            int(body["logprob_start_len"]) if logprobs and body.get("logprob_start_len") is not None else -1,
        )

    def _read_openai(self, body: dict[str, Any], chat: bool) -> Ask:
        batched = False
        if chat:
            prompts = [tokens.tokenize(openai.chat_text(body.get("messages")))]
        else:
            given = body.get("prompt")
            if given is None:
                raise RequestFault("prompt is missing")
            batched = isinstance(given, list) and bool(given) and not isinstance(given[0], int)
            prompts = [
                tokens.tokenize(one) if isinstance(one, str) else _ids(one)
                for one in (given if batched else [given])
            ]
        wanted = (
            body.get("max_completion_tokens")
            or body.get("max_tokens")
            or (DEFAULT_NEW_TOKENS if chat else 16)
        )
        temperature = float(body.get("temperature", 1.0) or 0.0)
        return Ask(prompts, batched, bool(body.get("stream")), [int(wanted)] * len(prompts), temperature)

    # --- answering ------------------------------------------------------------------------------

    def _submit(self, ask: Ask, on_tokens: Callable[[int, Generation], None]) -> None:
        for index, prompt in enumerate(ask.prompts):

            def arrived(generation: Generation, index: int = index) -> None:
                on_tokens(index, generation)

            ask.generations.append(
                self._front.submit(
                    prompt,
                    ask.max_new[index],
                    arrived,
                    rid=ask.rid,
                    temperature=ask.temperature,
                    logprobs=ask.logprobs,
                    top=ask.top,
                    input_start=ask.input_start,
                )
            )

    def _watch_client(self, exchange: Exchange, ask: Ask) -> None:
        def gone() -> None:
            for generation in ask.generations:
                if generation.finish is None:
                    self._log.line(
                        "[http_server] Error: Request is disconnected from the client side (type 1). "
                        f"Abort request obj.rid='{generation.rid}'"
                    )
                    self._front.abort(generation)

        exchange.on_disconnect = gone

    def _stream(
        self,
        exchange: Exchange,
        ask: Ask,
        shape: Callable[[int, Generation], str],
        form: Callable[[], openai.Form] | None,
    ) -> None:
        left = len(ask.prompts)
        cut = self._front.settings.faults.number("early-close")

        def arrived(index: int, generation: Generation) -> None:
            nonlocal left
            if exchange.done:
                return
            if not exchange.status:
                exchange.start_stream()
            first = generation.completion_tokens > 0 and generation.text == generation.new_text
            opening = form().opening(index) if form and first else None
            if opening:
                exchange.send_event(opening)
            exchange.send_event(shape(index, generation))
            if cut and generation.completion_tokens >= cut:
                exchange.abandon()
                for one in ask.generations:
                    self._front.abort(one)
                return
            if generation.finish is not None:
                left -= 1
                if left == 0:
                    if form and form().include_usage:
                        exchange.send_event(form().closing(ask.generations))
                    exchange.end_stream()

        self._submit(ask, arrived)
        self._watch_client(exchange, ask)

    def _whole(self, exchange: Exchange, ask: Ask, done: Callable[[], None]) -> None:
        left = len(ask.prompts)

        def arrived(index: int, generation: Generation) -> None:
            nonlocal left
            if generation.finish is not None:
                left -= 1
                if left == 0 and not exchange.done:
                    done()

        self._submit(ask, arrived)
        self._watch_client(exchange, ask)


def _ids(value: Any) -> list[int]:
    if not isinstance(value, list):
        raise RequestFault("input_ids must be a list of token ids, or a list of such lists")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise RequestFault("text must be a string, or a list of strings")
    return value
