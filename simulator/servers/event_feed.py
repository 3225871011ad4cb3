"""Log lines and events of a fleet as an external reader receives them, in order of arrival."""

from __future__ import annotations

from outrider.model import Event
from simulator.exporters.responses import Status, host_status
from simulator.fleet import Fleet
from simulator.journal import JournalEntry, JournalSource


class EventFeed:
    """Journal of a fleet as its endpoints serve it: lines of an unreachable node wait until it responds."""

    def __init__(self, fleet: Fleet) -> None:
        """Starts at the beginning of the journal."""
        self._fleet, self._read = fleet, 0
        self._waiting: list[JournalEntry] = []

    def new_events(self) -> list[Event]:
        """Returns the entries that became readable since the last call."""
        journal = self._fleet.journal
        lines = [*self._waiting, *journal.after(self._read)]
        self._read = journal.newest
        self._waiting = [line for line in lines if not self._reaches(line)]
        late = {line.number for line in self._waiting}
        return [line.event for line in lines if line.number not in late]

    def _reaches(self, line: JournalEntry) -> bool:
        if line.source is not JournalSource.KERNEL and host_status(self._fleet, None) is not Status.OK:
            return False
        node = self._fleet.node_of(line.entity) if line.source in (JournalSource.KERNEL, JournalSource.ENGINE) else None
        return node is None or host_status(self._fleet, node) is Status.OK
