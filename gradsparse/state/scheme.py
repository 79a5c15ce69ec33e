"""The state of a scheme: a plain pytree of fixed shapes and dtypes."""

from __future__ import annotations

from typing import Any, NamedTuple

from gradsparse.sockets import ownership
import jax
import jax.numpy as jnp


class Stats(NamedTuple):
  """What one worker's last update did (its own share, not the mean).

  Attributes:
    payload_bytes: uint32, size of its message, dense leaves included; the same
      on all workers. Exact below 4 GiB; what is larger counts as 2^32 - 1.
    sent_bytes: uint32, what the scheme put on the network, by the worker
      that sent most; the same on all. Likewise.
    sent_elements: int32, coordinates delivered from compressed leaves.
    overflow_elements: int32, elements that the compressor wanted to send and
      that found no room; they stay in the memory.
    rejected_steps: int32, updates so far that were rejected because some
      worker's gradient, or what was made of it, was not finite (or a
      schedule's density out of range, or a second moment negative).
    worker: int32, 1 + the number of the worker whose state this is: it tells
      copies of one worker's memory from memories. 0 before the first update,
      after `gs.workers.resize`, and for one worker alone. It never changes
      after the first update.
  """

  payload_bytes: jax.Array
  sent_bytes: jax.Array
  sent_elements: jax.Array
  overflow_elements: jax.Array
  rejected_steps: jax.Array
  worker: jax.Array

  def idle(self) -> Stats:
    """Those of a call in which nothing was sent."""
    none = Stats(*(jnp.zeros_like(x) for x in self))
    return none._replace(rejected_steps=self.rejected_steps, worker=self.worker)


@ownership.local('memory', 'stats', 'exchange')
@ownership.resized(stats='copy')
class CompressedMeanState(NamedTuple):
  """State of `compressed_mean`.

  Attributes:
    steps: int32, updates done; the same on all workers.
    memory: the memory's state; this worker's own, except for shared fields.
    compressor: the compressor's state; the same on all workers, except for
      local fields.
    stats: measurements of the last update; this worker's own.
    exchange: what this worker owes because the exchange rounded, a float32
      tree like params, or () if it owes nothing; this worker's own.
    dense_leaves: which leaves stay dense: their numbers, as text, each with an
      empty tuple. No arrays: the structure of the state says for which
      division of the leaves it was made.
  """

  steps: jax.Array
  memory: Any
  compressor: Any
  stats: Stats
  exchange: Any = ()
  dense_leaves: Any = ()

  def idle(self) -> CompressedMeanState:
    """The same, after a call in which nothing was sent."""
    return self._replace(stats=self.stats.idle())

  def unnumbered(self) -> CompressedMeanState:
    """The same, of workers that have no numbers yet."""
    none = jnp.zeros_like(self.stats.worker)
    return self._replace(stats=self.stats._replace(worker=none))

  def owes(self) -> bool:
    """Whether anything can be pending at all."""
    return bool(jax.tree.leaves((self.memory, self.exchange)))

  def pending(self) -> Any:
    """What this worker owes: its memory's part and the exchange's."""
    kept = self.memory.pending()
    if not jax.tree.leaves(self.exchange):
      return kept
    return jax.tree.map(jnp.add, kept, self.exchange)

  def settled(self) -> CompressedMeanState:
    """The same, with what the exchange owes handed to the memory.

    For a memory that keeps a sum of gradients (`with_pending`).
    """
    memory = self.memory.with_pending(self.pending())
    return self._replace(memory=memory).forgiven()

  def forgiven(self) -> CompressedMeanState:
    """The same, with nothing that the exchange owes."""
    return self._replace(exchange=jax.tree.map(jnp.zeros_like, self.exchange))


class LocalGradientState(NamedTuple):
  """State of `local_gradient`.

  Attributes:
    inner: the scheme's state.
  """

  inner: Any
