"""Locust user of a load test: sends streamed completions in a loop and records the token times.

Locust runs this file in a separate process, because gevent patches sockets and threads.
``service.capacity.loadtest`` starts it and reads its records. The plan is JSON in ``OUTRIDER_LOADTEST``.
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
WORDS = ("river", "stone", "lamp", "field", "north", "glass", "stream", "cloud", "seven", "green", "wheel", "table")
DONE: list[dict[str, Any]] = []


def prompt() -> str:
    """Returns random words, so that no prefix is cached; about one token a word."""
    return " ".join(random.choices(WORDS, k=PLAN["prompt_tokens"]))  # noqa: S311 - a load, not a secret


class StreamUser(HttpUser):
    """A client without pauses: concurrency is the number of users."""

    wait_time = constant(0)

    @task
    def complete(self) -> None:
        """Sends one request and reads it to the last token."""
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
            except Exception as error:  # noqa: BLE001 - any error is a failed request
                record["error"] = f"{type(error).__name__}: {error}"[:300]
                response.failure(record["error"])
        record["end"] = time.time()
        DONE.append(record)
        if record["error"]:
            time.sleep(0.1)  # do not overload a server that refuses at once

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
    """Starts the step once every user runs, so that the process start does not count."""

    def begin(**_: Any) -> None:
        gevent.spawn_later(PLAN["step_seconds"], environment.runner.quit)

    environment.events.spawning_complete.add_listener(begin)


@events.quitting.add_listener
def write(**_: Any) -> None:
    """Writes the records for the parent process."""
    with open(PLAN["out"], "w", encoding="utf-8") as file:  # noqa: PTH123 - pathlib is not patched
        json.dump(DONE, file)
