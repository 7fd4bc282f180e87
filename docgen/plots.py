"""Draw curves of benchmarks as SVG with matplotlib, which has axes, ticks and legends.

The same figures give the same bytes: identifiers have a fixed salt, and there is no date.
"""

import io
from collections.abc import Mapping

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks.description import Curve, Points

WIDTH, HEIGHT = 6.4, 3.2
STYLE = {
    "svg.hashsalt": "cellrun",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.grid": True,
    "grid.color": "#d0d7de",
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def draw(curve: Curve, title: str, lines: Mapping[str, Points]) -> str:
    """Return the picture of one curve."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
        axes = figure.subplots()
        for name, points in lines.items():
            marker = "o" if len(points) < 20 else None
            axes.plot(*zip(*points, strict=True), label=name, marker=marker, markersize=4)
        if curve.is_logarithmic:
            axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        axes.set(xlabel=curve.x, ylabel=curve.y, title=title)
        axes.legend(frameon=False)
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    lines_of_text = [line.rstrip() for line in file.getvalue().splitlines()]
    return "\n".join(lines_of_text) + "\n"
