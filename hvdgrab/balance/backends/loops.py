"""The loops that numba compiles.  Importing this module imports numba (about 126 MiB): only `compiled` does, on first use.

Four vectors a pass (DESIGN, "Order engine: cost"): with the sum h of everything before the four,

    <h + s0·d0 + … , dk> = <h, dk> + s0·<d0, dk> + …

so one pass over four vectors yields their four products with h and the six among themselves, from which all four signs follow.
The same pass first adds the previous four vectors, with their signs.  Every vector is read twice, h once for four of them.

Only inner products are compiled with `fastmath` reassociation, so that they use vector registers.  The update is compiled
without, in the literal order: for equal signs the running sum equals the reference's bit for bit, whatever the grouping.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from math import isfinite
from pathlib import Path
from typing import Any

import numba
import numpy as np

from hvdgrab.balance import sign_rules
from hvdgrab.balance.backends.compiled import private_directory

TILE = 1024
"""Elements whose products are added in the input's type; tiles are added in float64, so that rounding does not grow with d."""
_DOTS = {"reassoc", "nsz", "contract"}


def compiled(function: Callable[..., Any], fastmath: Any = False, inline: str = "never") -> Any:
    """Compile `function` on first use and cache it on disk: beside its file, else in the user's cache, else in a private one.

    If none of them can be written, every process compiles it.  numba compares a cached function with the file that defines it,
    not with the files of functions that it calls.
    """
    options = {"nogil": True, "fastmath": fastmath, "error_model": "numpy", "inline": inline}
    for place in (nullcontext, _private_cache):
        try:
            with place():
                return numba.njit(cache=True, **options)(function)
        except RuntimeError:  # raised by numba if it finds no directory for its cache
            continue
    return numba.njit(**options)(function)


@contextmanager
def _private_cache() -> Iterator[None]:
    """Set numba's cache directory for the functions defined in this context only."""
    settings: Any = numba.config
    before, directory = settings.CACHE_DIR, private_directory(Path(tempfile.gettempdir()))
    settings.CACHE_DIR = before if directory is None else str(directory)
    try:
        yield
    finally:
        settings.CACHE_DIR = before


def _sum4(x, w0, a0, w1, a1, w2, a2, w3, a3):  # type: ignore[no-untyped-def]
    return (((x + w0 * a0) + w1 * a1) + w2 * a2) + w3 * a3


def _scaled_sum(x, scale, w, a):  # type: ignore[no-untyped-def]
    return scale * x + w * a


def _scaled(x, scale):  # type: ignore[no-untyped-def]
    return scale * x


def _tile(rows, k, lo, hi):  # type: ignore[no-untyped-def]
    return rows[k, lo:hi]


sum4 = compiled(_sum4)
scaled_sum = compiled(_scaled_sum)
scaled = compiled(_scaled)
tile = compiled(_tile)
decide = compiled(sign_rules.decide, inline="always")
threshold = compiled(sign_rules.threshold, inline="always")


def _fused4(h, a0, a1, a2, a3, w0, w1, w2, w3, r0, r1, r2, r3):  # type: ignore[no-untyped-def]
    p0 = p1 = p2 = p3 = g01 = g02 = g03 = g12 = g13 = g23 = h.dtype.type(0)
    for j in range(h.shape[0]):
        x = sum4(h[j], w0, a0[j], w1, a1[j], w2, a2[j], w3, a3[j])
        h[j] = x
        v0, v1, v2, v3 = r0[j], r1[j], r2[j], r3[j]
        p0 += x * v0
        p1 += x * v1
        p2 += x * v2
        p3 += x * v3
        g01 += v0 * v1
        g02 += v0 * v2
        g03 += v0 * v3
        g12 += v1 * v2
        g13 += v1 * v3
        g23 += v2 * v3
    return p0, p1, p2, p3, g01, g02, g03, g12, g13, g23


def _dots4(h, r0, r1, r2, r3):  # type: ignore[no-untyped-def]
    p0 = p1 = p2 = p3 = g01 = g02 = g03 = g12 = g13 = g23 = h.dtype.type(0)
    for j in range(h.shape[0]):
        x, v0, v1, v2, v3 = h[j], r0[j], r1[j], r2[j], r3[j]
        p0 += x * v0
        p1 += x * v1
        p2 += x * v2
        p3 += x * v3
        g01 += v0 * v1
        g02 += v0 * v2
        g03 += v0 * v3
        g12 += v1 * v2
        g13 += v1 * v3
        g23 += v2 * v3
    return p0, p1, p2, p3, g01, g02, g03, g12, g13, g23


def _add4(h, a0, a1, a2, a3, w0, w1, w2, w3):  # type: ignore[no-untyped-def]
    for j in range(h.shape[0]):
        h[j] = sum4(h[j], w0, a0[j], w1, a1[j], w2, a2[j], w3, a3[j])


def _add(h, scale, w, a):  # type: ignore[no-untyped-def]
    for j in range(h.shape[0]):
        h[j] = scaled_sum(h[j], scale, w, a[j])


def _fused(h, scale, w, a, r):  # type: ignore[no-untyped-def]
    p = square = h.dtype.type(0)
    for j in range(h.shape[0]):
        x = scaled_sum(h[j], scale, w, a[j])
        h[j] = x
        p += scaled(x, scale) * r[j]
        square += r[j] * r[j]
    return p, square


def _dots(h, scale, r):  # type: ignore[no-untyped-def]
    p = square = h.dtype.type(0)
    for j in range(h.shape[0]):
        p += scaled(h[j], scale) * r[j]
        square += r[j] * r[j]
    return p, square


fused4, dots4 = compiled(_fused4, _DOTS), compiled(_dots4, _DOTS)
fused, dots = compiled(_fused, _DOTS), compiled(_dots, _DOTS)
add4, add = compiled(_add4), compiled(_add)


def _products4(h, a, w, r, out):  # type: ignore[no-untyped-def]
    """Write a group's products to out (10,) float64, tile by tile; first add `a` (0 or 4, d), weighted by `w`, to h."""
    for k in range(10):
        out[k] = 0.0
    for lo in range(0, h.shape[0], TILE):
        hi = min(lo + TILE, h.shape[0])
        x, r0, r1, r2, r3 = h[lo:hi], tile(r, 0, lo, hi), tile(r, 1, lo, hi), tile(r, 2, lo, hi), tile(r, 3, lo, hi)
        if a.shape[0]:
            a0, a1, a2, a3 = tile(a, 0, lo, hi), tile(a, 1, lo, hi), tile(a, 2, lo, hi), tile(a, 3, lo, hi)
            sums = fused4(x, a0, a1, a2, a3, w[0], w[1], w[2], w[3], r0, r1, r2, r3)
        else:
            sums = dots4(x, r0, r1, r2, r3)
        for k in range(10):
            out[k] += sums[k]


products4 = compiled(_products4, inline="always")


def _signs4(c, w):  # type: ignore[no-untyped-def]
    """Write the four signs that follow from the ten products to `w`; return False if a product is not finite in h's type."""
    one, cast = w.dtype.type(1), w.dtype.type
    p0 = c[0]
    s0 = one if p0 <= 0 else -one
    p1 = c[1] + s0 * c[4]
    s1 = one if p1 <= 0 else -one
    p2 = (c[2] + s0 * c[5]) + s1 * c[7]
    s2 = one if p2 <= 0 else -one
    p3 = ((c[3] + s0 * c[6]) + s1 * c[8]) + s2 * c[9]
    if not (isfinite(cast(p0)) and isfinite(cast(p1)) and isfinite(cast(p2)) and isfinite(cast(p3))):
        return False
    w[0], w[1], w[2], w[3] = s0, s1, s2, one if p3 <= 0 else -one
    return True


signs4 = compiled(_signs4, inline="always")


def _products(h, scale, w, a, r):  # type: ignore[no-untyped-def]
    """Compute <scale·h, r> and <r, r> of the row r (1, d) in float64; first add `a` (0 or 1, d), weighted by `w`, to scale·h."""
    p = square = 0.0
    for lo in range(0, h.shape[0], TILE):
        hi = min(lo + TILE, h.shape[0])
        x, v = h[lo:hi], tile(r, 0, lo, hi)
        sums = fused(x, scale, w, tile(a, 0, lo, hi), v) if a.shape[0] else dots(x, scale, v)
        p += sums[0]
        square += sums[1]
    return p, square


products = compiled(_products, inline="always")


def _one_by_one(rows, h, damping, code, state, uniform, signs, dropped):  # type: ignore[no-untyped-def]
    """Balance by any rule, a vector a pass: the pass that computes its products first adds the previous vector."""
    scale, w = h.dtype.type(damping), h.dtype.type(0)
    squares = code != 0 or damping != 1.0
    pending = rows[:0]
    for i in range(rows.shape[0]):
        p, square = products(h, scale, w, pending, rows[i : i + 1])
        pending = rows[:0]
        if not isfinite(h.dtype.type(p)) or (squares and not isfinite(h.dtype.type(square))):
            signs[i], dropped[i] = 1, True
            continue
        signs[i] = decide(p, threshold(code, square, state), uniform[i])
        w = h.dtype.type(signs[i])
        pending = rows[i : i + 1]
    if pending.shape[0]:
        add(h, scale, w, pending[0])


one_by_one = compiled(_one_by_one)


def _greedy(rows, h, c, w, signs):  # type: ignore[no-untyped-def]
    """Balance greedily without damping, four vectors a pass; return the number of balanced rows.

    It stops before a group with a product that is not finite, and before a rest of less than four rows: `one_by_one` takes those.
    c (10,) float64 and w (4,) of h's type are working memory: allocating in compiled code would double its compile time.
    """
    pending = rows[:0]
    done = 0
    while done + 4 <= rows.shape[0]:
        products4(h, pending, w, rows[done : done + 4], c)
        pending = rows[:0]
        if not signs4(c, w):
            break
        for k in range(4):
            signs[done + k] = np.int8(w[k])
        pending = rows[done : done + 4]
        done += 4
    if pending.shape[0]:
        add4(h, pending[0], pending[1], pending[2], pending[3], w[0], w[1], w[2], w[3])
    return done


greedy = compiled(_greedy)
