"""The largest of each tile, in whichever way they are found."""

import functools
import math

from gradsparse import selection
from gradsparse.selection import tiles
import jax
import numpy as np
import pytest
from tests import replay
from tests.selection.vectors import ranked

TILE = 64
# Tiles of 64 x 64 and 64 x 50, searched by groups of 8 and 10, and of 47 x 47,
# whose rows are padded to groups of 8; and of few elements, which are moved.
SHAPES = ((128, 512), (2, 64, 192), (200, 500), (94, 188), (7,), (33, 7))


def leaves(kind):
  rng = np.random.default_rng(5)
  out = []
  for shape in SHAPES:
    x = rng.normal(size=shape)
    if kind == 'ties':
      x = np.round(x)
    elif kind == 'few':
      x *= rng.random(shape) < 0.01
    elif kind == 'none':
      x *= 0
    elif kind == 'columns':
      x = x * np.exp(9 * rng.normal(size=shape[-1]))
    out.append(np.float32(x))
  return out


def expected(xs, density, now):
  """Indices, by a loop over tiles."""
  out, begin = [], 0
  for x in xs:
    high, wide = tiles.tile_of(x.shape, TILE)
    places = np.arange(x.size).reshape(-1, x.shape[-1])
    rows, columns = places.shape
    for row in range(0, rows, high):
      for column in range(0, columns, wide):
        own = places[row : row + high, column : column + wide].reshape(-1)
        most = min(selection.count(density, TILE**2), own.size)
        if now is not None:
          share = np.float32(now) * np.float32(TILE**2 / own.size)
          k = max(1, math.ceil(np.float32(share * np.float32(own.size)) - 1e-6))
          most = min(most, k)
        found = own[ranked(x.reshape(-1)[own])[:most]]
        out += (begin + found).tolist()
    begin += x.size
  return np.sort(out)


@functools.cache
def tiled(density, scheduled, form):
  del form  # traced anew for each

  def of(xs, now):
    return selection.tiled_top_k_of_each(
      xs, density, TILE, now if scheduled else None
    )[:2]

  return jax.jit(of, compiler_options=replay.QUICKLY)


@pytest.mark.parametrize(
  'density, now, form',
  [
    (1 / 64, None, 'groups'),
    pytest.param(1 / 64, 0.004, 'groups', marks=pytest.mark.slow),
    pytest.param(1 / 4096, None, 'groups', marks=pytest.mark.slow),
    pytest.param(1 / 64, None, 'chunks', marks=pytest.mark.slow),
  ],
)
def test_each_tile_sends_its_largest(density, now, form, monkeypatch):
  """Both forms: that for CPUs, and that for other platforms."""
  if form == 'chunks':
    monkeypatch.setattr(tiles.platforms, 'is_cpu', lambda: False)
  for kind in ('normal', 'ties', 'few', 'none', 'columns'):
    xs = leaves(kind)
    values, indices = tiled(density, now is not None, form)(xs, now or 0.0)
    wanted = expected(xs, density, now)
    joined = np.concatenate([x.reshape(-1) for x in xs])
    np.testing.assert_array_equal(indices[: len(wanted)], wanted)
    np.testing.assert_array_equal(values[: len(wanted)], joined[wanted])
    np.testing.assert_array_equal(indices[len(wanted) :], joined.size)


def test_leaves_are_searched_as_they_lie_where_that_is_faster():
  sides = [tiles.tile_of(shape, TILE) for shape in SHAPES]
  sizes = [math.prod(shape) for shape in SHAPES]
  assert tiles._groups(sizes, sides, 64) == [8, 8, 10, 8, None, None]
  # With half of all elements in the groups, nothing is gained.
  assert tiles._groups(sizes, sides, 1000) == [None] * 6
