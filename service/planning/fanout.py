"""Runs one function over many inputs: on a Ray cluster if one is configured, else in processes, with progress.

Ray is the extra ``[ray]``. The function must be defined at module level; its inputs and results are plain values.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any, TypeVar

from outrider import log
from outrider.errors import UsageError
from outrider.text import install_hints

_log = log.get("fanout")
Item = TypeVar("Item")
Result = TypeVar("Result")
Progress = Callable[[int, int], None]
"""Called with the number of finished inputs and the number of all inputs."""

LOCAL = "local"
"""The address that starts a local Ray instance."""


def fan_out(
    function: Callable[[Item], Result],
    inputs: Sequence[Item],
    *,
    workers: int = 1,
    ray_address: str | None = None,
    progress: Progress | None = None,
) -> list[Result]:
    """Returns ``function`` of item input, in input order. The first error ends the run.

    ``ray_address`` ("auto", "ray://host:10001", or "local") selects a Ray cluster. Without it, ``workers`` processes
    run; a single worker or input runs in this process. Workers end with this process, also if it is killed. Raises
    UsageError if Ray is requested but not installed.
    """
    results: list[Any] = [None] * len(inputs)
    pairs = _pairs(function, inputs, workers, ray_address)
    for done, (index, result) in enumerate(pairs, 1):
        results[index] = result
        if progress is not None:
            progress(done, len(inputs))
    return results


def usual_workers() -> int:
    """Returns the number of CPU cores, at least 1."""
    return max(1, os.cpu_count() or 1)


def _pairs(
    function: Callable[[Item], Result], inputs: Sequence[Item], workers: int, ray_address: str | None
) -> Iterator[tuple[int, Result]]:
    if ray_address is not None:
        yield from _over_ray(function, inputs, ray_address)
    elif workers > 1 and len(inputs) > 1:
        yield from _over_processes(function, inputs, min(workers, len(inputs)))
    else:
        yield from ((index, function(item)) for index, item in enumerate(inputs))


def _over_processes(
    function: Callable[[Item], Result], inputs: Sequence[Item], workers: int
) -> Iterator[tuple[int, Result]]:
    # spawn: the service has threads, and a forked process with threads can deadlock
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_end_with_parent) as pool:
        indices = {pool.submit(function, item): index for index, item in enumerate(inputs)}
        try:
            for future in as_completed(indices):
                yield indices[future], future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)  # after an interrupt only running inputs finish
            raise


def _end_with_parent() -> None:
    """Ends this worker process when its parent ends, however that happens."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, name="parent", daemon=True).start()


def _over_ray(function: Callable[[Item], Result], inputs: Sequence[Item], address: str) -> Iterator[tuple[int, Result]]:
    try:
        import ray  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise UsageError(
            "Ray is requested but not installed", hint=f"{install_hints.how('ray')}; or remove ray_address"
        ) from error
    started = not ray.is_initialized()
    if started:
        ray.init(address=address, log_to_driver=False, include_dashboard=False if address == LOCAL else None)
    try:
        remote = ray.remote(function)
        indices = {remote.remote(item): index for index, item in enumerate(inputs)}
        waiting = list(indices)
        while waiting:
            ready, waiting = ray.wait(waiting, num_returns=1)
            for reference in ready:
                yield indices[reference], ray.get(reference)
    finally:
        if started:
            ray.shutdown()
            _log.info("ray_disconnected", address=address, inputs=len(inputs))
