"""The workers of one mesh axis, as one of them sees the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import copy
import functools
from typing import Any

from gradsparse.backend import joining
from gradsparse.collectives import simulated
from gradsparse.collectives import types
from gradsparse.collectives.permute import send
from gradsparse.collectives.shards import NO_SHARDS
from gradsparse.collectives.shards import Shards
from gradsparse.collectives.surroundings import check_mapped
from gradsparse.collectives.surroundings import refuse_spmd
from gradsparse.collectives.surroundings import surroundings
from gradsparse.traffic import counting
import jax
import jax.numpy as jnp
import numpy as np

AxisName = str | tuple[str, ...]

# By this name a profile of the compiled program tells their time apart.
_exchange = functools.partial(jax.named_scope, 'gradsparse.exchange')


def _nbytes(x: Any) -> int:
  return int(np.prod(x.shape, dtype=np.int64)) * jnp.dtype(x.dtype).itemsize


class ReplicationError(ValueError):
  """What must be the same on all workers differs, or the other way round."""


class Comm:
  """The workers of one mesh axis, as one of them sees the others.

  Made afresh in each traced update. Trees in, trees out; all results are
  equal on every worker unless the method says otherwise.

  What the workers send through it, `tally` counts while it is traced.

  Args:
    axis_name: name of the mapped axis, or None for a single worker.
    shards: the devices that hold this worker's leaves in parts.

  Raises:
    NameError: `axis_name` is not an axis of the surrounding program.
  """

  def __init__(self, axis_name: AxisName | None, shards: Shards = NO_SHARDS):
    self.axis_name = axis_name
    self.shards = shards
    self.recorder = counting.active()
    self.tally = self.recorder or counting.Tally(1)
    if axis_name is None:
      self.mode, self.size = 'single', 1
      return
    if self.recorder is not None:
      self.mode, self.size = 'recorded', self.recorder.size(axis_name)
      return
    check_mapped(self._names)
    self.size = jax.lax.axis_size(axis_name)
    self.tally = counting.Tally(self.size)
    manual = jax.sharding.get_abstract_mesh().manual_axes
    if not all(name in manual for name in self._names):
      self.mode = 'simulated'
    elif self.varies(jax.lax.axis_index(axis_name)):
      self.mode = 'checked'
    else:
      self.mode = 'manual'

  @property
  def _names(self) -> tuple[str, ...]:
    own = self.axis_name
    if own is None:
      return ()
    return own if isinstance(own, tuple) else (own,)

  def within(self, axes: Sequence[str]) -> Comm:
    """The same workers, of whose devices those along `axes` hold shards."""
    comm = copy.copy(self)
    comm.shards = Shards(axes, checked=self.mode == 'checked')
    return comm

  # --- types -------------------------------------------------------------

  def varies(self, x: jax.Array) -> bool:
    """Whether the type of x says that it differs between workers."""
    return types.varies(x, self.axis_name)

  def _equal_over(self, x: jax.Array) -> tuple[str, ...]:
    """Those of our axes that its type says x is equal over."""
    return tuple(a for a in self._names if not types.varies(x, a))

  def may_differ(self, x: jax.Array) -> bool:
    """False where the type says that x is equal on all workers."""
    return self.mode != 'checked' or self.varies(x)

  def local(self, tree: Any) -> Any:
    """The same values, typed as this worker's own."""
    if self.mode != 'checked':
      return tree

    def cast(x):
      missing = self._equal_over(x)
      return jax.lax.pcast(x, missing, to='varying') if missing else x

    return jax.tree.map(cast, tree)

  def replicated(self, tree: Any) -> Any:
    """Types values as equal on all workers. The caller vouches for it."""
    if self.mode != 'checked':
      return tree
    return jax.tree.map(lambda x: types.unvary(x, self._names), tree)

  def unmapped(self, tree: Any) -> Any:
    """What is equal on all workers, so that `vmap(out_axes=None)` takes it.

    In a simulation that is the first worker's copy.
    """
    if self.mode != 'simulated':
      return tree
    return jax.tree.map(lambda x: simulated.gather(x, self._names)[0], tree)

  def check_local(self, tree: Any) -> None:
    """Refuses gradients that are the same on all workers already.

    Under `shard_map(check_vma=True)` the gradient with respect to replicated
    parameters is summed by JAX itself, silently and uncompressed. Or a
    `lax.pmean` was left in.

    Raises:
      ReplicationError: names the first such leaf and the cure.
    """
    if self.mode != 'checked':
      return
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
      if missing := self._equal_over(leaf):
        raise ReplicationError(
          f'the gradient of {jax.tree_util.keystr(path) or "the parameter"} '
          f'was already summed over axis {missing[0]!r} before it '
          'reached gradsparse, so nothing would be compressed: shard_map does '
          'that for gradients with respect to replicated parameters, and '
          'lax.pmean does. Differentiate with respect to '
          f'gs.workers.local(params, {self.axis_name!r}), and take no mean '
          'before the scheme, which takes it.'
        )

  def typed_like(self, tree: Any, like: jax.Array) -> Any:
    """Values that differ over other mesh axes (shards) wherever `like` does.

    A loop must carry the type that it ends with.
    """
    if self.mode != 'checked':
      return tree
    axes = [a for a in self._other_axes() if types.varies(like, a)]
    return jax.tree.map(lambda x: types.vary(x, axes), tree)

  def _other_axes(self) -> tuple[str, ...]:
    return surroundings(self.axis_name).manual

  def check_not_spmd(self, what: str) -> None:
    """Refuses `jax.vmap(spmd_axis_name=...)`, which gathers dense leaves.

    XLA does not divide a selection between devices along a mapped axis.

    Args:
      what: the scheme, for the message.

    Raises:
      ValueError: this worker is mapped so.
    """
    if self.mode == 'simulated':
      refuse_spmd(
        self.index(),
        self._names,
        f'{what} cannot run under jax.vmap(spmd_axis_name=...): XLA would '
        'gather the whole gradients of all workers before it selects from '
        "them. Use jax.shard_map over the workers' axis (with "
        'gs.sharded(tx, param_specs) if parameters are sharded over others); '
        'see gs.workers.parallel.',
      )

  def check_unsharded(self, tree: Any, what: str) -> None:
    """Refuses leaves that are shards over another mesh axis.

    Args:
      tree: gradients.
      what: needs the whole tree, for the message.

    Raises:
      ValueError: names the first such leaf and its axes. Only where types
        tell (`check_vma=True`).
    """
    if self.mode != 'checked':
      return
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
      others = [a for a in self._other_axes() if types.varies(leaf, a)]
      if others:
        raise ValueError(
          f'{what} needs whole gradients, but '
          f'{jax.tree_util.keystr(path) or "the gradient"} differs over mesh '
          f'axis {others[0]!r} too, as a shard does: each shard would decide '
          'for itself. Use a scheme that works leaf by leaf (scope="leaf"), '
          'or reduce over that axis first.'
        )

  # --- who am I ----------------------------------------------------------

  def index(self) -> jax.Array:
    """This worker's rank, int32 (differs between workers)."""
    if self.mode in ('single', 'recorded'):
      return jnp.int32(0)
    return jax.lax.axis_index(self.axis_name)

  # --- reductions --------------------------------------------------------

  def sum(self, tree: Any) -> Any:
    """Sum over workers; small leaves travel together."""
    leaves, treedef = jax.tree.flatten(tree)
    if self.mode == 'single' or not leaves:
      return tree
    batches = joining.batches_of(leaves, join=joining.can_concat())
    operands = [
      jnp.concatenate([leaves[i].ravel() for i in batch])
      if len(batch) > 1
      else leaves[batch[0]]
      for batch in batches
    ]
    out = list(leaves)
    for batch, summed in zip(
      batches, self._reduce(jax.lax.psum, operands), strict=True
    ):
      if len(batch) == 1:  # as it is: it may be divided over other axes
        out[batch[0]] = summed
        continue
      shapes = [leaves[i].shape for i in batch]
      for i, x in zip(batch, joining.split(summed, shapes), strict=True):
        out[i] = x
    return jax.tree.unflatten(treedef, out)

  def mean(self, tree: Any) -> Any:
    """Mean over workers, by `sum`."""
    return jax.tree.map(lambda x: x / self.size, self.sum(tree))

  def max(self, tree: Any) -> Any:
    """Maximum over workers."""
    leaves, treedef = jax.tree.flatten(tree)
    if self.mode == 'single' or not leaves:
      return tree
    if len({x.dtype for x in leaves}) == 1:
      joined = jnp.concatenate([x.ravel() for x in leaves])
      (joined,) = self._reduce(jax.lax.pmax, [joined])
      out = joining.split(joined, [x.shape for x in leaves])
    else:
      out = self._reduce(jax.lax.pmax, leaves)
    return jax.tree.unflatten(treedef, out)

  def intact(self) -> Any:
    """Whether what was sent arrived as it was; see `VerifiedComm`."""
    return True

  def agree(self, x: jax.Array) -> jax.Array:
    """Maximum over workers and over the devices of each: equal on all."""
    return self.shards.max(self.max(x))

  @_exchange()
  def _reduce(self, op, operands: list[jax.Array]) -> list[jax.Array]:
    for x in operands:
      self._record('all_reduce', _nbytes(x))
    if self.mode == 'recorded' or not operands:
      return operands
    return list(op(tuple(self.local(operands)), self.axis_name))

  # --- messages ----------------------------------------------------------

  @_exchange()
  def gather(self, x: jax.Array) -> jax.Array:
    """All workers' x, shape (P, *x.shape), in rank order."""
    if self.mode == 'single':
      return x[None]
    self._record('all_gather', _nbytes(x))
    if self.mode == 'recorded':
      return jnp.broadcast_to(x, (self.size, *x.shape))
    if self.mode == 'simulated':
      return simulated.gather(x, self._names)
    # A row of a matrix, which stays one: XLA for TPUs makes an all-reduce of a
    # gather of vectors whose length is no multiple of 128, and sends it twice.
    row = jax.lax.optimization_barrier(x[None])
    if self.mode == 'checked':
      return jax.lax.all_gather(
        self.local(row), self.axis_name, to='invarying', tiled=True
      )
    return jax.lax.all_gather(row, self.axis_name, tiled=True)

  @_exchange()
  def permute(self, tree: Any, perm: Sequence[tuple[int, int]]) -> Any:
    """Sends x along (source, destination) pairs; zeros where none arrives.

    The result differs between workers.
    """
    if self.mode == 'single':
      return tree
    for x in jax.tree.leaves(tree):
      self._record('permute', _nbytes(x), perm)
    if self.mode == 'recorded':
      return tree
    if self.mode == 'simulated':
      return jax.tree.map(lambda x: simulated.send(x, self._names, perm), tree)
    return jax.tree.map(
      lambda x: send(self.local(x), self.axis_name, perm), tree
    )

  @_exchange()
  def all_to_all(self, x: jax.Array) -> jax.Array:
    """Row d of x goes to worker d; returns the rows sent to this worker.

    Args:
      x: shape (P, ...).

    Returns:
      The same shape; row s came from worker s. Differs between workers.
    """
    if self.mode == 'single':
      return x
    self._record('all_to_all', _nbytes(x))
    if self.mode == 'recorded':
      return x
    if self.mode == 'simulated':
      return simulated.all_to_all(x, self._names)
    return jax.lax.all_to_all(self.local(x), self.axis_name, 0, 0)

  # --- control flow ------------------------------------------------------

  @_exchange()
  def uniform(self, x: jax.Array) -> jax.Array:
    """A scalar that is equal everywhere, in a form that `switch` keeps one.

    Under `vmap` a batched predicate turns `lax.switch` into a select that
    runs every branch; the first worker's copy is not batched.
    """
    return self.unmapped(self.replicated(x))

  def switch(
    self,
    number: jax.Array,
    branches: Sequence[Callable[..., Any]],
    *operands: Any,
  ) -> Any:
    """`lax.switch` over branches that talk to the workers; all take the same.

    What is sent in the branch that is taken enters the tally.

    Args:
      number: int32 scalar, equal on all workers.
      branches: functions of the operands, with results of the same types.
      *operands: of the branches.
    """

    def counted(branch):
      def run(*operands):
        with self.tally.apart():
          out = branch(*operands)
          return out, self.local(self.tally.most_sent)

      return run

    out, sent = jax.lax.switch(
      self.uniform(number), [counted(b) for b in branches], *operands
    )
    self.tally.switched.append(sent)
    return out

  def _record(self, kind: str, nbytes: int, perm=None) -> None:
    self.tally.add(self.axis_name, kind, nbytes, perm)
