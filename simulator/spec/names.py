"""Names fixed by position, so that history, live fleet and ground truth use the same entities."""

from __future__ import annotations

import uuid
from functools import cache

_SPACE = uuid.UUID("6f0d3c1e-6f0c-4d0e-9c43-2a7f6f6d7564")


@cache
def gpu_uuid(cluster: str, node: int, index: int) -> str:
    """Returns the UUID of a device by its position."""
    return f"GPU-{uuid.uuid5(_SPACE, f'{cluster}/{node}/{index}')}"


@cache
def pod_uid(cluster: str, name: str, generation: int) -> str:
    """Returns the uid of one generation of a pod."""
    return str(uuid.uuid5(_SPACE, f"{cluster}/pod/{name}/{generation}"))


@cache
def boot_id(cluster: str, node: int, boot: float) -> str:
    """Returns the id of one boot of a node; ``boot`` in unix seconds."""
    return str(uuid.uuid5(_SPACE, f"{cluster}/boot/{node}/{boot:.0f}"))


def pci_address(index: int) -> str:
    """Returns the PCI address of a node's device in DCGM format: ``00000000:19:00.0``."""
    return f"00000000:{(0x19 + 0x11 * index) % 256:02X}:00.0"
