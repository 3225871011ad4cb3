"""Names and labels valid in Kubernetes, for services and nodes with other names."""

from __future__ import annotations

import hashlib
import re

LABEL = "outrider.io/warm"
PART_OF = "app.kubernetes.io/part-of"
_LENGTH = 45  # so that "-pre-pull", a digest and the suffixes of pods still fit into 63


def name_of(name: str, most: int = _LENGTH) -> str:
    """Returns a name valid for objects and label values; a changed name ends in a digest.

    Both allow at most 63 characters of a-z, 0-9 and '-' (RFC 1123); models have served names such as Org/Qwen_2.5.
    ``most`` bounds the part kept of the name; the digest adds seven characters.
    """
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:most].strip("-")
    if plain == name:
        return name
    return f"{plain}-{short(name)}" if plain else f"service-{short(name)}"


def short(text: str, length: int = 6) -> str:
    """The first digits of a text's SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:length]
