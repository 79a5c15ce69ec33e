"""The cases of a check: trees, numbers of workers, and gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gradsparse import workers
import jax
import jax.numpy as jnp
import numpy as np

# Shapes, or (shape, dtype) pairs if the dtype is not float32.
TREES: Mapping[str, Any] = {
  'matrix, vector, scalar': {'w': (12, 10), 'b': (11,), 's': ()},
  'nested, with None and an empty leaf': {
    'conv': [(3, 1, 2, 5), None],
    # Enough small leaves that a memory gets them as one vector.
    'blocks': [(2, 3)] * 9,
    'rest': ((0, 4), (33,)),
  },
  'a scalar first, bfloat16 beside float32': {
    'a': (),
    'half': ((9, 7), jnp.bfloat16),
    'w': (8, 5),
  },
}


class Case(NamedTuple):
  """A case in which laws are checked; failure messages name it.

  >>> import gradsparse as gs
  >>> print(gs.testing.Case('one', num_workers=2, runner='simulate'))
  2 workers, simulate, one

  Attributes:
    tree: the tree's name.
    num_workers: P.
    runner: one of `gs.workers.RUNNERS`.
  """

  tree: str
  num_workers: int
  runner: workers.Runner

  def __str__(self) -> str:
    return f'{self.num_workers} workers, {self.runner}, {self.tree}'


def cases(
  tree: str,
  num_workers: Sequence[int],
  runners: Sequence[workers.Runner] | None,
) -> Iterator[Case]:
  """The cases of a tree.

  Args:
    tree: the tree's name.
    num_workers: numbers of workers.
    runners: runners for every number of workers. None simulates every number,
      and uses each other runner for the largest number that has devices.
  """
  if runners is not None:
    yield from (Case(tree, n, r) for r in runners for n in num_workers)
    return
  yield from (Case(tree, n, 'simulate') for n in num_workers)
  fits = [n for n in num_workers if n <= jax.device_count()]
  for runner in workers.RUNNERS:
    if runner != 'simulate' and fits:
      yield Case(tree, max(fits), runner)


def _is_shape(x: Any) -> bool:
  return isinstance(x, tuple) and all(isinstance(n, int) for n in x)


def _is_typed(x: Any) -> bool:
  return (
    isinstance(x, tuple)
    and len(x) == 2
    and _is_shape(x[0])
    and not isinstance(x[1], (tuple, int))
  )


def parameters(shapes: Any) -> Any:
  """Zeros of the shapes and dtypes of a tree of `TREES`."""

  def zeros(x):
    shape, dtype = x if _is_typed(x) else (x, jnp.float32)
    return jnp.zeros(shape, dtype)

  return jax.tree.map(
    zeros, shapes, is_leaf=lambda x: _is_typed(x) or _is_shape(x)
  )


def gradients(params: Any, num_workers: int, rng: np.random.Generator) -> Any:
  """Gradients of many magnitudes, some of them equal, some zero.

  Each worker's gradients are larger than those of the one before, so that local
  decisions differ between workers. They are NumPy arrays of the parameters'
  dtypes, with a leading worker axis.
  """

  def leaf(p):
    shape = (num_workers, *p.shape)
    x = rng.normal(size=shape) * 2.0 ** rng.integers(-3, 3, shape)
    x *= 2.0 ** np.arange(num_workers).reshape(-1, *(1,) * len(p.shape))
    x = np.where(rng.random(shape) < 0.1, 0.0, x)
    x = np.where(rng.random(shape) < 0.1, 0.5, x)
    return np.asarray(jnp.asarray(x, p.dtype))

  return jax.tree.map(leaf, params)


def moments(grads: Any, rng: np.random.Generator) -> Any:
  """Second moments, float32, such that some elements are sent."""
  return jax.tree.map(
    lambda g: np.asarray(
      np.square(g.astype(np.float32)) * rng.random(g.shape), np.float32
    ),
    grads,
  )


def poisoned(grads: Any) -> Any:
  """The gradients with a NaN in the last worker's first nonempty leaf."""
  leaves, treedef = jax.tree.flatten(grads)
  number = next(i for i, x in enumerate(leaves) if x[0].size)
  leaf = leaves[number].copy()
  leaf.reshape(leaf.shape[0], -1)[-1, 0] = np.nan  # a view, of scalars too
  leaves[number] = leaf
  return jax.tree.unflatten(treedef, leaves)
