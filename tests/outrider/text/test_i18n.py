"""Texts with counts."""

from __future__ import annotations

import re
from importlib import resources

import pytest

from outrider.text.i18n import LANGUAGES, fill, supported, texts, translate


@pytest.mark.parametrize(
    ("count", "text"),
    [(1, "x.yaml has 1 error"), ("1", "x.yaml has 1 error"), (0, "x.yaml has 0 errors"), (21, "x.yaml has 21 errors")],
)
def test_a_count_selects_singular_or_plural(count, text):
    assert translate("cli.config_invalid", file="x.yaml", count=count) == text


def test_each_count_of_a_text_selects_its_own_form():
    text = translate("plan.step_round_replica", replicas=1, tp=1, pp=1, group=1, gpus=2)
    assert "1 replica of 1 x 1 = 1 GPU: 2 GPUs" in text


@pytest.mark.parametrize("language", LANGUAGES)
def test_plural_forms_follow_their_count(language):
    written = re.compile(r"\[[^\]]*\|[^\]]*\]")
    for key, text in texts(language).items():
        for found in written.finditer(text):
            assert re.search(r"\{\w+\} $", text[: found.start()]), key
        given = dict.fromkeys(re.findall(r"\{(\w+)\}", text), "7")
        assert not written.search(translate(key, language, **given)), key


# Between a number and its noun: no words that begin another phrase, as in "1 of the requests".
_ADJECTIVE = (
    r"(?:(?!(?:of|the|for|in|on|than|to|per|with|at|by|and|from|over|all|s|x|is|are|more|needs)\b)[a-z][a-z-]* )"
)
_NOUNS = {
    "replicas", "GPUs", "pods", "nodes", "services", "targets", "requests", "tokens", "samples", "alerts", "actions",
    "minutes", "hours", "days", "scrapes", "times", "values", "peers", "entities", "incidents", "approvals", "findings",
}  # fmt: skip


def _counted_nouns() -> set[str]:
    """Every noun that a text of the catalog counts, and the most common ones."""
    plurals = re.findall(r"\[[^|\[\]]+\|([^|\[\]]+)\]", " ".join(texts("en").values()))
    return _NOUNS | {word for plural in plurals for word in plural.split()[:2] if word.endswith("s")} - {"has", "is"}


def test_no_english_text_counts_one_thing_in_the_plural():
    nouns = "|".join(sorted(_counted_nouns()))
    plural = re.compile(rf"\b1 {_ADJECTIVE}{{0,2}}(?:{nouns})\b(?!/)")
    names = dict.fromkeys(("target", "guard", "gpu"), "x")  # followed by a verb or a noun that they do not count
    written = {
        key: translate(key, "en", **dict.fromkeys(re.findall(r"\{(\w+)\}", text), "1") | names)
        for key, text in texts("en").items()
    }
    assert {key: text for key, text in written.items() if plural.search(text)} == {}
    assert plural.search("median of 1 peers")
    assert plural.search("1 similar targets")


def test_a_text_outside_the_catalog_counts_like_one_of_it():
    assert fill("{n} [pod is|pods are] evicted from {node}", n=1, node="a") == "1 pod is evicted from a"
    assert (
        fill("{n} [pod is|pods are] evicted from {node}", n=2, node="{n} [x|y]") == "2 pods are evicted from {n} [x|y]"
    )


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_file_defines_a_key_twice(language):
    folder = resources.files("outrider.text.i18n").joinpath(language)
    for file in folder.iterdir():
        keys = re.findall(r'^"?([\w.-]+)"?: ', file.read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert sorted(keys) == sorted(set(keys)), file.name


def test_both_languages_define_the_same_keys_with_the_same_placeholders():
    english, chinese = texts("en"), texts("zh")
    assert english.keys() == chinese.keys()
    placeholders = re.compile(r"\{(\w+)(?::duration)?\}")
    assert [k for k in english if set(placeholders.findall(english[k])) != set(placeholders.findall(chinese[k]))] == []


def test_an_alert_title_has_at_most_60_characters():
    titles = {key: text for key, text in texts("en").items() if re.fullmatch(r"alerts\.[a-z0-9-]+\.name", key)}
    assert len(titles) > 30
    assert [key for key, text in titles.items() if len(text) > 60] == []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("5m", "请在 5 分钟内确认"),
        ("1h 30m", "请在 1 小时 30 分钟内确认"),
        ("250ms", "请在 250 毫秒内确认"),
        ("2d", "请在 2 天内确认"),
    ],
)
def test_durations_in_chinese_sentences_have_chinese_units(value, text):
    assert translate("notify.line.answer", "zh", duration=value) == text
    assert translate("notify.line.answer", "en", duration=value) == f"Acknowledge within: {value}"


def test_a_missing_duration_leaves_its_placeholder():
    assert fill("{age:duration} ago", n=1) == "{age} ago"


def test_a_language_that_is_not_ours_is_english():
    assert [supported(name) for name in ("zh", "en", "fr", "")] == ["zh", "en", "en", "en"]
