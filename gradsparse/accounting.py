"""What a scheme promises to send: `plan()`.

The update is traced with every collective counted and none performed. What a
compiled program really moves, auditing.py reads; both count by the rules of
traffic.py, and a test holds them together.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import math
from typing import Any

from gradsparse import arguments
from gradsparse import traffic
import jax
import jax.numpy as jnp
import optax


@dataclasses.dataclass(frozen=True)
class Plan:
  """What one update sends. `str()` is the table.

  Attributes:
    rows: a line for each leaf, or joined group of leaves.
    sent_bytes: what a worker puts on the network, the largest over workers.
    num_workers: P.
    sent_by_axis: sent_bytes by the axis that they cross.
    rungs: (payload, sent) bytes of each size a message can have, where it
      depends on data or on a schedule; empty otherwise.
  """

  rows: tuple[traffic.Row, ...]
  sent_bytes: int
  num_workers: int | Mapping[str, int]
  rungs: tuple[tuple[int, int], ...] = ()
  sent_by_axis: Mapping[Any, int] = dataclasses.field(default_factory=dict)

  def over(self, axis_name: Any) -> Plan:
    """The part that crosses one axis, where there are two levels.

    Raises:
      ValueError: nothing crosses that axis.
    """
    rows = tuple(row for row in self.rows if row.axis == axis_name)
    if not rows:
      axes = sorted({str(row.axis) for row in self.rows})
      raise ValueError(
        f'nothing is exchanged over axis {axis_name!r}, only over {axes}'
      )
    sent = self.sent_by_axis.get(axis_name, 0)
    return dataclasses.replace(
      self, rows=rows, sent_bytes=sent, sent_by_axis={axis_name: sent}
    )

  @property
  def dense_bytes(self) -> int:
    """Size of the gradient as float32, whatever the number of levels."""
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
    """One worker's message, and 4 bytes an element of the dense leaves."""
    return sum(row.payload_bytes for row in self.rows)

  @property
  def ratio(self) -> float:
    """dense_bytes / payload_bytes."""
    return self.dense_bytes / self.payload_bytes if self.payload_bytes else 1.0

  def __str__(self) -> str:
    head = ('leaf', 'elements', 'dense B', 'payload B', 'ratio', 'transport')
    lines = [
      (
        row.name,
        f'{row.elements:,}',
        f'{row.dense_bytes:,}',
        f'{row.payload_bytes:,}',
        _ratio(row.dense_bytes, row.payload_bytes),
        row.transport,
      )
      for row in self.rows
    ]
    lines.append(
      (
        'total',
        f'{sum(row.elements for row in self.rows):,}',
        f'{self.dense_bytes:,}',
        f'{self.payload_bytes:,}',
        f'{self.ratio:.1f}',
        f'sent by a worker: {self.sent_bytes:,} B',
      )
    )
    table = [head, *lines]
    widths = [max(len(line[c]) for line in table) for c in range(len(head))]

    def text(line):
      cells = [
        cell.ljust(w) if c in (0, 5) else cell.rjust(w)
        for c, (cell, w) in enumerate(zip(line, widths, strict=True))
      ]
      return '  '.join(cells).rstrip()

    return '\n'.join(map(text, table))


def _ratio(dense: int, payload: int) -> str:
  return f'{dense / payload:.1f}' if payload else '-'


def plan(
  tx: optax.GradientTransformation,
  params: Any,
  num_workers: int | Mapping[str, int],
  step: int | None = None,
) -> Plan:
  """What an update of `tx` will send, from shapes alone.

  Args:
    tx: a scheme, or any optax transformation with schemes inside.
    params: arrays or ShapeDtypeStructs.
    num_workers: P, at most 65,536; or a mapping from axis name to P for
      several axes.
    step: at which density schedules are read; None is their last density.
      Where a message's size depends on data, the largest is planned and
      `rungs` lists all.

  Raises:
    TypeError: num_workers or step is not a whole number.
    ValueError: num_workers or step is out of range, a schedule's density at
      that step is, or no scheme is inside.
  """
  if isinstance(num_workers, Mapping):
    num_workers = {
      axis: arguments.num_workers(size) for axis, size in num_workers.items()
    }
  else:
    num_workers = arguments.num_workers(num_workers)
  if step is not None:
    step = arguments.whole_number('step', step, 0)
  shapes = jax.tree.map(
    lambda p: jax.ShapeDtypeStruct(jnp.shape(p), jnp.result_type(p)), params
  )
  recorder = traffic.Recorder(num_workers, step)
  update = optax.with_extra_args_support(tx).update

  # A new function each time: eval_shape caches by identity, and a cached
  # trace would record nothing.
  def once(params):
    state = tx.init(params)
    return update(params, state, params, second_moment=params)

  with traffic.recording(recorder):
    jax.eval_shape(once, shapes)
  if not recorder.rows and jax.tree.leaves(params):
    raise ValueError(
      'found no gradsparse scheme in this transformation: nothing would be '
      'averaged over workers'
    )
  return Plan(
    tuple(recorder.rows),
    recorder.most_sent,
    num_workers,
    tuple(recorder.rungs),
    {axis: math.ceil(max(sent)) for axis, sent in recorder.sent.items()},
  )
