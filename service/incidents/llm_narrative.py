"""An explainer that an operator may add: a language model behind an OpenAI-compatible door retells an incident.

Off unless configured. It gets the explanation that stands already, findings in words and nothing else: no values, no
logs, no names beyond those in it. What it answers is shown beside the explanation and goes nowhere: no decision, no
incident and no message reads it.
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

MOST_TEXT = 4000  # characters of an answer; more is no retelling
MOST_ASKED = 12_000
_TOKENS = 700
_ASK = {
    "en": "You explain an incident of a cluster that serves language models to the engineer on call. Use only the "
    "findings below. Name the cause with its confidence, what speaks for and against it, and what to check first. "
    "Do not guess beyond them. Answer in English, in at most 150 words, as plain text.",
    "zh": "请向值班工程师解释一起大模型推理集群的事件。只能依据下面的发现：说明原因及其置信度、支持与反对的依据、"
    "应当先检查什么，不要做其他猜测。用中文回答，不超过 250 字，纯文本。",
}


class Reason:
    """Why there is no text; they go to the API unchanged."""

    OFF = "off"
    BUSY = "busy"
    AWAY = "away"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Narrative:
    """A text that a model wrote, unchecked; or None and the ``reason``."""

    text: str | None
    reason: str = ""
    model: str = ""


@dataclass(frozen=True, slots=True)
class Door:
    """Where the model answers: ``url`` ends in ``/v1`` as a rule. ``key_file`` holds the key, read at each call."""

    url: str
    model: str
    key_file: Path | None = None
    timeout: timedelta = timedelta(seconds=12)


class Explainer(Protocol):
    """Whatever retells an explanation."""

    def retell(self, found: Explanation, language: Language) -> Narrative:
        """The text, or why there is none. Raises nothing."""
        ...


class NoExplainer:
    """The default."""

    def retell(self, _found: Explanation, _language: Language) -> Narrative:
        """Nothing."""
        return Narrative(None, Reason.OFF)


class OpenAiExplainer:
    """Asks ``/chat/completions``. One question at a time: a door that hangs holds up one reader and nothing else."""

    def __init__(self, door: Door) -> None:
        """``door`` is asked when somebody wants to read, never before."""
        self._door = door
        self._asking = threading.Lock()

    def retell(self, found: Explanation, language: Language) -> Narrative:
        """The text, or why there is none, within the door's timeout. Raises nothing."""
        if not self._asking.acquire(blocking=False):
            return Narrative(None, Reason.BUSY, self._door.model)
        try:
            answer = http.post(
                "explainer",
                f"{self._door.url.rstrip('/')}/chat/completions",
                json.dumps(question(found, language, self._door.model)).encode(),
                self._headers(),
                self._door.timeout,
            )
        except (DeliveryError, OSError, UnicodeDecodeError):
            return Narrative(None, Reason.AWAY, self._door.model)
        finally:
            self._asking.release()
        text = _text(answer.json())
        return Narrative(text, "" if text else Reason.UNREADABLE, self._door.model)

    def _headers(self) -> Mapping[str, str]:
        """The key is read anew each time, so that one that was changed counts at once. Raises OSError."""
        headers = {"content-type": "application/json"}
        if self._door.key_file is not None:
            headers["authorization"] = f"Bearer {self._door.key_file.read_text(encoding='utf-8').strip()}"
        return headers


def question(found: Explanation, language: Language, model: str) -> dict[str, Any]:
    """What is sent: the explanation in words, without the runbook's path, secrets taken out."""
    lines = []
    for section in explanation_text.sections(found, language):
        if section.name != "runbook":
            lines += [f"{section.heading}:", *(f"- {line}" for line in section.lines)]
    told = redact_text("\n".join(lines))[:MOST_ASKED]
    return {
        "model": model,
        "messages": [{"role": "system", "content": _ASK[language]}, {"role": "user", "content": told}],
        "temperature": 0,
        "max_tokens": _TOKENS,
        "stream": False,
    }


def _text(answer: Any) -> str | None:
    """The text of an answer of the usual shape, without control characters; None for anything else."""
    try:
        said = answer["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError):
        return None
    if not isinstance(said, str):
        return None
    plain = "".join(char for char in said if char.isprintable() or char == "\n").strip()
    return plain if plain and len(plain) <= MOST_TEXT else None
