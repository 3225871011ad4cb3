"""Parses a chat or text completion, from a stream of chunks or one JSON object. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from collectors.probes.base import ProbeError
from collectors.probes.result import Outcome
from collectors.probes.sse import Event

DONE = "[DONE]"
_TEXTS = ("content", "reasoning_content", "reasoning", "refusal")
_MAX_DETAIL = 200


@dataclass(slots=True)
class Completion:
    """One completion as received so far.

    ``deltas`` counts chunks with content; ``text`` is the model's output, reasoning included. ``tokens`` is the
    server's count, None until it is received.
    """

    address: str
    parts: list[str] = field(default_factory=list)
    deltas: int = 0
    tool_calls: bool = False
    tokens: int | None = None
    finished: bool = False
    done: bool = False

    @property
    def text(self) -> str:
        """The output received so far."""
        return "".join(self.parts)

    @property
    def counted(self) -> int:
        """Tokens by the server's count, else the number of chunks with content."""
        return self.deltas if self.tokens is None else self.tokens

    def take(self, event: Event) -> bool:
        """Adds one event of a stream; True if it has content. Raises ProbeError for an error in it."""
        if event.data.strip() == DONE:
            self.done = True
            return False
        try:
            chunk = json.loads(event.data)
        except (ValueError, RecursionError) as error:
            if event.name == "error":
                raise self._error(event.data) from error
            raise ProbeError(Outcome.WRONG_ANSWER, f"{self.address} streamed data that is not JSON") from error
        if event.name == "error" and isinstance(chunk, Mapping) and "error" not in chunk:
            raise self._error(chunk.get("message"))
        return self.chunk(chunk)

    def chunk(self, chunk: Any) -> bool:
        """Same for one JSON object, of a stream or a complete response."""
        if not isinstance(chunk, Mapping):
            raise ProbeError(Outcome.WRONG_ANSWER, f"{self.address} returned JSON that is not a completion")
        error = chunk.get("error")
        if error or chunk.get("object") == "error":
            detail = error.get("message") if isinstance(error, Mapping) else error
            raise self._error(detail or chunk.get("message"))
        self._usage(chunk.get("usage"))
        has_content = False
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, Mapping):
                has_content = self._choice(choice) or has_content
        self.deltas += has_content
        return has_content

    def _choice(self, choice: Mapping[str, Any]) -> bool:
        if choice.get("finish_reason"):
            self.finished = True
        inner = choice.get("delta") or choice.get("message")
        message = inner if isinstance(inner, Mapping) else {}
        texts = [part for part in (choice.get("text"), *map(message.get, _TEXTS)) if isinstance(part, str) and part]
        calls = bool(message.get("tool_calls") or message.get("function_call"))
        self.parts += texts
        self.tool_calls = self.tool_calls or calls
        return calls or bool(texts)

    def _usage(self, usage: Any) -> None:
        count = usage.get("completion_tokens") if isinstance(usage, Mapping) else None
        if isinstance(count, int) and not isinstance(count, bool) and count >= 0:
            self.tokens = count

    def _error(self, detail: Any) -> ProbeError:
        text = detail if isinstance(detail, str) else json.dumps(detail, default=str)
        return ProbeError(Outcome.STREAM_ERROR, f"{self.address} sent an error within the stream: {text[:_MAX_DETAIL]}")
