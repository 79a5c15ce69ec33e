"""What the fuzz tests share: a budget, and compiled programs of all workers.

A program takes seconds to compile and microseconds to run, so settings are few
and fixed, and what is drawn are mostly the numbers that go through them.
"""

from __future__ import annotations

import functools
import os
from typing import Any, NamedTuple

import gradsparse as gs
import hypothesis
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
from tests import replay
from tests import schemes

OWN = P(schemes.AXIS)
# The kernel is compressed whatever `min_size` a setting has; the others stay
# dense in some.
PARAMS = {
  'kernel': jnp.zeros((8, 7)),
  'bias': jnp.zeros(9),
  'scale': jnp.zeros(()),
}


def budget(examples: int) -> hypothesis.settings:
  """New examples in each run; what failed is printed, kept, and tried again.

  Not made smaller: that would take longer than all examples together.

  Args:
    examples: how many; GRADSPARSE_FUZZ=10 in the environment is ten times as
      many.
  """
  times = float(os.environ.get('GRADSPARSE_FUZZ', 1))
  return hypothesis.settings(
    max_examples=max(1, round(examples * times)),
    deadline=None,
    derandomize=False,
    print_blob=True,
    phases=[
      hypothesis.Phase.explicit,
      hypothesis.Phase.reuse,
      hypothesis.Phase.generate,
    ],
    suppress_health_check=list(hypothesis.HealthCheck),
  )


class Program(NamedTuple):
  """A scheme, compiled for so many workers.

  Attributes:
    tx: the scheme.
    num_workers: P.
    state: to begin with, worker axes included.
    step: (state, grads, moments) -> (updates of each worker, state, what each
      delivered, what each owes when it has taken its gradient in).
  """

  tx: gs.CompressedMean
  num_workers: int
  state: Any
  step: Any

  def run(self, state: Any, grads: Any) -> Any:
    """A step, as NumPy arrays; second moments let some elements pass."""
    return numbers(self.step(state, grads, moments(grads)))

  def check(self, what: str, actual: Any, expected: Any, size: Any) -> None:
    """Compressed leaves are equal to a few roundings; denormals are zero.

    Args:
      what: for the message.
      actual: tree of arrays like the parameters.
      expected: the same.
      size: the same, the magnitudes that were added up.
    """
    dense = self.tx.layout(PARAMS).is_dense()
    for name, a in actual.items():
      fits = np.abs(a - expected[name]) <= 4e-6 * size[name] + 1e-36
      if not dense[name]:
        assert np.all(fits), (
          f'{what} of {name} is {a[~fits]}, not {expected[name][~fits]}'
        )


def numbers(tree: Any) -> Any:
  return jax.tree.map(np.asarray, tree)


def moments(grads: Any) -> Any:
  """Half the squares, as large as float32 lets a sum of them be."""

  def half(g):
    with np.errstate(over='ignore', invalid='ignore'):
      square = np.nan_to_num(np.square(g) / 2, nan=0.0, posinf=1e37)
    return np.minimum(square, np.float32(1e37))

  return jax.tree.map(half, grads)


@functools.cache
def program(name: str, num_workers: int) -> Program:
  """A setting of the list."""
  tx = schemes.BY_NAME[name].make()
  whole = tx.layout(PARAMS).is_dense()
  specs = gs.workers.specs(tx, PARAMS, num_workers)

  def one(state, grads, second):
    kept = tx.scheme.memory.accumulate(
      grads, state.memory, {'second_moment': second}, whole
    )
    owed = state._replace(memory=kept).pending()
    return *tx.step(grads, state, second_moment=second), owed

  fn = gs.workers.parallel(
    one,
    runner='simulate',
    num_workers=num_workers,
    in_specs=(specs, OWN, OWN),
    out_specs=(OWN, specs, OWN, OWN),
  )
  state = numbers(gs.workers.init(tx, PARAMS, num_workers))
  grads = normal(num_workers, 0)
  step = fn.lower(state, grads, moments(grads)).compile(replay.QUICKLY)
  return Program(tx, num_workers, state, step)


def normal(num_workers: int, seed: int) -> Any:
  """Ordinary gradients, with a leading worker axis."""
  rng = np.random.default_rng(seed)
  draw = lambda p: np.float32(rng.normal(size=(num_workers, *p.shape)))
  return jax.tree.map(draw, PARAMS)


def wide(tree: Any) -> Any:
  return jax.tree.map(lambda x: np.asarray(x, np.float64), tree)


def sizes(*trees: Any) -> Any:
  """The magnitudes of numbers that are added up."""
  return jax.tree.map(
    lambda *x: sum(np.abs(np.asarray(y, np.float64)) for y in x), *trees
  )
