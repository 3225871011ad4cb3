from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from outrider.errors import UsageError
from service.planning.fanout import fan_out
from tests.support.waiting import until

PARENT = """
import os, pathlib, time
from service.planning.fanout import fan_out

def work(folder):
    pathlib.Path(folder, f"worker-{os.getpid()}").touch()
    time.sleep(600)

if __name__ == "__main__":
    fan_out(work, [os.path.dirname(__file__)] * 2, workers=2)
"""


def is_running(process: int) -> bool:
    try:
        with Path(f"/proc/{process}/stat").open(encoding="utf-8") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def square(value: int) -> tuple[int, int]:
    return value * value, os.getpid()


def fails(value: int) -> int:
    raise ValueError(f"no square of {value}")


@pytest.mark.parametrize("workers", [1, 2])
def test_results_have_the_order_of_the_inputs(workers):
    seen = []
    results = fan_out(square, range(7), workers=workers, progress=lambda done, of: seen.append((done, of)))
    assert [value for value, _ in results] == [0, 1, 4, 9, 16, 25, 36]
    assert seen == [(done, 7) for done in range(1, 8)]
    assert (os.getpid() in {process for _, process in results}) is (workers == 1)


@pytest.mark.slow
def test_the_first_error_ends_the_run():
    with pytest.raises(ValueError, match="no square"):
        fan_out(fails, [1, 2], workers=2)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="missing: SIGKILL")
def test_workers_end_with_a_killed_parent(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(PARENT, encoding="utf-8")
    parent = subprocess.Popen([sys.executable, str(script)], env={**os.environ, "PYTHONPATH": str(Path.cwd())})
    until(lambda: len(list(tmp_path.glob("worker-*"))) == 2, "both workers run")
    workers = [int(path.name.removeprefix("worker-")) for path in tmp_path.glob("worker-*")]
    parent.kill()
    parent.wait()
    until(lambda: not any(is_running(worker) for worker in workers), "the workers end")


def test_no_inputs_give_no_results():
    assert fan_out(square, [], workers=2) == []


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="tests the error without Ray")
def test_a_missing_ray_is_reported():
    with pytest.raises(UsageError, match="not installed"):
        fan_out(square, [1, 2], ray_address="local")


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="missing: ray (the extra [ray])")
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning", "ignore::DeprecationWarning")
def test_a_local_ray_gives_the_same_results():
    seen = []
    results = fan_out(square, range(5), ray_address="local", progress=lambda done, of: seen.append((done, of)))
    assert [value for value, _ in results] == [0, 1, 4, 9, 16]
    assert os.getpid() not in {process for _, process in results}
    assert seen[-1] == (5, 5)
