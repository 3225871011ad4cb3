"""Which pod and container a process belongs to, by its cgroup."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
# systemd writes the pod's uid with _ for -, cgroupfs as it is; the container id has 64 hexadecimal digits
POD = re.compile(r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})")
_CONTAINER = re.compile(r"(?:^|[/:-])([0-9a-f]{64})(?:\.scope)?(?:$|/)")


@dataclass(frozen=True, slots=True)
class Owner:
    """``pod_uid`` and ``container`` are "" outside of a pod or container."""

    pod_uid: str = ""
    container: str = ""


def owner(pid: int, proc: Path = PROC) -> Owner | None:
    """Who a process belongs to; None when it has ended or its number is of another PID namespace."""
    try:
        text = (proc / str(pid) / "cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    pod = POD.search(text)
    container = next((found[1] for line in text.splitlines() if (found := _CONTAINER.search(line))), "")
    return Owner(pod[1].replace("_", "-") if pod else "", container)
