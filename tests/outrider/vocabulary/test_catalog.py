import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.model import SUM_BUCKET, SignalKind
from outrider.text import i18n
from outrider.vocabulary import catalog


def test_every_signal_is_complete():
    for name, signal in catalog.signals().items():
        assert signal.name == name
        assert signal.means
        assert signal.unit
        assert bool(signal.bounds) == (signal.kind is SignalKind.HISTOGRAM), name
        assert list(signal.bounds) == sorted(signal.bounds)


def test_the_quantity_of_the_parts_belongs_to_another_kind_of_entity():
    wholes = [signal for signal in catalog.signals().values() if signal.of_parts]
    assert wholes
    for whole in wholes:
        part = catalog.signal(whole.of_parts)
        assert part.entity is not whole.entity, whole.name
        assert part.bounds == whole.bounds, whole.name
        assert part.of_parts == "", whole.name


def test_names_end_in_their_units():
    for name, signal in catalog.signals().items():
        if name.endswith("_ratio"):
            assert signal.unit == "ratio", name
        if name.endswith("_celsius"):
            assert signal.unit == "celsius", name
        if name.endswith("_total"):
            assert signal.kind is SignalKind.DELTA, name


def test_bucket_keys_end_with_infinity_and_the_sum():
    signal = catalog.signal("engine_ttft_seconds")
    assert [key.bucket for key in signal.bucket_keys] == [*range(len(signal.bounds) + 1), SUM_BUCKET]


def test_unknown_signal_is_named():
    with pytest.raises(KeyError, match="no_such_signal"):
        catalog.signal("no_such_signal")


def test_quantile_interpolates_inside_a_bucket():
    values, below = catalog.bucket_quantile(np.array([[0.0, 10.0, 0.0]]), (1.0, 2.0), 0.5)
    assert values[0] == pytest.approx(1.5)
    assert below[0] == 0


def test_quantile_in_the_first_bucket_is_only_a_bound():
    values, below = catalog.bucket_quantile(np.array([[9.0, 1.0, 0.0]]), (0.3, 2.0), 0.5)
    assert (values[0], below[0]) == (0.3, 1.0)


def test_quantile_of_an_empty_histogram_is_undefined():
    values, below = catalog.bucket_quantile(np.zeros((2, 3)), (1.0, 2.0), 0.99)
    assert np.isnan(values).all()
    assert not below.any()


@given(
    counts=st.lists(st.integers(0, 1000), min_size=4, max_size=4).filter(any),
    quantile=st.floats(0.01, 0.999),
)
def test_quantile_lies_in_the_bucket_that_holds_its_rank(counts, quantile):
    bounds = (0.5, 1.0, 5.0)
    values, below = catalog.bucket_quantile(np.array([counts], dtype=float), bounds, quantile)
    bucket = int(np.searchsorted(np.cumsum(counts), quantile * sum(counts)))
    if bucket == 0:
        assert below[0] == 1
        assert values[0] == 0.5
    elif bucket == 3:
        assert values[0] == 5.0
    else:
        assert bounds[bucket - 1] <= values[0] <= bounds[bucket]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_signal_has_a_display_name(language):
    known = i18n.texts(language)
    assert [name for name in catalog.signals() if f"words.signal.{name}" not in known] == []
