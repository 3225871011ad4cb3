"""A written page parses to the same page."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from collectors.exposition import writer
from collectors.exposition.parser import Layout, Page, Parser, Series

NAMES = st.one_of(
    st.from_regex(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,10}", fullmatch=True),
    st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1, max_size=6),
)
VALUES = st.text(st.characters(blacklist_categories=("Cs", "Cc")), max_size=8) | st.sampled_from(["a\nb", '"', "\\n"])
SERIES = st.builds(Series, NAMES, st.dictionaries(NAMES, VALUES, max_size=3))
STAMPS = st.none() | st.integers(0, 4_000_000_000_000)


@given(st.lists(st.tuples(SERIES, st.floats(), STAMPS), max_size=8))
def test_a_written_page_reads_back_unchanged(rows) -> None:
    values = np.array([value for _, value, _ in rows], dtype=np.float64)
    stamps = np.array([math.nan if stamp is None else stamp / 1000 for _, _, stamp in rows], dtype=np.float64)
    page = Page(Layout.of([series for series, _, _ in rows], {"a": "gauge"}), values, stamps)
    back = Parser().parse(writer.text(page), openmetrics=False)
    assert [one.identity for one in back.series] == [one.identity for one in page.series]
    assert np.array_equal(back.values, values, equal_nan=True)
    assert np.array_equal(back.timestamps, stamps, equal_nan=True)
    assert back.types == page.types
