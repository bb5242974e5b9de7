"""SGLang's HTTP routes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from tokgate.emulator import openai, server_args
from tokgate.emulator.front import Front
from tokgate.emulator.http import REASONS, Exchange
from tokgate.emulator.inference import Inference
from tokgate.emulator.log_lines import Log

DEPRECATED = {"/get_server_info": "/server_info", "/get_model_info": "/model_info"}
PROFILE_FOLDER = "/tmp"
FLUSHED = (
    "Cache flushed.\nPlease check backend logs for more details. "
    "(When there are running or waiting requests, the operation will not be performed.)\n"
)


class Routes:
    """Dispatches requests.

    Args:
        front: the engine.
        log: of the HTTP process.
    """

    def __init__(self, front: Front, log: Log) -> None:
        self._front = front
        self._settings = front.settings
        self._log = log
        self._inference = Inference(front, log)
        self._routes: dict[tuple[str, str], Callable[[Exchange], None]] = {
            ("GET", "/health"): self._health,
            ("GET", "/health_generate"): self._health,
            ("GET", "/ping"): self._health,
            ("GET", "/v1/models"): self._models,
            ("GET", "/server_info"): self._server_info,
            ("GET", "/get_server_info"): self._server_info,
            ("GET", "/model_info"): self._model_info,
            ("GET", "/get_model_info"): self._model_info,
            ("POST", "/generate"): self._inference.native,
            ("PUT", "/generate"): self._inference.native,
            ("POST", "/v1/completions"): self._inference.completion,
            ("POST", "/v1/chat/completions"): self._inference.chat,
        }
        for method in ("GET", "POST"):
            self._routes[method, "/flush_cache"] = self._flush
            self._routes[method, "/start_profile"] = self._start_profile
            self._routes[method, "/stop_profile"] = self._stop_profile
        if self._settings.args["enable_metrics"]:
            self._routes["GET", "/metrics"] = self._metrics

    def handle(self, exchange: Exchange) -> None:
        """Answer a request, now or later."""
        route = self._routes.get((exchange.method, exchange.path))
        if route is None:
            known = any(path == exchange.path for _, path in self._routes)
            detail = "Method Not Allowed" if known else "Not Found"
            exchange.respond_json(405 if known else 404, {"detail": detail})
            return
        self._front.metrics.count_request(exchange.path, exchange.method)
        if exchange.path in DEPRECATED:
            self._log.line(
                f"Endpoint '{exchange.path}' is deprecated and will be removed in a future version. "
                f"Please use '{DEPRECATED[exchange.path]}' instead."
            )
        route(exchange)

    def answered(self, exchange: Exchange, status: int) -> None:
        """Access line and counters of a response that begins."""
        self._log.line(
            f'INFO:     {exchange.client} - "{exchange.method} {exchange.path} HTTP/1.1" '
            f"{status} {REASONS[status]}"
        )
        self._front.metrics.count_response(exchange.path, exchange.method, status)

    def _health(self, exchange: Exchange) -> None:
        front, times = self._front, self._settings.plan["http"]
        if not front.serving:
            exchange.respond(503, b"", "text/plain; charset=utf-8")
            return
        begun = time.monotonic()
        clock = time.strftime("%H:%M:%S")
        probe = front.submit([0], 1, _ignore, kind="health")

        def look() -> None:
            if exchange.done:
                return
            # As in SGLang: any message of the detokenizer will do, whoever it is for.
            if front.heard_s > begun:
                exchange.respond(200, b"", "text/plain; charset=utf-8")
            elif time.monotonic() - begun < times["health_timeout_s"]:
                front.loop.after(max(times["health_s"], 0.005), look)
                return
            else:
                heard = time.strftime(
                    "%H:%M:%S", time.localtime(time.time() - (time.monotonic() - front.heard_s))
                )
                self._log.line(
                    "Health check failed. Server couldn't get a response from detokenizer for last "
                    f"{times['health_timeout_s']:g} seconds. tic start time: {clock}. "
                    f"last_heartbeat time: {heard}"
                )
                exchange.respond(503, b"", "text/plain; charset=utf-8")
            front.abort(probe)

        front.loop.after(times["health_s"], look)

    def _server_info(self, exchange: Exchange) -> None:
        settings = self._settings

        def reply(state: dict[str, Any]) -> None:
            if not exchange.done:
                exchange.respond_json(200, server_args.server_info(settings.args, settings.version, state))

        self._front.ask("state", reply)

    def _model_info(self, exchange: Exchange) -> None:
        args = self._settings.args
        exchange.respond_json(
            200,
            {
                "model_path": args["model_path"],
                "tokenizer_path": args["tokenizer_path"],
                "is_generation": True,
                "preferred_sampling_params": None,
                "weight_version": "default",
                "has_image_understanding": False,
                "has_audio_understanding": False,
                "model_type": "llama",
                "architectures": [self._settings.plan["architecture"]],
            },
        )

    def _models(self, exchange: Exchange) -> None:
        args = self._settings.args
        exchange.respond_json(200, openai.models(args["served_model_name"], args["context_length"]))

    def _metrics(self, exchange: Exchange) -> None:
        body = self._front.metrics.render().encode()
        exchange.respond(200, body, "text/plain; version=0.0.4; charset=utf-8")

    def _flush(self, exchange: Exchange) -> None:
        def reply(flushed: bool) -> None:
            if not exchange.done:
                body = FLUSHED if flushed else "Flush cache failed.\n"
                exchange.respond(200 if flushed else 400, body.encode(), "text/plain; charset=utf-8")

        self._front.ask("flush", reply)

    def _start_profile(self, exchange: Exchange) -> None:
        try:
            body = json.loads(exchange.body or b"{}")
            steps = body.get("num_steps")
            folder = body.get("output_dir") or PROFILE_FOLDER
            if not isinstance(folder, str) or not (steps is None or (isinstance(steps, int) and steps > 0)):
                raise ValueError("output_dir must be a string and num_steps a positive integer")
        except (ValueError, AttributeError) as error:
            exchange.respond_json(400, {"error": {"message": str(error)}})
            return

        self._front.ask("profile", _profile_reply(exchange, "Start profiling.\n"),
                        output_dir=folder, num_steps=None if steps is None else int(steps))  # fmt: skip

    def _stop_profile(self, exchange: Exchange) -> None:
        self._front.ask(
            "stop_profile", _profile_reply(exchange, "Stop profiling. This will take some time.\n")
        )


def _profile_reply(exchange: Exchange, text: str) -> Callable[[str | None], None]:
    def reply(refusal: str | None) -> None:
        if exchange.done:
            return
        if refusal:
            exchange.respond_json(400, {"error": {"message": refusal}})
        else:
            exchange.respond(200, text.encode(), "text/plain; charset=utf-8")

    return reply


def _ignore(generation: Any) -> None:
    return
