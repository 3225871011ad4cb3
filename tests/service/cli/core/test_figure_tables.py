"""The tables of back-tests and drills, in both languages."""

from __future__ import annotations

from dataclasses import fields

import pytest

from outrider.text.i18n import LANGUAGES, texts
from service.cli.core import figure_tables
from service.cli.evaluation import detect, drill
from service.drills import commands
from simulator.scoring.score import DrillResult, score

ROW = {
    "event_f1": 0.678,
    "precision": 0.77,
    "recall": 0.6,
    "false_alarms_per_day": 0.0889,
    "median_delay_seconds": 1800.0,
    "vus_pr": None,
}
STORM = ("alerts", "pages", "folding_ratio", "pairwise_precision", "pairwise_recall", "pairwise_f1")
FIGURES = [name for name, value in score([]).items() if not isinstance(value, dict | list)]


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(
    "name", [*FIGURES, *(one.name for one in fields(DrillResult)), *ROW, "negative", "tuning_seed"]
)
def test_every_figure_has_a_heading_in_both_languages(name, language):
    if name not in ("truth", "verdicts"):
        assert f"measured.figure.{name}" in texts(language)


def test_delays_are_durations_and_headings_follow_the_language():
    shown = {**ROW, "by_entity": {"server-1": ROW}, "nab_standard": 53.71}
    english, chinese = (detect._table(shown, language) for language in LANGUAGES)
    assert english.count("30m") == 2
    assert "1.8e+03" not in english
    assert "NAB standard profile: 53.7" in english
    assert ("发现时延中位数" in chinese, "全部" in chinese, "median" in chinese) == (True, True, False)


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_score_of_drills_has_no_raw_key_and_no_empty_heading(language):
    row = {"events": 2, "detected": 2, "median_delay_seconds": 75.0, "ac1": 1.0, "remediated_ratio": None}
    shown = {
        "seed": 7,
        "tuning_seed": True,
        **score([]),
        "by_storm": {"rack-lost": dict.fromkeys(STORM, 0.5)},
        "by_fault": {"gpu-lost": {**row, "named_instead": {"gpu-ecc": 1}}},
        "reliability": [{"from": 0.9, "to": 1.0, "answers": 2, "confidence": 0.95, "right": 1.0}],
    }
    output = drill._scored(shown, language)
    first = output.splitlines()[0].split()
    assert first == figure_tables.heads(language, "figure", "value")
    assert "1m 15s" in output
    assert not any(key in output for key in ("upper95", "ac1", "measured.", "_"))


def test_the_list_of_drills_follows_the_language():
    assert drill._listed(commands.list_scenarios(), "zh").splitlines()[0].split() == [
        "场景", "故障", "无故障", "负载", "分钟",
    ]  # fmt: skip
