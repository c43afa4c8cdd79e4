"""Line plots as small SVG files, one for a light and one for a dark page. Pure; knows nothing of what is plotted.

The background stays clear, so that a plot looks at home on any page of its kind. Colours come as names, and the two
files of a plot differ in nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

THEMES: dict[str, dict[str, str]] = {
    "light": {
        "text": "#1f2328", "faint": "#59636e", "grid": "#d1d9e0", "blue": "#0969da", "red": "#c4301c",
        "purple": "#8250df", "green": "#1a7f37", "brown": "#9a6700", "grey": "#6e7781",
    },
    "dark": {
        "text": "#f0f6fc", "faint": "#9198a1", "grid": "#3d444d", "blue": "#58a6ff", "red": "#ff7b72",
        "purple": "#bc8cff", "green": "#3fb950", "brown": "#d29922", "grey": "#8b949e",
    },
}  # fmt: skip

WIDTH, HEIGHT = 820, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 556, 44, 348
_LINE = 15
"""Pixels from one label to the next."""


@dataclass(frozen=True)
class Series:
    """One line with its name at its end. Points are in order of x."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: str
    dashed: bool = False
    bold: bool = False


@dataclass(frozen=True, kw_only=True)
class Plot:
    """What a plot shows. On a logarithmic axis, what is zero or below stands at the foot of the plot."""

    title: str
    description: str
    x_title: str
    series: Sequence[Series]
    show: Callable[[float], str] = "{:g}".format
    logarithmic: bool = False


def write(plot: Plot, folder: Path, name: str) -> None:
    """Write `name-light.svg` and `name-dark.svg`."""
    folder.mkdir(parents=True, exist_ok=True)
    for theme in THEMES:
        (folder / f"{name}-{theme}.svg").write_text(draw(plot, theme), encoding="utf-8")


def draw(plot: Plot, theme: str) -> str:
    """Return the plot as an SVG document. Raises ValueError if it has no points."""
    axes = _Axes(plot)
    colours = THEMES[theme]
    font = "-apple-system,BlinkMacSystemFont,'Segoe UI','Noto Sans',Helvetica,Arial,sans-serif"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img" aria-labelledby="title desc" font-family="{font}" font-size="12">',
        f'<title id="title">{escape(plot.title)}</title>',
        f'<desc id="desc">{escape(plot.description)}</desc>',
        _text(_LEFT, 22, plot.title, colours["text"], weight="600", size="15"),
        *_grid(plot, axes, colours),
        *(part for one in plot.series for part in _curve(one, axes, colours[one.colour])),
        *_labels(plot, axes, colours),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


class _Axes:
    """Where values stand on the page."""

    def __init__(self, plot: Plot) -> None:
        points = [point for one in plot.series for point in one.points]
        if not points or not all(one.points for one in plot.series):
            raise ValueError("a plot needs at least one series, and each series a point")
        self.y_ticks = _powers([y for _, y in points]) if plot.logarithmic else _steps(max(y for _, y in points), 5)
        self.x_ticks = _steps(max(x for x, _ in points), 5)
        self._logarithmic = plot.logarithmic

    def x(self, value: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * value / self.x_ticks[-1]

    def y(self, value: float) -> float:
        low, high = self.y_ticks[0], self.y_ticks[-1]
        if self._logarithmic:
            share = math.log(max(value, low) / low) / math.log(high / low)
        else:
            share = max(value, 0) / high
        return _BOTTOM - (_BOTTOM - _TOP) * share


def _steps(highest: float, wanted: int) -> list[float]:
    """Return round numbers from 0 to at least `highest`, about `wanted` steps."""
    if highest <= 0:
        return [0, 1]
    exact = highest / wanted
    unit = 10 ** math.floor(math.log10(exact))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= exact * 0.999)
    return [step * n for n in range(math.ceil(highest / step * 0.999) + 1)]


def _powers(values: Sequence[float]) -> list[float]:
    """Return the powers of ten that enclose the values above zero."""
    above = [value for value in values if value > 0] or [1]
    low, high = math.floor(math.log10(min(above))), math.ceil(math.log10(max(above)))
    return [10.0**n for n in range(low, max(high, low + 1) + 1)]


def _grid(plot: Plot, axes: _Axes, colours: dict[str, str]) -> Iterator[str]:
    for value in axes.y_ticks:
        y = axes.y(value)
        yield f'<path d="M{_LEFT} {y:.1f}H{_RIGHT}" stroke="{colours["grid"]}"/>'
        yield _text(_LEFT - 8, y + 4, plot.show(value), colours["faint"], "end")
    for value in axes.x_ticks:
        yield _text(axes.x(value), _BOTTOM + 18, f"{value:,.10g}", colours["faint"], "middle")
    yield _text((_LEFT + _RIGHT) / 2, _BOTTOM + 38, plot.x_title, colours["faint"], "middle")


def _curve(series: Series, axes: _Axes, colour: str) -> Iterator[str]:
    places = [(axes.x(x), axes.y(y)) for x, y in series.points]
    if len(places) > 1:
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        dash = ' stroke-dasharray="6 4"' if series.dashed else ""
        width = 2.75 if series.bold else 1.75
        yield f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="{width}" stroke-linejoin="round"{dash}/>'
    x, y = places[-1]
    yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>'


def _labels(plot: Plot, axes: _Axes, colours: dict[str, str]) -> Iterator[str]:
    """Name each line where it ends; names that would lie on one another move apart."""
    ends = {one.name: (axes.x(one.points[-1][0]), axes.y(one.points[-1][1])) for one in plot.series}
    for column in sorted({x for x, _ in ends.values()}):
        names = sorted((one for one in plot.series if ends[one.name][0] == column), key=lambda one: ends[one.name][1])
        for one, y in zip(names, _apart([ends[one.name][1] for one in names]), strict=True):
            colour, end = colours[one.colour], ends[one.name][1]
            if abs(y - end) > 2:
                yield f'<path d="M{column + 4:.1f} {end:.1f}L{column + 14:.1f} {y:.1f}" stroke="{colour}" fill="none"/>'
            words = f"{one.name}, {plot.show(one.points[-1][1])}"
            yield _text(column + 18, y + 4, words, colour, weight="600" if one.bold else "")


def _apart(wanted: Sequence[float]) -> list[float]:
    """Return places in the same order, near the wanted ones, a line apart and inside the plot."""
    places: list[float] = []
    for y in wanted:
        places.append(max(y, places[-1] + _LINE) if places else y)
    lowest = float(_BOTTOM)
    for n in reversed(range(len(places))):
        places[n] = min(places[n], lowest)
        lowest = places[n] - _LINE
    return places


def _text(x: float, y: float, words: str, colour: str, anchor: str = "", weight: str = "", size: str = "") -> str:
    options = {"text-anchor": anchor, "font-weight": weight, "font-size": size}
    more = "".join(f' {name}="{value}"' for name, value in options.items() if value)
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}"{more}>{escape(words)}</text>'
