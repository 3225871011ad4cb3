"""The process of the kill guard: waits for the end of a drill, and restores its namespace if nobody else did."""

from __future__ import annotations

import pickle
import sys
import time
from datetime import timedelta

from outrider.errors import OutriderError
from service.drills.cluster.drill import ClusterDrill
from service.drills.cluster.kill_guard import ENDED

_PAUSE_SECONDS, _TRIES = 5.0, 120  # ten minutes: an API server that was upgraded is back by then


def main() -> int:
    """Reads address, access and namespace from standard input. Returns 1 if the namespace could not be restored."""
    pipe = sys.stdin.buffer
    url, access, namespace = pickle.load(pipe)  # noqa: S301  written by the parent process
    if pipe.read() == ENDED:
        return 0
    drill = ClusterDrill(url, access, longest=timedelta(0))
    for _ in range(_TRIES):
        try:
            restored = drill.restore(namespace)["restored"]
        except OutriderError as error:
            sys.stderr.write(f"drill in {namespace} was killed and is not restored yet: {error.message}\n")
            time.sleep(_PAUSE_SECONDS)
            continue
        sys.stderr.write(f"drill in {namespace} was killed; restored: {', '.join(restored) or 'nothing'}\n")
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
