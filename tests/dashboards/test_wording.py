"""Formats of numbers, timestamps and entities; the palette; the command line."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dashboards
from dashboards import session
from dashboards.components import format as fmt
from dashboards.components import html as components_html
from dashboards.components.palette import palette, theme
from dashboards.run import command
from dashboards.views import capacity
from dashboards.views import overview as overview_view
from outrider.text.i18n import texts

STAGES = {"collectors", "store", "detectors", "planner", "remediation", "alerts", "reports", "simulator"}
STAGES |= {"service", "outrider", "dashboards"}


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (1.0, "100.00 %"), (0.99996, "99.99 %"), (0.9999, "99.99 %"), (0.0, "0.00 %"), (0.29, "29.00 %")],
)
def test_percent_never_rounds_up(value, text):
    assert fmt.percent(value) == text


@given(st.floats(0, 0.999999))
def test_only_one_is_displayed_as_100_percent(value):
    assert fmt.percent(value) != "100.00 %"


@pytest.mark.parametrize(
    ("at", "text"),
    [
        ("2026-05-04T13:07:00Z", "30 s ago"),
        ("2026-05-04T12:55:30Z", "12 min ago"),
        ("2026-05-04T11:00:30Z", "2 h 7 min ago"),
        ("2026-05-01T13:07:30Z", "3 d ago"),
        ("2026-05-04T13:07:30Z", "now"),
        ("2026-05-04T13:32:30Z", "in 25 min"),
        (None, "–"),
    ],
)
def test_times_are_relative_to_the_newest_cycle(at, text):
    assert fmt.relative(at, "2026-05-04T13:07:30Z", "en") == text


def test_times_of_another_day_have_a_date():
    as_of = "2026-05-04T13:07:30Z"
    assert fmt.clock("2026-05-04T09:00:00Z", as_of) == "09:00 UTC"
    assert fmt.clock("2026-05-03T23:59:00Z", as_of) == "2026-05-03 23:59 UTC"
    assert fmt.when("2026-05-04T13:00:30Z", as_of, "zh") == "13:00 UTC（7 分钟前）"
    assert fmt.clock("2026-05-04T09:00:00Z", as_of, "Asia/Shanghai") == "17:00 UTC+08:00"
    assert fmt.clock("2026-05-03T15:59:00Z", as_of, "Asia/Shanghai") == "2026-05-03 23:59 UTC+08:00"
    assert fmt.clock("2026-05-04T09:00:07Z", as_of, "Asia/Shanghai", seconds=True) == "17:00:07 UTC+08:00"


def test_numbers_durations_and_money():
    assert [fmt.number(value) for value in (None, 7.0, 54.57, 15936.4)] == ["–", "7", "54.6", "15,936"]
    assert [fmt.seconds(0.25), fmt.seconds(0.001, below=True), fmt.seconds(None)] == ["250 ms", "< 1 ms", "–"]
    assert [fmt.money(118.8, "USD"), fmt.money(None, "USD")] == ["118.80 USD", "–"]
    assert fmt.seconds_span(360, "en") == "6 min"


def test_evidence_without_a_text_shows_observed_and_expected():
    seen = {"signal": "hw_accel_present", "observed": 7.0, "expected": {"low": 8.0, "high": 8.0}, "text": ""}
    assert fmt.observation(seen, "en") == "GPUs visible on the node: 7, expected 8"
    assert fmt.observation({**seen, "expected": {"low": 0.5, "high": 1.25}}, "en").endswith("expected 0.500 to 1.250")
    assert fmt.observation({**seen, "expected": None}, "zh") == "节点可见 GPU 数：7"
    assert fmt.observation({**seen, "text": "GPU lost"}, "en") == "GPU lost"


def test_names_from_the_fleet_never_become_markup():
    evil = '<script>alert(1)</script>"'
    incident = {
        "suspected_cause": {
            "fault": evil,
            "entity": {"cluster": "c", "kind": "node", "namespace": None, "name": evil},
            "confidence": 0.5,
        },
        "priority": evil,
        "opened_at": "2026-05-04T13:00:00Z",
        "resolved_at": None,
        "alerts": 1,
        "pages": 0,
        "services": [evil],
        "summary": evil,
        "drill": evil,
    }
    html = (
        components_html.incident_line(incident, "2026-05-04T13:07:30Z", "en")
        + components_html.head(evil, evil)
        + components_html.note(evil, evil)
    )
    assert "<script" not in html


def test_both_languages_have_the_same_texts():
    for area in ("dashboard.", "words."):
        english, chinese = ({k: v for k, v in texts(lang).items() if k.startswith(area)} for lang in ("en", "zh"))
        assert english.keys() == chinese.keys()
        holes = re.compile(r"{(\w+)}")
        assert [k for k in english if set(holes.findall(english[k])) != set(holes.findall(chinese[k]))] == []


def test_every_text_of_the_dashboard_exists():
    folder = Path(dashboards.__file__).parent
    source = "".join(path.read_text() for path in folder.rglob("*.py"))
    keys = set(re.findall(r"""(?:fmt\.|viewer\.)?\blocalize\(\s*"([a-z0-9_.]+)\"""", source))
    assert len(keys) > 60
    assert sorted(key for key in keys if f"dashboard.{key}" not in texts("en")) == []


def test_every_status_has_a_word_and_a_sign():
    for language in ("en", "zh"):
        for status in ("ok", "at_risk", "broken", "unknown"):
            assert f"dashboard.status.{status}" in texts(language)
            assert any(sign in components_html.status_pill(status, language) for sign in "✓!✕?")


def test_both_themes_have_readable_status_colors():
    for name in ("light", "dark"):
        colors = palette(name)
        for color in (colors.ok, colors.at_risk, colors.broken, colors.unknown, colors.muted, colors.text):
            assert contrast(color, colors.card) >= 4.5, (name, color)
        assert theme()[name]["backgroundColor"] == colors.background


def contrast(one: str, other: str) -> float:
    """WCAG 2.1 contrast ratio."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def luminance(color: str) -> float:
    shares = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_the_command_listens_on_loopback_and_sends_no_usage_statistics():
    line = command("http://127.0.0.1:8600", 9000, token_file=Path("/run/token"))
    assert "--server.address=127.0.0.1" in line
    assert "--server.port=9000" in line
    assert "--browser.gatherUsageStats=false" in line
    assert "--theme.dark.backgroundColor=#14171c" in line
    assert line[line.index("--") :] == ["--", "--api-url", "http://127.0.0.1:8600", "--token-file", "/run/token"]


def test_every_flag_is_known_to_streamlit():
    from streamlit import config

    known = set(config.get_config_options(force_reparse=False))
    flags = [part[2:].split("=")[0] for part in command("http://x") if part.startswith("--") and "=" in part]
    assert flags
    assert set(flags) <= known


def test_no_file_shadows_a_stage_package():
    folder = Path(dashboards.__file__).parent
    assert not {path.stem for path in folder.iterdir()} & STAGES


def test_the_body_of_the_capacity_page_gives_the_reason_only_if_it_agrees_with_the_headline():
    viewer = session.Viewer(None, "en", palette("light"))
    plan = {"derivation": {}, "made_at": "2026-05-04T13:00:00Z", "detail": "", "sentence": "chat: 12 possible: full"}
    agreed = capacity.below(viewer, {**plan, "why": "the ordered replicas suffice"}, "2026-05-04T13:09:00Z")
    assert agreed == "the ordered replicas suffice · planned 13:00 UTC, 9 min ago"
    for why in (None, "full"):
        assert capacity.below(viewer, {**plan, "why": why}, "2026-05-04T13:09:00Z") == "planned 13:00 UTC, 9 min ago"


def test_a_time_of_a_later_need_is_marked():
    at = "2026-05-04T14:00:00Z"
    for state, mark in {"enough": True, "shrink": True, "grow": False, "grow_later": False, "starting": False}.items():
        shown = fmt.need_time({"state": state, "needed_by": at}, "needed_by", "2026-05-04T13:00:00Z", "en")
        assert ("next need" in shown) is mark, state
    assert fmt.need_time({"state": "enough", "needed_by": None}, "needed_by", at, "en") == fmt.DASH


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize(("monitoring", "known"), [("ok", True), ("at_risk", True), ("broken", False)])
def test_a_monitor_without_current_data_does_not_report_services_as_ok(language, monitoring, known):
    viewer = session.Viewer(None, language, palette("light"))
    overview = {"services": [{"status": "ok"}], "monitoring": {"cycle": {}, "status": monitoring}}
    all_ok = viewer.localize("overview.all_ok", total=1)
    assert (overview_view.headline(viewer, overview) == all_ok) is known


def test_a_degraded_service_shows_its_level_and_since_when():
    service = {"degrade": {"level": 3, "name": "cap_output", "since": "2026-11-23T12:05:00Z", "incident": "i"}}
    for language, text in (("en", "Degraded to level 3 (output capped) since 12:05"), ("zh", "降级到第 3 级")):
        viewer = session.Viewer(None, language, palette("light"))
        (line,) = overview_view.degrade_lines(viewer, service)
        assert text in line
        assert overview_view.degrade_lines(viewer, {"degrade": None}) == []
