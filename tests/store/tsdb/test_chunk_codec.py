from __future__ import annotations

import struct

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from outrider.errors import StoreError
from outrider.model import CellStatus
from store.tsdb.chunk_codec import BULK_LEVEL, Block, Section, decode, encode, without_hollows

SHAPES = st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 7))


@st.composite
def sections(draw: st.DrawFn) -> tuple[np.ndarray, Section]:
    shape = draw(SHAPES)
    values = draw(hnp.arrays(np.float32, shape, elements=st.floats(width=32, allow_nan=True)))
    status = draw(hnp.arrays(np.uint8, shape, elements=st.integers(0, 6)))
    times = np.cumsum(draw(hnp.arrays(np.int64, shape[2], elements=st.integers(1, 10**9))))
    return times, Section(values, without_hollows(values, status))


@settings(deadline=None, max_examples=150)
@given(sections())
def test_encoded_cells_are_decoded_exactly(case: tuple[np.ndarray, Section]) -> None:
    times, section = case
    block = Block(encode(times, [section, section], level=BULK_LEVEL))
    assert (block.instants, block.entities, block.sections) == (times.size, section.values.shape[1], 2)
    np.testing.assert_array_equal(block.times, times)
    decoded = decode([block], 1)
    np.testing.assert_array_equal(decoded.values, section.values)
    expected = section.status if section.status is not None else np.zeros(section.values.shape)
    np.testing.assert_array_equal(
        decoded.status if decoded.status is not None else np.zeros(decoded.values.shape), expected
    )


@settings(deadline=None, max_examples=50)
@given(st.lists(hnp.arrays(np.float32, (2, 3, 1), elements=st.floats(width=32)), min_size=1, max_size=6))
def test_tails_decoded_together_equal_tails_decoded_one_by_one(tails: list[np.ndarray]) -> None:
    sections = [Section(values, without_hollows(values, np.zeros(values.shape, np.uint8))) for values in tails]
    blocks = [Block(encode(np.array([index]), [section])) for index, section in enumerate(sections)]
    decoded_together = decode(blocks, 0)
    decoded_alone = [decode([block], 0) for block in blocks]
    np.testing.assert_array_equal(
        decoded_together.values, np.concatenate([part.values for part in decoded_alone], axis=-1)
    )
    zeros = np.zeros((2, 3, 1), np.uint8)
    statuses = np.concatenate([zeros if part.status is None else part.status for part in decoded_alone], axis=-1)
    np.testing.assert_array_equal(statuses if decoded_together.status is None else decoded_together.status, statuses)


def test_a_constant_column_takes_almost_no_bytes() -> None:
    values = np.full((1, 1000, 240), 71.25, dtype=np.float32)
    assert len(encode(np.arange(240), [Section(values)], level=BULK_LEVEL)) < 4000


def test_gaps_do_not_worsen_the_compression_of_other_values() -> None:
    values = np.full((1, 1000, 240), 71.25, dtype=np.float32)
    status = np.zeros(values.shape, dtype=np.uint8)
    values[:, :, 100:110], status[:, :, 100:110] = np.nan, CellStatus.ABSENT
    payload = encode(np.arange(240), [Section(values, status)], level=BULK_LEVEL)
    assert len(payload) < 6000
    np.testing.assert_array_equal(decode([Block(payload)], 0).values, values)


def test_a_slow_quantized_gauge_takes_at_most_1_3_bytes_per_value() -> None:
    rng = np.random.default_rng(7)
    walk = np.cumsum(rng.integers(-2, 3, (1, 200, 240)) * (rng.random((1, 200, 240)) < 0.3), axis=-1)
    section = Section((350 + walk).astype(np.float32))
    assert len(encode(np.arange(240), [section], level=BULK_LEVEL)) / walk.size < 1.3


def test_an_unknown_format_is_rejected_with_a_hint() -> None:
    with pytest.raises(StoreError, match="unknown format") as caught:
        Block(b"ORB9" + bytes(40))
    assert caught.value.hint


def test_blocks_of_the_first_format_are_decoded() -> None:
    values = np.random.default_rng(3).normal(50, 9, (2, 3, 5)).astype(np.float32)
    bits = values.view("<u4")
    xored = np.concatenate((bits[..., :1], bits[..., 1:] ^ bits[..., :-1]), axis=-1)
    planes = np.ascontiguousarray(xored).view(np.uint8).reshape(-1, 4).T.tobytes()
    packed = zstandard.ZstdCompressor().compress(planes)
    head = struct.pack("<4s3I", b"ORB1", 5, 3, 1) + np.arange(5, dtype="<i8").tobytes()
    payload = head + np.array([2, len(packed), 0], dtype="<u4").tobytes() + packed
    old, new = Block(payload), Block(encode(np.arange(5, 9), [Section(values[..., :4])], level=BULK_LEVEL))
    decoded = decode([old, new], 0)
    np.testing.assert_array_equal(decoded.values, np.concatenate((values, values[..., :4]), axis=-1))


def test_a_single_cycle_uses_the_first_format() -> None:
    tail = encode(np.array([1]), [Section(np.ones((1, 4, 1), np.float32))])
    assert tail[:4] == b"ORB1"
