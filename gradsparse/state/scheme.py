"""The state of a scheme: a plain pytree of fixed shapes and dtypes."""

from __future__ import annotations

from typing import Any, NamedTuple

from gradsparse.collectives import Comm
from gradsparse.sockets import ownership
import jax
import jax.numpy as jnp


class Stats(NamedTuple):
  """Measurements of one worker's last update.

  Attributes:
    payload_bytes: uint32, bytes of the message, dense leaves included; equal on
      all workers. Exact below 4 GiB; larger sizes count as 2^32 - 1.
    sent_bytes: uint32, bytes that the worker that sent most put on the network;
      equal on all workers. Exact below 4 GiB, as above.
    sent_elements: int32 (float32 from 2^31 elements on), coordinates delivered
      from compressed leaves.
    overflow_elements: the same type, selected elements that found no room in
      the message; they stay in the memory.
    rejected_steps: int32, updates so far that were rejected because a worker's
      gradient, or a number computed from it, was not finite, a traced argument
      or a schedule's density out of range, a second moment negative, or, with
      `verify=True`, a message damaged.
    worker: int32, 1 + the number of the worker whose state this is. It detects
      copies of one worker's memory. 0 before the first update, after
      `gs.workers.resize`, and for a single worker. It never changes after the
      first update.
  """

  payload_bytes: jax.Array
  sent_bytes: jax.Array
  sent_elements: jax.Array
  overflow_elements: jax.Array
  rejected_steps: jax.Array
  worker: jax.Array

  def idle(self) -> Stats:
    """The measurements of a call in which nothing was sent."""
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
    exchange: the exchange's own residual (the errors of its rounding), a
      float32 tree like params, or (); this worker's own.
    dense_leaves: a dict from the number of each leaf that stays dense, as text,
      to an empty tuple. It has no arrays: the structure of the state records
      which leaves were dense.
  """

  steps: jax.Array
  memory: Any
  compressor: Any
  stats: Stats
  exchange: Any = ()
  dense_leaves: Any = ()

  def typed(self, comm: Comm) -> CompressedMeanState:
    """The state with a worker's own fields typed varying."""
    return jax.tree.map(
      lambda x, own: comm.local(x) if own else x, self, ownership.is_local(self)
    )

  def unmapped(self, comm: Comm) -> CompressedMeanState:
    """The state with shared fields unbatched, see `Comm.unmapped`."""
    return jax.tree.map(
      lambda x, own: x if own else comm.unmapped(x),
      self,
      ownership.is_local(self),
    )

  def idle(self) -> CompressedMeanState:
    """The state after a call in which nothing was sent."""
    return self._replace(stats=self.stats.idle())

  def unnumbered(self) -> CompressedMeanState:
    """The state without worker numbers."""
    none = jnp.zeros_like(self.stats.worker)
    return self._replace(stats=self.stats._replace(worker=none))

  def owes(self) -> bool:
    """Whether values can be pending."""
    return bool(jax.tree.leaves((self.memory, self.exchange)))

  def pending(self) -> Any:
    """The pending values of the memory and of the exchange, summed."""
    kept = self.memory.pending()
    if not jax.tree.leaves(self.exchange):
      return kept
    return jax.tree.map(jnp.add, kept, self.exchange)

  def settled(self) -> CompressedMeanState:
    """The state with the exchange's residual moved to the memory.

    The memory must keep a sum of gradients (`with_pending`).
    """
    memory = self.memory.with_pending(self.pending())
    return self._replace(memory=memory).forgiven()

  def forgiven(self) -> CompressedMeanState:
    """The state with the exchange's residual set to zero."""
    return self._replace(exchange=jax.tree.map(jnp.zeros_like, self.exchange))


@ownership.local()
class OuterState(NamedTuple):
  """State of `outer`.

  Attributes:
    step: int32, calls of `sync`.
    anchor: float32 tree like params, float64 for float64 leaves: the parameters
      after the last exchange, equal on all workers.
    outer: the outer optimizer's state, equal on all workers; with several
      fragments a tuple with one for each.
    scheme: the state of the scheme of all parameters.
  """

  step: jax.Array
  anchor: Any
  outer: Any
  scheme: CompressedMeanState


@ownership.local()
class OneBitAdamState(NamedTuple):
  """State of `one_bit_adam`.

  Attributes:
    step: int32, accepted updates.
    mu: float32 tree like params: the first moment, equal on all workers.
    nu: float32 tree like params: the second moment, equal on all workers; of
      compressed leaves it is frozen after `freeze_step` updates.
    scheme: the state of the scheme of the compressed momentum, which has the
      errors of both roundings.
  """

  step: jax.Array
  mu: Any
  nu: Any
  scheme: CompressedMeanState


@ownership.local('gradient', 'second_moment')
@ownership.resized(second_moment='squares')
class DelayedState(NamedTuple):
  """State of `delayed`.

  Attributes:
    step: int32, calls so far; equal on all workers.
    gradient: float32 tree like params, float64 for float64 leaves: the last
      call's gradient, which the next call sends; this worker's own.
    second_moment: a tree like `gradient`: the last call's second moment; () if
      the scheme needs none. This worker's own.
    scheme: the scheme's state, one call behind.
  """

  step: jax.Array
  gradient: Any
  second_moment: Any
  scheme: CompressedMeanState


@ownership.local('mean', 'second_moment')
@ownership.resized(second_moment='squares')
class AccumulateState(NamedTuple):
  """State of `accumulate`.

  Attributes:
    mini_step: int32, calls since the last exchange, 0 to every - 1; equal on
      all workers.
    gradient_step: int32, exchanges so far; equal on all workers.
    mean: float32 tree like params, float64 for float64 leaves: the sum of these
      calls' gradients, each divided by `every`; this worker's own.
    second_moment: a tree like `mean`: the second moment of `mean` so far; () if
      no scheme inside needs it. This worker's own.
    inner: state of the transformation inside.
  """

  mini_step: jax.Array
  gradient_step: jax.Array
  mean: Any
  second_moment: Any
  inner: Any


class LocalGradientState(NamedTuple):
  """State of `local_gradient`.

  Attributes:
    inner: the scheme's state.
  """

  inner: Any
