"""Kernel log of every node, record by record in the format of ``/dev/kmsg``, written from the journal.

A record is ``priority,sequence,microseconds,flags;message``: the microseconds count from boot, and the sequence
starts at 0 with each boot. Records by journal entry:

- an XID (attribute ``xid``, entity a device): the driver's line with the device's PCI address; before the first one
  of a boot, the line with the device's UUID;
- ``oom-kill`` (entity a pod): the two lines of a memory cgroup at its limit;
- anything else: its own text, or the default text of its code (``LINES``).
"""

from __future__ import annotations

import re
import zlib
from collections import deque
from dataclasses import dataclass, field

from simulator.fleet import Fleet
from simulator.journal import JournalEntry, JournalSource
from simulator.spec.names import boot_id, pci_address, pod_uid

MOST_RECORDS = 2_000  # per node; a real ring buffer of 1 MiB contains about as many
ERROR, WARNING, NOTICE, INFORMATION = 3, 4, 5, 6
KERNEL = "Linux version 6.8.0-87-generic (buildd@lcy02-amd64-034) (gcc 13.3.0) #88-Ubuntu SMP PREEMPT_DYNAMIC"
DRIVER = "580.95.05"
LINES = {
    "link-down": "infiniband mlx5_0: Port: 1 Link DOWN",
    "link-up": "infiniband mlx5_0: Port: 1 Link ACTIVE",
    "pcie-error": "pcieport 0000:16:01.0: AER: Corrected error message received from 0000:17:00.0",
    "disk-error": "nvme nvme0: I/O tag 513 (1201) opcode 0x2 (I/O Cmd) QID 18 timeout, aborting req_op:READ(0)",
    "disk-full": "EXT4-fs warning (device nvme0n1p2): ext4_da_write_begin: no space left on device",
    "task-hung": "INFO: task VLLM::EngineCor:41877 blocked for more than 122 seconds.",
    "machine-check": "mce: [Hardware Error]: Machine check events logged",
    "cpu-hot": "CPU12: Package temperature above threshold, cpu clock throttled (total events = 41)",
}
_XID_PREFIX = re.compile(r"^NVRM: Xid \(PCI:[^)]*\): \d+,\s*")
_PROCESS = re.compile(r"pid='?([^',\s]+)'?(?:, name=([^,\s]+))?,\s*")
_KILLED = re.compile(r"Killed process (\d+) \(([^)]*)\)")


@dataclass(slots=True)
class _Log:
    """One node's records since its last boot."""

    boot: float
    next: int = 0
    records: deque[tuple[int, str]] = field(default_factory=lambda: deque(maxlen=MOST_RECORDS))
    devices_logged: set[int] = field(default_factory=set)

    def write(self, at: float, priority: int, message: str) -> None:
        micros = max(0, round((at - self.boot) * 1e6))
        self.records.append((self.next, f"{priority},{self.next},{micros},-;{_escaped(message)}"))
        self.next += 1


class KernelLogs:
    """Every node's log. Each request first reads new journal entries."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._number = 0
        self._logs: dict[int, _Log] = {}

    def text(self, node: int, after: int | None = None) -> str:
        """Returns the records of a node with a sequence above ``after``, by default all kept ones, one per line."""
        self._read_journal()
        records = self._log(node).records
        return "".join(f"{line}\n" for number, line in records if after is None or number > after)

    def boot_id(self, node: int) -> str:
        """Returns the content of ``/proc/sys/kernel/random/boot_id``, which changes with every boot."""
        return boot_id(self._fleet.spec.cluster, node, float(self._fleet.nodes.boot[node]))

    def boot_time(self, node: int) -> float:
        """Returns the boot time of the node, in unix seconds."""
        return float(self._fleet.nodes.boot[node])

    def _read_journal(self) -> None:
        for line in self._fleet.journal.after(self._number):
            self._number = line.number
            if line.source is JournalSource.KERNEL:
                node = self._fleet.node_of(line.entity)
                if node is not None and line.at >= self.boot_time(node):
                    self._write(self._log(node), line)

    def _log(self, node: int) -> _Log:
        """Returns a node's log; a new one with boot lines if it has rebooted."""
        boot = self.boot_time(node)
        known = self._logs.get(node)
        if known is None or known.boot != boot:
            known = self._logs[node] = _Log(boot)
            known.write(boot, NOTICE, KERNEL)
            known.write(boot + 9.4, INFORMATION, f"NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  {DRIVER}")
            known.write(boot + 12.1, INFORMATION, "mlx5_core 0000:5e:00.0: firmware version: 28.43.2566")
        return known

    def _write(self, log: _Log, line: JournalEntry) -> None:
        if line.attributes.get("xid"):
            self._write_xid(log, line)
        elif line.code == "oom-kill":
            self._write_oom_kill(log, line)
        else:
            priority = INFORMATION if line.code == "link-up" else WARNING
            for message in (line.text or LINES.get(line.code, line.code)).splitlines():
                log.write(line.at, priority, message)

    def _write_xid(self, log: _Log, line: JournalEntry) -> None:
        gpu = self._fleet.gpu_named.get(line.entity.name)
        index = 0 if gpu is None else int(self._fleet.gpus.index[gpu])
        address = pci_address(index)[4:-2].lower()
        if gpu is not None and gpu not in log.devices_logged:
            log.devices_logged.add(gpu)
            log.write(line.at, ERROR, f"NVRM: GPU at PCI:{address}: {line.entity.name}")
            log.write(line.at, ERROR, f"NVRM: GPU Board Serial Number: {_number(line.entity.name, 10**13)}")
        record = _XID_PREFIX.sub("", line.text)
        process = _PROCESS.match(record)
        record = record[process.end() :] if process else record
        pid = line.attributes.get("pid") or (process[1] if process else "<unknown>")
        name = line.attributes.get("name") or (process[2] if process and process[2] else "<unknown>")
        owner = f"pid={pid}, name={name}" if pid.isdigit() else f"pid='{pid}', name={name}"
        log.write(line.at, ERROR, f"NVRM: Xid (PCI:{address}): {line.attributes['xid']}, {owner}, {record}")

    def _write_oom_kill(self, log: _Log, line: JournalEntry) -> None:
        killed = _KILLED.search(line.text)
        slot = self._fleet.pods.slot_named.get(line.entity.name)
        life = f"{line.entity.name}/{0 if slot is None else self._fleet.pods.pods[slot].generation}"
        pid = killed[1] if killed else str(20_000 + zlib.crc32(life.encode()) % 40_000)
        task = killed[2] if killed else "VLLM::EngineCor"
        group = "/"
        if slot is not None:
            pod = self._fleet.pods.pods[slot]
            uid = pod_uid(self._fleet.spec.cluster, pod.name, pod.generation).replace("-", "_")
            group = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{uid}.slice"
        scope = "CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0-1,global_oom"
        if slot is not None:
            scope = f"CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0-1,oom_memcg={group}"
        log.write(line.at, INFORMATION, f"oom-kill:constraint={scope},task_memcg={group},task={task},pid={pid},uid=0")
        start = "Memory cgroup out of memory" if slot is not None else "Out of memory"
        log.write(
            line.at,
            ERROR,
            line.text
            if killed
            else f"{start}: Killed process {pid} ({task}) total-vm:318767104kB, anon-rss:67108864kB, "
            "file-rss:524288kB, shmem-rss:0kB, UID:0 pgtables:182344kB oom_score_adj:997",
        )


def _number(text: str, below: int) -> int:
    return zlib.crc32(text.encode()) * 7919 % below


def _escaped(message: str) -> str:
    """Escapes bytes outside printable ASCII and the backslash in hexadecimal, as the kernel does."""
    return "".join(chr(byte) if 32 <= byte < 127 and byte != 92 else f"\\x{byte:02x}" for byte in message.encode())
