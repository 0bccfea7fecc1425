"""Drawings as SVG: the import graph of the package, and sequences of messages written as plain lines.

Both take their colours from the page (``currentColor`` and Furo's variables), so that they serve light and dark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape
from itertools import pairwise

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import house

_WIDTH = 720


def setup(app: Sphinx) -> None:
    """Register the directives with Sphinx."""
    app.add_directive("import-graph", _ImportGraph)
    app.add_directive("sequence", _Sequence)


class _ImportGraph(SphinxDirective):
    def run(self) -> list[nodes.Node]:
        return [_figure(import_graph(house.folders()))]


class _Sequence(SphinxDirective):
    has_content = True

    def run(self) -> list[nodes.Node]:
        return [_figure(sequence(list(self.content)))]


def _figure(svg: str) -> nodes.raw:
    return nodes.raw("", f'<div class="drawing">{svg}</div>', format="html")


def import_graph(graph: Mapping[str, set[str]]) -> str:
    """Draw a graph without cycles in rows: each folder stands above all that it depends on.

    An edge over several rows passes each of them in a place of its own, so that it crosses no box; within a row, places
    are sorted by the mean of what leads to them (Sugiyama et al. 1981).
    """
    below = {node: house.reachable(graph, node) for node in graph}
    direct = {node: graph[node] - {far for near in graph[node] for far in below[near]} for node in graph}
    depth: dict[str, int] = {}
    for node in sorted(graph, key=lambda name: len(below[name])):
        depth[node] = 1 + max((depth[near] for near in direct[node]), default=-1)
    rows: list[list[str]] = [[] for _ in range(max(depth.values()) + 1)]
    for node in sorted(graph):
        rows[-1 - depth[node]].append(node)
    routes = []
    for node in sorted(graph):
        for near in sorted(direct[node]):
            between = [f"{node} to {near} {level}" for level in range(depth[node] - 1, depth[near], -1)]
            for level, name in zip(range(depth[node] - 1, depth[near], -1), between, strict=True):
                rows[-1 - level].append(name)
            routes.append([node, *between, near])
    place = _places(rows, [pair for route in routes for pair in pairwise(route)])
    parts = []
    for route in routes:
        path = f"M{place[route[0]][0]:.0f} {place[route[0]][1] + 16}"
        for start, end in pairwise(route):
            (left, top), (right, bottom) = place[start], place[end]
            middle = (top + bottom) / 2
            path += f" C{left:.0f} {middle} {right:.0f} {middle} {right:.0f} {bottom - 18}"
            path += "" if end in graph else f" V{bottom + 16}"
        parts.append(f'<path class="edge" d="{path}" marker-end="url(#head)"/>')
    for node in graph:
        x, y = place[node]
        parts.append(f'<rect class="box" x="{x - 46:.0f}" y="{y - 16}" width="92" height="32" rx="6"/>')
        parts.append(f'<text x="{x:.0f}" y="{y + 5}">{escape(node)}</text>')
    return _svg(_WIDTH, 52 + 74 * (len(rows) - 1), "The folders of src/rueda and what they import", parts)


def _places(rows: list[list[str]], edges: list[tuple[str, str]]) -> dict[str, tuple[float, int]]:
    """Return where each name of each row stands; sorts the rows so that fewer edges cross."""
    near: dict[str, list[str]] = {name: [] for row in rows for name in row}
    for upper, lower in edges:
        near[upper].append(lower)
        near[lower].append(upper)
    place: dict[str, tuple[float, int]] = {}

    def spread(level: int) -> None:
        widths = [28 if " to " in name else 108 for name in rows[level]]
        x = (_WIDTH - sum(widths)) / 2
        for name, width in zip(rows[level], widths, strict=True):
            place[name] = (x + width / 2, 26 + 74 * level)
            x += width

    def mean_of_neighbours(name: str) -> float:
        return sum(place[other][0] for other in near[name]) / max(len(near[name]), 1)

    for level in range(len(rows)):
        spread(level)
    for _ in range(12):
        for level, row in enumerate(rows):
            row.sort(key=mean_of_neighbours)
            spread(level)
    return place


_MESSAGE = re.compile(r"(?P<source>[^:]+?) -> (?P<target>[^:]+?): (?P<text>.+)")
_OWN = re.compile(r"(?P<source>[^:]+?): (?P<text>.+)")


def sequence(lines: list[str]) -> str:
    """Draw a sequence of messages: ``A -> B: text`` is an arrow, ``A: text`` a note, ``== text ==`` a divider.

    The first line names the participants from left to right, separated by ``|``.
    """
    names = [name.strip() for name in lines[0].split("|")]
    gap, y = 200, 60
    place = {name: 100 + gap * index for index, name in enumerate(names)}
    width = 200 * len(names)
    parts: list[str] = []
    for line in filter(str.strip, lines[1:]):
        divider, message, own = re.fullmatch(r"== (.+) ==", line.strip()), _MESSAGE.match(line), _OWN.match(line)
        if divider:
            parts.append(f'<path class="divider" d="M8 {y - 5} H{width - 8}"/>')
            parts.append(f'<text class="phase" x="{width / 2:.0f}" y="{y + 14}">{escape(divider[1])}</text>')
            y += 36
        elif message:
            start, end = place[message["source"]], place[message["target"]]
            tip = end - 4 if end > start else end + 4
            for text in _wrapped(message["text"], abs(end - start) // 7):
                parts.append(f'<text class="label" x="{(start + end) / 2:.0f}" y="{y + 8}">{escape(text)}</text>')
                y += 16
            parts.append(f'<path class="arrow" d="M{start} {y} H{tip}" marker-end="url(#head)"/>')
            y += 22
        elif own:
            x, rows = place[own["source"]], _wrapped(own["text"], 25)
            height = 16 * len(rows) + 12
            parts.append(f'<rect class="box" x="{x - 92}" y="{y}" width="184" height="{height}" rx="6"/>')
            for index, text in enumerate(rows):
                parts.append(f'<text class="label" x="{x}" y="{y + 18 + 16 * index}">{escape(text)}</text>')
            y += height + 16
        else:
            raise ValueError(f"expected 'A -> B: text', 'A: text' or '== text ==', got {line!r}")
    head = []
    for name, x in place.items():
        head.append(f'<path class="life" d="M{x} 40 V{y}"/>')
        head.append(f'<rect class="box actor" x="{x - 92}" y="8" width="184" height="32" rx="6"/>')
        head.append(f'<text x="{x}" y="29">{escape(name)}</text>')
    return _svg(width, y + 8, "A sequence of messages", head + parts)


def _wrapped(text: str, width: int) -> list[str]:
    import textwrap

    return textwrap.wrap(text, max(width, 12))


def _svg(width: int, height: int, title: str, parts: list[str]) -> str:
    marker = (
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="tip" d="M0 0 L8 4 L0 8 z"/></marker></defs>'
    )
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" aria-label="{title}">'
        f"{marker}{''.join(parts)}</svg>"
    )
