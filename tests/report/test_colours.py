"""The colours of the page can be read: letters at 4.5 to 1 on what is behind them, lines at 3 to 1 (WCAG 2.2)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import rueda.report

FOLDER = Path(rueda.report.__file__).parent
SERIES = ("ink", "blue", "red", "orange", "green", "purple", "sky")
LIGHT, DARK = re.findall(r"(?s):root(?:, \.light)? \{\s+(--page.*?)\}", (FOLDER / "assets/page.css").read_text())
NAMED = re.compile(r"--([\w-]+): ([^;]+);")
THEMES = {"light": dict(NAMED.findall(LIGHT)), "dark": dict(NAMED.findall(LIGHT) + NAMED.findall(DARK))}


def colour(theme: dict[str, str], name: str) -> str:
    other = re.fullmatch(r"var\(--(.+)\)", theme[name])
    return colour(theme, other[1]) if other else theme[name]


def luminance(code: str) -> float:
    parts = [int(code[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


def test_the_contrast_of_black_on_white() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)  # as WCAG's own examples have it


@pytest.mark.parametrize("theme", THEMES.values(), ids=THEMES)
def test_letters_and_lines_can_be_read(theme: dict[str, str]) -> None:
    letters = [(f"{name}-text", ground) for name in SERIES for ground in ("page", "card")]
    letters += [("ink", "page"), ("muted", "page"), ("muted", "card"), ("blue", "page"), ("blue", "kept")]
    letters += [("lost-ink", "lost")]
    lines = [(name, ground) for name in SERIES for ground in ("page", "card")]
    for least, pairs in ((4.5, letters), (3, lines)):
        for name, ground in pairs:
            found = contrast(colour(theme, name), colour(theme, ground))
            assert found >= least, f"{name} on {ground}: {found:.2f}"


def test_figures_write_in_colours_for_letters() -> None:
    for file in sorted(FOLDER.rglob("*.py")):
        for name in re.findall(r"font\": \{[^}]*?\"color\": f?\"@([^\"]+)\"", file.read_text()):
            assert name in ("ink", "muted") or name.endswith("-text"), f"{file.name}: @{name}"
