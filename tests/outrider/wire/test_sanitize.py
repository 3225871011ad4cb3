"""External text as names and keys."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from outrider.model import EntityKind, EntityRef
from outrider.wire.sanitize import MOST_KEY_BYTES, MOST_NAME_BYTES, clean, fitted, is_storable

anything = st.text(st.characters(codec=None, exclude_categories=()), max_size=2000)


@given(anything)
@example("a\0b")
@example("\ud800")
@example("界" * 600)
@example("x" * 1_000_000)
def test_every_database_accepts_a_key(text: str) -> None:
    key = fitted(text)
    assert len(key.encode()) <= MOST_KEY_BYTES
    assert "\0" not in key
    assert fitted(key) == key
    if "\0" not in text and len(text.encode("utf-8", "surrogatepass")) <= MOST_KEY_BYTES and clean(text) == text:
        assert key == text


@given(anything)
def test_clean_text_keeps_everything_else(text: str) -> None:
    assert "\0" not in clean(text)
    clean(text).encode()
    assert len(clean(text)) == len(text)
    assert clean(clean(text)) == clean(text)


def test_texts_with_a_common_prefix_stay_distinct() -> None:
    assert fitted("x" * 5000 + "a") != fitted("x" * 5000 + "b")
    assert fitted("a\0") != fitted("a\u2400")


@given(anything, anything, st.none() | anything)
def test_an_entity_reads_back_from_its_key(cluster: str, name: str, namespace: str | None) -> None:
    cluster = cluster.replace("/", "")
    namespace = None if namespace is None else namespace.replace("/", "") or None
    found = EntityRef(cluster, EntityKind.POD, namespace, name)
    assert EntityRef.from_key(found.key) == found
    assert len(found.name.encode()) <= MOST_NAME_BYTES
    assert fitted(found.key) == found.key


def test_ordinary_names_are_unchanged() -> None:
    for name in ("GPU-5f2e", "llm/chat-7d9f:0", "节点一", "a b"):
        assert is_storable(name)
        assert EntityRef("prod", EntityKind.POD, "llm", name).name == name
