"""Incident summaries by a language model behind an OpenAI-compatible endpoint.

Off unless configured. The model receives the explanation as text and nothing else: no values and no logs. Its reply
is shown next to the explanation only; no decision, incident or message uses it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

from alerts.notify import http
from detectors.rca import explanation_text
from detectors.rca.explanation import Explanation
from outrider.audit import redact_text
from outrider.errors import DeliveryError
from outrider.text.i18n import Language

MAX_REPLY_CHARACTERS = 4000  # a longer reply is rejected
MAX_PROMPT_CHARACTERS = 12_000
_MAX_TOKENS = 700
_INSTRUCTIONS = {
    "en": "You explain an incident of a cluster that serves language models to the engineer on call. Use only the "
    "findings below. Name the cause with its confidence, supporting and contradicting evidence, and what to check "
    "first. Do not guess beyond them. Answer in English, in at most 150 words, as plain text.",
    "zh": "请向值班工程师解释一起大模型推理集群的事件。只能依据下面的发现：说明根因及其置信度、支持证据与反面证据、"
    "应当先检查什么，不要做其他猜测。用中文回答，不超过 250 字，纯文本。",
}


class Reason:
    """Reasons for a missing text, as the API returns them."""

    OFF = "off"
    BUSY = "busy"
    AWAY = "away"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Narrative:
    """A text that a model wrote, not verified; or None and the ``reason``."""

    text: str | None
    reason: str = ""
    model: str = ""


@dataclass(frozen=True, slots=True)
class LlmEndpoint:
    """The API of the model. ``url`` usually ends in ``/v1``; ``key_file`` holds the API key, read at each request."""

    url: str
    model: str
    key_file: Path | None = None
    timeout: timedelta = timedelta(seconds=12)


class Explainer(Protocol):
    """Summarizes an explanation."""

    def summarize(self, explanation: Explanation, language: Language) -> Narrative:
        """Returns the text, or the reason for its absence. Raises nothing."""
        ...


class NoExplainer:
    """The default."""

    def summarize(self, _explanation: Explanation, _language: Language) -> Narrative:
        """Returns no text."""
        return Narrative(None, Reason.OFF)


class OpenAiExplainer:
    """Requests ``/chat/completions``, one request at a time: an endpoint that hangs blocks one reader only."""

    def __init__(self, endpoint: LlmEndpoint) -> None:
        """``endpoint`` is called only when a reader opens an incident."""
        self._endpoint = endpoint
        self._requesting = threading.Lock()

    def summarize(self, explanation: Explanation, language: Language) -> Narrative:
        """Returns the text, or the reason for its absence, within the endpoint's timeout. Raises nothing."""
        if not self._requesting.acquire(blocking=False):
            return Narrative(None, Reason.BUSY, self._endpoint.model)
        try:
            response = http.send(
                "explainer",
                f"{self._endpoint.url.rstrip('/')}/chat/completions",
                json.dumps(chat_request(explanation, language, self._endpoint.model)).encode(),
                self._headers(),
                self._endpoint.timeout,
            )
        except (DeliveryError, OSError, UnicodeDecodeError):
            return Narrative(None, Reason.AWAY, self._endpoint.model)
        finally:
            self._requesting.release()
        text = _reply_text(response.json())
        return Narrative(text, "" if text else Reason.UNREADABLE, self._endpoint.model)

    def _headers(self) -> Mapping[str, str]:
        """Returns the headers. The key is read at each request, so a new one takes effect at once. Raises OSError."""
        headers = {"content-type": "application/json"}
        if self._endpoint.key_file is not None:
            headers["authorization"] = f"Bearer {self._endpoint.key_file.read_text(encoding='utf-8').strip()}"
        return headers


def chat_request(explanation: Explanation, language: Language, model: str) -> dict[str, Any]:
    """Returns the request body: the explanation as text, redacted, without the runbook's path."""
    lines = []
    for section in explanation_text.sections(explanation, language):
        if section.name != "runbook":
            lines += [f"{section.heading}:", *(f"- {line}" for line in section.lines)]
    prompt = redact_text("\n".join(lines))[:MAX_PROMPT_CHARACTERS]
    return {
        "model": model,
        "messages": [{"role": "system", "content": _INSTRUCTIONS[language]}, {"role": "user", "content": prompt}],
        "temperature": 0,
        "max_tokens": _MAX_TOKENS,
        "stream": False,
    }


def _reply_text(body: Any) -> str | None:
    """Returns the reply without control characters; None if the body has another shape or the reply is too long."""
    try:
        content = body["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError):
        return None
    if not isinstance(content, str):
        return None
    plain = "".join(char for char in content if char.isprintable() or char == "\n").strip()
    return plain if plain and len(plain) <= MAX_REPLY_CHARACTERS else None
