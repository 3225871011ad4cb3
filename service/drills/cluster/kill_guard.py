"""A second process that restores a namespace if the drill is killed."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from outrider.wire.http_auth import Access

ENDED = b"ended"


@contextmanager
def kill_guard(url: str, access: Access, namespace: str) -> Iterator[None]:
    """Restores the namespace if this process dies inside the context. The pipe to the guard closes with the process.

    The guard has a session of its own: a signal to the terminal's process group does not reach it.
    """
    command = [sys.executable, "-P", "-m", "service.drills.cluster.restore_process"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as guard:  # noqa: S603  fixed arguments
        assert guard.stdin is not None
        pickle.dump((url, access, namespace), guard.stdin)
        guard.stdin.flush()
        try:
            yield
        finally:
            with suppress(OSError):  # someone killed the guard
                guard.stdin.write(ENDED)
                guard.stdin.flush()
