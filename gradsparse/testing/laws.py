"""The laws, each as a check of one step of all workers."""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

from gradsparse.sockets import ownership
from gradsparse.state.inspection import metrics
from gradsparse.testing.cases import Case
from gradsparse.traffic.audit import Audit
from gradsparse.traffic.plan import Plan
from gradsparse.transform.compressed_mean import CompressedMean
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np

# Law 2 compares means over this many draws.
_DRAWS = 2000
# Without optimization: these short programs compile in half the time.
QUICKLY: Any = {'xla_backend_optimization_level': 0}


class Step(NamedTuple):
  """One step of all workers, as NumPy arrays with worker axes.

  Attributes:
    grads: the gradients.
    moments: the second moments.
    before: state before the step.
    after: state after the step.
    updates: each worker's own copy of the update.
    delivered: each worker's values in the mean.
    ok: bool[P], whether a worker's gradient was finite.
  """

  grads: Any
  moments: Any
  before: Any
  after: Any
  updates: Any
  delivered: Any
  ok: np.ndarray


def fail(law: int, case: Case, what: str) -> NoReturn:
  """Raises AssertionError: the law, the case and what is wrong."""
  raise AssertionError(f'law {law} ({case}): {what}')


def _paths(tree: Any) -> list[tuple[str, np.ndarray]]:
  return [
    (jax.tree_util.keystr(path) or 'the only leaf', np.asarray(x))
    for path, x in jax.tree_util.tree_leaves_with_path(tree)
  ]


def _worst(off: np.ndarray) -> tuple[int, ...]:
  """The place of the largest number, NaN first."""
  flat = np.argmax(np.where(np.isnan(off), np.inf, off))
  return tuple(int(i) for i in np.unravel_index(flat, off.shape))


def _compare(
  law, case, what, actual, expected, relative=4e-6, beside=None
) -> None:
  """Requires equality up to the rounding of float32 sums of such numbers.

  Args:
    law: its number.
    case: what is checked.
    what: the name of the numbers.
    actual: tree.
    expected: tree.
    relative: tolerance, relative to the largest expected number, at least 1.
    beside: tree of float32 numbers from which the expected ones were computed;
      the tolerance is larger by their rounding. Or None.
  """
  beside = jax.tree.map(np.zeros_like, expected) if beside is None else beside
  rounding = 2 * np.finfo(np.float32).eps
  parts = zip(*map(_paths, (actual, expected, beside)), strict=True)
  for (path, a), (_, b), (_, others) in parts:
    a, b = a.astype(np.float64), b.astype(np.float64)
    off = np.abs(a - b)
    allowed = relative * np.max(np.abs(b), initial=1.0)
    allowed += rounding * np.max(np.abs(others), initial=0.0)
    if not np.all(off <= allowed):
      at = _worst(off)
      fail(law, case, f'{what} of {path} at {at} is {a[at]}, not {b[at]}')


def same_bits(law, case, what, actual, expected) -> None:
  """Fails where two trees of arrays differ in a bit."""
  pairs = zip(_paths(actual), _paths(expected), strict=True)
  for (path, a), (_, b) in pairs:
    if a.tobytes() != b.tobytes():
      fail(law, case, f'{what}, {path}: is {a.ravel()}, must be {b.ravel()}')


def check_ownership(specs: Any, state: Any, case: Case) -> None:
  """Law 6: a state's shared fields are typed equal on all workers."""
  says = jax.tree.leaves(ownership.is_local(state))
  found = jax.tree_util.tree_leaves_with_path(
    specs, is_leaf=lambda x: isinstance(x, P)
  )
  for own, (path, spec) in zip(says, found, strict=True):
    if own != (spec != P()):
      name = jax.tree_util.keystr(path)
      what = "a worker's own" if own else 'shared'
      fail(6, case, f'state{name} is declared {what}, but is typed otherwise')


def check_types(step: Step, case: Case) -> None:
  """Law 6: the state after a step has the structure of the one before."""
  before: Any = jax.tree.structure(step.before)
  if before != jax.tree.structure(step.after):
    fail(6, case, 'the tree of the state changes in a step')
  pairs = zip(_paths(step.before), _paths(step.after), strict=True)
  for (path, a), (_, b) in pairs:
    if (a.shape, a.dtype) != (b.shape, b.dtype):
      fail(
        6,
        case,
        f'state {path} changes from {a.dtype}{a.shape} to {b.dtype}{b.shape}',
      )


def check_agreement(step: Step, case: Case) -> None:
  """Law 4: the update is the same on all workers, to the bit."""
  for worker in range(1, case.num_workers):
    own, first = (
      jax.tree.map(lambda x, w=w: x[w], step.updates) for w in (worker, 0)
    )
    same_bits(4, case, f'the update of worker {worker}', own, first)


def _of_worker(tree: Any, specs: Any, worker: int) -> Any:
  return jax.tree.map(
    lambda spec, x: x[worker] if spec != P() else x,
    specs,
    tree,
    is_leaf=lambda x: isinstance(x, P),
  )


def check_conservation(
  tx: CompressedMean, specs: Any, step: Step, case: Case
) -> None:
  """Law 1: accumulated values are delivered or pending, and no others are.

  The check uses the memory's own functions, so it applies to any memory.
  """
  memory = tx.scheme.memory
  layout = tx.layout(jax.tree.map(lambda g: g[0], step.grads))
  is_dense = layout.is_dense()
  mean = jax.tree.map(
    lambda d: np.mean(d, axis=0, dtype=np.float64).astype(np.float32),
    step.delivered,
  )
  for worker in range(case.num_workers):
    grads, moments, delivered, updates = (
      jax.tree.map(lambda x, w=worker: x[w], tree)
      for tree in (step.grads, step.moments, step.delivered, step.updates)
    )
    before = _of_worker(step.before, specs, worker)
    after = _of_worker(step.after, specs, worker)
    kept = before.memory
    if step.ok[worker]:
      wide = jax.tree.map(lambda g: jnp.asarray(g, jnp.float32), grads)
      extra = {'second_moment': moments}
      kept = memory.accumulate(wide, kept, extra, is_dense)
      if memory.sums:
        _check_sum(memory, before.memory, kept, wide, extra, is_dense, case)
    if memory.facts.lossless and jax.tree.leaves(kept):
      pending = before._replace(memory=kept).pending()
      left = jax.tree.map(
        lambda o, d, w: o if w else o - d, pending, delivered, is_dense
      )
      _compare(
        1,
        case,
        'the pending value (accumulated less delivered)',
        after.pending(),
        left,
      )
    if step.ok.all():
      made = memory.update(kept, mean, is_dense)
      coarse = max(jnp.finfo(g.dtype).eps for g in jax.tree.leaves(grads))
      _compare(1, case, 'the update', updates, made, 4e-6 + float(coarse))


def _check_sum(memory, before, kept, grads, extra, is_dense, case) -> None:
  """Law 1: a memory of sums keeps its pending values and adds the gradient."""
  old = before.pending()
  nothing = before.with_pending(jax.tree.map(jnp.zeros_like, old))
  without = memory.accumulate(grads, nothing, extra, is_dense).pending()
  # Not a difference: that would have the rounding of a large gradient, but the
  # tolerance of the pending values.
  both = jax.tree.map(lambda x, y: np.float64(x) + np.float64(y), old, without)
  what = 'the pending value after memory.accumulate'
  _compare(1, case, what, kept.pending(), both)
  fresh = memory.init(jax.tree.map(jnp.zeros_like, grads))
  taken = memory.accumulate(grads, fresh, extra, is_dense).pending()
  pairs = zip(
    _paths(taken), _paths(grads), jax.tree.leaves(is_dense), strict=True
  )
  for (path, t), (_, g), w in pairs:
    # A momentum may accumulate more.
    if not w and not np.all(t * np.sign(g) >= np.abs(g) * (1 - 1e-6)):
      fail(1, case, f'{path}: the memory accumulates {t} of the gradient {g}')


def check_flow(tx: CompressedMean, specs: Any, step: Step, case: Case) -> None:
  """Law 1 for all workers together, without the memory's functions.

  For a memory that sums gradients without momentum, mean pending plus update
  equal mean pending before plus mean gradient.
  """
  memory = tx.scheme.memory
  if not (memory.sums and memory.facts.lossless and step.ok.all()):
    return
  if memory.facts.momentum:
    return
  is_dense = tx.layout(jax.tree.map(lambda g: g[0], step.grads)).is_dense()

  def mean_pending(state):
    pending = [
      _of_worker(state, specs, w).pending() for w in range(case.num_workers)
    ]
    return jax.tree.map(lambda *x: np.mean(x, axis=0), *pending)

  def one(old, new, grads, w):
    mean = np.mean(grads, axis=0, dtype=np.float64)
    return mean if w else old + mean - new

  left = mean_pending(step.after)
  expected = jax.tree.map(
    one, mean_pending(step.before), left, step.grads, is_dense
  )
  coarse = max(jnp.finfo(g.dtype).eps for g in jax.tree.leaves(step.grads))
  first = jax.tree.map(lambda u: u[0], step.updates)
  what = 'the update (mean gradient less the growth of pending values)'
  _compare(1, case, what, first, expected, 1e-5 + float(coarse), left)


def check_rejection(step: Step, case: Case) -> None:
  """A NaN on one worker rejects the step on all, and leaves no trace."""
  if step.ok.all():
    return
  for path, x in _paths(step.updates):
    if not np.all(np.isnan(x.astype(np.float32))):
      fail(4, case, f'a worker has a NaN, and the update of {path} is {x}')
  for path, x in _paths(step.after):
    if not np.all(np.isfinite(x)):
      fail(6, case, f'a NaN gradient leaves {x} in the state, {path}')
  for path, x in _paths(step.delivered):
    if np.any(x):
      fail(1, case, f'{path}: {x} was delivered in a rejected step')
  for name, own in (('memory', True), ('compressor', False)):
    before, after = (
      jax.tree.map(
        lambda x, local: None if local else x,
        getattr(state, name),
        ownership.is_local(getattr(state, name), default=own),
      )
      for state in (step.before, step.after)
    )
    what = f'after a rejected step the shared part of state.{name}'
    same_bits(6, case, what, after, before)


def check_resumed(again: Any, step: Step, case: Case) -> None:
  """Law 6: a step from a copy of the state does the same, to the bit."""
  updates, state, _ = again
  same_bits(6, case, 'the update, resumed', updates, step.updates)
  same_bits(6, case, 'the state, resumed', state, step.after)


def check_reported(planned: Plan, step: Step, case: Case) -> None:
  """Law 5: the state reports bytes that the plan lists."""
  possible = [rung.payload_bytes for s in planned.schedules for rung in s.rungs]
  possible += [payload for payload, _ in planned.rungs]
  possible = possible or [planned.payload_bytes]
  measured = int(metrics(step.after)['payload_bytes'])
  if measured not in possible:
    fail(5, case, f'a message has {measured} bytes, the plan says {possible}')


def check_program(found: Audit, planned: Plan, case: Case) -> None:
  """Law 5: the compiled program sends the planned bytes."""
  sent = planned.sent_bytes
  if planned.rungs:
    # A plan counts a schedule's last density, an audit all of them.
    by_step = [s.rungs[s.planned].sent_bytes for s in planned.schedules]
    sizes = [size for _, size in planned.rungs]
    sent += max(sizes) - (by_step[0] if by_step else sizes[-1])
  if found.sent_bytes != sent:
    fail(
      5,
      case,
      f'the program sends {found.sent_bytes} bytes, the plan says {sent}:\n'
      f'{found}\n{planned}',
    )


def check_unbiased(
  tx: CompressedMean, params: Any, case: Case, seed: int
) -> None:
  """Law 2: the mean over draws is the gradient.

  The tolerance is 5.5 standard errors, which chance exceeds once in 26 million,
  plus 20 draws of the largest value: the standard error of rare draws is not
  known. The gradient is uniform, so that no element is large enough to be
  clipped.
  """
  rng = np.random.default_rng(seed)
  grads = jax.tree.map(
    lambda p: jnp.asarray(rng.uniform(-1, 1, p.shape), p.dtype), params
  )
  moments = jax.tree.map(lambda g: jnp.square(g.astype(jnp.float32)), grads)
  state = tx.init(params)

  def draw(number):
    _, _, delivered = tx.step(
      grads, state._replace(steps=number), second_moment=moments
    )
    return delivered

  draws = jax.jit(jax.vmap(draw))(jnp.arange(_DRAWS))
  for (path, x), (_, g) in zip(_paths(draws), _paths(grads), strict=True):
    mean = np.asarray(np.mean(x, axis=0, dtype=np.float64))
    error = np.std(x, axis=0, dtype=np.float64) / np.sqrt(_DRAWS)
    # Rare draws may all be missing, so that their error is not estimated.
    rare = 20 * np.max(np.abs(x), initial=0.0) / _DRAWS
    off = np.asarray(np.abs(mean - g.astype(np.float64)) - 5.5 * error - rare)
    if off.size and not np.all(off <= 1e-5):
      at = _worst(off)
      fail(
        2,
        case,
        f'{path} at {at} is {mean[at]} in the mean over {_DRAWS} draws '
        f'(standard error {error[at]}), the gradient is {g[at]}',
      )
