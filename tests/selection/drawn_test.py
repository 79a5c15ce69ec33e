"""Exactly k of each vector, every set of k equally likely."""

import functools
import itertools

from gradsparse import selection
from gradsparse.selection import drawn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests import replay

DRAWS = 2000


def draws_of(sizes, counts, number=DRAWS):
  keys = jax.random.split(jax.random.key(0), number)
  fn = lambda keys: jax.lax.map(
    lambda key: selection.drawn_of_each(sizes, counts, key), keys
  )
  return np.asarray(jax.jit(fn, compiler_options=replay.QUICKLY)(keys))


@pytest.mark.slow
def test_so_many_distinct_ones_of_each_vector_in_order():
  sizes, counts = [7, 5000, 1, 40], [3, 50, 1, 40]
  rows = draws_of(sizes, counts)
  assert np.all(np.diff(rows) > 0)
  ends = np.cumsum(sizes)
  for row in rows[:100]:
    found = np.bincount(np.searchsorted(ends, row, side='right'), minlength=4)
    assert found.tolist() == counts
  # Each of 5,000 is drawn about as often as chance has it.
  hits = np.bincount(rows.ravel(), minlength=ends[-1])[7:5007]
  scores = (hits - 20) / np.sqrt(20 * 0.99)
  assert np.std(scores) == pytest.approx(1, abs=0.05)
  assert np.max(np.abs(scores)) < 5.5


def test_where_too_few_or_too_many_pass_the_first_are_taken(monkeypatch):
  sizes, counts = [7, 5000, 40], [3, 50, 40]

  @functools.partial(jax.jit, compiler_options=replay.QUICKLY)
  def draw(marks):
    monkeypatch.setattr(drawn, '_marks', lambda *_: marks)
    return selection.drawn_of_each(sizes, counts, jax.random.key(0))

  for word in (0, 2**32 - 1):
    found = draw(jnp.full(sum(-(-n // 32) for n in sizes), word, jnp.uint32))
    assert found.tolist() == [*range(3), *range(7, 57), *range(5007, 5047)]


def test_all_sets_are_equally_likely():
  sets = {x: 0 for x in itertools.combinations(range(6), 3)}
  for row in draws_of([6], [3]):
    sets[tuple(row.tolist())] += 1
  expected = DRAWS / len(sets)
  square = sum((n - expected) ** 2 / expected for n in sets.values())
  assert square < 50  # 19 degrees of freedom: by chance once in 10,000 times
