"""Kernel logs as events: XIDs of every device, OOM kills, links that go down.

Read from an HTTP agent per node (``GET URL?after=SEQUENCE`` answers ``/dev/kmsg`` records, with the
headers ``Boot-Id`` and ``Boot-Time``), or from this machine: ``/dev/kmsg``, a pipe, or a file into which
``journalctl -k -f -o json`` (or ``short-iso``) writes. The same line twice is two events; the same record
read twice is one, which lines of ``short-iso`` can tell only while they are read on.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from collectors.events import xid_parser
from collectors.events.unresolved_event import FIRST_LOOK, MOST_TEXT, UnresolvedEvent, pci_of
from collectors.logs import kmsg
from collectors.logs.kernel_file import KernelFile, KernelLogChunk
from collectors.logs.patterns import Patterns, packaged
from collectors.net.http import HttpClient
from outrider.clock import from_unix, parse_rfc3339, rfc3339
from outrider.errors import CollectError, CollectReason
from outrider.model import EntityKind, EntityRef, EventKind

SOURCE = "kernel_log"
NODE = "{node}"
_DEVICE = re.compile(r"NVRM: GPU at (?:PCI:)?([0-9a-fA-F:.]{5,20}): (GPU-[0-9a-fA-F-]{36})")
_POD = re.compile(r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})")


@dataclass(slots=True)
class NodeLog:
    """What is known of one node's log between two readings, and how its records become sightings."""

    node: EntityRef
    boot_id: str = ""
    newest: int | None = None
    devices: dict[str, str] = field(default_factory=dict)
    killed: str = ""
    _same: tuple[str, dict[str, int]] = field(default_factory=lambda: ("", {}))

    def new_events(self, text: str, part: KernelLogChunk, at: datetime, patterns: Patterns) -> list[UnresolvedEvent]:
        """New records of a text, oldest first; ``at`` is now, and dates what has no time of its own."""
        if part.boot_id != self.boot_id:
            self.boot_id, self.newest, self.killed = part.boot_id, None, ""
        found = []
        last = kmsg.newest(text)
        for record in kmsg.records(text):
            if record.sequence is not None and self.newest is not None and record.sequence <= self.newest:
                continue
            when = min(_when(record, part.boot_at) or at, at)  # a node's clock may be ahead of ours
            key = self._key(record, when)
            device = _DEVICE.search(record.message)
            if device is not None:
                self.devices[pci_of(device[1])] = device[2]
            elif when >= at - FIRST_LOOK:
                sighting = self._xid(record, when, key) or self._line(record.message, when, key, patterns)
                found += [sighting] if sighting is not None else []
        if last is not None:
            self.newest = last if self.newest is None else max(self.newest, last)
        return found

    def _key(self, record: kmsg.Record, when: datetime) -> str:
        head = f"{SOURCE}/{self.node.cluster}/{self.node.name}"
        if record.sequence is not None:
            return f"{head}/{self.boot_id}/{record.sequence}"
        if record.cursor:
            return f"{head}/{record.cursor}"
        # A journal has no sequence: equal lines of one instant are told apart by their number.
        second = rfc3339(when)
        if self._same[0] != second:
            self._same = (second, {})
        number = self._same[1][record.message] = self._same[1].get(record.message, 0) + 1
        return f"{head}/{second}/{hashlib.sha256(record.message.encode()).hexdigest()[:12]}/{number}"

    def _xid(self, record: kmsg.Record, at: datetime, key: str) -> UnresolvedEvent | None:
        line = xid_parser.read(record.message)
        if line is None:
            return None
        entity, pci, uuid = self.node, line.pci, self.devices.get(pci_of(line.pci))
        if uuid is not None:
            entity, pci = EntityRef(self.node.cluster, EntityKind.GPU, None, uuid), ""
        return UnresolvedEvent(
            EventKind.XID, line.code, at, record.reporter or SOURCE, key, entity, line.attributes, pci=pci
        )

    def _line(self, message: str, at: datetime, key: str, patterns: Patterns) -> UnresolvedEvent | None:
        found = patterns.find(message)
        if found is None:
            return None
        code, attributes = found
        pod = _POD.search(message)
        if code == "oom-kill":  # told twice: by the line of the cgroup, and by that of the process
            before, self.killed = self.killed, attributes.get("pid", "")
            if before == self.killed and not message.startswith("oom-kill:"):
                return None
        uid = pod[1].replace("_", "-") if pod is not None else ""
        attributes["text"] = message[:MOST_TEXT]
        return UnresolvedEvent(EventKind.LOG, code, at, SOURCE, key, self.node, attributes, pod_uid=uid)


def _when(record: kmsg.Record, boot_at: datetime | None) -> datetime | None:
    if record.at is not None:
        return record.at
    if boot_at is None or record.since_boot_seconds is None:
        return None
    try:
        return boot_at + timedelta(seconds=record.since_boot_seconds)
    except OverflowError:
        return None


class KernelLogFile:
    """This machine's kernel log."""

    def __init__(self, name: str, file: KernelFile, node: EntityRef) -> None:
        """``node`` is the machine the log is of."""
        self.name = name
        self._file = file
        self._log = NodeLog(node)

    async def read(self, at: datetime, nodes: Sequence[EntityRef]) -> tuple[list[UnresolvedEvent], list[CollectError]]:
        """What was written since the last reading."""
        del nodes
        try:
            part = await asyncio.to_thread(self._file.read)
        except OSError as error:
            said = f"{self.name}: {self._file.path} cannot be read: {error.strerror}"
            hint = "reading /dev/kmsg needs CAP_SYSLOG; check the path and its permissions"
            return [], [CollectError(said, reason=CollectReason.OTHER, hint=hint)]
        return self._log.new_events(part.text, part, at, packaged(SOURCE)), []

    async def close(self) -> None:
        """Close the file."""
        self._file.close()


class KernelLogs:
    """The kernel logs of many nodes over HTTP."""

    def __init__(
        self, name: str, url: str, client: Callable[[str], HttpClient], cluster: str, node: EntityRef | None = None
    ) -> None:
        """``url`` with ``{node}`` is asked for every known node of the cluster, without it for ``node`` alone."""
        self.name = name
        self._url, self._cluster, self._only = url, cluster, node
        base, self._path = _split(url)
        self._client = client(base) if NODE not in base else None
        self._make = client
        self._clients: dict[str, HttpClient] = {}
        self._logs: dict[EntityRef, NodeLog] = {}

    async def read(self, at: datetime, nodes: Sequence[EntityRef]) -> tuple[list[UnresolvedEvent], list[CollectError]]:
        """What the nodes' kernels said since the last reading. A node that does not answer stops no other."""
        asked = [self._only] if self._only is not None else [one for one in nodes if one.cluster == self._cluster]
        self._logs = {node: self._logs.get(node) or NodeLog(node) for node in asked}
        found: list[UnresolvedEvent] = []
        errors: list[CollectError] = []
        for answer in await asyncio.gather(*(self._one(log, at) for log in self._logs.values())):
            if isinstance(answer, CollectError):
                errors.append(answer)
            else:
                found.extend(answer)
        return found, errors

    async def _one(self, log: NodeLog, at: datetime) -> list[UnresolvedEvent] | CollectError:
        try:
            text, part = await self._ask(log, log.newest)
            if part.boot_id != log.boot_id and log.newest is not None:
                text, part = await self._ask(log, None)  # it has booted since: the sequence began anew
        except CollectError as error:
            return error
        return log.new_events(text, part, at, packaged(SOURCE))

    async def _ask(self, log: NodeLog, after: int | None) -> tuple[str, KernelLogChunk]:
        client = self._client or self._clients.get(log.node.name)
        if client is None:
            client = self._clients[log.node.name] = self._make(_split(self._url.replace(NODE, log.node.name))[0])
        path = self._path.replace(NODE, log.node.name)
        answer = await client.ask(path, {} if after is None else {"after": str(after)})
        if answer.status != 200:
            said = f"{client.url}{path} answered HTTP {answer.status}"
            raise client.fault(said, CollectReason.HTTP_STATUS, "look at the log of the node's agent")
        text = answer.body.decode("utf-8", errors="replace")
        return text, KernelLogChunk(
            text, answer.headers.get("Boot-Id", ""), _boot_time(answer.headers.get("Boot-Time", ""))
        )

    async def close(self) -> None:
        """Close every connection."""
        for client in (*self._clients.values(), *([self._client] if self._client else [])):
            await client.close()


def _split(url: str) -> tuple[str, str]:
    """``http://host:port`` and the path after it."""
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host}", f"{slash}{path}"


def _boot_time(text: str) -> datetime | None:
    """RFC 3339 or unix seconds; None when it is neither."""
    try:
        return from_unix(float(text)) if text.replace(".", "", 1).isdigit() else parse_rfc3339(text)
    except (ValueError, OverflowError, OSError):
        return None
