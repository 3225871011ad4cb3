"""Kills an engine during a night on call, for the tests and ``benchmarks/soak.py``."""

from __future__ import annotations

import multiprocessing
import random
from collections import Counter
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.service.engine import escalation_life
from tests.service.engine.escalation_life import Deliveries
from tests.service.engine.remediation_life import KILLED

MOST_LIVES = 300
_HANGS_AFTER = 120.0  # seconds
_LONGEST_LIFE = 1.5  # seconds until a random kill
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload([escalation_life.__name__])


@cache
def undisturbed() -> Counter[str]:
    """The messages of a night without a kill."""
    with TemporaryDirectory() as folder:
        assert _life(Path(folder), armed=False) == 0
        return Deliveries(Path(folder)).counts()


def killed_between_steps(folder: Path) -> tuple[Counter[str], int]:
    """The messages of a night with a kill after every write and every delivery, and the number of lives."""
    lives = 1
    while (code := _life(folder, armed=True)) == KILLED:
        lives += 1
        assert lives < MOST_LIVES, "a kill is repeated"
    assert code == 0, f"the engine failed with {code}"
    return Deliveries(folder).counts(), lives


def kill_at_random(kills: int, seed: int) -> tuple[int, int]:
    """Nights with SIGKILL at random times. Returns nights and kills. Raises AssertionError."""
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


def check(counts: Counter[str], kills: int) -> None:
    """Raises AssertionError if a message is missing, is new, or was repeated more often than there were kills."""
    expected = undisturbed()
    assert set(counts) == set(expected), set(counts) ^ set(expected)
    repeated = sum(count - 1 for count in counts.values())
    assert repeated <= kills, f"{repeated} repeated after {kills} kills"


def _life(folder: Path, *, armed: bool, seconds: float = _HANGS_AFTER) -> int:
    """Lives once in a child process. Returns its exit code: -9 if it was killed after that many seconds."""
    child = _PROCESSES.Process(target=escalation_life.live, args=(str(folder),), kwargs={"kills": armed})
    child.start()
    child.join(seconds)
    if child.exitcode is None:
        child.kill()
        child.join()
        assert seconds < _HANGS_AFTER, "the child hangs"
    assert child.exitcode is not None
    return child.exitcode
