"""The sentences and the code of a piece of advice."""

from __future__ import annotations

from collections.abc import Sequence
import math
from typing import Any

from gradsparse import recipes
from gradsparse.advise import advice
from gradsparse.advise import calibration
from gradsparse.advise import costs
from gradsparse.advise import param_shapes
from gradsparse.advise import recorded
from gradsparse.advise.candidates import BASELINE
from gradsparse.advise.candidates import FLOAT32
from gradsparse.advise.candidates import Candidate
from gradsparse.advise.question import Question

# The least speedup over the baseline at which a scheme is advised.
WORTH_WHILE = 1.05

# The share of a run that exchanges of outer steps should not exceed.
_SMALL_SHARE = 0.05

# All quoted records have this many workers.
_RECORDED = 4

_NO_PAPER = 'no paper defines one before Adam.'
_WARMUPS = {'dgc': 'dgc_warmup', 'gtopk': 'gtopk_warmup'}


def verdict(
  asked: Question,
  rows: Sequence[advice.Row],
  decision: advice.Decision,
  choice: str,
  has_memory: bool,
) -> str:
  """The decision first, then the numbers that led to it."""
  if asked.workers == 1:
    return 'do not compress. One worker sends nothing.'
  said = _reasons(asked, rows, decision, choice)
  if has_memory and asked.adam:
    said.insert(1, f'{choice} keeps a memory: {_NO_PAPER}')
  return ' '.join([*said, *_outer_steps(rows, choice), *_doubts(asked)])


def _reasons(
  asked: Question,
  rows: Sequence[advice.Row],
  decision: advice.Decision,
  choice: str,
) -> list[str]:
  """The sentences of the verdict, where there are two workers or more."""
  base = rows[0]
  ms = advice.milliseconds
  exposed = base.step_s - asked.step_s
  dense = (
    f'At {advice.rate(asked.link.bits_per_second)} a dense exchange in '
    f'bfloat16 takes {ms(base.exchange_s)} ms'
  )
  if not exposed:
    dense += (
      f', and the backward pass of {ms(asked.backward_s)} ms hides all of it.'
    )
  else:
    dense += f', of which {ms(exposed)} ms lengthen the step.'
  if choice == BASELINE.label:
    if exposed:
      none = 'None of those given' if asked.schemes_given else 'No scheme'
      fast = any(row.speedup >= WORTH_WHILE for row in rows[1:])
      dense += (
        f' {none} that is faster ended as well as dense in our records.'
        if fast
        else f' {none} makes the step {WORTH_WHILE:g} times as fast.'
      )
    if decision == 'do not compress':
      return [f'do not compress. {dense}', *_if_not_hidden(asked, rows)]
    best = min(filter(acceptable, rows[1:]), key=lambda row: row.step_most_s)
    return [
      f'measure first: time your dense step. {dense} But a step may take '
      f'{ms(base.step_most_s)} ms, and at most {ms(best.step_most_s)} with '
      f'{best.scheme}.'
    ]
  row = next(row for row in rows if row.scheme == choice)
  least = base.step_least_s / row.step_most_s
  most = base.step_most_s / row.step_least_s
  gain = (
    f'{choice} sends {base.bytes_a_step / max(1, row.bytes_a_step):,.0f} times '
    f'less, and a step takes {ms(row.step_s)} ms instead of {ms(base.step_s)} '
    f'({row.speedup:.1f} times as fast, expected {least:.1f} to {most:.1f})'
  )
  if decision == 'compress':
    return [f'compress with {choice}. {dense} {gain}.', _ended(asked, row)]
  if row.surely_faster(base):
    return [f'measure first. {dense} {gain}.', _ended(asked, row)]
  how = 'Time a step of each.'
  if not asked.calibrate:
    how = f'Calibrate (--calibrate). {how}'
  return [
    f'measure first. {dense} {gain}, but the expected ranges of both '
    f'overlap. {how}',
    *([_ended(asked, row)] if doubt(row, asked.task) else []),
  ]


def acceptable(row: advice.Row) -> bool:
  """Whether a scheme may be advised: its nearest record is not a worse one."""
  return row.loss is None or row.loss.as_good is not False


def doubt(row: advice.Row, task: str) -> int:
  """The rank of a scheme by its records; lower is better.

  0: it ended as well as dense on this task, and worse on none. 1: as well on
  this task, but worse on another. 2: as well on another task. 3: no record
  tells.
  """
  if not row.loss or not row.loss.as_good:
    return 3
  if row.loss.task != task:
    return 2
  return 1 if row.worse else 0


def _outer_steps(rows: Sequence[advice.Row], choice: str) -> list[str]:
  """A sentence, if an outer step is more than twice as fast as the choice."""
  chosen = next(row for row in rows if row.scheme == choice)
  outer = [row for row in rows if row.sync_every > 1]
  best = min(outer, key=lambda row: row.step_s, default=chosen)
  if 2 * best.step_s >= chosen.step_s:
    return []
  ended = f', but {_found(best.loss)}' if best.loss else ''
  return [
    f'{best.scheme}, which exchanges once in {best.sync_every} steps, takes '
    f'{advice.milliseconds(best.step_s)} ms{ended}.'
  ]


def _if_not_hidden(asked: Question, rows: Sequence[advice.Row]) -> list[str]:
  """A sentence, if a scheme would pay with nothing hidden."""
  base, *others = rows
  whole = asked.step_s + base.exchange_s
  good = [
    row
    for row in others
    if row.scheme != FLOAT32.label
    and acceptable(row)
    and whole >= WORTH_WHILE * row.step_s
  ]
  if not good:
    return []
  best = min(good, key=lambda row: (doubt(row, asked.task), row.step_s))
  ms = advice.milliseconds
  return [
    'If nothing hides it (layers in one lax.scan have no gradients before its '
    f'end), a step takes {ms(whole)} ms, and {ms(best.step_s)} with '
    f'{best.scheme}: time your dense step.'
  ]


def _doubts(asked: Question) -> list[str]:
  """A sentence, if the time of a step seems to be in another unit."""
  step = f'A step of {advice.milliseconds(asked.step_s)} ms'
  on_a_device = param_shapes.elements(asked.shapes) / asked.inner
  least = costs.sgd_step_s(on_a_device, asked.memory_bandwidth)
  if asked.step_s < least:
    return [
      f'{step} is short, as momentum SGD alone takes '
      f'{advice.milliseconds(least)} ms: is its unit right?'
    ]
  return []


def _ended(asked: Question, row: advice.Row) -> str:
  """Sentences on the recorded training of a row."""
  check = 'Check what it costs in accuracy.'
  missing = f'Our record of {asked.task} has no such training.'
  if row.loss is None:
    return f'{missing} {check}'
  worse = f', but {_found(row.worse)}' if row.worse else ''
  found = (
    f'I{_found(row.loss)[1:]}{worse}. Records are of small models with '
    f'{_RECORDED} workers, in short runs.'
  )
  if row.loss.task != asked.task:
    return f'{missing} {found} {check}'
  return f'{found} {check}'


def _found(loss: recorded.Loss) -> str:
  """A clause on a record: its verdict, and the bad end of its interval."""
  unit, _, less_is_better = recorded.TASKS[loss.task][1].partition(',')
  said = loss.verdict
  if loss.half and loss.as_good:
    end = loss.mean + loss.half * (1 if less_is_better else -1)
    said += f', but its 95 % interval reaches {end:+.2f}'
  return (
    f'in our record of {loss.task} it ended {loss.difference} {unit} from '
    f'dense ({said})'
  )


def assumptions(asked: Question, rows: Sequence[advice.Row]) -> tuple[str, ...]:
  """The assumptions behind the numbers, one sentence for each."""
  lines = [
    f'{param_shapes.elements(asked.shapes):,} parameters: {asked.source}.',
    f'Workers: {asked.workers}, devices of each: {asked.inner}. A worker has '
    f'one link of {advice.rate(asked.link.bits_per_second)}, with a latency of '
    f'{1e3 * asked.link.latency_s:g} ms.',
    f'A step without exchange takes {advice.milliseconds(asked.step_s)} ms, '
    f'its backward pass {advice.milliseconds(asked.backward_s)} ms'
    + (' (a guess: two thirds).' if asked.guessed_backward else '.'),
    'All-reduces of leaves run beside the backward pass at no cost, which '
    'favours dense; all other exchanges come after it.',
    f'Expected: code and exchange took {costs.LEAST:g} to {costs.MOST:g} times '
    'what the model says in nine of ten rows of '
    'experiments/results/exchange.json.',
  ]
  sources = {row.code_source for row in rows}
  if 'guess' in sources:
    lines.append(
      "Code is a guess: XLA's estimate for a TPU v5e and 8 workers, in steps "
      'of momentum SGD (docs/accelerators.md), each of which moves 20 bytes a '
      f'parameter at {asked.memory_bandwidth / 1e9:g} GB/s.'
    )
  if 'measured' in sources:
    lines.append(
      f'Code was measured on {calibration.device()}, with at most '
      f'{calibration.MOST_ELEMENTS:,} parameters, and scaled up.'
    )
  for row in rows:
    if row.sync_every > 1:
      least = math.ceil(row.exchange_s / (_SMALL_SHARE * asked.step_s))
      lines.append(
        f'{row.scheme}: an exchange takes '
        f'{advice.milliseconds(row.exchange_s)} ms, at most '
        f'{_SMALL_SHARE:.0%} of the run with an H of at least {least}.'
      )
  shown = {row.loss.task: None for row in rows if row.loss}
  lines += [
    f'Recorded difference, {task}: from dense, in {recorded.TASKS[task][1]}. '
    f'{recorded.TASKS[task][0]}.'
    for task in shown
  ]
  if asked.adam:
    lines.append(f'Memories of schemes were made for SGD: {_NO_PAPER}')
  notes: dict[str, list[str]] = {}
  for row in rows:
    notes.setdefault(row.note, []).append(row.scheme)
  notes.pop('', None)
  return (*lines, *(f'{"; ".join(who)}: {n}.' for n, who in notes.items()))


_SPECS = """\
# param_specs: PartitionSpecs over the axes inside a worker
# (docs/sharded_models.md).
"""
_OUTER = """\
import gradsparse as gs
import optax

learning_rate = {rate}  # yours
inner = {optimizer}  # of each worker, alone
{specs}tx = gs.outer(
  {scheme},
  {outer},
  sync_every={every},
)
# After each step of the inner optimizer (docs/outer_steps.md):
#   params, state = tx.sync(params, state)"""


def _sgd(rate: float, momentum: float) -> str:
  """The source text of an outer optimizer."""
  more = f', momentum={momentum}, nesterov=True' if momentum else ''
  return f'optax.sgd({rate}{more})'


def code(asked: Question, tx: Any, candidate: Candidate) -> str:
  """The program lines that build the advised transformation.

  Args:
    asked: the question.
    tx: the advised scheme.
    candidate: the advised candidate.
  """
  inside = '' if candidate.recipe == 'dgc' else ', momentum=0.9'
  optimizer = {
    'sgd': f'optax.sgd(learning_rate{inside})',
    'adam': 'optax.adam(learning_rate)',
    'adamw': 'optax.adamw(learning_rate)',
  }[asked.optimizer]
  rate = 0.001 if asked.adam else 0.1
  scheme, specs = repr(tx), _SPECS if asked.inner > 1 else ''
  if candidate.outer:
    if specs:
      scheme = f'gs.sharded({scheme}, param_specs)'
    return _OUTER.format(
      optimizer=optimizer,
      rate=rate,
      specs=specs,
      scheme=scheme,
      outer=_sgd(*candidate.outer),
      every=candidate.sync_every,
    )
  lines = [
    *('import gradsparse as gs', 'import optax', ''),
    f'learning_rate = {rate}  # yours',
  ]
  if candidate.recipe == 'one_bit_adam':
    lines.append(f'tx = {scheme}  # a whole optimizer')
    return '\n'.join(lines).replace(f'learning_rate={rate}', 'learning_rate')
  if candidate is BASELINE:
    lines.append(
      '# One exchange, not hidden (row gs.dense bfloat16); '
      'a pmean of leaves may hide.'
    )
  warmup = _WARMUPS.get(candidate.recipe)
  density = _density(candidate)
  if warmup and density is not None:
    lines.append('warmup_steps = 400  # about a fortieth of your run')
    lines.append(f'density = gs.schedules.{warmup}({density:g}, warmup_steps)')
    scheme = scheme.replace(f'density={density:g}', 'density')
  if candidate.recipe == 'dgc' and not asked.adam:
    lines.append('# gs.dgc has the momentum (0.9), so optax.sgd has none.')
  if specs:
    lines.append(specs.rstrip())
    scheme = f'gs.sharded({scheme}, param_specs)'
  lines += [
    'tx = optax.chain(',
    f'  {scheme},',
    f'  gs.skip_rejected({optimizer}),',
    ')',
  ]
  return '\n'.join(lines)


def _density(candidate: Candidate) -> float | None:
  """The density of a scheme, if it has one."""
  example = recipes.RECIPES[candidate.recipe].example
  density = {**example, **candidate.arguments}.get('density')
  if isinstance(density, float) and math.isfinite(density):
    return density
  return None
