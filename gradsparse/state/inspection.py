"""Reads a scheme's state, wherever it sits inside an optimizer's state."""

from __future__ import annotations

import functools
from typing import Any

from gradsparse import health
from gradsparse.state.scheme import CompressedMeanState
from gradsparse.state.scheme import LocalGradientState
from gradsparse.state.scheme import OuterState
from gradsparse.traffic import counting
import jax
import jax.numpy as jnp
import numpy as np
import optax


def is_scheme(x: Any) -> bool:
  """Whether x is a scheme's own state (for is_leaf)."""
  return isinstance(x, CompressedMeanState)


def schemes_in(state: Any) -> list[CompressedMeanState]:
  """The states of all schemes in any tree, in the order of its leaves."""
  leaves = jax.tree.leaves(state, is_leaf=is_scheme)
  return [x for x in leaves if is_scheme(x)]


def is_masked(x: Any) -> bool:
  """Whether x stands for a leaf that optax.masked leaves out."""
  return isinstance(x, optax.MaskedNode)


def refuse_copies(state: Any) -> None:
  """Refuses a state that has, or would keep, only one worker's memory.

  Each memory has the number of its worker (`Stats.worker`). Traced arrays, and
  those of other processes, are not checked.

  Raises:
    ValueError: devices hold different memories in an array that is marked as
      replicated, so that saving keeps one of them; or all workers hold a copy
      of one worker's memory.
  """
  for scheme in schemes_in(state):
    # The state of an nnx.Optimizer has its arrays in variables of NNX.
    worker = next(iter(jax.tree.leaves(scheme.stats.worker)), None)
    if not isinstance(worker, jax.Array | np.ndarray) or not scheme.owes():
      continue
    worker = jnp.asarray(worker)
    if isinstance(worker, jax.core.Tracer) or worker.is_deleted():
      continue
    copies = [np.asarray(x.data) - 1 for x in worker.addressable_shards]
    differ = any(not np.array_equal(x, copies[0]) for x in copies)
    if worker.is_fully_replicated and differ:
      raise ValueError(
        'state says that memories are the same on all devices, but they are '
        f'of workers {sorted(x.tolist() for x in copies)}: if it is saved or '
        'moved, all but one are lost. The state went through '
        'jax.pmap(out_axes=None) or shard_map(check_vma=False) under P(). Give '
        'memories their worker axis: gs.workers.init and gs.workers.specs, '
        "with gs.workers.parallel(runner='pmap') or gs.workers.wrap"
      )
    if not worker.is_fully_addressable or not np.all(worker):
      continue
    # With several worker axes, a scheme's workers are along some of them.
    owners = np.unique(np.asarray(worker)) - 1
    if len(owners) not in (worker.size, *worker.shape):
      raise ValueError(
        f'state has the memories of workers {owners.tolist()} for all '
        f'{worker.size} workers: those of the others are lost. Save all rows '
        'of a state with worker axes, not flax.jax_utils.unreplicate(state); '
        'gs.workers.resize adapts it to another number of workers'
      )


def _refuse_donated(schemes: list[CompressedMeanState]) -> None:
  """Refuses a state whose arrays are gone: to read one can end the process.

  Raises:
    ValueError: an array was donated.
  """
  arrays = [x for x in jax.tree.leaves(schemes) if isinstance(x, jax.Array)]
  if any(not isinstance(x, jax.core.Tracer) and x.is_deleted() for x in arrays):
    raise ValueError(
      'state must have its arrays, but they were donated (donate_argnums) to '
      'the step that returned the next state: use that one'
    )


def find_all(state: Any) -> list[CompressedMeanState]:
  """`schemes_in` of a state that must hold a scheme.

  Raises:
    ValueError: the state holds no scheme, or arrays that were donated; or see
      `refuse_copies`.
  """
  found = schemes_in(state)
  _refuse_donated(found)
  refuse_copies(state)
  if not found:
    raise ValueError(
      'state must be that of a gradsparse scheme, or an optax state with one '
      f'inside, found 0 schemes in {type(state).__name__}'
    )
  return found


def find(state: Any, name: str = 'state') -> CompressedMeanState:
  """The state of the only scheme in an optax state.

  Args:
    state: state of any transformation.
    name: the argument's name, for the message.

  Raises:
    ValueError: there is no scheme, or more than one, or its arrays were
      donated; or see `refuse_copies`.
  """
  found = schemes_in(state)
  _refuse_donated(found)
  refuse_copies(state)
  if len(found) != 1:
    raise ValueError(
      f'{name} must be the state of exactly one gradsparse scheme, found '
      f'{len(found)} in {type(state).__name__}; pass the part that belongs to '
      'the scheme you mean'
    )
  return found[0]


def check_own(name: str, state: Any, kind: type) -> None:
  """Refuses a state that another transformation's init returned.

  Raises:
    ValueError: state is not of the class `kind`.
  """
  if not isinstance(state, kind):
    raise ValueError(
      f'{name} needs the state that its own init returned, a '
      f'{kind.__name__}, got {type(state).__name__}'
    )


def has_local_params(state: Any) -> bool:
  """Whether an optimizer state belongs to parameters that differ by worker."""

  def found(x):
    return isinstance(x, LocalGradientState | OuterState)

  return any(map(found, jax.tree.leaves(state, is_leaf=found)))


def is_stacked(scheme: CompressedMeanState) -> bool:
  """Whether a scheme's state has leading worker axes."""
  return jnp.ndim(scheme.stats.payload_bytes) > 0


def pending(state: Any) -> Any:
  """The gradient that this worker has not delivered yet.

  >>> import gradsparse as gs, jax, jax.numpy as jnp
  >>> tx = gs.gradient_dropping(0.5, axis_name=None)
  >>> grads = {'w': jnp.array([4.0, 1.0])}
  >>> _, state = jax.jit(tx.update)(grads, tx.init(grads))
  >>> print(gs.pending(state)['w'])
  [0. 1.]

  Args:
    state: a scheme's state, or any optax state that holds exactly one.

  Returns:
    float32 tree like params (with a leading worker axis if the state has one):
    the residual, or DGC's velocity; zeros for schemes without memory. For EF21
    it is the last gradient less the estimate, which is not delivered later. The
    error of an exchange that rounds once more is added.

  Raises:
    ValueError: the state does not hold exactly one scheme; or it holds only one
      worker's memory (saved by `flax.jax_utils.unreplicate`), or would when
      saved (a result of `jax.pmap(out_axes=None)`).
  """
  return find(state).pending()


def metrics(state: Any) -> dict[str, Any]:
  """Measurements of the last update, with units in their names.

  For several schemes (two levels, or `optax.partition`), bytes and elements are
  summed, as in `gs.plan`. For one of the schemes, pass its part of the state:
  `gs.metrics(state[0])` of a chain, `gs.metrics(state.inner_states['kernels'])`
  of a partition.

  >>> import gradsparse as gs, jax, jax.numpy as jnp
  >>> tx = gs.gradient_dropping(0.5, axis_name=None)
  >>> grads = {'w': jnp.array([4.0, 1.0])}
  >>> _, state = jax.jit(tx.update)(grads, tx.init(grads))
  >>> metrics = gs.metrics(state)
  >>> print(metrics['payload_bytes'], metrics['residual_norm'])
  8 1.0

  Args:
    state: a scheme's state, or any optax state that holds one or more. With
      leading worker axes, elements and norms are averaged over workers; bytes
      (equal on all), overflow and rejections are the largest.

  Returns:
    Scalars by name: arrays inside a traced function, else NumPy's int64 and
    float64. Byte counts are exact below 4 GiB (uint32 if traced); larger ones
    read 2^32 - 1, but `gs.plan` has them. The names are
    `payload_bytes` (one worker's message, dense leaves included),
    `sent_bytes` (bytes that the worker that sends most put on the network, as
    in `plan` for the step's size of message; rejected steps send as much as
    others), `sent_elements`, `overflow_elements`,
    `rejected_steps` (of several schemes, the largest),
    `residual_norm` (2-norm of `pending`; of several schemes, of all pending
    values), and with `error_decay` < 1 `forgotten_norm` (that of the part of
    the residual that the next step forgets). Bytes and elements are 0 after a
    call of `gs.accumulate` that exchanged nothing.

  Raises:
    ValueError: the state holds no scheme; or see `pending`.
  """
  schemes = find_all(state)
  traced = any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(schemes))
  if traced:
    return _together(schemes)
  return {k: _on_host(x) for k, x in _together_at_once(schemes).items()}


def _together(schemes: list[CompressedMeanState]) -> dict[str, jax.Array]:
  """The metrics of all schemes together."""
  each = [_metrics(scheme) for scheme in schemes]

  def of(name: str) -> jax.Array:
    values = [one[name] for one in each if name in one]
    if name.endswith('_bytes'):
      return counting.total(values)
    join: dict[str, Any] = {
      'rejected_steps': jnp.maximum,
      'residual_norm': jnp.hypot,
      'forgotten_norm': jnp.hypot,
    }
    return functools.reduce(join.get(name, jnp.add), values)

  return {name: of(name) for one in each for name in one}


# Compiled as one program: otherwise each operation would be one.
_together_at_once = jax.jit(_together)


def _on_host(x: jax.Array) -> Any:
  """A NumPy scalar, which adds up without wrapping."""
  whole = jnp.issubdtype(x.dtype, jnp.integer)
  return np.asarray(x).astype(np.int64 if whole else np.float64)[()]


def _metrics(scheme: CompressedMeanState) -> dict[str, jax.Array]:
  """The metrics of one scheme."""
  stats = scheme.stats
  # Without memory nothing is pending, and no worker axis is stacked.
  pending = jax.tree.leaves(scheme.pending()) if scheme.owes() else []
  norm = health.norm
  if pending:
    for _ in range(jnp.ndim(stats.payload_bytes)):
      norm = jax.vmap(norm)
  largest, units = norm(pending)
  residual = jnp.mean(largest * units)
  forgets = getattr(scheme.memory, 'forgets', 0)
  return {
    'payload_bytes': jnp.max(stats.payload_bytes),
    'sent_bytes': jnp.max(stats.sent_bytes),
    'sent_elements': jnp.mean(stats.sent_elements.astype(jnp.float32)),
    'overflow_elements': jnp.max(stats.overflow_elements),
    'rejected_steps': jnp.max(stats.rejected_steps),
    'residual_norm': residual,
    **({'forgotten_norm': forgets * residual} if forgets else {}),
  }
