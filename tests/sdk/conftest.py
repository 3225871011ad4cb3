"""The SDK is a distribution of its own: the tests find it beside the repository's packages."""

import sys
from pathlib import Path

SDK = Path(__file__).parents[2] / "sdk"
sys.path.insert(0, str(SDK))
