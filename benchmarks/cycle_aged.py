"""A whole cycle on a store that holds a year, beside the same cycle on an empty one.

1,000 GPUs and 1,000 replicas as in ``benchmarks.cycle``; the store has 48 h of raw values, 30 days of ten
minutes and a year of hours of the same entities (``benchmarks.aged``), and may take 5 GB. Measured once
the first plan is made: the planner works beside the cycles, and on an aged store it has much to read.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
from pathlib import Path

import sqlalchemy as sa

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.aged import aged, copied
from benchmarks.common import Result, main, result
from benchmarks.cycle import START, Measured, measure
from benchmarks.engines import Engine, engines
from outrider import log

TARGET_SECONDS, TARGET_BYTES, TARGET_RATIO = 4.0, 5e9, 1.1
