"""The HTTP process's side of the engine: requests out to the scheduler, tokens in from the detokenizer."""

from __future__ import annotations

import itertools
import selectors
import time
import uuid
from collections.abc import Callable
from typing import Any

from tokgate.emulator import server_args
from tokgate.emulator.channel import Channel
from tokgate.emulator.children import is_internal
from tokgate.emulator.counters import Counters
from tokgate.emulator.generation import Generation
from tokgate.emulator.http import Loop
from tokgate.emulator.metrics import Metrics
from tokgate.emulator.settings import Settings


class Front:
    """Knows every generation in flight.

    Args:
        settings: of the server.
        loop: event loop of the HTTP process.
        scheduler: channel to rank 0.
        detokenizer: channel from the detokenizer.
        counters: shared with the scheduler.

    Attributes:
        ready: the scheduler has started.
        serving: the warm-up is through; until then health is 503.
        heard_s: monotonic time of the last message of the detokenizer.
        on_ready: called when the scheduler has started.
    """

    def __init__(
        self, settings: Settings, loop: Loop, scheduler: Channel, detokenizer: Channel, counters: Counters
    ) -> None:
        args = settings.args
        self.settings = settings
        self.loop = loop
        self.serving = False
        self.heard_s = 0.0
        self.on_ready: Callable[[], None] = _nothing
        self.generations: dict[str, Generation] = {}
        self.steps = int(args["speculative_num_steps"]) if settings.speculative else 0
        self.metrics = Metrics(
            counters,
            model=args["served_model_name"],
            capacity=server_args.kv_tokens(args),
            context=args["context_length"],
            steps=self.steps,
            draft_tokens=args["speculative_num_draft_tokens"] or 0,
            hidden="missing-metrics" in settings.faults,
        )
        self._scheduler = scheduler
        self._detokenizer = detokenizer
        self._asked: dict[int, Callable[[Any], None]] = {}
        self._tokens = itertools.count(1)
        for channel, handler in ((scheduler, self._on_scheduler), (detokenizer, self._on_detokenizer)):
            channel.sock.setblocking(False)
            loop.watch(channel, selectors.EVENT_READ, handler)

    def submit(
        self,
        prompt: list[int],
        max_new: int,
        on_tokens: Callable[[Generation], None],
        *,
        kind: str = "user",
        rid: str | None = None,
        temperature: float = 0.0,
        logprobs: bool = False,
        top: int = 0,
        input_start: int = -1,
    ) -> Generation:
        """Start a generation; ``on_tokens`` is called with every arrival of tokens."""
        rid = rid or uuid.uuid4().hex
        if kind != "user":
            rid = f"{'HEALTH_CHECK' if kind == 'health' else 'WARMUP'}_{rid}"
        generation = Generation(
            rid,
            prompt,
            steps=self.steps,
            patch=self.settings.patch,
            logprobs=logprobs,
            top=top,
            input_start=input_start,
        )
        generation.on_tokens = on_tokens
        self.generations[rid] = generation
        self._send(
            {
                "type": "generate",
                "rid": rid,
                "ids": prompt,
                "max_new": max_new,
                "kind": kind,
                "temperature": temperature,
                "logprob": logprobs,
                "top": top,
            }
        )
        generation.dispatched = time.time()
        return generation

    def abort(self, generation: Generation) -> None:
        """Forget a generation, here and in the scheduler."""
        if self.generations.pop(generation.rid, None) is not None:
            self._send({"type": "abort", "rid": generation.rid})

    def ask(self, kind: str, on_reply: Callable[[Any], None], **payload: Any) -> None:
        """Ask the scheduler something; no answer comes while it is stopped, as with SGLang."""
        token = next(self._tokens)
        self._asked[token] = on_reply
        self._send({"type": kind, "token": token, **payload})

    @property
    def active(self) -> int:
        """Requests of clients that are not finished."""
        return sum(not is_internal(rid) for rid in self.generations)

    def _send(self, message: dict[str, Any]) -> None:
        self._scheduler.send(message)
        self._watch_scheduler()

    def _watch_scheduler(self) -> None:
        if self._scheduler.closed:
            self.loop.forget(self._scheduler)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._scheduler.wants_write else 0)
        self.loop.watch(self._scheduler, events, self._on_scheduler)

    def _on_scheduler(self, mask: int) -> None:
        if mask & selectors.EVENT_WRITE:
            self._scheduler.flush()
        messages = self._scheduler.receive() if mask & selectors.EVENT_READ else []
        self._watch_scheduler()
        for message in messages:
            if message["type"] == "ready":
                self.on_ready()
            else:
                self._asked.pop(message["token"], _drop)(message["data"])

    def _on_detokenizer(self, mask: int) -> None:
        messages = self._detokenizer.receive()
        if self._detokenizer.closed:
            self.loop.forget(self._detokenizer)
        if messages:
            self.heard_s = time.monotonic()
        for message in messages:
            for rid, text, ids, finish, info in message["entries"]:
                generation = self.generations.get(rid)
                if generation is None:
                    continue
                if finish is not None:
                    del self.generations[rid]
                generation.take(text, ids, finish, info)
                if finish is not None and not rid.startswith("HEALTH_CHECK"):
                    self.metrics.count_generation(generation)


def _nothing() -> None:
    return


def _drop(data: Any) -> None:
    return
