"""Runs a scheme over the cases and checks the laws."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import Any

from gradsparse import arguments
from gradsparse import workers
from gradsparse.sockets import Sparse
from gradsparse.testing import laws
from gradsparse.testing.cases import TREES
from gradsparse.testing.cases import Case
from gradsparse.testing.cases import cases
from gradsparse.testing.cases import gradients
from gradsparse.testing.cases import moments
from gradsparse.testing.cases import parameters
from gradsparse.testing.cases import poisoned
from gradsparse.traffic.audit import audit
from gradsparse.traffic.plan import plan
from gradsparse.transform.compressed_mean import CompressedMean
from gradsparse.transform.compressed_mean import compressed_mean
import jax
from jax.sharding import PartitionSpec as P
import numpy as np

_OWN = P(workers.AXIS)


def check_scheme(
  make: Callable[[str | None], CompressedMean],
  *,
  num_workers: Sequence[int] = (1, 2, 3, 4),
  runners: Sequence[workers.Runner] | None = None,
  trees: Mapping[str, Any] | None = None,
  exempt: Sequence[int] = (),
  steps: int = 4,
  seed: int = 0,
) -> list[Case]:
  """Runs a scheme over awkward trees and checks the laws that apply to it.

  The laws are: 1 nothing is lost, and the update is made of the mean of
  delivered values; 2 an unbiased scheme is unbiased; 4 all workers agree to the
  bit; 5 `plan`, `metrics` and, on devices, the compiled program agree on bytes;
  6 the state is a plain pytree that survives a copy bit for bit; 7 a tree of
  which nothing is compressed is refused. Also, a NaN on one worker rejects the
  step on all, and leaves no trace. (Law 3, the exact limit, depends on the
  scheme.)

  >>> import gradsparse as gs
  >>> def make(axis_name):
  ...   return gs.dense(axis_name=axis_name)
  >>> for case in gs.testing.check_scheme(
  ...   make,
  ...   num_workers=(2,),
  ...   runners=('simulate',),
  ...   trees={'one': {'w': (9, 7), 'b': (5,)}},
  ... ):
  ...   print(case)
  2 workers, simulate, one

  Args:
    make: axis_name -> the scheme; None is one worker.
    num_workers: numbers of workers; each is a program to compile.
    runners: of `gs.workers.RUNNERS`, for every number of workers. None is
      'simulate' for all numbers, and each other runner for the largest number
      that the machine has devices for.
    trees: name -> tree of shapes, or of (shape, dtype); None is `TREES`.
      Trees of which the scheme compresses no leaf are left out.
    exempt: numbers of laws that do not apply, by definition.
    steps: steps of each run, at least 3; in the last but one a worker has a
      NaN.
    seed: seed of the gradients.

  Returns:
    The cases that were checked.

  Raises:
    AssertionError: a law fails; the message names it, the case and the numbers.
    TypeError: make does not return a scheme (but a chain, for instance).
    ValueError: the scheme compresses none of the trees, or steps is less than
      3.
  """
  arguments.function('make', make)
  steps = arguments.whole_number('steps', steps, 3)
  checked = []
  for name, shapes in (TREES if trees is None else trees).items():
    params = parameters(shapes)
    tx = make(workers.AXIS)
    arguments.instance('what make(axis_name) returns', tx, CompressedMean)
    if not _compresses(tx, params, name):
      continue
    _check_code(tx, params, Case(name, 1, 'simulate'), seed)
    for case in cases(name, num_workers, runners):
      _check_case(tx, params, case, exempt, steps, seed)
      checked.append(case)
    if 2 not in exempt and tx.scheme.compressor.unbiased:
      laws.check_unbiased(make(None), params, Case(name, 1, 'simulate'), seed)
  if not checked:
    raise ValueError(
      'trees must have a leaf that the scheme compresses, got none: nothing '
      'was checked'
    )
  return checked


def _compresses(tx: CompressedMean, params: Any, name: str) -> bool:
  """Checks law 7; returns whether a leaf is compressed."""
  compressed = bool(tx.layout(params).compressed)
  try:
    tx.init(params)
  except ValueError:
    if compressed:
      raise
    return False
  if not compressed:
    raise AssertionError(
      f'law 7 ({name}): init accepts a tree of which no leaf is compressed'
    )
  return True


def _check_case(
  tx: CompressedMean,
  params: Any,
  case: Case,
  exempt: Sequence[int],
  steps: int,
  seed: int,
) -> None:
  count = case.num_workers
  specs = workers.specs(tx, params, count)

  def one(state, grads, moments):
    updates, state, delivered = tx.step(grads, state, second_moment=moments)
    return updates, state, delivered

  fn = workers.parallel(
    one,
    runner=case.runner,
    num_workers=count,
    in_specs=(specs, _OWN, _OWN),
    out_specs=(_OWN, specs, _OWN),
    # `specs` has checked the types; checking again would be one more trace.
    check_vma=case.runner == 'shard_map',
  )
  rng = np.random.default_rng(seed)
  state = jax.tree.map(
    lambda x, spec: workers.stack(x, count) if spec != P() else x,
    tx.init(params),
    specs,
  )
  state = _to_numpy(state)
  laws.check_ownership(specs, state, case)
  program: Any = None
  history = []
  for number in range(steps):
    grads = gradients(params, count, rng)
    second = moments(grads, rng)
    ok = np.ones(count, bool)
    if number == steps - 2:
      grads, ok[-1] = poisoned(grads), False
    if program is None:
      program = fn.lower(state, grads, second).compile(laws.QUICKLY)
    before = _to_numpy(state)
    updates, state, delivered = program(before, grads, second)
    last = (grads, second)
    after, updates, delivered = _to_numpy((state, updates, delivered))
    step = laws.Step(grads, second, before, after, updates, delivered, ok)
    laws.check_types(step, case)
    history.append(step)
  planned = plan(tx, params, count)
  for step in history:
    laws.check_agreement(step, case)
    if 1 not in exempt:
      laws.check_conservation(tx, specs, step, case)
      laws.check_flow(tx, specs, step, case)
    laws.check_rejection(step, case)
    laws.check_reported(planned, step, case)
  again = _to_numpy(program(history[-1].before, *last))
  laws.check_resumed(again, history[-1], case)
  if case.runner == 'shard_map':
    laws.check_program(audit(program), planned, case)


def _to_numpy(tree: Any) -> Any:
  return jax.tree.map(np.asarray, tree)


def _check_code(tx: CompressedMean, params: Any, case: Case, seed: int) -> None:
  """Law 1 for the code: unpacking a packed message restores it.

  This runs with one worker, as one program that returns what the exchange sees.
  """
  memory, compressor, exchange, *_ = tx.scheme
  if compressor.ladder is not None:
    ladder = compressor.ladder
    largest = ladder._replace(rungs=lambda shapes: ladder.rungs(shapes)[-1:])
    compressor = compressor._replace(ladder=largest)

  def alone(exchange):
    return compressed_mean(
      memory,
      compressor,
      exchange,
      axis_name=None,
      min_size=tx.scheme.min_size,
      dense_paths=tx.scheme.dense_paths,
    )

  def seen(grads, state, second):
    """(what unpack restores, what round returned, own if it is a Sparse)."""
    out = []

    def run(message, comm):
      again = message.code.unpack(message.words, message.rounded, message.ctx)
      rounded = message.rounded
      if isinstance(rounded, Sparse):  # which entries a chunk has, is not sent
        rounded = dataclasses.replace(rounded, per_chunk=None)
      wanted: Any = jax.tree.structure(rounded)
      if jax.tree.structure(again) != wanted:
        kinds = type(again).__name__, type(rounded).__name__
        laws.fail(
          1, case, 'code.unpack returned {} and code.round {}'.format(*kinds)
        )
      own = message.own if isinstance(message.own, Sparse) else None
      out.append((again, rounded, own))
      return exchange.run(message, comm)

    alone(exchange._replace(run=run)).update(grads, state, second_moment=second)
    return out

  rng = np.random.default_rng(seed)
  grads = jax.tree.map(lambda g: g[0], gradients(params, 1, rng))
  second = jax.tree.map(lambda g: np.square(g, dtype=np.float32) / 2, grads)
  args = grads, alone(exchange).init(params), second
  found = jax.jit(seen).lower(*args).compile(laws.QUICKLY)(*args)
  for again, rounded, own in found:
    laws.same_bits(1, case, 'what `unpack` makes of `pack`', again, rounded)
    if own is not None:
      _check_sparse(own, case)


def _check_sparse(own: Sparse, case: Case) -> None:
  """Checks the order, the empty slots and the leaves' limits of a Sparse."""
  indices, values = np.asarray(own.indices), np.asarray(own.values)
  held = indices[indices < own.space.size]
  if np.any(np.diff(indices) < 0) or np.any(np.diff(held) == 0):
    laws.fail(1, case, f'a Sparse has indices that do not ascend: {indices}')
  if np.any(values[indices >= own.space.size]):
    laws.fail(1, case, f'empty slots of a Sparse hold {values}')
  ends = np.searchsorted(held, own.space.offsets)
  for leaf, (n, most) in enumerate(
    zip(np.diff(ends), own.space.limits, strict=True)
  ):
    if n > most:
      laws.fail(1, case, f'leaf {leaf} has {n} entries, its limit is {most}')
