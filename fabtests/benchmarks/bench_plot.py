# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Curves by message size as an SVG file, both axes logarithmic; the standard library is enough."""
import math
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 620, 420, 70, 120, 40, 50
COLOURS = {"rvt": "#c00000", "shm": "#1f77b4", "shm-nocma": "#7fb3e0", "ucx": "#2ca02c",
           "2copy": "#999999"}


class Axis:
    """Maps values to pixels, logarithmically."""

    def __init__(self, values, start, end, base):
        self.low = base ** math.floor(math.log(min(values), base))
        self.high = base ** math.ceil(math.log(max(values), base))
        if self.high <= self.low:
            self.high = self.low * base
        self.start, self.end, self.base = start, end, base

    def at(self, value):
        part = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + part * (self.end - self.start)

    def ticks(self):
        tick = self.low
        while tick <= self.high * 1.0001:
            yield tick
            tick *= self.base


def size_text(size):
    for unit in ("B", "KiB", "MiB"):
        if size < 1024 or unit == "MiB":
            return f"{size:g} {unit}"
        size /= 1024
    return ""


def panel(title, unit, curves, offset):
    """Lines of SVG for one diagram, `offset` pixels from the left."""
    sizes = [s for points in curves.values() for s in points]
    values = [v for points in curves.values() for v in points.values()]
    across = Axis(sizes, offset + LEFT, offset + WIDTH - RIGHT, 4)
    upward = Axis(values, HEIGHT - BOTTOM, TOP, 10)
    yield f'<text x="{offset + LEFT}" y="24" font-size="15">{escape(title)}</text>'
    for tick in across.ticks():
        x = across.at(tick)
        yield f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM}" stroke="#eee"/>'
        yield (f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" font-size="9" '
               f'text-anchor="middle">{size_text(tick)}</text>')
    for tick in upward.ticks():
        y = upward.at(tick)
        yield (f'<line x1="{offset + LEFT}" y1="{y:.1f}" x2="{offset + WIDTH - RIGHT}" '
               f'y2="{y:.1f}" stroke="#ddd"/>')
        yield (f'<text x="{offset + LEFT - 6}" y="{y + 4:.1f}" font-size="11" '
               f'text-anchor="end">{tick:g} {unit}</text>')
    for index, (name, points) in enumerate(sorted(curves.items())):
        colour = COLOURS.get(name, "#000")
        path = " ".join(f"{across.at(s):.1f},{upward.at(v):.1f}" for s, v in sorted(points.items()))
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
        yield (f'<text x="{offset + WIDTH - RIGHT + 10}" y="{TOP + 18 * (index + 1)}" '
               f'font-size="13" fill="{colour}">{escape(name)}</text>')


def write_svg(path, panels):
    """`panels`: (title, unit, {name: {size: value}}) side by side."""
    drawn = [p for p in panels if p[2]]
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH * len(drawn)}" '
             f'height="{HEIGHT}" font-family="sans-serif">',
             '<rect width="100%" height="100%" fill="white"/>']
    for index, (title, unit, curves) in enumerate(drawn):
        lines.extend(panel(title, unit, curves, index * WIDTH))
    lines.append("</svg>")
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
