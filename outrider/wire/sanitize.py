"""Text from outside, made fit to be a name or a key: what no database takes is replaced, what is too long is cut.

PostgreSQL takes no NUL in a text and no index entry beyond a third of a page; no driver encodes half of a
surrogate pair. A pod or a sender may bring all three. What was changed ends with ``~`` and a digest of
the original, so that two different texts stay two.
"""

from __future__ import annotations

import hashlib
from typing import Final

MOST_NAME_BYTES: Final = 600
MOST_KEY_BYTES: Final = 1_300  # an entity's key of names that were cut: cluster, kind, namespace and name
_SURE_CHARACTERS = 150  # of up to four bytes each
_DIGEST = 12


def is_storable(text: str) -> bool:
    """True for the usual name, found out in a fraction of a microsecond; False says that one must look."""
    return len(text) <= _SURE_CHARACTERS and text.isprintable()


def clean(text: str) -> str:
    """The text without NUL and without halves of surrogate pairs, whatever its length."""
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "\u2400").encode("utf-8", "replace").decode()


def fitted(text: str, most_bytes: int = MOST_KEY_BYTES) -> str:
    """The text as a key of at most so many bytes of UTF-8. What is fit stays as it is."""
    cleaned = clean(text)
    packed = cleaned.encode()
    if cleaned == text and len(packed) <= most_bytes:
        return text
    mark = "~" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
    return packed[: most_bytes - len(mark)].decode(errors="ignore") + mark
