"""Requests in flight as each engine's load door tells them. Readers of a parsed answer, by the name adapters use. Pure.

A reader raises ValueError, KeyError, TypeError or AttributeError for an answer it cannot read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def _server_load(said: Any) -> float:
    return float(said["server_load"])


def _sglang_loads(said: Any) -> float:
    """``/v1/loads`` (a list under ``loads``) or ``/get_load`` (the list itself), one entry a data-parallel rank."""
    ranks = said["loads"] if isinstance(said, dict) else said
    if not ranks:
        raise ValueError("no rank")
    return float(
        sum(
            one["num_running_reqs"] + one["num_waiting_reqs"] if "num_running_reqs" in one else one["num_reqs"]
            for one in ranks
        )
    )


READERS: dict[str, Callable[[Any], float]] = {"server_load": _server_load, "sglang_loads": _sglang_loads}
