"""Kills an engine and its stand-by during a night on call, for the tests and ``benchmarks/soak.py``.

At each time at most one message of a channel is between its delivery and the record of it, so that a kill repeats at
most one of each channel. One that was merged with others may return in another merged message or alone.
"""

from __future__ import annotations

import multiprocessing
import random
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.service.engine import escalation_life
from tests.service.engine.escalation_life import CHANNELS, MERGING, Deliveries
from tests.service.engine.remediation_life import KILLED

MOST_LIVES = 300
_HANGS_AFTER = 120.0  # seconds
_LONGEST_LIFE = 1.5  # seconds until a random kill
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload([escalation_life.__name__])
Counts = Counter[tuple[str, str]]


@cache
def undisturbed() -> Counts:
    """The messages of a night without a kill, each with its channel."""
    with TemporaryDirectory() as folder:
        assert _life(Path(folder), armed=False) == 0
        return Deliveries(Path(folder)).counts()


def killed_between_steps(folder: Path) -> tuple[Counts, int]:
    """The messages of a night with a kill after every write and every delivery, and the number of lives."""
    lives = 1
    while (code := _life(folder, armed=True)) == KILLED:
        lives += 1
        assert lives < MOST_LIVES, "a kill is repeated"
    assert code == 0, f"the engine failed with {code}"
    return Deliveries(folder).counts(), lives


def kill_at_random(kills: int, seed: int) -> tuple[int, int]:
    """Nights with SIGKILL of the engine at random times. Returns nights and kills. Raises AssertionError."""
    rng, done, nights = random.Random(seed), 0, 0
    while done < kills:
        with TemporaryDirectory() as folder:
            before, code, lives = done, -1, 0
            while code:
                assert code < 0, f"the engine failed with {code}"
                lives += 1
                code = _life(Path(folder), armed=False, seconds=rng.uniform(0.1, _LONGEST_LIFE) * lives)
                done += code < 0
            counts = Deliveries(Path(folder)).counts()
        check(counts, done - before)
        nights += 1
    return nights, done


def kill_engine_or_standby(
    kills: int, seed: int, new_database: Callable[[], AbstractContextManager[str]]
) -> tuple[int, int]:
    """Nights of an engine and its stand-by on PostgreSQL, one of which is killed at random times and started again.

    Returns nights and kills. Raises AssertionError.
    """
    rng, done, nights = random.Random(seed), 0, 0
    while done < kills:
        with TemporaryDirectory() as folder, new_database() as url:
            of_night = _night_of_two(Path(folder), url, rng)
            check(Deliveries(Path(folder)).counts(), of_night)
        nights, done = nights + 1, done + of_night
    return nights, done


def check(counts: Counts, kills: int) -> None:
    """Raises AssertionError if a message is missing, is new, or was repeated more often than there were kills."""
    expected = undisturbed()
    assert set(counts) == set(expected), set(counts) ^ set(expected)
    most = max(counts.values())
    assert most <= 1 + kills, f"a message {most} times after {kills} kills"
    for channel in set(CHANNELS) - {MERGING}:
        repeated = sum(count - 1 for (name, _), count in counts.items() if name == channel)
        assert repeated <= kills, f"{channel}: {repeated} repeated after {kills} kills"


def _night_of_two(folder: Path, url: str, rng: random.Random) -> int:
    """One night; returns its kills. Each life may last longer than the one before, so that the night ends."""
    both, kills = [_start(folder, url, armed=False) for _ in range(2)], 0
    while all(child.exitcode is None for child in both):
        if connection.wait([child.sentinel for child in both], rng.uniform(0.1, _LONGEST_LIFE) * (kills + 1)):
            break
        number = rng.randrange(2)
        both[number].kill()
        both[number].join()
        assert both[number].exitcode in (0, -9), f"the engine failed with {both[number].exitcode}"
        kills += both[number].exitcode == -9
        both[number] = _start(folder, url, armed=False)
    for child in both:
        assert _end(child, _HANGS_AFTER) == 0, f"the engine failed with {child.exitcode}"
    return kills


def _life(folder: Path, *, armed: bool, seconds: float = _HANGS_AFTER) -> int:
    """Lives once in a child process. Returns its exit code: -9 if it was killed after that many seconds."""
    return _end(_start(folder, f"sqlite:///{folder}/state.db", armed=armed), seconds)


def _start(folder: Path, url: str, *, armed: bool) -> BaseProcess:
    child = _PROCESSES.Process(target=escalation_life.live, args=(str(folder), url), kwargs={"kills": armed})
    child.start()
    return child


def _end(child: BaseProcess, seconds: float) -> int:
    """Waits for the end of a process and kills it after that many seconds. Returns its exit code."""
    child.join(seconds)
    if child.exitcode is None:
        child.kill()
        child.join()
        assert seconds < _HANGS_AFTER, "the child hangs"
    assert child.exitcode is not None
    return child.exitcode
