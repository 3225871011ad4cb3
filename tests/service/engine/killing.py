"""Kills an engine that repairs a fault, for the tests and ``benchmarks/soak.py``."""

from __future__ import annotations

import multiprocessing
import random
from collections import Counter
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from remediation.playbooks.files import packaged
from tests.service.engine import procedure_life, remediation_life
from tests.service.engine.remediation_life import KILLED, Journal, automatic_faults

MOST_LIVES = 200  # of one repair; a kill that is repeated would go on for ever
_HANGS_AFTER = 120.0  # seconds
_LONGEST_LIFE = 0.6  # seconds until a random kill: about the length of a repair
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload([remediation_life.__name__, procedure_life.__name__])

Effects = Counter[tuple[str, str]]


def distinct_playbooks() -> list[str]:
    """One fault for each different list of steps."""
    by_steps = {(repr(packaged()[fault].steps), packaged()[fault].serving): fault for fault in automatic_faults()}
    return sorted(by_steps.values())


@cache
def undisturbed(fault: str, *, renames: bool = False) -> Effects:
    """The effects of a repair without a kill."""
    with TemporaryDirectory() as folder:
        assert _life(Path(folder), fault, armed=False, renames=renames) == 0
        return Journal(Path(folder)).effects()


def killed_between_steps(folder: Path, fault: str, *, renames: bool = False) -> tuple[Effects, int]:
    """The effects of a repair with a kill at every point between two steps, and the number of lives."""
    lives = 1
    while (code := _life(folder, fault, armed=True, renames=renames)) == KILLED:
        lives += 1
        assert lives < MOST_LIVES, "a kill is repeated"
    assert code == 0, f"the engine failed with {code}"
    return Journal(folder).effects(), lives


def kill_at_random(kills: int, seed: int) -> tuple[int, int]:
    """Repairs random faults with SIGKILL at random times. Returns repairs and kills. Raises AssertionError."""
    rng, done, repairs = random.Random(seed), 0, 0
    while done < kills:
        fault = rng.choice(distinct_playbooks())
        with TemporaryDirectory() as folder:
            code, lives = -1, 0
            while code:
                assert code < 0, f"{fault}: the engine failed with {code}"
                lives += 1
                code = _life(Path(folder), fault, armed=False, seconds=rng.uniform(0.0, _LONGEST_LIFE) * lives)
                done += code < 0
            effects = Journal(Path(folder)).effects()
        assert effects == undisturbed(fault), f"{fault}: {effects} instead of {undisturbed(fault)}"
        repairs += 1
    return repairs, done


def _life(folder: Path, fault: str, *, armed: bool, renames: bool = False, seconds: float = _HANGS_AFTER) -> int:
    """Lives once in a child process. Returns its exit code: -9 if it was killed after that many seconds.

    ``fault`` may also be the name of a procedure, whose fleet never renames a part.
    """
    is_procedure = fault in procedure_life.PROCEDURES
    live = procedure_life.live if is_procedure else remediation_life.live
    options = {"kills": armed, **({} if is_procedure else {"renames": renames})}
    child = _PROCESSES.Process(target=live, args=(str(folder), fault), kwargs=options)
    child.start()
    child.join(seconds)
    if child.exitcode is None:
        child.kill()
        child.join()
        assert seconds < _HANGS_AFTER, f"{fault}: the child hangs"
    assert child.exitcode is not None
    return child.exitcode
