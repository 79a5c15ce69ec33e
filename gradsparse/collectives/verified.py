"""Communication whose messages carry a checksum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gradsparse import checksum
from gradsparse.collectives.comm import Comm
import jax
import jax.numpy as jnp
import numpy as np


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
