"""Checks that workers hold equal copies of shared arrays.

Workers that begin with equal parameters and apply equal updates stay equal, bit
for bit. Under `shard_map` each device has its own copy of an array under P(),
and JAX shows the first one: a damaged copy goes unseen, and workers drift
apart. One checksum for each leaf detects it:

  def prints(params, opt_state):
    return gs.workers.fingerprint((params, opt_state), (P(), specs))

  prints = gs.workers.parallel(
      prints, runner='shard_map', num_workers=num_workers,
      in_specs=(P(), specs), out_specs=P())

  if step % 100 == 0:  # raises, and names leaf and worker
    gs.workers.check_agreement(
        prints(params, opt_state), (params, opt_state), (P(), specs))

Under the other runners there is only one copy of a shared array between steps.
There a fingerprint checks only arrays that the step itself has computed.
"""

from __future__ import annotations

from collections.abc import Iterator
import math
from typing import Any

from gradsparse import arguments
from gradsparse.collectives import AxisName
from gradsparse.collectives import Comm
from gradsparse.collectives import checksum
from gradsparse.workers import axis
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np

# The spec of leaves that are equal on all workers.
_SHARED = P()


class DisagreementError(RuntimeError):
  """Workers hold different copies of an array that is declared equal on all.

  >>> import gradsparse as gs, numpy as np
  >>> prints = np.array([[7], [7], [8]], np.uint32)  # of three workers
  >>> try:
  ...   gs.workers.check_agreement(prints, {'w': 0.0})
  ... except gs.workers.DisagreementError as e:
  ...   print(e.leaf, e.worker)
  ['w'] 2

  Attributes:
    leaf: path of the first leaf that differs.
    worker: number of the first worker whose copy differs from most others'; a
      tuple of numbers for several axes.
  """

  def __init__(self, message: str, leaf: str, worker: int | tuple[int, ...]):
    super().__init__(message)
    self.leaf = leaf
    self.worker = worker


def fingerprint(
  tree: Any, specs: Any = _SHARED, axis_name: AxisName = axis.AXIS
) -> jax.Array:
  """A checksum of the bits of each leaf, for all workers. Call it in the step.

  Nothing is rounded: one changed word of 32 bits always changes the checksum,
  and several changed words leave it unchanged with probability 2^-32. A worker
  sends its checksums, 4 bytes a leaf, in one all-gather for each axis, which no
  `gs.plan` counts.

  >>> import gradsparse as gs, jax, jax.numpy as jnp
  >>> prints = jax.jit(jax.vmap(gs.workers.fingerprint, axis_name='workers'))
  >>> of_each = prints({'w': jnp.ones((2, 3))})[0]  # as each worker sees them
  >>> of_each.shape, bool(of_each[0] == of_each[1])
  ((2, 1), True)

  Args:
    tree: the arrays of one worker, of any dtypes.
    specs: prefix tree of PartitionSpecs: the axes along which a leaf differs. A
      leaf that differs along all axes is left out.
    axis_name: axes along which to compare, which may include those of shards.

  Returns:
    uint32[P, leaves], equal on all workers; return it under P(). With several
    axes there is a leading dimension for each.

  Raises:
    TypeError: axis_name is not a name.
    ValueError: specs is not a prefix of the tree.
  """
  names = _names(axis_name)
  sums = [checksum.of(x) for _, _, x in _compared(tree, specs, names)]
  prints = jnp.stack(sums) if sums else jnp.zeros([0], jnp.uint32)
  for name in reversed(names):
    prints = Comm(name).gather(prints)
  return prints


def check_agreement(
  prints: Any, tree: Any, specs: Any = _SHARED, axis_name: AxisName = axis.AXIS
) -> None:
  """Compares fingerprints, on the host, outside the step.

  >>> import gradsparse as gs, numpy as np
  >>> prints = np.array([[7, 5], [7, 6], [7, 5]], np.uint32)
  >>> gs.workers.check_agreement(prints, {'b': 0.0, 'w': 0.0})
  Traceback (most recent call last):
    ...
  gradsparse...DisagreementError: ['w'] is declared equal on all workers, ...

  Args:
    prints: the result of `fingerprint`.
    tree: a tree of the same structure; only its paths are used.
    specs: as for `fingerprint`.
    axis_name: as for `fingerprint`.

  Raises:
    DisagreementError: copies differ; the message names the first such leaf, and
      the worker whose copy differs from most others' (of two workers the
      second, as either may be wrong).
    TypeError: axis_name is not a name.
    ValueError: specs is not a prefix of the tree, or the tree does not fit
      prints.
  """
  names = _names(axis_name)
  leaves = [(path, own) for path, own, _ in _compared(tree, specs, names)]
  held = np.asarray(prints)
  if held.ndim != 1 + len(names) or held.shape[-1] != len(leaves):
    raise ValueError(
      f'prints must be uint32 of {len(names)} axes of workers and '
      f'{len(leaves)} leaves, got shape {held.shape}: pass check_agreement the '
      'tree, specs and axis_name that fingerprint had'
    )
  found = []
  for number, (path, own) in enumerate(leaves):
    pair = _odd_one(held[..., number], [name in own for name in names])
    if pair is not None:
      found.append((jax.tree_util.keystr(path) or 'the tree', *pair))
  if not found:
    return
  leaf, odd, usual = found[0]
  raise DisagreementError(
    f'{leaf} is declared equal on all workers, but {_who(odd, names)} has '
    f'another copy than {_who(usual, names)}; {len(found)} of {len(leaves)} '
    'such leaves differ',
    leaf,
    odd if len(odd) > 1 else odd[0],
  )


def _names(axis_name: AxisName) -> tuple[str, ...]:
  return arguments.axis_names(arguments.axis_name(axis_name, optional=False))


def _compared(
  tree: Any, specs: Any, names: tuple[str, ...]
) -> Iterator[tuple[Any, set[str], Any]]:
  """(path, axes along which it differs, leaf) of leaves that are compared."""
  for path, spec, x in axis.with_paths(specs, tree):
    own = axis.named(spec)
    if not own.issuperset(names):
      yield path, own, x


def _odd_one(
  held: np.ndarray, differs: list[bool]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
  """(the first worker with an unusual number, one with the usual), or None.

  Args:
    held: a number for each worker.
    differs: for each axis, whether numbers may differ along it.
  """
  # A row for each place along the axes where numbers may differ.
  order = np.argsort(~np.array(differs), kind='stable')
  rows = math.prod(np.array(held.shape)[differs])
  groups = np.arange(held.size).reshape(held.shape).transpose(order)
  for group in groups.reshape(rows, -1):
    numbers = held.ravel()[group]
    _, first, counts = np.unique(numbers, return_index=True, return_counts=True)
    usual = first[counts == counts.max()].min()
    odd = group[numbers != numbers[usual]]
    if odd.size:
      at, other = (
        tuple(int(i) for i in np.unravel_index(place, held.shape))
        for place in (odd[0], group[usual])
      )
      return at, other
  return None


def _who(worker: tuple[int, ...], names: tuple[str, ...]) -> str:
  if len(worker) == 1:
    return f'worker {worker[0]}'
  places = zip(names, worker, strict=True)
  return 'worker ' + ', '.join(f'{name}={number}' for name, number in places)
