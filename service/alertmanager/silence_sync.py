"""Keeps silences equal in Outrider and in the Alertmanagers.

Silences of Alertmanager mute our alerts, too. Ours are created there, with a mark in the comment that names them. The
marks are the only memory: after a restart nothing is created twice. A marked silence that was ended there ends ours.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from urllib.parse import quote, unquote

from outrider import log
from outrider.audit import AuditEvent, AuditRecord
from outrider.errors import UsageError
from outrider.ports import StateStore
from outrider.records.silences import LabelMatcher, MatchOperator, Silence, check_matchers
from outrider.wire.alertmanager import ORIGIN_LABEL, AlertmanagerSilence, SilenceMatcher, label_name
from service.alertmanager.client import AlertmanagerClient, AlertmanagerError, RefusedRequestError

SOURCE = "alertmanager"
_log = log.get("alertmanager")
_MARK = re.compile(r"\[outrider ([^\s/\]]+)/([^\s\]]+)\]\s*$")
# what a silence of our origin alone selects there: all that we emit, which is no received alert
_ALL_OF_OURS = (
    LabelMatcher("alertname", MatchOperator.MATCHES, ".+"),
    LabelMatcher("source", MatchOperator.EQUAL, ""),
)
_TOLERANCE = timedelta(seconds=5)
_LONGEST = timedelta(days=400)  # of a maintenance window without an end
_STANDING = ("active", "pending")
_OPERATORS = {
    (False, True): MatchOperator.EQUAL,
    (False, False): MatchOperator.NOT_EQUAL,
    (True, True): MatchOperator.MATCHES,
    (True, False): MatchOperator.NOT_MATCHES,
}
_FLAGS = {operator: flags for flags, operator in _OPERATORS.items()}


@dataclass(frozen=True, slots=True)
class SyncOptions:
    """``read``: silences there mute our alerts; ``write``: ours are created there. ``origin`` marks ours.

    ``maintenance`` are the silences of the configuration, which are created there, too.
    """

    origin: str
    read: bool = True
    write: bool = True
    maintenance: tuple[Silence, ...] = ()


@dataclass(frozen=True, slots=True)
class _Export:
    """A silence of ours that is due there. One that ended there after ``since`` was ended by hand."""

    silence: Silence
    there: AlertmanagerSilence
    since: datetime | None


class SilenceSync:
    """The periodic task that exchanges silences with the first Alertmanager that responds."""

    def __init__(self, state: StateStore, clients: Sequence[AlertmanagerClient], options: SyncOptions) -> None:
        """Members of one cluster exchange silences themselves."""
        self._state, self._clients, self._options = state, tuple(clients), options
        self._unread: set[str] = set()
        self._refused: set[str] = set()
        self._failed = False

    def run_due(self, now: datetime) -> None:
        """Exchanges silences once. While no Alertmanager responds, everything stays as it is."""
        for client in self._clients:
            try:
                theirs = client.silences()
                if self._options.read:
                    self._read(theirs, now)
                if self._options.write:
                    self._write(client, theirs, now)
            except AlertmanagerError as error:
                problem = error.message
                continue
            self._failed = False
            return
        if self._clients and not self._failed:
            self._failed = True
            _log.error("alertmanager_silences_failed", error=problem)

    def _read(self, theirs: Iterable[AlertmanagerSilence], now: datetime) -> None:
        wanted = {
            silence.id: silence
            for item in theirs
            if item.state in _STANDING and not self._is_ours(item) and (silence := self._imported(item)) is not None
        }
        known = {silence.id: silence for silence in self._state.silences(now) if silence.source == SOURCE}
        for number, silence in wanted.items():
            if known.get(number) != silence:
                self._state.add_silence(silence)
                if number not in known:
                    self._audit(AuditEvent.SILENCED, silence, now)
        for number in known.keys() - wanted.keys():
            self._state.remove_silence(number)
            self._audit(AuditEvent.UNSILENCED, known[number], now)

    def _write(self, client: AlertmanagerClient, theirs: Sequence[AlertmanagerSilence], now: datetime) -> None:
        ours = (*self._options.maintenance, *self._state.silences(now))
        exports = (self._exported(silence, now) for silence in ours if silence.source != SOURCE)
        due = {item.silence.id: item for item in exports if item is not None}
        marked: dict[str, list[AlertmanagerSilence]] = {}
        for item in theirs:
            number = self._id_of(item)
            if number:
                marked.setdefault(number, []).append(item)
        for number, items in marked.items():
            for item in items:
                if item.state in _STANDING and (number not in due or item is not _first_standing(items)):
                    client.expire_silence(item.id)
        for number, export in due.items():
            present = marked.get(number, [])
            standing = _first_standing(present)
            if standing is not None:
                wanted = _changed(standing, export, now)
                if wanted is not None:
                    self._create(client, replace(export, there=wanted))
            elif any(_ended_early(before, export) for before in present):
                self._end(export.silence, now)
            else:
                self._create(client, export)

    def _create(self, client: AlertmanagerClient, export: _Export) -> None:
        """Creates a silence there, or changes the one with its id.

        One that is refused keeps no other from being created, and is logged once.
        """
        try:
            client.create_silence(export.there)
        except RefusedRequestError as error:
            if export.silence.id not in self._refused:
                self._refused.add(export.silence.id)
                _log.error("alertmanager_silence_refused", silence=export.silence.id, error=error.message)

    def _end(self, silence: Silence, now: datetime) -> None:
        """Ends a silence of ours that was ended in Alertmanager. One with a window pauses until its next occurrence."""
        if silence.window is None and not silence.source:
            self._state.remove_silence(silence.id)
            self._audit(AuditEvent.UNSILENCED, silence, now)

    def _imported(self, item: AlertmanagerSilence) -> Silence | None:
        """Our form of a silence; None if it cannot apply to alerts of this Outrider, or cannot be read."""
        matchers = [
            LabelMatcher(part.name, _OPERATORS[part.is_regex, part.is_equal], part.value) for part in item.matchers
        ]
        by_origin = [matcher for matcher in matchers if matcher.name == ORIGIN_LABEL]
        if not all(matcher.holds({ORIGIN_LABEL: (self._options.origin,)}) for matcher in by_origin):
            return None
        others = tuple(matcher for matcher in matchers if matcher.name != ORIGIN_LABEL)
        try:
            check_matchers(others)
        except UsageError as error:
            if item.id not in self._unread:
                self._unread.add(item.id)
                _log.warning("alertmanager_silence_unread", silence=item.id, error=error.message)
            return None
        return Silence(
            id=f"{SOURCE}/{item.id}",
            rule=None,
            entity=None,
            until=item.ends_at,
            by=item.created_by,
            comment=item.comment,
            matchers=others or (_ALL_OF_OURS if by_origin else ()),
            starts_at=item.starts_at,
            source=SOURCE,
        )

    def _exported(self, silence: Silence, now: datetime) -> _Export | None:
        """The silence as Alertmanager takes it now; None for one whose window is closed."""
        starts, ends = silence.starts_at or now, min(silence.until, now + _LONGEST)
        since = None
        if silence.window is not None:
            occurrence = silence.window.current(now)
            if occurrence is None:
                return None
            since, ends = occurrence[0], min(ends, occurrence[1])
        if ends - now < _TOLERANCE:
            return None
        conditions = {"rule": silence.rule}
        if silence.entity is not None:
            entity = silence.entity
            conditions |= {"cluster": entity.cluster, "kind": entity.kind.value, "entity": entity.name}
            conditions |= {"namespace": entity.namespace}
        matchers = [SilenceMatcher(name, value) for name, value in conditions.items() if value]
        matchers += [
            SilenceMatcher(label_name(item.name), item.value, *_FLAGS[item.operator]) for item in silence.matchers
        ]
        matchers.append(SilenceMatcher(ORIGIN_LABEL, self._options.origin))
        mark = f"[outrider {quote(self._options.origin, safe='')}/{quote(silence.id, safe='')}]"
        comment = f"{silence.comment} {mark}".strip()
        by = silence.by or "outrider"
        return _Export(silence, AlertmanagerSilence("", tuple(matchers), max(starts, now), ends, by, comment), since)

    def _id_of(self, item: AlertmanagerSilence) -> str:
        """The id of our silence that it stands for; empty for any other."""
        match = _MARK.search(item.comment)
        ours = match is not None and unquote(match[1]) == self._options.origin
        return unquote(match[2]) if match is not None and ours else ""

    def _is_ours(self, item: AlertmanagerSilence) -> bool:
        return bool(self._id_of(item))

    def _audit(self, event: AuditEvent, silence: Silence, now: datetime) -> None:
        detail: Mapping[str, str] = {
            "matchers": ", ".join(map(str, silence.matchers)),
            "comment": silence.comment,
        }
        self._state.append_audit([AuditRecord(now, event, silence.id, SOURCE, by=silence.by or SOURCE, detail=detail)])


def _first_standing(items: Iterable[AlertmanagerSilence]) -> AlertmanagerSilence | None:
    """The oldest of several that stand for one silence: two engines may have created it at the same time."""
    standing = [item for item in items if item.state in _STANDING]
    return min(standing, key=lambda item: (item.starts_at, item.id), default=None)


def _changed(standing: AlertmanagerSilence, export: _Export, now: datetime) -> AlertmanagerSilence | None:
    """What a standing silence has to become; None if its conditions and times are still those of ours.

    One that has begun keeps its start. Alertmanager replaces what it cannot change, such as conditions.
    """
    wanted = export.there
    starts = wanted.starts_at if wanted.starts_at > now else min(standing.starts_at, now)
    endless = export.since is None and wanted.ends_at < export.silence.until
    unchanged = (
        set(standing.matchers) == set(wanted.matchers)
        and abs(standing.starts_at - starts) <= _TOLERANCE
        and abs(standing.ends_at - wanted.ends_at) <= (_LONGEST / 2 if endless else _TOLERANCE)
    )
    return None if unchanged else replace(wanted, id=standing.id, starts_at=starts)


def _ended_early(before: AlertmanagerSilence, wanted: _Export) -> bool:
    """True if a silence was ended by hand: before its end, and within the present occurrence of its window."""
    in_time = wanted.since is None or before.ends_at > wanted.since
    return before.state == "expired" and in_time and before.ends_at < wanted.there.ends_at - _TOLERANCE
