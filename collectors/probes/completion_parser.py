"""What a chat or text completion says, from a stream of chunks or from one JSON object. Pure."""

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
_MOST_SAID = 200


@dataclass(slots=True)
class Completion:
    """One answer as far as it has come.

    ``deltas`` counts chunks that brought something; ``text`` is what the model wrote, its reasoning too.
    ``tokens`` is what the server counted, None until it says so.
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
        """Everything written so far."""
        return "".join(self.parts)

    @property
    def counted(self) -> int:
        """Tokens as the server counted them, else the chunks that brought some."""
        return self.deltas if self.tokens is None else self.tokens

    def take(self, event: Event) -> bool:
        """Take one event of a stream in; True when it brought something. Raises ProbeError for an error in it."""
        if event.data.strip() == DONE:
            self.done = True
            return False
        try:
            chunk = json.loads(event.data)
        except (ValueError, RecursionError) as error:
            if event.name == "error":
                raise self._error(event.data) from error
            raise ProbeError(Outcome.WRONG_ANSWER, f"{self.address} streams something that is no JSON") from error
        if event.name == "error" and isinstance(chunk, Mapping) and "error" not in chunk:
            raise self._error(chunk.get("message"))
        return self.chunk(chunk)

    def chunk(self, chunk: Any) -> bool:
        """The same for one JSON object, of a stream or a whole answer."""
        if not isinstance(chunk, Mapping):
            raise ProbeError(Outcome.WRONG_ANSWER, f"{self.address} answers JSON that is no completion")
        fault = chunk.get("error")
        if fault or chunk.get("object") == "error":
            said = fault.get("message") if isinstance(fault, Mapping) else fault
            raise self._error(said or chunk.get("message"))
        self._usage(chunk.get("usage"))
        brought = False
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, Mapping):
                brought = self._choice(choice) or brought
        self.deltas += brought
        return brought

    def _choice(self, choice: Mapping[str, Any]) -> bool:
        if choice.get("finish_reason"):
            self.finished = True
        inner = choice.get("delta") or choice.get("message")
        said = inner if isinstance(inner, Mapping) else {}
        texts = [one for one in (choice.get("text"), *map(said.get, _TEXTS)) if isinstance(one, str) and one]
        calls = bool(said.get("tool_calls") or said.get("function_call"))
        self.parts += texts
        self.tool_calls = self.tool_calls or calls
        return calls or bool(texts)

    def _usage(self, usage: Any) -> None:
        told = usage.get("completion_tokens") if isinstance(usage, Mapping) else None
        if isinstance(told, int) and not isinstance(told, bool) and told >= 0:
            self.tokens = told

    def _error(self, said: Any) -> ProbeError:
        text = said if isinstance(said, str) else json.dumps(said, default=str)
        return ProbeError(Outcome.STREAM_ERROR, f"{self.address} began to answer, then said: {text[:_MOST_SAID]}")
