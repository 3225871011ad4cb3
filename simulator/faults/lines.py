"""Log texts of drivers, kernels and kubelets.

XID texts are those of NVIDIA driver 580, after the process name in the kernel log. Register dumps are truncated.
"""

from __future__ import annotations

import zlib

_XID = {
    13: "Graphics SM Warp Exception on (GPC 2, TPC 1, SM 0): Out Of Range Address",
    31: "MMU Fault: ENGINE GRAPHICS GPC2 GPCCLIENT_T1_3 faulted @ 0x7f4b_3a000000. "
    "Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ",
    43: "Ch 00000008",
    45: "Ch 00000010",
    48: "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer "
    "at physical partition 4, subpartition 0.",
    62: "000028c1 00003a1e 00000000 20a1b3c4 202f4b1c 202ef7a2 00000000 00000000",
    63: "Row Remapper: New row (0x00000001c3a0b400) marked for remapping, reset gpu to activate.",
    64: "Row Remapper: Failed to record the row remapping in the InfoROM",
    74: "NVLink: fatal error detected on link 3(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)",
    79: "GPU has fallen off the bus.",
    92: "High single-bit ECC error rate",
    94: "Contained: CE User Channel (0x9). RST: No, D-RST: No",
    95: "Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No",
    109: "Ch 00000018, errorString CTX SWITCH TIMEOUT, Info 0x2c015",
    119: "Timeout after 6s of waiting for RPC response from GPU GSP! "
    "Expected function 76 (GSP_RM_CONTROL) (0x20800a4c 0x4).",
    120: "GSP task exception: store access fault (cause:0x7) @ pc:0x1b5a3c, partition:4#0, task:1",
    136: "NVLink: Link training failed on link 3",
    140: "Unrecovered ECC Error Detected: block 0x6",
    154: "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
}
EVICTED = "The node was low on resource: ephemeral-storage. Threshold quantity: 10%, available: 3%."


def pid(name: str, generation: int) -> int:
    """Returns a process id that is fixed for one generation of a pod."""
    return 20_000 + zlib.crc32(f"{name}/{generation}".encode()) % 40_000


def pci(index: int) -> str:
    """Returns the PCI address of the device at an index of its node, in the driver's format."""
    return f"0000:{0x19 + 0x11 * index:02x}:00"


def xid_text(code: int, process: str | None) -> str:
    """Returns the driver text of an XID; ``process`` is the pod whose engine had the device."""
    head = (
        "pid='<unknown>', name=<unknown>" if process is None or code == 79 else f"pid={pid(process, 1)}, name=python3"
    )
    return f"{head}, {_XID.get(code, 'Unknown Error')}"


KNOWN_XIDS = frozenset(_XID)
