"""The OpenAI-compatible forms: `/v1/completions`, `/v1/chat/completions`, `/v1/models`."""

from __future__ import annotations

import json
import time
from typing import Any

from tokgate.emulator.generation import Generation


def usage_of(generations: list[Generation]) -> dict[str, Any]:
    """Token counts of a response, in SGLang's order of keys."""
    prompt = sum(len(generation.prompt) for generation in generations)
    completion = sum(generation.completion_tokens for generation in generations)
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": None,
        "reasoning_tokens": 0,
    }


class Form:
    """Shapes of one OpenAI request.

    Args:
        chat: chat completion, else text completion.
        model: name to report.
        options: the request's ``stream_options``.
        rid: response id.
    """

    def __init__(self, chat: bool, model: str, options: dict[str, Any], rid: str) -> None:
        self._chat = chat
        self._rid = rid
        self._model = model
        self._created = int(time.time())
        self.include_usage = bool(options.get("include_usage"))
        self._continuous = bool(options.get("continuous_usage_stats"))

    def _wrap(self, kind: str, choices: list[Any], usage: dict[str, Any] | None) -> dict[str, Any]:
        return {
            "id": self._rid,
            "object": kind,
            "created": self._created,
            "model": self._model,
            "choices": choices,
            "usage": usage,
        }

    @property
    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self._chat else "text_completion"

    def opening(self, index: int) -> str | None:
        """The chunk before any token: the role, in a chat."""
        if not self._chat:
            return None
        return self._chunk(index, {"role": "assistant", "content": ""}, None, None)

    def chunk(self, index: int, generation: Generation) -> str:
        """The chunk of newly arrived tokens."""
        usage = usage_of([generation]) if self._continuous else None
        return self._chunk(index, {"role": None, "content": generation.new_text}, generation.finish, usage)

    def _chunk(self, index: int, delta: dict[str, Any], finish: str | None, usage: Any) -> str:
        choice: dict[str, Any] = {"index": index}
        if self._chat:
            choice["delta"] = {**delta, "reasoning_content": None, "tool_calls": None}
        else:
            choice["text"] = delta["content"]
        choice |= {"logprobs": None, "finish_reason": finish, "matched_stop": None}
        return _compact(self._wrap(self._chunk_kind, [choice], usage))

    def closing(self, generations: list[Generation]) -> str:
        """The last chunk, with the usage of the whole request."""
        usage = usage_of(generations)
        del usage["prompt_tokens_details"]
        return _compact(self._wrap(self._chunk_kind, [], usage))

    def whole(self, generations: list[Generation]) -> dict[str, Any]:
        """The response without streaming."""
        choices = []
        for index, generation in enumerate(generations):
            choice: dict[str, Any] = {"index": index}
            if self._chat:
                choice["message"] = {
                    "role": "assistant",
                    "content": generation.text,
                    "reasoning_content": None,
                    "tool_calls": None,
                }
            else:
                choice["text"] = generation.text
            choices.append(
                choice | {"logprobs": None, "finish_reason": generation.finish, "matched_stop": None}
            )
        kind = "chat.completion" if self._chat else "text_completion"
        return self._wrap(kind, choices, usage_of(generations)) | {"metadata": {"weight_version": "default"}}


def models(name: str, context: int) -> dict[str, Any]:
    """Body of `/v1/models`."""
    model = {
        "id": name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "sglang",
        "root": name,
        "parent": None,
        "max_model_len": context,
    }
    return {"object": "list", "data": [model]}


def chat_text(messages: Any) -> str:
    """Messages as one prompt. The emulated engine has no chat template: roles and contents in order.

    Raises:
        ValueError: not a list of messages with text contents.
    """
    if not (isinstance(messages, list) and messages):
        raise ValueError("messages must be a list of at least one message")
    parts = []
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list):
            content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
        if content is None or not isinstance(content, str):
            raise ValueError("every message needs a text content")
        parts.append(f"{message.get('role', 'user')} {content}")
    return "\n".join(parts)


def _compact(data: dict[str, Any]) -> str:
    return json.dumps(data, separators=(",", ":"))
