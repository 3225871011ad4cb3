"""Links to runbooks: a rule or fault names the path of a page, and the configuration the address of all pages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from detectors.rca.fault_catalogue import Knowledge
from outrider.vocabulary.rules import Rule

_LINKS = ("http://", "https://")


def runbook_link(path: str, base_url: str | None) -> str:
    """The address of a page; the path itself if it is a link already, and without ``base_url``."""
    if not path or base_url is None or path.startswith(_LINKS):
        return path
    return f"{base_url.rstrip('/')}/{path.lstrip('/')}"


def of_rules(rules: Iterable[Rule], base_url: str | None) -> tuple[Rule, ...]:
    """The rules with links, which their alerts carry into messages and to an Alertmanager."""
    return tuple(replace(rule, runbook=runbook_link(rule.runbook, base_url)) for rule in rules)


def of_knowledge(knowledge: Knowledge, base_url: str | None) -> Knowledge:
    """The fault catalog with links."""
    if base_url is None:
        return knowledge
    return {name: replace(known, runbook=runbook_link(known.runbook, base_url)) for name, known in knowledge.items()}
