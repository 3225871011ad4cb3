from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest

from outrider.errors import UsageError
from outrider.model import ActionKind, ActionStatus
from outrider.text.i18n import texts
from outrider.vocabulary.indicators import MEASURES
from reports.definitions import REPORTS
from reports.document.render import FORMATS, as_dict, render
from reports.inputs.week import week_of, week_range
from reports.weekly import weekly


def _report(fleet, language="en"):
    return weekly(fleet.state, fleet.metrics, fleet.week, fleet.now, language)


def _table(model, section, table):
    result = next(each for each in as_dict(model)["sections"] if each["id"] == section)
    return next(each["rows"] for each in result["tables"] if each["id"] == table)


def test_availability_counts_outage_minutes_and_excludes_unknown_ones(fleet):
    rows = {row["service"]: row for row in _table(_report(fleet), "promise", "promise")}
    chat, embed = rows[fleet.chat.key], rows[fleet.embed.key]
    assert chat["availability"] == pytest.approx(1 - 30 / 10080)
    assert chat["unknown"] == 0
    assert embed["availability"] == 1.0
    assert embed["unknown"] == pytest.approx(600 / 10080)


def test_attainment_is_a_range_if_the_limit_is_inside_a_bucket(fleet):
    model = _report(fleet)
    cell = next(each.cell for each in model.headlines if each.measure == "sla_attainment")
    assert cell.text == "90.00 % to 98.00 %"
    assert cell.value == pytest.approx(0.9)
    assert cell.kept is False


def test_incident_delays_start_at_the_first_abnormal_sample(fleet):
    repaired = next(row for row in _table(_report(fleet), "incidents", "incidents") if row["cause"] == "gpu-lost")
    assert (repaired["mttd"], repaired["mtta"], repaired["mttr"]) == (30.0, 110.0, 270.0)


def test_an_open_incident_without_cause_is_marked(fleet):
    model = _report(fleet)
    section = next(each for each in model.sections if each.id == "incidents")
    words = [cell.text for cell in section.tables[0].rows[0]]
    assert "unknown" in words
    assert "open" in words


def test_a_change_approved_by_a_person_is_not_automatic(fleet):
    rows = {row["measure"]: row["value"] for row in _table(_report(fleet), "alerts", "alerts")}
    assert rows["changes"] == 2
    assert rows["noops"] == 0.5


def test_gpu_hours_are_allocated_idle_and_lost(fleet):
    rows = {row["measure"]: row["value"] for row in _table(_report(fleet), "cost", "cost")}
    assert rows["gpu_hours"] == pytest.approx(6 * 168)
    assert rows["gpu_hours_idle"] == pytest.approx(6 * 101 / 6)
    assert rows["gpu_hours_lost"] == pytest.approx(2 * 2)
    tokens = rows["tokens"]
    assert rows["cost_per_1k_tokens"] == pytest.approx(15.0 / 6 * 1008 / tokens * 1000)
    assert rows["tokens_per_watt_hour"] == pytest.approx(tokens / (6 * 168 * 400))


def test_capacity_has_the_plan_and_its_reason(fleet):
    chat, embed = _table(_report(fleet), "capacity", "capacity")
    assert (chat["now"], chat["need"], chat["gpus"], chat["growth"]) == (2, 3, 6, 0.23)
    assert chat["need_at"] == "2026-05-11T09:00:00Z"
    assert chat["next_week"] == pytest.approx(36.0 * 1.23, rel=0.02)
    assert embed["need"] is None
    assert embed["reason"] == "no_calibration"


def test_without_a_price_there_is_no_cost(fleet):
    state = type(fleet.state)(graph=fleet.state.graph)
    rows = {
        row["measure"]: row["value"]
        for row in _table(weekly(state, fleet.metrics, fleet.week, fleet.now), "cost", "cost")
    }
    assert rows["cost_per_1k_tokens"] is None


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("kind", FORMATS)
def test_an_empty_store_gives_a_report_with_a_notice(nothing, language, kind):
    model = _report(nothing, language)
    written = render(model, kind)
    assert model.empty
    assert json.loads(written)["empty"] is True if kind == "json" else model.notice in written
    assert "nan" not in written.lower().replace("finance", "")


class _Balanced(HTMLParser):
    VOID = frozenset({"meta", "br", "hr", "link", "img", "input"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.outside: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)
        self.outside += [value for name, value in attrs if name in ("src", "href") and value]

    def handle_startendtag(self, tag, attrs):
        return

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.parametrize("language", ["en", "zh"])
def test_html_is_complete_and_self_contained(fleet, language):
    page = render(_report(fleet, language), "html")
    parser = _Balanced()
    parser.feed(page)
    assert parser.open == []
    assert parser.outside == []
    assert "http://" not in page
    assert "https://" not in page
    assert "<script" not in page


def test_every_chart_has_a_title_and_a_text(fleet):
    page = render(_report(fleet), "html")
    pictures = page.split("<svg ")[1:]
    assert len(pictures) == 4
    for picture in pictures:
        root = ET.fromstring("<svg " + picture.split("</svg>")[0] + "</svg>")
        named = root.attrib["aria-labelledby"].split()
        assert [root.find(tag).attrib["id"] for tag in ("title", "desc")] == named
        assert all(root.find(tag).text for tag in ("title", "desc"))


def test_percentages_are_never_rounded_to_100():
    from reports.document.words import percent

    assert percent(0.99999) == "99.99 %"
    assert percent(1.0) == "100.00 %"


def test_names_are_escaped(fleet):
    from dataclasses import replace

    evil = "<script>alert(1)</script>|x"
    model = replace(_report(fleet), title=evil)
    assert "<script>alert" not in render(model, "html")
    section = model.sections[0]
    table = section.tables[0]
    row = (replace(table.rows[0][0], text=evil), *table.rows[0][1:])
    model = replace(model, sections=(replace(section, tables=(replace(table, rows=(row,)),)),))
    assert "<script>alert" not in render(model, "html")
    assert "\\|x" in render(model, "md")


def test_json_has_no_nan_and_names_every_column(fleet):
    document = json.loads(render(_report(fleet), "json"), parse_constant=pytest.fail)
    assert document["empty"] is False
    assert {section["id"] for section in document["sections"]} == {
        "promise",
        "incidents",
        "actions",
        "capacity",
        "cost",
        "alerts",
    }


def test_both_languages_have_the_same_texts_and_placeholders():
    from string import Formatter

    english, chinese = ({k: v for k, v in texts(lang).items() if k.startswith("reports.")} for lang in ("en", "zh"))
    assert english.keys() == chinese.keys()
    for key, text in english.items():
        places = [{name for _, name, _, _ in Formatter().parse(each) if name} for each in (text, chinese[key])]
        assert places[0] == places[1], key
    for measure in MEASURES.values():
        assert f"reports.measure_{measure.name}" in english
        assert f"reports.measure_{measure.name}_formula" in english


def test_no_text_key_is_printed(fleet):
    for language in ("en", "zh"):
        assert "reports." not in render(_report(fleet, language), "html")


@pytest.mark.parametrize("week", ["2026-19", "2026-W54", "W19", "", "2026-W00", "last week"])
def test_an_invalid_week_is_refused(nothing, week):
    with pytest.raises(UsageError, match="is not a week"):
        weekly(nothing.state, nothing.metrics, week, nothing.now)


def test_a_future_week_is_refused(nothing):
    with pytest.raises(UsageError, match="has not begun"):
        weekly(nothing.state, nothing.metrics, "2026-W40", nothing.now)


def test_the_current_week_is_marked_as_running(fleet):
    start, _ = week_range(fleet.week)
    model = weekly(fleet.state, fleet.metrics, fleet.week, start.replace(day=6))
    assert "in progress" in model.period
    assert week_of(start) == fleet.week


def test_an_unknown_format_is_refused(nothing):
    with pytest.raises(UsageError, match="not a report format"):
        render(_report(nothing), "docx")


def test_every_defined_report_builds_and_has_a_title(nothing):
    for definition in REPORTS.values():
        assert definition.build(nothing.state, nothing.metrics, nothing.week, nothing.now, "zh").empty
        assert "reports." not in definition.title("zh") + definition.description("en")


def test_values_ten_minutes_apart_are_not_unknown(fleet, nothing):
    import numpy as np

    start, _ = week_range(fleet.week)
    times = start.timestamp() + 600.0 * np.arange(7 * 144)
    requests = np.where(np.arange(times.size) // 144 == 3, np.nan, 1000.0)
    nothing.metrics.put(fleet.chat, "svc_requests_total", times, requests)
    nothing.metrics.put(fleet.chat, "svc_failed_total", times, np.zeros(times.size))
    row = _table(_report(nothing), "promise", "promise")[0]
    assert row["unknown"] == pytest.approx(1 / 7)
    assert row["availability"] == 1.0


def test_verdicts_of_the_week_become_precision_with_its_interval(fleet):
    model = weekly(fleet.state, fleet.metrics, fleet.week, fleet.now)
    alerts = next(section for section in model.sections if section.id == "alerts")
    tables = {table.id: table for table in alerts.tables}
    (row,) = tables["precision"].rows
    assert [cell.value for cell in row[:6]] == ["gpu-lost", 1, 0, 1, 0, 1.0], "of last week's alerts nothing counts"
    assert row[6].text == "21 % – 100 %"
    figures = {line[0].value: line[1] for line in tables["alerts"].rows}
    assert (figures["page_precision"].value, figures["pages_judged"].value) == (1.0, 1)


def test_the_time_at_each_degrade_level_is_listed(fleet):
    done = fleet.state.all_actions[-1]
    chat, at = fleet.chat, done.decided_at
    changes = [
        replace(
            done,
            id=f"d{number}",
            kind=ActionKind.DEGRADE_SERVICE if level else ActionKind.RESTORE_SERVICE,
            target=chat,
            params={"level": level, "name": name},
            status=ActionStatus.DONE,
            decided_at=at + timedelta(minutes=minute),
            ended_at=at + timedelta(minutes=minute),
        )
        for number, (minute, level, name) in enumerate([(1, 3, "cap_output"), (6, 0, "normal")])
    ]
    fleet.state.all_actions = (*fleet.state.all_actions, *changes)
    (row,) = _table(_report(fleet), "actions", "levels")
    assert (row["service"], row["level"], row["duration"]) == (chat.key, "3", 300.0)
    table = next(t for s in _report(fleet, "zh").sections for t in s.tables if t.id == "levels")
    assert table.rows[0][1].text == "3 限制输出长度"
