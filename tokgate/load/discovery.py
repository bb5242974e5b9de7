"""Find out what a running server speaks, by asking it."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokgate.config.workloads import Route, Workload
from tokgate.errors import LoadFault, UsageFault
from tokgate.load.routes import Target

MAX_ANSWER = 4 << 20


@dataclass(frozen=True, slots=True)
class Discovery:
    """What a server speaks: route, model name, and how it calls itself.

    Attributes:
        context_tokens: longest prompt and output together that it takes; ``None`` where it does not say.
    """

    route: Route
    model: str
    server: str
    context_tokens: int | None = None


def discover(
    target: Target,
    *,
    route: Route | None = None,
    model: str | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = 10.0,
) -> Discovery:
    """Ask the server for its model: ``/model_info`` is SGLang's own, ``/v1/models`` everyone's.

    Args:
        target: the server.
        route: keep this route; by default ``generate`` where there is one, else ``completions``.
        model: keep this model name.
        headers: such as ``Authorization``.
        timeout_s: for each question.

    Raises:
        LoadFault: nothing answers there, or nothing that is known.
    """
    asking = _Asking(target, headers, timeout_s)
    own = asking.get("/model_info") or asking.get("/get_model_info")
    sglang = own is not None and "model_path" in own
    listed = asking.get("/v1/models")
    names = [item["id"] for item in _items(listed) if isinstance(item.get("id"), str)]
    if not sglang and listed is None and target.prefix.endswith("/v1"):
        raise LoadFault(
            f"{target.url} answers neither /model_info nor /v1/models",
            [f"tokgate adds /v1 itself: give {target.url.removesuffix('/v1')}"],
        )
    if not sglang and listed is None and route is None:
        raise asking.unknown()
    name = model or (names[0] if names else "default")
    what = f"SGLang, {own.get('model_path')}" if own is not None and sglang else f"OpenAI-compatible, {name}"
    lengths = [item.get("max_model_len") for item in _items(listed) if item.get("id") in (name, *names[:1])]
    if sglang and not any(_is_length(length) for length in lengths):
        for path in ("/server_info", "/get_server_info"):
            lengths.append((asking.get(path) or {}).get("context_length"))
            if _is_length(lengths[-1]):
                break
    context = next((length for length in lengths if _is_length(length)), None)
    return Discovery(route or ("generate" if sglang else "completions"), name, what, context)


def fits(workload: Workload, found: Discovery) -> None:
    """Check that generated prompts and the output asked fit the server's context, where it tells its length.

    Texts and traces are left to the server, which alone knows their tokens.

    Raises:
        UsageFault: they do not.
    """
    length, output = workload.prompts.length_tokens, workload.output_tokens
    limit = found.context_tokens
    if workload.prompts.kind == "tokens" and limit is not None and length + output > limit:
        raise UsageFault(
            f"{length} prompt tokens and {output} output tokens are {length + output}; "
            f"the server's context length is {limit}",
            ["ask for less, or start the server with a longer context"],
        )


def _is_length(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _items(listed: dict[str, Any] | None) -> list[dict[str, Any]]:
    data = (listed or {}).get("data")
    return [item for item in data if isinstance(item, dict)] if isinstance(data, list) else []


class _Asking:
    """Questions to one server, and how it answered them: ``statuses`` by path, 0 for what is no HTTP."""

    def __init__(self, target: Target, headers: Mapping[str, str] | None, timeout_s: float) -> None:
        self._target, self._headers, self._timeout_s = target, dict(headers or {}), timeout_s
        self.statuses: dict[str, int] = {}

    def get(self, path: str) -> dict[str, Any] | None:
        """A JSON object from the server, ``None`` when it gives another answer."""
        target, where = self._target, self._target.prefix + path
        connection = http.client.HTTPConnection(target.address[0], target.port, timeout=self._timeout_s)
        self.statuses[where] = 0
        try:
            connection.request("GET", where, headers=self._headers)
            response = connection.getresponse()
            self.statuses[where] = response.status
            data = response.read(MAX_ANSWER)
            found = json.loads(data) if response.status == 200 else None
        except TimeoutError as error:
            raise LoadFault(
                f"the server at {target.host}:{target.port} gives no answer to GET {where} in {self._timeout_s:g} s",
                ["it may hang: a scheduler that is stuck leaves its HTTP server alive"],
            ) from error
        except OSError as error:
            why = error.strerror or str(error)
            raise LoadFault(f"no server answers at {target.host}:{target.port}: {why}") from error
        except (http.client.HTTPException, ValueError):
            return None
        finally:
            connection.close()
        return found if isinstance(found, dict) else None

    def unknown(self) -> LoadFault:
        """The fault for a server that says of no path what it is; with the likeliest way out."""
        told = [f"GET {path}: {status or 'no HTTP'}" for path, status in self.statuses.items()]
        way_out = "name its route with --route generate, completions or chat"
        found = set(self.statuses.values())
        if found & {401, 403}:
            way_out = "it wants a key: --header 'Authorization: Bearer KEY'"
        elif found & {502, 503, 504}:
            way_out = "it is not ready, or what it stands for is not: wait until it serves"
        elif found == {0}:
            way_out = "another protocol is spoken there (https, say): name the server's plain http port"
        where = f"{self._target.host}:{self._target.port}"
        return LoadFault(f"the server at {where} does not say what it is ({', '.join(told)})", [way_out])
