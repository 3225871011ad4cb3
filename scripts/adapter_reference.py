"""Write docs/reference/adapters.md from the packaged adapters; with --check, say whether it is up to date."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from generated import write_or_check

from collectors.mapping.model import Adapter, Aggregate, Match, Metrics, Operator, Rule, Section, Statistic, Term
from collectors.mapping.registry import ADAPTERS, adapter
from outrider.vocabulary import catalog

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "adapters.md"
HEAD = """\
# Adapters

How the pages of engines, exporters, gateways and meshes become Outrider's signals. Name an adapter as `adapter:` of
a target, or try it on a page: `outrider doctor --page sglang=http://10.0.0.7:30000/metrics`. What a signal means
stands in `outrider/vocabulary/catalog.yaml`; how to write an adapter of your own in [add an engine](../howto/add-an-engine.md).

"Newest first" holds for names joined by *or*: the first one on a page is read. Alternatives stand in lines of their
own: each entity takes the first one that serves it. *mean* and *quantiles* mark distributions of which a source
publishes no buckets. This page is written by `scripts/adapter_reference.py`.
"""
_FUNCTION = {Section.GAUGE: "", Section.DELTA: "increase", Section.RATE: "rate"}


def overview() -> Iterator[str]:
    """One line an adapter."""
    yield "| adapter | system | a page is | signals |"
    yield "|---|---|---|---|"
    for name in ADAPTERS:
        one = adapter(name)
        yield f"| [`{name}`](#{name.replace('_', '-')}) | {one.title} | one {one.target} | {len(one.rules)} |"


def section(one: Adapter) -> Iterator[str]:
    """All that is to be said of one adapter."""
    yield from ("", f"## {one.name.replace('_', '-')}", "", f"**{one.title}** (`adapter: {one.name}`)", "")
    yield from _comment(one)
    yield f"Entities: {', '.join(_entity(one, kind) for kind in one.entities)}."
    if one.probe is not None:
        doors = [f"`{path}`" for path in (one.probe.health, one.probe.load) if path]
        where = f" on port {one.probe.port} when the page is on port {one.probe.page_port}" if one.probe.port else ""
        spellings = ", else ".join(f"`{text}`" for text in one.probe.load_as)
        read = f" Requests in flight are read there at {spellings}." if one.probe.load else ""
        yield f"Asked beside each scrape: {' and '.join(doors)}{where}.{read}"
    yield from ("", "| signal | unit | from |", "|---|---|---|")
    for name in (one.up, one.health, one.load, *one.seen.values()):
        if name:
            yield f"| `{name}` | {catalog.signal(name).unit} | the scrape and the engine probe |"
    for name, rules in one.rules.items():
        told = "<br>".join(_cell(_rule(rule)) for rule in rules)
        yield f"| `{name}` | {catalog.signal(name).unit} | {told} |"


def _comment(one: Adapter) -> Iterator[str]:
    """The words at the head of the file."""
    text = (ROOT / one.file).read_text(encoding="utf-8")
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip().replace("<", "&lt;").replace("*", "\\*"))
    yield from (*lines, "")


def _entity(one: Adapter, kind: str) -> str:
    spec = next(spec for found, spec in one.entities.items() if found == kind)
    if spec.target:
        return f"{kind} (the target{', one each ' + '/'.join(spec.split) if spec.split else ''})"
    names = "/".join(" or ".join(part) for part in spec.parts).replace("@target", "the target")
    return f"{kind} ({names}{', parts by ' + spec.instance if spec.instance else ''})"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _rule(rule: Rule) -> str:
    parts = [_value(rule)]
    if rule.scale != 1:
        parts.append(f"x {rule.scale:g}" if rule.scale != -1 or rule.offset == 0 else "")
    if rule.offset:
        parts = [f"{rule.offset:g} - {parts[0]}"] if rule.scale == -1 else [*parts, f"+ {rule.offset:g}"]
    if rule.equals is not None:
        parts.append(f"is {rule.equals:g}")
    notes = [str(rule.statistic)] if rule.statistic in {Statistic.MEAN, Statistic.QUANTILES} else []
    notes += [f"{rule.aggregate} by {', '.join(rule.per)}"] if rule.per else []
    notes += [f"if typed {rule.type}"] if rule.type else []
    notes += ["0 while there is none"] if any(term.beside.names for term in rule.terms) else []
    notes += ["old"] if rule.old else []
    return " ".join(part for part in parts if part) + (f" ({'; '.join(notes)})" if notes else "")


def _value(rule: Rule) -> str:
    if rule.operator in {Operator.HISTOGRAM, Operator.SUMMARY}:
        return f"{rule.operator} {_series(rule.terms[0].metrics, rule.terms[0].where)}"
    if rule.operator is Operator.COUNT:
        return f"count of {' or '.join(rule.distinct)} on {_series(rule.terms[0].metrics, rule.terms[0].where)}"
    between = {Operator.RATIO: " / ", Operator.PRODUCT: " x ", Operator.AT_LEAST: " >= "}.get(rule.operator, " - ")
    value = between.join(_term(term) for term in rule.terms)
    return f"abs({value})" if rule.absolute else value


def _term(term: Term) -> str:
    series = _series(term.metrics, term.where)
    if term.weigh_by:
        series += f" x its labels {' x '.join(f'`{label}`' for label in term.weigh_by)}"
    if term.codes is not None:
        series += f" as a code of `{term.codes.label}`"
    function = _FUNCTION[term.section]
    text = f"{function}({series})" if function else series
    return text if term.aggregate is Aggregate.SUM else f"{term.aggregate} of {text}"


def _series(metrics: Metrics, where: tuple[Match, ...]) -> str:
    shown = dict(zip(metrics.names, metrics.shown, strict=True))
    first = " or ".join(f"`{shown[name]}`" for name in metrics.first)
    every = " + ".join(f"`{shown[name]}`" for name in (*metrics.every, *metrics.some))
    maybe = "".join(f" (+ `{shown[name]}`)" for name in metrics.maybe)
    conditions = ", ".join(f"{match.label}{_operator(match)}" for match in where)
    return (first or every) + maybe + (f" where `{conditions}`" if conditions else "")


def _operator(match: Match) -> str:
    wanted = "=~" if match.wanted else "!~"
    return f'{wanted}"{match.pattern.pattern}"'


def page() -> str:
    """The whole page."""
    lines = [HEAD, *overview()]
    for name in ADAPTERS:
        lines += section(adapter(name))
    lines += ["", "## Signals by adapter", "", "| signal | adapters |", "|---|---|", *_by_signal()]
    return "\n".join(lines) + "\n"


def _by_signal() -> Iterator[str]:
    found: dict[str, list[str]] = {}
    for name in ADAPTERS:
        one = adapter(name)
        for signal in (*one.rules, *(extra for extra in (one.up, one.health, one.load, *one.seen.values()) if extra)):
            found.setdefault(signal, []).append(f"`{name}`")
    for signal in catalog.signals():
        if signal in found:
            yield f"| `{signal}` | {', '.join(found[signal])} |"


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page()))
