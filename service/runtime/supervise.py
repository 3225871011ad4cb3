"""Supervises the processes of the platform: engine, API, dashboard.

A child that dies is restarted after a wait that doubles up to a minute. A child that exits with the code of wrong
usage is not: another attempt cannot succeed.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from types import FrameType

from outrider import log

_log = log.get("supervise")
FIRST_WAIT = 1.0
LAST_WAIT = 60.0
STABLE_AFTER = 60.0
STOP_WITHIN = timedelta(seconds=15)
GIVES_UP_ON = (2,)


@dataclass(slots=True)
class Child:
    """One child process: its command line and its state."""

    name: str
    command: Sequence[str]
    running: subprocess.Popen[bytes] | None = None
    wait: float = FIRST_WAIT
    started_at: float = 0.0
    start_again_at: float = 0.0
    given_up: bool = field(default=False)

    def start(self, now: float) -> None:
        """Starts the process; it inherits the standard streams."""
        self.running = subprocess.Popen(self.command)  # noqa: S603 - our own command lines
        self.started_at = now

    def check(self, now: float) -> None:
        """Detects an exit, and restarts the process after its wait."""
        if self.given_up:
            return
        if self.running is not None and self.running.poll() is not None:
            self._ended(self.running.returncode, now)
        if self.running is None and not self.given_up and now >= self.start_again_at:
            self.start(now)

    def _ended(self, code: int, now: float) -> None:
        self.running = None
        if code in GIVES_UP_ON:
            self.given_up = True
            _log.error("child_gave_up", child=self.name, code=code)
            return
        self.wait = FIRST_WAIT if now - self.started_at > STABLE_AFTER else min(LAST_WAIT, self.wait * 2)
        self.start_again_at = now + self.wait
        _log.warning("child_ended", child=self.name, code=code, again_in_seconds=self.wait)


class Supervisor:
    """Runs child processes until a stop is requested."""

    def __init__(self, children: Sequence[Child]) -> None:
        """``children`` are started in this order."""
        self._children = list(children)
        self._stopping = False

    def start(self) -> None:
        """Starts every child."""
        for child in self._children:
            child.start(time.monotonic())

    def watch(self) -> int:
        """Blocks until SIGTERM or SIGINT; forwards SIGHUP. Returns 0, or 3 if a child cannot be restarted."""
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, self._stop)
        signal.signal(signal.SIGHUP, self._forward)
        while not self._stopping and not any(child.given_up for child in self._children):
            for child in self._children:
                child.check(time.monotonic())
            time.sleep(0.2)
        self.stop()
        return 3 if any(child.given_up for child in self._children) else 0

    def stop(self) -> None:
        """Terminates every child, and kills those that do not exit in time."""
        running = [child.running for child in self._children if child.running is not None]
        for process in running:
            process.terminate()
        deadline = time.monotonic() + STOP_WITHIN.total_seconds()
        for process in running:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def restart(self, name: str) -> None:
        """Ends the child of that name, and starts it again at once."""
        for child in self._children:
            if child.name == name and child.running is not None:
                child.running.terminate()
                child.running.wait()
                child.start(time.monotonic())

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self._stopping = True

    def _forward(self, number: int, _frame: FrameType | None) -> None:
        for child in self._children:
            if child.running is not None:
                child.running.send_signal(number)


def own_command(*arguments: str) -> list[str]:
    """Returns the command line that runs ``outrider ARGUMENTS`` with this interpreter."""
    return [sys.executable, "-m", "service.cli", *arguments]
