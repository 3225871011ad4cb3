"""Warns of a P0 that reaches no phone and no SMS: by the general routes, those of a team, a rule or an SLO."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from alerts.notify.registry import NOTIFIERS, Reach
from alerts.routing.routes import GROUPS
from alerts.rules.parser import RuleEntry
from outrider.errors import ConfigProblem
from outrider.model import Priority
from outrider.text import yaml_file
from outrider.vocabulary.faults import faults
from outrider.vocabulary.rules import Rule
from service.config.notify_settings import ChannelSettings
from service.config.oncall_settings import TeamSettings
from service.config.slo_settings import SloSettings

_REACHES = frozenset({Reach.PHONE, Reach.SMS, Reach.ON_CALL})
_GATEWAYS = ("webhook", "apprise")  # reach a phone if the operator put them into one of these groups
_PHONE_GROUPS = ("phone", "sms")
_Routes = Mapping[Any, Sequence[str]]


class PhoneRoutes:
    """The routes of incidents: those of each team, or the general ones if there is no team."""

    def __init__(
        self, channels: Mapping[str, ChannelSettings], general: _Routes, teams: Sequence[TeamSettings]
    ) -> None:
        """``general`` are those of ``notify.groups``; a team replaces some of them."""
        self._channels = channels
        self._general = general
        self._teams = teams

    def warnings(
        self, entries: Iterable[RuleEntry], slos: Sequence[SloSettings], document: yaml_file.Document
    ) -> Iterator[ConfigProblem]:
        """One warning for each setting by which a P0 reaches no phone. ``entries`` are the rules in force."""
        if not self._channels:
            return
        silent = [index for index, routes in self._by_team() if not self._reach(routes, GROUPS[Priority.P0])]
        for index in silent:
            yield _warning(self._path(index), document)
        rings = [routes for index, routes in self._by_team() if index not in silent]
        for entry in entries:
            if _may_be_p0(entry.rule) and not self._all_reach(rings, entry.rule.routes):
                yield entry.problem("routes", _text(f"a P0 of rule {entry.rule.name}"))
        for number, slo in enumerate(slos):
            if Priority.P0.value in (slo.page, slo.ticket) and not self._all_reach(rings, slo.routes):
                yield document.problem(("slos", number, "routes"), _text("a P0 of this SLO"))

    def _by_team(self) -> list[tuple[int | None, _Routes]]:
        if not self._teams:
            return [(None, self._general)]
        return [(index, {**self._general, **team.groups}) for index, team in enumerate(self._teams)]

    def _path(self, index: int | None) -> yaml_file.Path_:
        if index is None or not self._teams[index].groups:
            return ("notify", "groups")
        return ("oncall", "teams", index, "groups")

    def _all_reach(self, each: Iterable[_Routes], groups: Sequence[str]) -> bool:
        """True if these groups of a rule reach a phone by all routes, or if the rule has none of its own."""
        return not groups or all(self._reach(routes, groups) for routes in each)

    def _reach(self, routes: _Routes, groups: Iterable[str]) -> bool:
        named = ((self._channels.get(name), group) for group in groups for name in routes.get(group, ()))
        return any(channel is not None and _reaches_a_phone(channel, group) for channel, group in named)


def _warning(path: yaml_file.Path_, document: yaml_file.Document) -> ConfigProblem:
    return document.problem(path, _text("a P0"))


def _text(subject: str) -> str:
    return f"{subject} reaches no phone and no SMS; add a channel of such a type to phone or sms"


def _may_be_p0(rule: Rule) -> bool:
    if rule.priority is not None:
        return rule.priority is Priority.P0
    return any(faults()[name].burning is Priority.P0 for name in rule.faults if name in faults())


def _reaches_a_phone(channel: ChannelSettings, group: str) -> bool:
    return NOTIFIERS[channel.type].reach in _REACHES or (channel.type in _GATEWAYS and group in _PHONE_GROUPS)
