"""The bytes of a run, step by step, and the numbers that are sent."""

import collections
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from experiments.config import schemes
from experiments.hosts import placement
import gradsparse as gs


class Plans(NamedTuple):
  """What the steps of a run will send.

  Attributes:
    stages: of the run.
    gradients: the plan of each stage's first step, which sends most.
    inside: of the dense mean over the inner workers of a worker, in each step.
    average: of parameters that differ, from `gs.workers.plan_average`; None
      where none do.
  """

  stages: Sequence[schemes.Stage]
  gradients: Sequence[gs.Plan]
  inside: gs.Plan | None = None
  average: gs.Plan | None = None

  def __str__(self) -> str:
    """Returns their tables, each under the first step of its stage."""
    tables = [str(self.gradients[0])]
    if len(self.gradients) > 1:
      tables = [
        f'from step {stage.first_step}, density '
        f'{stage.density_at(stage.first_step):g}:\n{plan}'
        for stage, plan in zip(self.stages, self.gradients, strict=True)
      ]
    if self.inside and self.inside.sent_bytes:
      tables.append(
        f'in each step, over the {self.inside.num_workers} inner workers of a '
        f'worker:\n{self.inside}'
      )
    if self.average:
      tables.append(f'beside these, what averages parameters:\n{self.average}')
    return '\n\n'.join(tables)


class ByteCounter:
  """Counts the bytes of each step and of the run so far.

  A step measures what its scheme sent, to the byte: nothing, where it only
  accumulates gradients. A step that averages parameters sends these, too.
  """

  def __init__(self, plans: Plans):
    """Counts from zero.

    Args:
      plans: of the run.
    """
    self._stages, self._average = plans.stages, plans.average
    self._inner_sent = plans.inside.sent_bytes if plans.inside else 0
    self._dense = int(plans.gradients[-1].dense_bytes)
    self._every = plans.gradients[-1].every
    # Schemes count what they send of the leaves that they compress.
    self._uncompressed = [
      sum(row.elements for row in plan.rows if row.transport == 'dense')
      for plan in plans.gradients
    ]
    # Of the run so far, and of its last stage; where the density changes at
    # every step, of the last exchange.
    self._run: collections.Counter[str] = collections.Counter()
    self._last: collections.Counter[str] = collections.Counter()

  def count(self, step: int, metrics: Mapping[str, float]) -> dict[str, float]:
    """Counts a step; to be called for each, in order.

    Args:
      step: counted from 1.
      metrics: that the step measured; `comm/sent_elements` are of the leaves
        that the scheme compresses.

    Returns:
      What to log about it; a step that sends nothing has no ratio.
    """
    stage, density = self._exchange(step)
    payload = int(metrics['comm/payload_bytes'])
    sent = int(metrics['comm/sent_bytes'])
    elements = metrics['comm/sent_elements']
    if payload:
      elements += self._uncompressed[self._stages.index(stage)]
    average = self._average
    if average and step % average.every == 0:
      payload += average.payload_bytes
      sent += average.sent_bytes
      elements += sum(row.elements for row in average.rows)
    before = self._exchange(max(step - 1, 1))
    # Where parameters are averaged, the whole stage counts: one exchange may
    # have no average beside it.
    if stage != before[0] or (density != before[1] and not average):
      self._last.clear()
    for counted in (self._run, self._last):
      counted.update(steps=1, payload=payload, sent=sent, elements=elements)
    values = {
      'comm/payload_bytes': payload,
      'comm/sent_bytes': sent,
      'comm/sent_bytes_total': self._run['sent'],
      'comm/inner_sent_bytes': self._inner_sent,
    }
    if payload:
      values['comm/ratio'] = self._dense / payload
    if density is not None:
      values['comm/density'] = density
    return values

  def summary(self) -> dict[str, Any]:
    """Returns the bytes of a step at the end and over the whole run.

    The end is the stage of the last step that was counted; where the density
    changes at every step, the last exchange. Bytes are means over its steps.
    Where some steps average parameters they are means over the whole stage.
    `run_average_...` are means over all steps, warm-up included. An
    `element_ratio` is the number of parameters by the mean number of those that
    arrive from a worker, the compression ratio of the variance paper; None
    where nothing did. With gTop-k fewer arrive than are sent.

    Only `inner_sent_bytes_per_step` is sent inside a node, by an inner worker;
    all else is between workers, by each of a worker's inner workers.
    """
    return {
      'dense_bytes_per_step': self._dense,
      **self._means(self._last, ''),
      **self._means(self._run, 'run_average_'),
      'sent_bytes_total': self._run['sent'],
      'inner_sent_bytes_per_step': self._inner_sent,
    }

  def _means(self, counted, prefix: str) -> dict[str, float | None]:
    """Returns the means over the steps that were counted, by these names."""
    steps, elements = counted['steps'], counted['elements']
    payload = _mean(counted['payload'], steps)
    parameters = steps * self._dense / 4  # bytes each
    means = {
      'payload_bytes_per_step': payload,
      'sent_bytes_per_step': _mean(counted['sent'], steps),
      'ratio': self._dense / payload,
      'element_ratio': parameters / elements if elements else None,
    }
    return {f'{prefix}{name}': mean for name, mean in means.items()}

  def _exchange(self, step: int) -> tuple[schemes.Stage, float | None]:
    """Returns the stage of the exchange that a step is for, and its density.

    A program that follows a schedule reads it at the first of the steps that an
    exchange is for; others are of the last one's stage.
    """
    first = (step - 1) // self._every * self._every  # counted from 0, as stages
    last = first + self._every - 1
    follows = callable(self._stages[-1].given)
    stage = schemes.stage_at(self._stages, first if follows else last)
    return stage, stage.density_at(first)

  def to_dict(self) -> dict[str, dict[str, float]]:
    """Returns the counts, for a checkpoint."""
    return {'run': dict(self._run), 'last_stage': dict(self._last)}

  def restore(self, counted: Mapping[str, Mapping[str, float]]) -> None:
    """Goes on from the counts of a checkpoint."""
    self._run.update(counted['run'])
    self._last.update(counted['last_stage'])


def _mean(total: float, steps: int) -> float:
  """Returns a mean, whole where it is a whole number."""
  return total / steps if total % steps else total // steps


def plan_inside(params: Any, inner_workers: int, *, moments: bool) -> gs.Plan:
  """Returns the plan of the dense mean over the inner workers of a worker.

  Args:
    params: only their shapes are used.
    inner_workers: of each worker; one sends nothing.
    moments: whether second moments are averaged beside the gradients.
  """
  kinds = ('gradient', 'second moment')[: 1 + moments]
  tx = gs.dense(axis_name=placement.INNER_AXIS)
  return gs.plan(tx, dict.fromkeys(kinds, params), inner_workers)
