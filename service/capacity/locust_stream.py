"""The user of a load test: asks for a streamed completion again and again, and notes when its tokens came.

Locust runs this file in a process of its own (gevent changes sockets and threads);
``service.capacity.loadtest`` starts it and reads what it wrote. The plan comes as JSON in ``OUTRIDER_LOADTEST``.
"""

from __future__ import annotations

import json
import os
import random
import time
from typing import Any

import gevent
from locust import HttpUser, constant, events, task

PLAN = json.loads(os.environ["OUTRIDER_LOADTEST"])
WORDS = ("river", "stone", "lamp", "field", "north", "glass", "paper", "cloud", "seven", "green", "wheel", "table")
DONE: list[dict[str, Any]] = []


def prompt() -> str:
    """Words in an order that no cache has seen; about a token a word."""
    return " ".join(random.choices(WORDS, k=PLAN["prompt_tokens"]))  # noqa: S311 - a load, not a secret


class StreamUser(HttpUser):
    """One client that never rests: concurrency is the number of users."""

    wait_time = constant(0)

    @task
    def complete(self) -> None:
        """One request, from sending to the last token."""
        body = {
            "model": PLAN["model"],
            "prompt": prompt(),
            "max_tokens": PLAN["output_tokens"],
            "temperature": 0.7,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        headers = {"Authorization": f"Bearer {PLAN['token']}"} if PLAN.get("token") else {}
        record: dict[str, Any] = {"start": time.time(), "first": None, "tokens": 0, "prompt": None, "error": None}
        sent = self.client.post(
            PLAN["path"], json=body, headers=headers, stream=True, catch_response=True, timeout=PLAN["timeout_seconds"]
        )
        with sent as response:
            try:
                self._read(response, record)
                response.success()
            except Exception as error:  # noqa: BLE001 - whatever breaks a request is a failed request
                record["error"] = f"{type(error).__name__}: {error}"[:300]
                response.failure(record["error"])
        record["end"] = time.time()
        DONE.append(record)
        if record["error"]:
            time.sleep(0.1)  # a server that refuses at once is not hammered

    def _read(self, response: Any, record: dict[str, Any]) -> None:
        if response.status_code != 200:
            raise OSError(f"HTTP {response.status_code}: {getattr(response, 'error', None) or ''}".rstrip(": "))
        chunks, usage = 0, None
        for line in response.iter_lines(chunk_size=None):
            if not line.startswith(b"data:"):
                continue
            text = line[5:].strip()
            if text == b"[DONE]":
                break
            event = json.loads(text)
            if event.get("error"):
                raise OSError(str(event["error"]))
            if event.get("choices"):
                record["first"] = record["first"] or time.time()
                chunks += 1
            usage = event.get("usage") or usage
        record["tokens"] = int(usage["completion_tokens"]) if usage else chunks
        record["prompt"] = int(usage["prompt_tokens"]) if usage else None
        if record["first"] is None:
            raise OSError("the answer ended without a token")


@events.init.add_listener
def keep_runner(environment: Any, **_: Any) -> None:
    """The step begins when every user is there: the start of this process is not a part of it."""

    def begin(**_: Any) -> None:
        gevent.spawn_later(PLAN["step_seconds"], environment.runner.quit)

    environment.events.spawning_complete.add_listener(begin)


@events.quitting.add_listener
def write(**_: Any) -> None:
    """Leave the records for the process that waits."""
    with open(PLAN["out"], "w", encoding="utf-8") as file:  # noqa: PTH123 - pathlib is not patched
        json.dump(DONE, file)
