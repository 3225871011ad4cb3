"""Tables follow the terminal's width, wrap between words, and lose nothing."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len

from outrider.records.silences import Silence, SilenceWindow
from outrider.text.i18n import LANGUAGES, texts
from service.cli.core import tables, values
from service.incidents import silence_preview

UUID = "GPU-4fa1b2c3-1111-2222-3333-444455556666"
CHINESE = "仅在启用投机解码时发布；否则不缺少任何信息。请检查 vllm:spec_decode_num_draft_tokens_total 指标。"
CELL = st.text(st.sampled_from("abz_09-:[]{}=/中文字，。 \n"), max_size=90)


def drawn(monkeypatch: pytest.MonkeyPatch, width: int, rows: list[list[str]]) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(tables, "_PIPED", 0)
    return tables.table([f"h{n}" for n in range(len(rows[0]))], rows, empty="").splitlines()


@example([("", "", ":a:")], 40)
@given(st.lists(st.tuples(CELL, CELL, CELL), min_size=1, max_size=4), st.integers(40, 160))
def test_no_character_is_lost_and_no_line_is_too_long(rows: list[tuple[str, str, str]], width: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        lines = drawn(patch, width, [list(row) for row in rows])
    assert max(map(cell_len, lines)) <= width
    wanted = sorted("".join("".join(cell for row in rows for cell in row).split()) + "h0h1h2")
    assert sorted("".join("".join(lines).split())) == wanted


def test_an_id_stays_whole_if_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    prose = "the device fell off its bus and the engine on it stands still " * 3
    wide = drawn(monkeypatch, 100, [[UUID, prose, "2026-03-04T12:00:00Z"]])
    assert any(UUID in line for line in wide)
    assert any("2026-03-04T12:00:00Z" in line for line in wide)
    narrow = drawn(monkeypatch, 40, [[UUID, prose]])
    assert "".join(line[:20].strip() for line in narrow).count("4fa1b2c3") == 1


def test_a_long_name_breaks_after_a_separator_and_headings_take_no_width_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tables, "_PIPED", 0)
    heads, rows = ["name", "WAPE, seasonal naive", "over-provisioning"], [["azure2024_conversation", "0.123", "0.1"]]
    monkeypatch.setenv("COLUMNS", "46")
    assert "azure2024_conversation" in tables.table(heads, rows, empty="")
    monkeypatch.setenv("COLUMNS", "36")
    lines = [line.split()[0] for line in tables.table(heads, rows, empty="").splitlines() if line[:1].strip()]
    assert lines == ["name", "azure2024_", "conversation"]


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_reason_of_a_plan_is_a_text(language, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    keys = ("gpu_type", "current_replicas", "target_replicas", "gpus", "needed_by", "need_at")
    made = {"service": "chat", "reason": "survivors_too_busy", "derivation": {}} | dict.fromkeys(keys)
    drawn = tables.recommendations([made], language)
    assert "survivors_too_busy" not in drawn
    assert texts(language)["words.plan_reason.survivors_too_busy"] in drawn


def test_a_word_in_chinese_text_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_PIPED", 0)
    monkeypatch.setenv("COLUMNS", "40")
    drawn = tables.table(["WAPE（Prophet）", "WAPE（前一日）", "说明"], [["1", "2", CHINESE]], empty="")
    assert "（Prophet）" in drawn
    assert not re.search(r"（\s*$|^\s*[）。；]", drawn, re.MULTILINE)


def test_chinese_is_measured_in_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = drawn(monkeypatch, 60, [["engine_spec_decode_accept_ratio", CHINESE]])
    assert max(map(cell_len, lines)) <= 60
    shown = "".join("".join(lines).split())
    assert all(shown.count(one) == CHINESE.count(one) for one in "投机解码发布检查")


def row(signal: str, value: float | None, unit: str, **more: object) -> dict[str, object]:
    return {"signal": signal, "value": value, "unit": unit, **more}


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (row("engine_start_time_seconds", 1772625600.0, "seconds"), "2026-03-04T12:00:00Z"),
        (row("node_memory_used_bytes", 15.9e9, "bytes"), "14.8 GiB"),
        (row("hw_accel_clock_hertz", 1.98e9, "hertz"), "1.98 GHz"),
        (row("pod_phase", 4.0, "state"), "Unknown (4)"),
        (row("pod_waiting_reason", 2.0, "state"), "ImagePullBackOff/ErrImagePull (2)"),
        (row("target_failure_code", 2.0, "code"), "timeout (2)"),
        (row("hw_accel_fault_code", 79.0, "code"), "79"),
        (row("engine_sleep_state", 1.0, "bool"), "awake"),
        (row("engine_sleep_state", 0.0, "bool"), "asleep"),
        (row("engine_up", 1.0, "bool"), "yes"),
        (row("engine_ttft_seconds", 0.3, "seconds", below_first_bucket=True), "< 300 ms"),
        (row("engine_ttft_seconds", 60.0, "seconds", above_last_bucket=True), "> 60 s"),
        (row("engine_kv_cache_usage_ratio", 0.25, "ratio"), "25 %"),
        (row("engine_requests_running", 3.0, "requests"), "3 requests"),
        (row("probe_cert_expiry_seconds", 172_800.0, "seconds"), "2d"),
        (row("engine_error_ratio", None, "ratio"), "-"),
        (row("kpi_sold", 1e5, ""), "100000"),
    ],
)
def test_values_are_formatted_for_people(shown: dict[str, object], text: str) -> None:
    assert values.text_of(shown) == text


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_word_of_the_command_line_is_a_text(language) -> None:
    """YAML reads some bare words as booleans: such a key would never be found."""
    assert "cli.True" not in texts(language)
    assert "cli.False" not in texts(language)
    assert values.text_of(row("engine_up", 0.0, "bool"), language) in ("no", "否")


def test_every_heading_of_replays_and_forecasts_is_worded_in_both_languages():
    from service.cli.evaluation import forecast

    for language in ("en", "zh"):
        found = tables.heads(language, *forecast._COLUMNS, "namespace", "service", "horizon_seconds", "forecasts")
        assert not [head for head in found if head.startswith("cli.")]
    assert tables.heads("zh", "strategy", "keeps_goal") == ["策略", "达到目标"]


def test_a_list_of_silences_shows_when_each_begins_and_its_part_of_the_week() -> None:
    now = datetime(2026, 3, 3, tzinfo=UTC)
    window = SilenceWindow(22 * 60, 2 * 60, (0, 1), "Asia/Shanghai")
    planned = Silence("a", "r", None, now + timedelta(days=2), "li", starts_at=now + timedelta(days=1))
    weekly = Silence("b", "r", None, now + timedelta(days=9), "li", window=window)
    shown = tables.silences([silence_preview.row(item, now) for item in (planned, weekly)])
    assert "2026-03-04T00:00:00Z" in shown
    assert {"22:00-02:00", "mon,tue", "Asia/Shanghai"} <= set(shown.split())
