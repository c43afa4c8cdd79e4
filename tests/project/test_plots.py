"""The plots of the benchmarks: documents that any reader of SVG can read, the same for light and dark pages."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from benchmarks.plots import HEIGHT, THEMES, WIDTH, Plot, Series, draw, write

SVG = "{http://www.w3.org/2000/svg}"


def plot(*series: Series, title="Bytes <&> turns", logarithmic=False) -> Plot:
    return Plot(
        title=title, description='what "it" shows, <in> words', x_title="turns", series=series, logarithmic=logarithmic
    )


def line(name="one", points=((0, 1), (10, 5)), colour="blue", **options) -> Series:
    return Series(name, points, colour, **options)


def texts(document: str) -> dict[str, tuple[float, float]]:
    found = ElementTree.fromstring(document).iter(f"{SVG}text")
    return {one.text or "": (float(one.attrib["x"]), float(one.attrib["y"])) for one in found}


CASES = {
    "two lines": (line(), line("two", ((0, 2), (10, 700)), "red", dashed=True, bold=True)),
    "one point": (line(points=((3, 4),)),),
    "nothing but zero": (line(points=((0, 0), (10, 0))),),
    "a single zero": (line(points=((0, 0),)),),
    "zero among others": (line(points=((1, 0), (2, 1000))),),
    "below zero": (line(points=((1, -5), (2, 1000))),),
    "tiny and huge": (line(points=((1, 1e-9), (2, 1e15))),),
    "a name to escape": (line("<b> & \"c\" 'd'"),),
}


@pytest.mark.parametrize("logarithmic", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_every_plot_is_well_formed_and_inside_its_page(case, logarithmic):
    root = ElementTree.fromstring(draw(plot(*CASES[case], logarithmic=logarithmic), "light"))

    assert root.tag == f"{SVG}svg"
    for one in root.iter(f"{SVG}text"):
        assert 0 <= float(one.attrib["x"]) <= WIDTH
        assert 0 <= float(one.attrib["y"]) <= HEIGHT
    for one in root.iter(f"{SVG}circle"):
        assert 0 <= float(one.attrib["cx"]) <= WIDTH
        assert 0 <= float(one.attrib["cy"]) <= HEIGHT
    for one in root.iter(f"{SVG}path"):
        for x, y in re.findall(r"[ML](\S+) ([\d.-]+)", one.attrib["d"]):
            assert 0 <= float(x) <= WIDTH
            assert 0 <= float(y) <= HEIGHT


@pytest.mark.parametrize("case", CASES)
def test_every_series_is_drawn_and_named_with_its_last_value(case):
    document = draw(plot(*CASES[case]), "dark")

    for one in CASES[case]:
        assert f"{one.name}, {one.points[-1][1]:g}" in texts(document)
        assert THEMES["dark"][one.colour] in document
    assert document.count("<circle") == len(CASES[case])


def test_a_reader_aloud_finds_title_and_description():
    root = ElementTree.fromstring(draw(plot(line()), "light"))

    assert root.attrib["role"] == "img"
    named = [root.find(f"{SVG}*[@id='{name}']") for name in root.attrib["aria-labelledby"].split()]
    assert [one.text for one in named if one is not None] == ["Bytes <&> turns", 'what "it" shows, <in> words']


def test_light_and_dark_differ_in_colours_only():
    light, dark = (draw(plot(*CASES["two lines"]), theme) for theme in ("light", "dark"))

    assert light != dark
    assert re.sub("#[0-9a-f]{6}", "#", light) == re.sub("#[0-9a-f]{6}", "#", dark)
    assert set(re.findall("#[0-9a-f]{6}", light)) <= set(THEMES["light"].values())
    assert set(re.findall("#[0-9a-f]{6}", dark)) <= set(THEMES["dark"].values())
    assert THEMES["light"].keys() == THEMES["dark"].keys()


def test_colours_can_be_told_from_the_page():
    """At least 4.5 to 1 for what is read (WCAG AA)."""

    def luminance(colour: str) -> float:
        parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    for theme, page in (("light", "#ffffff"), ("dark", "#0d1117")):
        for name, colour in THEMES[theme].items():
            low, high = sorted((luminance(colour), luminance(page)))
            assert name == "grid" or (high + 0.05) / (low + 0.05) >= 4.5, (theme, name)


@pytest.mark.parametrize("values", [(5, 5, 5, 5), (0, 0, 0, 0), (100, 100, 99, 0), (1, 2, 3, 4)])
def test_names_never_lie_on_one_another(values):
    lines = [line(f"line {n}", ((0, 1), (10, y))) for n, y in enumerate(values)]

    places = sorted(y for text, (_, y) in texts(draw(plot(*lines), "light")).items() if text.startswith("line"))

    assert len(places) == 4
    assert all(below - above >= 12 for above, below in pairwise(places))


def test_a_line_that_ends_early_is_named_where_it_ends():
    found = texts(draw(plot(line("short", ((0, 1), (4, 2))), line("long", ((0, 1), (10, 2)))), "light"))

    assert found["short, 2"][0] < found["long, 2"][0]


def test_a_logarithmic_axis_gives_each_power_of_ten_the_same_room():
    found = texts(draw(plot(line(points=((7, 1), (8, 1000))), logarithmic=True), "light"))

    heights = [found[name][1] for name in ("1", "10", "100", "1000")]
    gaps = [above - below for above, below in pairwise(heights)]
    assert min(gaps) > 0
    assert gaps == pytest.approx([gaps[0]] * 3, abs=0.2)


@pytest.mark.parametrize("series", [(), (line(points=()),), (line(), line("two", ()))])
def test_a_plot_without_points_is_refused(series):
    with pytest.raises(ValueError, match="at least one series, and each series a point"):
        draw(plot(*series), "light")


def test_both_files_are_written_and_small(tmp_path):
    write(plot(*CASES["two lines"]), tmp_path / "new", "bytes")

    assert {file.name for file in (tmp_path / "new").iterdir()} == {"bytes-light.svg", "bytes-dark.svg"}
    for theme in THEMES:
        text = (tmp_path / "new" / f"bytes-{theme}.svg").read_text(encoding="utf-8")
        assert text == draw(plot(*CASES["two lines"]), theme)
        assert len(text) < 10_000
