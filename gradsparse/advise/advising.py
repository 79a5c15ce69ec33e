"""`advise`: one row for each scheme, and the decision from the rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import math
import sys
from typing import Any, NamedTuple

from gradsparse.advise import calibration
from gradsparse.advise import costs
from gradsparse.advise import param_shapes
from gradsparse.advise import question
from gradsparse.advise import recorded
from gradsparse.advise import words
from gradsparse.advise.advice import Advice
from gradsparse.advise.advice import Decision
from gradsparse.advise.advice import Row
from gradsparse.advise.advice import Source
from gradsparse.advise.candidates import BASELINE
from gradsparse.advise.candidates import Candidate
from gradsparse.traffic.plan import plan
from gradsparse.wrappers.sharded import sharded
import jax

AXIS = 'workers'
INNER = 'inner'
# XLA's estimates are for this many workers, all of whose messages are decoded.
_ESTIMATED_WORKERS = 8
_MOST_CALIBRATED = 16


class Planned(NamedTuple):
  """A scheme with the bytes that `gs.plan` counts."""

  candidate: Candidate
  tx: Any
  exchange: costs.Exchange
  state_bytes: int

  @property
  def has_memory(self) -> bool:
    """Whether a memory stands before the optimizer."""
    scheme = self.tx.known('scheme')
    return bool(scheme and scheme.memory.floats) and not self.candidate.outer


def advise(
  params: Any,
  *,
  step_s: float,
  workers: int,
  bandwidth: float | str,
  backward_s: float | None = None,
  latency_s: float = 0.0,
  inner: int = 1,
  optimizer: str = 'sgd',
  task: str | None = None,
  schemes: Sequence[str | Candidate] | None = None,
  sync_every: int = 30,
  calibrate: bool = False,
  code_s: Mapping[str, float] | None = None,
  memory_bandwidth: float | None = None,
) -> Advice:
  """Advises whether to compress gradients, and with which scheme.

  All schemes are compared with dense all-reduces in bfloat16 that overlap the
  backward pass. Bytes are those of `gs.plan`. Nothing is trained.

  >>> import gradsparse as gs
  >>> advice = gs.advise(
  ...   {'w': [512, 512]}, step_s=0.1, workers=4, bandwidth='400gbit',
  ...   schemes=['dgc 0.001'])
  >>> advice.decision, [row.scheme for row in advice.rows]
  ('do not compress', ['dense bfloat16', 'dgc 0.001'])

  Args:
    params: the number of parameters, also as '1.3B'; or a tree of arrays, of
      `jax.ShapeDtypeStruct` or of shapes (lists of whole numbers); or the path
      of a JSON file with a tree of shapes. Gradients are assumed to be float32.
    step_s: time of a worker's step without any exchange: forward pass, backward
      pass and optimizer, seconds, at most 100.
    workers: P, the workers that exchange over the slow link.
    bandwidth: bandwidth of a worker's link in one direction, in bits a second
      or as '10gbit' or '450gbyte'; the worker's devices share it. For a worker
      of several hosts, the sum over its hosts.
    backward_s: the part of step_s that a dense exchange can overlap, seconds;
      None takes two thirds of step_s.
    latency_s: latency of one message, seconds, at most 10.
    inner: devices of a worker. With more than one, gradients are assumed to be
      sharded over them (`gs.sharded`); messages between them are not counted.
    optimizer: the optimizer after the scheme: 'sgd' (with momentum), 'adam' or
      'adamw'.
    task: the task whose record is quoted: 'resnet20', 'gpt', 'cifar10',
      'digits', 'ptb', 'speech' or 'translation'; None takes 'resnet20' for SGD,
      which has the longest runs, otherwise 'gpt', which was trained with AdamW.
    schemes: labels of `gradsparse.advise.candidates.CANDIDATES`, or further
      objects of class `Candidate`; None takes all. 'one_bit_adam' is one only
      where the optimizer is Adam.
    sync_every: H of the outer steps, 'diloco' and 'sparse_loco': they exchange
      once in H steps.
    calibrate: whether to measure each scheme's arithmetic on this machine's
      device, which takes some minutes; otherwise it is a guess.
    code_s: label -> seconds of a scheme's arithmetic, measured elsewhere.
    memory_bandwidth: memory bandwidth of the device that trains, bytes a
      second, at least 1e9, for the guess; None is a TPU v5e's, 819e9.

  Raises:
    TypeError: an argument is of the wrong kind.
    ValueError: an argument is out of range, a word is unknown, or a path names
      no file of shapes.
  """
  asked = question.asked(
    params,
    step_s=step_s,
    backward_s=backward_s,
    workers=workers,
    bandwidth=bandwidth,
    latency_s=latency_s,
    inner=inner,
    optimizer=optimizer,
    task=task,
    schemes=schemes,
    sync_every=sync_every,
    code_s=code_s,
    memory_bandwidth=memory_bandwidth,
    calibrate=calibrate,
  )
  planned, left_out = [_planned(asked, BASELINE)], {}
  for candidate in asked.schemes:
    try:
      planned.append(_planned(asked, candidate))
    except ValueError as e:
      left_out[candidate.label] = str(e)
  rows = _rows(asked, planned)
  decision, choice = _decided(rows, asked.task)
  chosen = next(p for p in planned if p.candidate.label == choice)
  return Advice(
    decision=decision,
    verdict=words.verdict(asked, rows, decision, choice, chosen.has_memory),
    choice=choice,
    rows=tuple(sorted(rows, key=lambda row: row.step_s)),
    baseline=BASELINE.label,
    code=words.code(asked, chosen.tx, chosen.candidate),
    assumptions=words.assumptions(asked, rows),
    left_out=left_out,
    inputs=asked.inputs,
  )


def _planned(asked: question.Question, candidate: Candidate) -> Planned:
  """Plans a scheme, in its form for large models if it needs one.

  Raises:
    ValueError: no form of the scheme fits the model.
  """
  try:
    return _planned_as(asked, candidate, asked.inner > 1)
  except ValueError:
    if asked.inner > 1 or not candidate.if_large:
      raise
  return _planned_as(asked, candidate, True)


def _planned_as(
  asked: question.Question, candidate: Candidate, large: bool
) -> Planned:
  tx = candidate.make(AXIS, adam=asked.adam, large=large)
  over: Any = tx
  sizes = {AXIS: asked.workers}
  if asked.inner > 1:
    specs = param_shapes.sharded(asked.shapes, INNER, asked.inner)
    over, sizes = sharded(tx, specs), {AXIS: asked.workers, INNER: asked.inner}
  counted = plan(over, asked.shapes, sizes)
  sent = asked.inner * counted.sent_by_axis.get(AXIS, 0)
  exchange = costs.Exchange(
    sent,
    costs.rounds((row.transport for row in counted.rows), asked.workers),
    asked.backward_s if candidate.overlaps else 0.0,
  )
  init = candidate.outer_step(tx).init if candidate.outer else tx.init
  state = jax.tree.leaves(jax.eval_shape(init, asked.shapes))
  held = sum(leaf.size * leaf.dtype.itemsize for leaf in state)
  return Planned(candidate, tx, exchange, -(-held // asked.inner))


def _rows(asked: question.Question, planned: Sequence[Planned]) -> list[Row]:
  """The rows of the planned schemes, in their order; the baseline is first."""
  base = planned[0].exchange
  codes = _Codes(asked)
  rows: list[Row] = []
  for scheme in planned:
    candidate, exchange = scheme.candidate, scheme.exchange
    code, source = codes.of(scheme)
    every = candidate.sync_every
    span = costs.added(
      exchange, asked.link, code, guessed=source == 'guess', sync_every=every
    )
    wins, below = costs.break_even(
      base, exchange, asked.link.latency_s, code, every
    )
    step = asked.step_s + span.expected
    losses = _recorded(candidate, asked.task)
    rows.append(
      Row(
        scheme=candidate.label,
        sync_every=every,
        sent_bytes=exchange.sent_bytes,
        code_s=code,
        code_source=source,
        exchange_s=exchange.seconds(asked.link),
        step_s=step,
        step_least_s=asked.step_s + span.least,
        step_most_s=asked.step_s + span.most,
        speedup=(rows[0].step_s if rows else step) / step,
        wins=wins,
        wins_below=below,
        state_bytes=scheme.state_bytes,
        loss=losses[0] if losses else None,
        worse=next((loss for loss in losses if loss.as_good is False), None),
        note=candidate.note,
      )
    )
  return rows


def _recorded(candidate: Candidate, task: str) -> list[recorded.Loss]:
  """The recorded results of a scheme, nearest first.

  That is the one of this task. Of others, those that ended worse come first,
  then those with several seeds.
  """
  found = [
    recorded.LOSSES[name, candidate.records[name]]
    for name in recorded.TASKS
    if name in candidate.records
  ]
  return sorted(
    found,
    key=lambda loss: (
      loss.task != task,
      loss.as_good is not False,
      loss.seeds == 1,
    ),
  )


class _Codes:
  """Times the arithmetic of schemes on one device."""

  def __init__(self, asked: question.Question):
    self._asked = asked
    local = param_shapes.local(asked.shapes, asked.inner)
    self._elements = param_shapes.elements(local)
    self._portion = calibration.portion(local)

  def of(self, scheme: Planned) -> tuple[float, Source]:
    """Seconds of a scheme's arithmetic, and their source."""
    asked, candidate = self._asked, scheme.candidate
    if candidate.label in asked.code_s:
      return asked.code_s[candidate.label], 'given'
    if candidate.recipe == 'dense' or asked.workers == 1:
      return 0.0, ''  # this favours dense
    if asked.calibrate:
      try:
        return self._measured(scheme), 'measured'
      except ValueError:  # no leaf of the portion is compressed
        pass
    steps = recorded.STEPS_OF_SGD.get(
      candidate.estimate, max(recorded.STEPS_OF_SGD.values())
    )
    more = asked.workers / _ESTIMATED_WORKERS if candidate.decodes_all else 1
    sgd = costs.sgd_step_s(self._elements, asked.memory_bandwidth)
    # step_s already contains one step of momentum SGD.
    return max(0.0, max(1.0, more) * steps - 1) * sgd, 'guess'

  def _measured(self, scheme: Planned) -> float:
    print(f'measuring {scheme.candidate.label}', file=sys.stderr, flush=True)
    workers = min(self._asked.workers, _MOST_CALIBRATED)
    took = calibration.seconds(scheme.tx, self._portion, workers)
    if scheme.candidate.decodes_all:
      took *= self._asked.workers / workers
    scale = self._elements / param_shapes.elements(self._portion)
    return scale * took


def _decided(rows: Sequence[Row], task: str) -> tuple[Decision, str]:
  """The decision, and the label of the advised row."""
  base, *others = rows
  acceptable = [row for row in others if words.acceptable(row)]
  good = [row for row in acceptable if row.speedup >= words.WORTH_WHILE]
  if good:
    best = min(
      good,
      key=lambda row: (
        not row.surely_faster(base),
        words.doubt(row, task),
        row.step_s,
      ),
    )
    known = words.doubt(best, task) == 0 and best.surely_faster(base)
    return 'compress' if known else 'measure', best.scheme
  most = min((row.step_most_s for row in acceptable), default=math.inf)
  may_wait = base.step_most_s > words.WORTH_WHILE * most
  return 'measure' if may_wait else 'do not compress', base.scheme
