"""`plan()`: the bytes that a scheme will send.

`plan` traces an update and counts every collective, without running it.
audit.py reads the bytes of a compiled program. Both use the formulas of
counting.py, and a test compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import math
from typing import Any, NamedTuple

from gradsparse import arguments
from gradsparse import tables
from gradsparse.traffic import counting
from gradsparse.traffic import demands
import jax
import jax.numpy as jnp
import optax


class Stage(NamedTuple):
  """Steps whose updates have one size.

  Attributes:
    first_step: counted from 0; the stage lasts until the next one begins.
    density: the density that the message has room for; None if several schemes
      have different ones.
    payload_bytes: as in `Plan`.
    sent_bytes: as in `Plan`.
    ratio: as in `Plan`.
  """

  first_step: int
  density: float | None
  payload_bytes: int
  sent_bytes: int
  ratio: float


class RunAverage(NamedTuple):
  """The average bytes of an update of a run.

  Attributes:
    payload_bytes: mean over the steps.
    sent_bytes: mean over the steps.
    ratio: dense_bytes / payload_bytes.
  """

  payload_bytes: float
  sent_bytes: float
  ratio: float


@dataclasses.dataclass(frozen=True)
class Plan:
  """The bytes of one update. `str()` gives a table, and a line for each stage.

  A notebook shows the same table.

  With `gs.accumulate`, one of `every` updates sends these bytes and the others
  send none. Schedules and stages then count only the updates that send.

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> dense = gs.dense(axis_name='workers')
  >>> plan = gs.plan(dense, {'w': jnp.zeros(100)}, num_workers=2)
  >>> plan.payload_bytes, plan.sent_by_axis
  (400, {'workers': 404})

  Attributes:
    rows: a line for each leaf, or each message of several leaves.
    sent_bytes: bytes that the worker that sends most puts on the network.
    num_workers: P.
    rungs: (payload, sent) bytes of each size of a message, if it depends on
      data or on a schedule; else empty. Bytes that do not depend on the size
      (dense leaves, agreements) are not included.
    sent_by_axis: mesh axis -> sent bytes.
    schedules: how density schedules change the messages; see `stages`.
  """

  rows: tuple[counting.Row, ...]
  sent_bytes: int
  num_workers: int | Mapping[str, int]
  rungs: tuple[tuple[int, int], ...] = ()
  sent_by_axis: Mapping[Any, int] = dataclasses.field(default_factory=dict)
  schedules: tuple[counting.Schedule, ...] = ()

  def over(self, axis_name: Any) -> Plan:
    """The part of the plan that crosses one axis, for two levels.

    Raises:
      ValueError: no message crosses that axis.
    """
    rows = tuple(row for row in self.rows if row.axis == axis_name)
    if not rows:
      axes = sorted({str(row.axis) for row in self.rows})
      raise ValueError(
        f'axis_name must be an axis that a message crosses, {axes}, got '
        f'{axis_name!r}'
      )
    sent = self.sent_by_axis.get(axis_name, 0)
    return dataclasses.replace(
      self,
      rows=rows,
      sent_bytes=sent,
      sent_by_axis={axis_name: sent},
      schedules=tuple(s for s in self.schedules if s.axis == axis_name),
    )

  @property
  def every(self) -> int:
    """One of this many updates sends the planned bytes, the others none."""
    return max((row.every for row in self.rows), default=1)

  @property
  def dense_bytes(self) -> int:
    """Bytes of the gradient as float32, whatever its dtype, for one level."""
    axes = {row.axis for row in self.rows}
    return max(
      (
        sum(row.dense_bytes for row in self.rows if row.axis == axis)
        for axis in axes
      ),
      default=0,
    )

  @property
  def payload_bytes(self) -> int:
    """Bytes of one worker's message and of the leaves that stay dense.

    Dense leaves have 4 bytes an element, those of float64 have 8: `gs.dense` of
    float64 leaves has a ratio of 0.5.
    """
    return sum(row.payload_bytes for row in self.rows)

  @property
  def ratio(self) -> float:
    """dense_bytes / payload_bytes."""
    return self._ratio(self.payload_bytes)

  def _ratio(self, payload: float) -> float:
    if not payload:
      return math.inf if self.dense_bytes else 1.0
    return self.dense_bytes / payload

  @property
  def stages(self) -> tuple[Stage, ...]:
    """The sizes of an update over a run, if schedules change them.

    The stages are in order, from step 0, whatever step was planned. There are
    none without a density schedule. A stage lasts as long as messages keep
    their size, even if the density changes. All changes within the first 65,536
    steps are included; for later ones see `schedules.changes`.
    """
    planned = [s.rungs[s.planned] for s in self.schedules]
    stages = []
    firsts = {first for s in self.schedules for first, _ in s.stages}
    for first in sorted(firsts):
      now = [s.at(first) for s in self.schedules]
      payload, sent = self.payload_bytes, self.sent_bytes
      for old, new in zip(planned, now, strict=True):
        payload += new.payload_bytes - old.payload_bytes
        sent += new.sent_bytes - old.sent_bytes
      densities = {rung.density for rung in now}
      density = densities.pop() if len(densities) == 1 else None
      stages.append(Stage(first, density, payload, sent, self._ratio(payload)))
    return tuple(stages)

  def over_run(self, steps: int) -> RunAverage:
    """The average bytes of an update over the first steps of a run.

    The average includes the warm-up, whereas `Plan.ratio` is that of the last
    stage. Messages whose size depends on data count with their largest size.
    Updates that send nothing count too.

    Args:
      steps: length of the run, in updates.

    Raises:
      TypeError: steps is not a whole number.
      ValueError: steps is not positive.
    """
    steps = arguments.whole_number('steps', steps, 1)
    constant = Stage(0, None, self.payload_bytes, self.sent_bytes, self.ratio)
    stages = self.stages or (constant,)
    exchanges = steps // self.every
    ends = [*(stage.first_step for stage in stages[1:]), exchanges]
    payload = sent = 0
    for stage, end in zip(stages, ends, strict=True):
      lasts = max(0, min(end, exchanges) - stage.first_step)
      payload += lasts * stage.payload_bytes
      sent += lasts * stage.sent_bytes
    mean = payload / steps
    return RunAverage(mean, sent / steps, self._ratio(mean))

  def __str__(self) -> str:
    parts = [tables.as_text(self._leaf_lines(), left=(0, 5))]
    parts += self._notes()
    if self.stages:
      parts.append(tables.as_text(self._stage_lines()))
    return '\n'.join(parts)

  def _repr_html_(self) -> str:
    """The plan as HTML, for notebooks."""
    leaves = self._leaf_lines()
    parts = [tables.as_html(leaves, left=(0, 5), notes=self._notes())]
    if self.stages:
      parts.append(tables.as_html(self._stage_lines()))
    return '\n'.join(parts)

  def _notes(self) -> list[str]:
    if self.every == 1:
      return []
    return [f'in one of {self.every} updates; nothing in the others']

  def _leaf_lines(self) -> tables.Lines:
    head = ('leaf', 'elements', 'dense B', 'payload B', 'ratio', 'transport')
    total = counting.Row(
      'total',
      sum(row.elements for row in self.rows),
      self.dense_bytes,
      self.payload_bytes,
      f'sent by a worker: {self.sent_bytes:,} B',
    )
    lines = [
      (
        row.name,
        f'{row.elements:,}',
        f'{row.dense_bytes:,}',
        f'{row.payload_bytes:,}',
        f'{row.dense_bytes / row.payload_bytes:.1f}'
        if row.payload_bytes
        else '-',
        row.transport,
      )
      for row in (*self.rows, total)
    ]
    return [head, *lines]

  def _stage_lines(self) -> tables.Lines:
    stages = self.stages
    lasts = [f'to {stage.first_step - 1:,}' for stage in stages[1:]]
    lines = [
      (
        f'{stage.first_step:,} {last}',
        '-' if stage.density is None else f'{stage.density:g}',
        f'{stage.payload_bytes:,}',
        f'{stage.sent_bytes:,}',
        f'{stage.ratio:.1f}',
      )
      for stage, last in zip(stages, [*lasts, 'on'], strict=True)
    ]
    steps = 'steps' if self.every == 1 else 'exchanges'
    return [(steps, 'density', 'payload B', 'sent B', 'ratio'), *lines]


def plan(
  tx: optax.GradientTransformation,
  params: Any,
  num_workers: int | Mapping[str, int],
  step: int | None = None,
  *,
  update_kwargs: Mapping[str, Any] | None = None,
) -> Plan:
  """The bytes that an update of `tx` will send, from shapes alone.

  With a density schedule, the table is that of one step, the lines below are
  the stages, and `over_run` is the average of a run:

  >>> import gradsparse as gs
  >>> schedule = gs.schedules.dgc_warmup(0.001, warmup_steps=400)
  >>> tx = gs.dgc(schedule, axis_name='workers')
  >>> shapes = {'w': jnp.zeros((1000, 100)), 'b': jnp.zeros(100)}
  >>> plan = gs.plan(tx, shapes, num_workers=2)
  >>> print(plan)
  leaf   elements  dense B  payload B  ratio  transport
  ['b']       100      400        400    1.0  dense
  ['w']   100,000  400,000        560  714.3  dgc, all-gather
  total   100,100  400,400        960  417.1  sent by a worker: 960 B
  steps        density  payload B   sent B  ratio
  0 to 99         0.25    113,040  113,040    3.5
  100 to 199    0.0625     30,092   30,092   13.3
  200 to 299  0.015625      8,224    8,224   48.7
  300 to 399     0.004      2,504    2,504  159.9
  400 on         0.001        960      960  417.1
  >>> print(f'{plan.ratio:.0f}, but {plan.over_run(4000).ratio:.0f} in all')
  417, but 85 in all

  Args:
    tx: a scheme, or any optax transformation with schemes inside.
    params: arrays or ShapeDtypeStructs.
    num_workers: P, at most 65,536; or a mapping from axis name to P for
      several axes.
    step: the step at which density schedules are read; None is their last
      density. With `gs.accumulate`, steps are exchanges. If a message's size
      depends on data, the largest is planned and `rungs` lists all.
    update_kwargs: further arguments of `tx.update`, as in `gs.workers.specs`.

  Raises:
    TypeError: num_workers or step is not a whole number, tx is not an optax
      transformation, or a leaf of params is not an array.
    ValueError: num_workers, step or a schedule's density at that step is out of
      range; tx holds no scheme; or only some schemes are inside
      `gs.accumulate`.
  """
  arguments.transformation('tx', tx)
  arguments.arrays('params', params)
  if isinstance(num_workers, Mapping):
    num_workers = {
      axis: arguments.num_workers(size) for axis, size in num_workers.items()
    }
  else:
    num_workers = arguments.num_workers(num_workers)
  if step is not None:
    step = arguments.whole_number('step', step, 0, arguments.LAST_STEP)
  shapes = jax.tree.map(
    lambda p: jax.ShapeDtypeStruct(jnp.shape(p), jnp.result_type(p)), params
  )
  asked: set[str] = set()

  def recorded():
    recorder = counting.Recorder(num_workers, step=step)

    # A new function each time: eval_shape caches by identity, and a cached
    # trace would record nothing.
    def once(params):
      with demands.heard() as wanted:
        state = tx.init(params)
      update = demands.update_of(tx, wanted, update_kwargs, asked)
      return update(demands.gradients_of(params), state, params)

    known = len(asked)
    with counting.recording(recorder):
      jax.eval_shape(once, shapes)
    # If the update was traced again, the records have it twice.
    return recorder if len(asked) == known else recorded()

  recorder = recorded()
  if not recorder.rows and jax.tree.leaves(params):
    raise ValueError(
      'tx must hold a gradsparse scheme, found none: nothing would be averaged '
      'over workers'
    )
  seldom = sorted({row.every for row in recorder.rows})
  if len(seldom) > 1:
    raise ValueError(
      'all schemes of tx must exchange in the same updates, got some that '
      f'exchange once in {seldom[-1]} updates, others once in {seldom[0]}. Put '
      'one gs.accumulate around the whole chain, or plan them separately'
    )
  return Plan(
    tuple(recorder.rows),
    recorder.most_sent,
    num_workers,
    tuple(recorder.rungs),
    recorder.most_sent_by_axis,
    tuple(recorder.schedules),
  )
