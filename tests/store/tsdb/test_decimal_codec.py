from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from store.tsdb import decimal_codec

SHAPES = st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(2, 9))
ANY = st.floats(width=32, allow_nan=False)
PAGES = st.builds(lambda whole, power: float(np.float32(whole / 10**power)), st.integers(-(10**7), 10**7), st.just(3))
COUNTS = st.integers(0, 300).map(float)


def round_trip(values: np.ndarray) -> np.ndarray:
    return decimal_codec.unpack(decimal_codec.pack(values), values.shape)


def same_bits(values: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(values.view(np.uint32), expected.view(np.uint32))


@settings(max_examples=200)
@given(st.sampled_from([ANY, PAGES, COUNTS]).flatmap(lambda cells: hnp.arrays(np.float32, SHAPES, elements=cells)))
def test_every_number_is_restored_exactly(values: np.ndarray) -> None:
    same_bits(round_trip(values), values)


@settings(max_examples=50)
@given(hnp.arrays(np.float32, (3, 4, 5), elements=ANY), hnp.arrays(np.float32, (3, 4, 5), elements=COUNTS))
def test_columns_with_different_encodings_keep_their_order(decimals: np.ndarray, others: np.ndarray) -> None:
    mixed = np.empty((6, 4, 5), dtype=np.float32)
    mixed[::2], mixed[1::2] = decimals, others
    same_bits(round_trip(mixed), mixed)


@pytest.mark.parametrize(
    ("cells", "planes"),
    [
        (np.arange(240) % 7, 1),  # a count
        (np.arange(240) % 7 * 100 + 5, 2),
        (0.01 * (np.arange(240) % 90), 1),  # percent as a ratio
        (np.full(240, -1.0), 1),
        (300 + 0.001 * (np.arange(240) % 100), 3),  # milliwatts: the first of the hour is stored in full
        (np.linspace(0.1, 0.9, 240) ** 3, 4),  # no decimals
        (np.full(240, 2.0**24), 4),  # from here on float32 skips integers
    ],
)
def test_a_column_takes_as_many_planes_as_its_numbers_need(cells: np.ndarray, planes: int) -> None:
    values = np.ascontiguousarray(np.broadcast_to(cells.astype(np.float32), (1, 50, 240)))
    packed = decimal_codec.pack(values)
    same_bits(decimal_codec.unpack(packed, values.shape), values)
    assert len(packed) == 1 + planes * values.size


@pytest.mark.parametrize("value", [-0.0, np.inf, -np.inf, 1e-45, 3.4e38, 2.0**24, 2.0**31])
def test_a_single_special_number_among_counts_is_restored(value: float) -> None:
    values = np.ones((1, 100, 240), dtype=np.float32)
    values[0, 41, 7] = value
    same_bits(round_trip(values), values)


def test_columns_without_entities_are_restored() -> None:
    assert round_trip(np.empty((2, 0, 5), dtype=np.float32)).shape == (2, 0, 5)
