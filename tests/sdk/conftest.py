"""Adds the SDK, a separate distribution, to the import path."""

import sys
from pathlib import Path

SDK = Path(__file__).parents[2] / "sdk"
sys.path.insert(0, str(SDK))
