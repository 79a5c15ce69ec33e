"""Communication between the workers along a mesh axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import copy
from typing import Any

from gradsparse.collectives import checksum
from gradsparse.collectives import mesh_axes
from gradsparse.collectives.devices import NO_SHARDS
from gradsparse.collectives.devices import AxisName
from gradsparse.collectives.devices import Devices
from gradsparse.collectives.devices import Shards
from gradsparse.collectives.devices import exchange_scope
from gradsparse.collectives.devices import simulated_gather
import jax
import jax.numpy as jnp
import numpy as np


class ReplicationError(ValueError):
  """A value differs between workers where it must not, or the reverse."""


_ALREADY_SUMMED = (
  'the gradient of {leaf} was already summed over axis {axis!r} before it '
  'reached gradsparse, so nothing would be compressed. shard_map sums '
  'gradients with respect to replicated parameters, and lax.pmean sums too. '
  'Differentiate with respect to gs.workers.local(params, {own!r}), and take '
  'no mean before the scheme, which takes it.'
)


class Comm(Devices):
  """Communication between the workers along a mesh axis.

  >>> import gradsparse as gs, jax, jax.numpy as jnp
  >>> def step(x):
  ...   comm = gs.extend.Comm('workers')
  ...   return comm.sum(x) / comm.size
  >>> print(jax.vmap(step, axis_name='workers')(jnp.array([1.0, 3.0])))
  [2. 2.]

  Attributes:
    shards: the devices that hold the shards of this worker's leaves.
  """

  def __init__(self, axis_name: AxisName | None):
    super().__init__(axis_name)
    self.shards = NO_SHARDS

  def within(self, axes: Sequence[str]) -> Comm:
    """The same workers, whose leaves are sharded over the devices of `axes`."""
    comm = copy.copy(self)
    comm.shards = Shards(axes)
    return comm

  # --- types -------------------------------------------------------------

  def may_differ(self, x: jax.Array) -> bool:
    """False if x is typed equal on all workers."""
    return self.mode != 'checked' or self.varies(x)

  def unmapped(self, tree: Any) -> Any:
    """Values equal on all workers, unbatched for `vmap(out_axes=None)`.

    In a simulation these are the first worker's copies.
    """
    if self.mode != 'simulated':
      return tree
    return jax.tree.map(lambda x: simulated_gather(x, self._names)[0], tree)

  def check_local(self, tree: Any, text: str = _ALREADY_SUMMED) -> None:
    """Refuses gradients that are already equal on all workers.

    Under `shard_map(check_vma=True)`, JAX itself sums the gradient with respect
    to replicated parameters, silently and uncompressed. Another cause is a
    leftover `lax.pmean`. Leaves without elements are not checked.

    Args:
      tree: gradients.
      text: the message, with {leaf} and {axis}.

    Raises:
      ReplicationError: a leaf is equal; the message names the first one and the
        remedy.
    """
    if self.mode != 'checked':
      return
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
      if leaf.size and (missing := self._equal_over(leaf)):
        leaf = jax.tree_util.keystr(path) or 'the parameter'
        axis, own = missing[0], self.axis_name
        raise ReplicationError(text.format(leaf=leaf, axis=axis, own=own))

  def typed_like(self, tree: Any, like: jax.Array) -> Any:
    """Types values as varying over the other mesh axes that `like` varies over.

    A loop's carry must begin with the type that it ends with.
    """
    if self.mode != 'checked':
      return tree
    axes = self._other_axes(like)
    return jax.tree.map(lambda x: mesh_axes.vary(x, axes), tree)

  def _other_axes(self, x: jax.Array) -> list[str]:
    """The mesh axes, other than the workers', over which x is typed varying."""
    others = mesh_axes.surroundings(self.axis_name).manual
    return [axis for axis in others if mesh_axes.varies(x, axis)]

  def check_not_spmd(self, what: str) -> None:
    """Refuses `jax.vmap(spmd_axis_name=...)`, which gathers dense leaves.

    XLA does not shard a selection along a mapped axis.

    Args:
      what: the scheme, for the message.

    Raises:
      ValueError: the workers are mapped with spmd_axis_name.
    """
    if self.mode == 'simulated':
      mesh_axes.refuse_spmd(
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
      what: the scheme that needs whole leaves, for the message.

    Raises:
      ValueError: a leaf is a shard; the message names the first one and its
        axis. Only `check_vma=True` detects it.
    """
    if self.mode != 'checked':
      return
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
      if others := self._other_axes(leaf):
        raise ValueError(
          f'{what} needs whole gradients, but '
          f'{jax.tree_util.keystr(path) or "the gradient"} differs over mesh '
          f'axis {others[0]!r} too, as a shard does: each shard would decide '
          'for itself. Use a scheme that works leaf by leaf (scope="leaf"), '
          'or reduce over that axis first.'
        )

  # --- results that are equal on all workers -------------------------------

  def mean(self, tree: Any) -> Any:
    """Mean over workers, by `sum`."""
    return jax.tree.map(lambda x: x / self.size, self.sum(tree))

  def intact(self) -> Any:
    """Whether all messages arrived undamaged; see `VerifiedComm`."""
    return True

  def agree(self, x: jax.Array) -> jax.Array:
    """The maximum over all workers and all their devices."""
    return self.shards.max(self.max(x))

  @exchange_scope()
  def uniform(self, x: jax.Array) -> jax.Array:
    """A scalar that is equal everywhere, unbatched.

    Under `vmap` a batched predicate turns `lax.switch` into a select that runs
    every branch. The first worker's copy is not batched.
    """
    return self.unmapped(self.replicated(x))

  def switch(
    self,
    number: jax.Array,
    branches: Sequence[Callable[..., Any]],
    *operands: Any,
  ) -> Any:
    """`lax.switch` over branches that communicate; all workers take the same.

    The tally counts the bytes of the branch that is taken.

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


class VerifiedComm(Comm):
  """A `Comm` whose messages carry a checksum; `intact` reports damage.

  A message has one word more, which its receiver checks. A sum has no message:
  workers compare their copies of it, so that a fault that changes all copies
  alike goes unseen. Maxima (the size of messages, a scale) are not checked.

  Args:
    axis_name: as for `Comm`.
  """

  def __init__(self, axis_name: Any):
    super().__init__(axis_name)
    # (count of damaged messages, checksum of sums) of each operation since the
    # last `intact`. Copies made by `within` share it.
    self._found: list[jax.Array] = []

  def intact(self) -> jax.Array:
    """bool scalar, equal everywhere: nothing was damaged on any worker."""
    damaged, sums = self._total()
    # The sums are equal everywhere if their maximum is their minimum.
    told = self.agree(jnp.stack([damaged, sums, ~sums]))
    return (told[0] == 0) & (told[1] == ~told[2])

  def sum(self, tree: Any) -> Any:
    out = super().sum(tree)
    checksums = [checksum.of(x) for x in jax.tree.leaves(out)]
    self._add(0, sum(checksums, jnp.uint32(0)))
    return out

  def gather(self, x: jax.Array) -> jax.Array:
    return self._opened(super().gather(_sealed(x)), x)

  def all_to_all(self, x: jax.Array) -> jax.Array:
    return self._opened(super().all_to_all(jax.vmap(_sealed)(x)), x[0])

  def permute(self, tree: Any, perm: Sequence[tuple[int, int]]) -> Any:
    receives = np.isin(np.arange(self.size), [to for _, to in perm])
    mine = jnp.asarray(receives)[self.index()]
    got = super().permute(jax.tree.map(_sealed, tree), perm)
    return jax.tree.map(
      lambda words, x: self._opened(words[None], x, wanted=mine)[0], got, tree
    )

  def switch(
    self,
    number: jax.Array,
    branches: Sequence[Callable[..., Any]],
    *operands: Any,
  ) -> Any:
    def telling(branch):
      def run(*operands):
        before, self._found[:] = list(self._found), []
        out = branch(*operands)
        found = self.local(jnp.stack(self._total()))
        self._found[:] = before
        return out, found

      return run

    out, found = super().switch(
      number, [telling(b) for b in branches], *operands
    )
    self._found.append(found)
    return out

  def _total(self) -> tuple[jax.Array, jax.Array]:
    zero = jnp.zeros(2, jnp.uint32)
    damaged, sums = sum(self._found, zero)
    return damaged, sums

  def _add(self, damaged: Any, sums: Any) -> None:
    self._found.append(
      jnp.stack([jnp.asarray(x, jnp.uint32) for x in (damaged, sums)])
    )

  def _opened(
    self, rows: jax.Array, like: jax.Array, wanted: Any = True
  ) -> jax.Array:
    """Inverse of `_sealed` for rows of messages; checks each checksum."""
    words, told = rows[:, :-1], rows[:, -1]
    wrong = jax.vmap(checksum.of)(words) != told
    self._add(jnp.sum(wrong & wanted, dtype=jnp.uint32), 0)
    flat = jax.lax.bitcast_convert_type(words, like.dtype)
    return flat.reshape(rows.shape[0], *like.shape)


def _sealed(x: jax.Array) -> jax.Array:
  """The words of an array of 32-bit numbers, followed by a checksum."""
  words = jax.lax.bitcast_convert_type(x, jnp.uint32).reshape(-1)
  return jnp.append(words, checksum.of(words))
