"""Kernel logs as events: XIDs of every device, OOM kills, links that go down.

Read from an HTTP agent per node (``GET URL?after=SEQUENCE`` returns ``/dev/kmsg`` records, with the headers
``Boot-Id`` and ``Boot-Time``), or from this node: ``/dev/kmsg``, a pipe, or a file written by
``journalctl -k -f -o json`` (or ``short-iso``). The same line twice is two events; the same record read twice is
one. In ``short-iso`` this distinction holds only within continuous reading.
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
    """State of one node's log between two readings; converts its records to events."""

    node: EntityRef
    boot_id: str = ""
    newest: int | None = None
    devices: dict[str, str] = field(default_factory=dict)
    killed: str = ""
    _same: tuple[str, dict[str, int]] = field(default_factory=lambda: ("", {}))

    def new_events(self, text: str, part: KernelLogChunk, at: datetime, patterns: Patterns) -> list[UnresolvedEvent]:
        """New records of a text, oldest first; ``at`` is the current time, for records without a timestamp."""
        if part.boot_id != self.boot_id:
            self.boot_id, self.newest, self.killed = part.boot_id, None, ""
        events = []
        last = kmsg.newest(text)
        for record in kmsg.records(text):
            if record.sequence is not None and self.newest is not None and record.sequence <= self.newest:
                continue
            when = min(_when(record, part.boot_at) or at, at)  # a node's clock may be ahead
            key = self._key(record, when)
            device = _DEVICE.search(record.message)
            if device is not None:
                self.devices[pci_of(device[1])] = device[2]
            elif when >= at - FIRST_LOOK:
                event = self._xid(record, when, key) or self._line(record.message, when, key, patterns)
                events += [event] if event is not None else []
        if last is not None:
            self.newest = last if self.newest is None else max(self.newest, last)
        return events

    def _key(self, record: kmsg.Record, when: datetime) -> str:
        head = f"{SOURCE}/{self.node.cluster}/{self.node.name}"
        if record.sequence is not None:
            return f"{head}/{self.boot_id}/{record.sequence}"
        if record.cursor:
            return f"{head}/{record.cursor}"
        # A journal has no sequence: equal lines with one timestamp are distinguished by their number.
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
        match = patterns.find(message)
        if match is None:
            return None
        code, attributes = match
        pod = _POD.search(message)
        if code == "oom-kill":  # logged twice: with the cgroup, and with the process
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
    """Kernel log of this node."""

    def __init__(self, name: str, file: KernelFile, node: EntityRef) -> None:
        """``node`` is the node that the log belongs to."""
        self.name = name
        self._file = file
        self._log = NodeLog(node)

    async def read(self, at: datetime, nodes: Sequence[EntityRef]) -> tuple[list[UnresolvedEvent], list[CollectError]]:
        """Records written since the last reading."""
        del nodes
        try:
            part = await asyncio.to_thread(self._file.read)
        except OSError as error:
            message = f"{self.name}: cannot read {self._file.path}: {error.strerror}"
            hint = "reading /dev/kmsg needs CAP_SYSLOG; check the path and its permissions"
            return [], [CollectError(message, reason=CollectReason.OTHER, hint=hint)]
        return self._log.new_events(part.text, part, at, packaged(SOURCE)), []

    async def close(self) -> None:
        """Closes the file."""
        self._file.close()


class KernelLogs:
    """Kernel logs of many nodes over HTTP."""

    def __init__(
        self, name: str, url: str, client: Callable[[str], HttpClient], cluster: str, node: EntityRef | None = None
    ) -> None:
        """``url`` with ``{node}`` is requested for every known node of the cluster, without it for ``node`` only."""
        self.name = name
        self._url, self._cluster, self._only = url, cluster, node
        base, self._path = _split(url)
        self._client = client(base) if NODE not in base else None
        self._make = client
        self._clients: dict[str, HttpClient] = {}
        self._logs: dict[EntityRef, NodeLog] = {}

    async def read(self, at: datetime, nodes: Sequence[EntityRef]) -> tuple[list[UnresolvedEvent], list[CollectError]]:
        """Events since the last reading. A node that does not respond does not affect others."""
        targets = [self._only] if self._only is not None else [node for node in nodes if node.cluster == self._cluster]
        self._logs = {node: self._logs.get(node) or NodeLog(node) for node in targets}
        events: list[UnresolvedEvent] = []
        errors: list[CollectError] = []
        for answer in await asyncio.gather(*(self._read_node(log, at) for log in self._logs.values())):
            if isinstance(answer, CollectError):
                errors.append(answer)
            else:
                events.extend(answer)
        return events, errors

    async def _read_node(self, log: NodeLog, at: datetime) -> list[UnresolvedEvent] | CollectError:
        try:
            text, part = await self._request(log, log.newest)
            if part.boot_id != log.boot_id and log.newest is not None:
                text, part = await self._request(log, None)  # the node rebooted: the sequence restarted
        except CollectError as error:
            return error
        return log.new_events(text, part, at, packaged(SOURCE))

    async def _request(self, log: NodeLog, after: int | None) -> tuple[str, KernelLogChunk]:
        client = self._client or self._clients.get(log.node.name)
        if client is None:
            client = self._clients[log.node.name] = self._make(_split(self._url.replace(NODE, log.node.name))[0])
        path = self._path.replace(NODE, log.node.name)
        response = await client.get(path, {} if after is None else {"after": str(after)})
        if response.status != 200:
            message = f"{client.url}{path} returned HTTP {response.status}"
            raise client.fault(message, CollectReason.HTTP_STATUS, "check the log of the node's agent")
        text = response.body.decode("utf-8", errors="replace")
        return text, KernelLogChunk(
            text, response.headers.get("Boot-Id", ""), _boot_time(response.headers.get("Boot-Time", ""))
        )

    async def close(self) -> None:
        """Closes all connections."""
        for client in (*self._clients.values(), *([self._client] if self._client else [])):
            await client.close()


def _split(url: str) -> tuple[str, str]:
    """``http://host:port`` and the path after it."""
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host}", f"{slash}{path}"


def _boot_time(text: str) -> datetime | None:
    """RFC 3339 or unix seconds; None if it is neither."""
    try:
        return from_unix(float(text)) if text.replace(".", "", 1).isdigit() else parse_rfc3339(text)
    except (ValueError, OverflowError, OSError):
        return None
