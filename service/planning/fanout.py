"""Spread one function over many inputs: on a Ray cluster where one is named, else over processes, with progress.

Ray is the extra ``[ray]``. What is spread must be a function of a module, its inputs and results plain
values.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any, TypeVar

from outrider import log
from outrider.errors import UsageError
from outrider.text import extras

_log = log.get("fanout")
Given = TypeVar("Given")
Found = TypeVar("Found")
Progress = Callable[[int, int], None]
"""Called with how many are done and how many there are."""

LOCAL = "local"
"""The address that starts a Ray of this machine's own."""


def fan_out(
    function: Callable[[Given], Found],
    inputs: Sequence[Given],
    *,
    workers: int = 1,
    ray_address: str | None = None,
    progress: Progress | None = None,
) -> list[Found]:
    """``function`` of each input, in their order. An error of one ends the whole.

    ``ray_address`` ("auto", "ray://host:10001", or "local") spreads over that cluster; without one,
    ``workers`` processes are used, and none but this for a single worker or input. Raises UsageError when Ray
    is asked for and not installed.
    """
    found: list[Any] = [None] * len(inputs)
    pairs = _pairs(function, inputs, workers, ray_address)
    for done, (place, result) in enumerate(pairs, 1):
        found[place] = result
        if progress is not None:
            progress(done, len(inputs))
    return found


def usual_workers() -> int:
    """Processes that this machine carries."""
    return max(1, os.cpu_count() or 1)


def _pairs(
    function: Callable[[Given], Found], inputs: Sequence[Given], workers: int, ray_address: str | None
) -> Iterator[tuple[int, Found]]:
    if ray_address is not None:
        yield from _over_ray(function, inputs, ray_address)
    elif workers > 1 and len(inputs) > 1:
        yield from _over_processes(function, inputs, min(workers, len(inputs)))
    else:
        yield from ((place, function(each)) for place, each in enumerate(inputs))


def _over_processes(
    function: Callable[[Given], Found], inputs: Sequence[Given], workers: int
) -> Iterator[tuple[int, Found]]:
    # spawn: the service has threads, and a fork of a process with threads may never wake
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        places = {pool.submit(function, each): place for place, each in enumerate(inputs)}
        for future in as_completed(places):
            yield places[future], future.result()


def _over_ray(function: Callable[[Given], Found], inputs: Sequence[Given], address: str) -> Iterator[tuple[int, Found]]:
    try:
        import ray  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise UsageError(
            "Ray is asked for and not installed", hint=f"{extras.how('ray')}; or take ray_address away"
        ) from error
    started = not ray.is_initialized()
    if started:
        ray.init(address=address, log_to_driver=False, include_dashboard=False if address == LOCAL else None)
    try:
        remote = ray.remote(function)
        places = {remote.remote(each): place for place, each in enumerate(inputs)}
        waiting = list(places)
        while waiting:
            ready, waiting = ray.wait(waiting, num_returns=1)
            for reference in ready:
                yield places[reference], ray.get(reference)
    finally:
        if started:
            ray.shutdown()
            _log.info("ray_left", address=address, inputs=len(inputs))
