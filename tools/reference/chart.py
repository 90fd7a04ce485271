"""A line chart as SVG text."""

import math
from html import escape

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 720, 400, 64, 40, 190, 48
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")


def ticks(low, high):
    """Returns round values on a logarithmic axis."""
    found = [m * 10.0**e for e in range(-3, 10) for m in (1, 2, 5)]
    return [v for v in found if low <= v <= high]


def short(value):
    return f"{value:,.10g}"


def lines(title, across, up, series):
    """Draws `series`, name to [(x, y)], all positive, on logarithmic axes. `across` and `up` are the axes' titles."""
    xs, ys = ([p[i] for points in series.values() for p in points] for i in (0, 1))
    low, high = min(ys) / 1.3, max(ys) * 1.3
    first, last = min(xs), max(max(xs), min(xs) * 2)

    def x(value):
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(value / first) / math.log(last / first)

    def y(value):
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * math.log(value / low) / math.log(high / low)

    def text(at, to, words, anchor="middle", more=""):
        return f'<text x="{at:.1f}" y="{to:.1f}" text-anchor="{anchor}"{more}>{escape(words)}</text>'

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>', text(LEFT, 22, title, "start", ' font-size="14"'),
        text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, across), text(16, HEIGHT / 2, up, more=f' transform="rotate(-90 16 {HEIGHT / 2})"')]
    for value in ticks(low, high):
        out.append(f'<path d="M{LEFT} {y(value):.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        out.append(text(LEFT - 6, y(value) + 4, short(value), "end"))
    for value in sorted(set(xs)):
        out.append(text(x(value), HEIGHT - BOTTOM + 18, short(value)))
    labels = sorted(((y(points[-1][1]), name) for name, points in series.items()))
    places = {}
    for at, name in labels:  # keeps labels from overlapping
        places[name] = max(at, max(places.values(), default=-99) + 14)
    for colour, (name, points) in zip(COLOURS * 2, series.items()):
        path = "L".join(f"{x(a):.1f} {y(b):.1f}" for a, b in points)
        out.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out += [f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="3" fill="{colour}"/>' for a, b in points]
        out.append(text(WIDTH - RIGHT + 10, places[name] + 4, name, "start", f' fill="{colour}"'))
    return "\n".join(out + ["</svg>"]) + "\n"
