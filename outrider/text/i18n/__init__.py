"""User-facing texts in English and Chinese, one YAML file per area; a key is ``area.name``.

No key may exist in one language only. Both have the same keys with the same placeholders, which a test checks.
"""

# After a number, ``[replica|replicas]`` gives the singular and the plural: ``{n} [replica|replicas]``.
# In Chinese ``{age:duration}`` writes a duration such as ``1h 30m`` with Chinese units.

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Literal

import yaml

Language = Literal["en", "zh"]
LANGUAGES: tuple[Language, ...] = ("en", "zh")
_DURATION = re.compile(r"\{(\w+):duration\}")
_AMOUNT = re.compile(r"(\d+)(ms|[dhms])(?![a-z])")
_UNITS = {"d": "天", "h": "小时", "m": "分钟", "s": "秒", "ms": "毫秒"}
_COUNTED = re.compile(r"\{(\w+)\} \[([^|\[\]]+)\|([^|\[\]]+)\]")


def supported(language: str) -> Language:
    """The language, English if it is none of ours."""
    return next((known for known in LANGUAGES if known == language), "en")


@cache
def texts(language: Language) -> Mapping[str, str]:
    """Every text of a language by key."""
    result: dict[str, str] = {}
    folder = resources.files("outrider.text.i18n").joinpath(language)
    for entry in sorted(folder.iterdir(), key=lambda file: file.name):
        if entry.name.endswith(".yaml"):
            area = entry.name.removesuffix(".yaml")
            document = yaml.safe_load(entry.read_text(encoding="utf-8")) or {}
            result.update({f"{area}.{key}": str(text) for key, text in document.items()})
    return result


def translate(key: str, language: Language = "en", /, **arguments: object) -> str:
    """The text of a key with its placeholders filled; the key itself if there is no such text."""
    text = texts(language).get(key)
    return key if text is None else fill(text, **arguments)


def fill(text: str, /, **arguments: object) -> str:
    """A text with its placeholders filled and the singular or plural after each number.

    For English texts outside the catalog, such as ``fill("{n} [pod is|pods are] evicted", n=1)``.
    """
    if "|" in text:
        text = _COUNTED.sub(
            lambda match: f"{{{match[1]}}} {match[2 if str(arguments.get(match[1])) == '1' else 3]}", text
        )
    values = _Missing(arguments)
    for name in _DURATION.findall(text):
        values[name] = _AMOUNT.sub(lambda part: f"{part[1]} {_UNITS[part[2]]}", str(values[name]))
    return _DURATION.sub(r"{\1}", text).format_map(values)


class _Missing(dict[str, object]):
    """Leaves an unfilled placeholder readable instead of failing while a person is being paged."""

    def __missing__(self, key: str) -> str:
        return "{" + key + "}"
