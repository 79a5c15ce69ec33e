"""What the tests of these oracles share: random walks and comparisons."""

import numpy as np
from tests.oracles import checks

WORKERS = range(1, 9)


def same(actual, expected):
  """All leaves of all workers are equal, bit for bit."""
  for a, b in zip(actual, expected, strict=True):
    for x, y in zip(a, b, strict=True):
      np.testing.assert_array_equal(x, y)


def near(actual, expected):
  for a, b in zip(actual, expected, strict=True):
    for x, y in zip(a, b, strict=True):
      checks.close(x, y)


def moved(trees, moves):
  """trees[w][leaf] after an inner step."""
  return [
    [p + d for p, d in zip(tree, move, strict=True)]
    for tree, move in zip(trees, moves, strict=True)
  ]


def start(rng):
  return checks.draw(rng, 1)[0]


def train(method, params, moves, **options):
  """Yields the workers' parameters after each step of a method.

  Args:
    method: an outer step.
    params: params[leaf], where all workers start.
    moves: moves[t][w][leaf], what an inner step adds.
    **options: options[name][t], what the method's step takes besides.
  """
  now = [params] * len(moves[0])
  for t, move in enumerate(moves):
    options_now = {name: x[t] for name, x in options.items()}
    now = method.step(moved(now, move), **options_now)
    yield now


def draw_moves(rng, num_workers, steps):
  return [checks.draw(rng, num_workers) for _ in range(steps)]
