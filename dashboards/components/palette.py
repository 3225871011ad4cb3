"""One muted palette for both themes. Status colors always have a word or a sign."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

ThemeName = Literal["light", "dark"]


@dataclass(frozen=True, slots=True)
class Palette:
    """Colors as ``#rrggbb``. ``lines`` are distinguishable by color-blind readers (after Okabe and Ito)."""

    background: str
    card: str
    text: str
    muted: str
    line: str
    accent: str
    ok: str
    at_risk: str
    broken: str
    unknown: str
    lines: tuple[str, ...]

    @property
    def graph(self) -> dict[str, str]:
        """Colors of the knowledge graph: its text and lines, and one for each role of a node."""
        return {
            "text": self.text,
            "muted": self.muted,
            "line": self.muted,
            "fill": self.card,
            "cause": self.broken,
            "symptom": self.at_risk,
            "service": self.accent,
            "alternative": self.muted,
            "rejected": self.muted,
        }

    def faint(self, color: str, share: float) -> str:
        """A color with transparency, for bands and shading."""
        red, green, blue = (int(color[at : at + 2], 16) for at in (1, 3, 5))
        return f"rgba({red},{green},{blue},{share:g})"


@cache
def theme() -> dict[str, Any]:
    """Content of ``theme.toml``."""
    return tomllib.loads(resources.files("dashboards").joinpath("theme.toml").read_text(encoding="utf-8"))


@cache
def palette(name: ThemeName) -> Palette:
    """Palette of a theme."""
    base = theme()[name]
    dark = name == "dark"
    return Palette(
        background=base["backgroundColor"],
        card="#1a1e25" if dark else "#ffffff",
        text=base["textColor"],
        muted="#98a1ad" if dark else "#626b78",
        line=base["borderColor"],
        accent=base["primaryColor"],
        ok="#6cc08b" if dark else "#2c7a4b",
        at_risk="#e0b252" if dark else "#96650a",
        broken="#ef8579" if dark else "#b3372b",
        unknown="#98a1ad" if dark else "#626b78",
        lines=("#7fb2dc", "#e0b252", "#6cc08b", "#cf9fd0", "#ef8579", "#98a1ad")
        if dark
        else ("#2f6690", "#b5790c", "#2c8a58", "#8b5a94", "#b3372b", "#626b78"),
    )
