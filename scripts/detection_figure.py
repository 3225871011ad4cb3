"""Draw the pictures of docs/explanation/detection/: what detectors look at, and when they speak.

Usage: python scripts/detection_figure.py [--data FOLDER] [--out FOLDER] [--png FOLDER] [NAME ...]

Recordings are those of tests/recordings; ``--data`` is a folder with ``recordings/vllm-0.32.0``, ``data/servers`` and
``data/nab`` for the pictures that need more. Simulated pictures say so. The same input gives the same file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib as mpl

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import detection_demand
import detection_engines
import detection_hardware
import detection_learnt
import detection_load
from detection_panels import ROOT, STYLE
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

FIGURES: dict[str, Callable[[Path | None], Figure]] = {
    **detection_engines.FIGURES,
    **detection_hardware.FIGURES,
    **detection_load.FIGURES,
    **detection_demand.FIGURES,
    **detection_learnt.FIGURES,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw the pictures that are named, or all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[*FIGURES, []], help=", ".join(FIGURES))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images" / "detection")
    parser.add_argument("--png", type=Path, help="a folder for pictures to look at")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.names or list(FIGURES):
        with mpl.rc_context(STYLE):
            figure = FIGURES[name](options.data)
            figure.savefig(options.out / f"{name}.svg", metadata={"Date": None})
            if options.png is not None:
                figure.savefig(options.png / f"{name}.png", dpi=110)
            plt.close(figure)
        print(f"{name}.svg", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
