"""Pod and container of a process, from its cgroup."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
# systemd writes the pod's uid with _ for -, cgroupfs unchanged; the container id has 64 hexadecimal digits
POD = re.compile(r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})")
_CONTAINER = re.compile(r"(?:^|[/:-])([0-9a-f]{64})(?:\.scope)?(?:$|/)")


@dataclass(frozen=True, slots=True)
class Owner:
    """``pod_uid`` and ``container`` are "" outside of a pod or container."""

    pod_uid: str = ""
    container: str = ""


def owner(pid: int, proc: Path = PROC) -> Owner | None:
    """Owner of a process; None if it has ended or its id belongs to another PID namespace."""
    try:
        text = (proc / str(pid) / "cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    pod = POD.search(text)
    container = next((match[1] for line in text.splitlines() if (match := _CONTAINER.search(line))), "")
    return Owner(pod[1].replace("_", "-") if pod else "", container)
