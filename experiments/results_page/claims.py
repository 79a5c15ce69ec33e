"""What the records say of each scheme, in words that follow from intervals."""

from collections.abc import Callable, Mapping, Sequence
import statistics

from experiments.papers import interval
from experiments.papers import page
from experiments.papers import target
from experiments.program import tables
from experiments.results_page.measured import Measured
from experiments.results_page.measured import Row
from experiments.run import scores

RATIO = 1000  # times fewer bytes, of the claim that is tested

NO_DIFFERENCE = 'no difference seen'
BETTER = 'better'
WORSE = 'worse'
TOO_WIDE = 'too wide to tell'
ONE_SEED = 'one seed: no interval'
ALIKE = 'alike in all seeds: no interval'
NOTHING = 'nothing to compare'
ALL_FAILED = 'failed'


_OUTCOMES = {
  True: 'the claim holds for',
  False: 'it does not hold for',
  None: 'it cannot be told for',
}


def verdict(found: interval.Interval | None, score: scores.Score) -> str:
  """Returns what an interval of a difference to dense says, in words.

  Args:
    found: the interval.
    score: what it is of.
  """
  if found is None:
    return NOTHING
  if found.half is None:
    if found.n == 1:
      return ONE_SEED
    return NO_DIFFERENCE if abs(found.mean) < interval.ALIKE else ALIKE
  if score.advantage(found.mean) > found.half:
    return BETTER
  if score.advantage(found.mean) < -found.half:
    return WORSE
  return TOO_WIDE if found.half > score.wide else NO_DIFFERENCE


def verdict_of(row: Row) -> str:
  """Returns the verdict on a row, and how many of its runs failed."""
  count = len(row.failures)
  if not row.runs:
    return ALL_FAILED
  said = verdict(row.difference, row.score)
  return f'{said}, {count} failed' if count else said


def holds(row: Row) -> bool | None:
  """Whether training ends as well as dense; None where it cannot be told.

  A row of which a run failed does not.
  """
  if row.failures:
    return False
  return {NO_DIFFERENCE: True, BETTER: True, WORSE: False}.get(
    verdict(row.difference, row.score)
  )


def table(measured: Measured) -> str:
  """Returns a line for each scheme of a table."""
  several = measured.several
  return tables.markdown(
    (
      'row',
      *(['beside'] if several else []),
      measured.table.score.to_dense,
      'seeds',
      *(f'ratio, {what}' for what in _RATIOS),
      'verdict',
    ),
    [
      (
        f'`{row.name}`',
        *([measured.beside(row)] if several else []),
        _shown(row),
        '0' if row.difference is None else str(row.difference.n),
        *(_written(of(measured, row)) for of in _RATIOS.values()),
        verdict_of(row),
      )
      for row in measured.schemes
    ],
  )


def tested(all_measured: Sequence[Measured]) -> dict[str, list[str]]:
  """Returns what became of the claim: for each ratio a sentence, and its rows.

  Args:
    all_measured: tables that were measured.
  """
  said = {}
  for what, of in _RATIOS.items():
    at_it = [
      (f'`{row.name}` of `{measured.name}` ({measured.size})', row)
      for measured in all_measured
      if measured.compared
      for row in measured.rows.values()
      if row.beside and (of(measured, row) or 0) >= RATIO
    ]
    outcomes = [holds(row) for _, row in at_it]
    counts = [
      f'{words} {outcomes.count(outcome)}'
      for outcome, words in _OUTCOMES.items()
      if outcome in outcomes
    ]
    count = f'{len(at_it)}; {"; ".join(counts)}' if at_it else 'none yet'
    said[f'Rows with a ratio of {RATIO:,} or more, {what}: {count}.'] = [
      f'{name}: {_with_unit(row)} ({verdict_of(row)})' for name, row in at_it
    ]
  return said


def summary(measured: Measured) -> str:
  """Returns what became of the schemes of a table, in a few sentences."""
  schemes = measured.schemes
  verdicts = [
    verdict(row.difference, row.score) if row.runs else ALL_FAILED
    for row in schemes
  ]
  counts = [
    f'*{name}*: {verdicts.count(name)}' for name in dict.fromkeys(verdicts)
  ]
  said = f'{_counted(len(schemes), "row")}; {"; ".join(counts)}.'
  failed = sum(len(row.failures) for row in schemes)
  if failed:
    said += f' {_counted(failed, "run")} failed.'
  return ' '.join(filter(None, [said, cheapest(measured)]))


def cheapest(measured: Measured) -> str:
  """Returns which scheme came to the target with the fewest bytes.

  Of tables with one dense row; '' where none came to it, or where dense came
  to it in its last test: what had been sent by then is what the run sends.
  """
  targets = {
    target.score(measured.table, measured.record, measured.size, row.name)
    for row in measured.schemes
  }
  if len(targets) != 1 or None in targets:
    return ''
  (wanted,) = targets
  score = measured.table.score
  found = []
  for row in measured.schemes:
    arrived = target.reached(row.runs, len(row.failures), score, wanted)
    if arrived and arrived.sent_bytes is not None:
      found.append((arrived.sent_bytes, row))
  if not found:
    return ''
  sent, row = min(found, key=lambda pair: pair[0])
  dense = measured.rows[row.beside]
  beside = target.reached(dense.runs, len(dense.failures), score, wanted)
  if _in_the_last_test(dense, wanted):
    return ''
  said = (
    f'With the fewest bytes `{row.name}` came within '
    f'{score.amount(score.margin)} of dense, at {score.text(wanted)}'
  )
  if beside is None or beside.sent_bytes is None:
    return f'{said}.'
  return f'{said}; dense took {beside.sent_bytes / sent:,.1f} times as many.'


def _in_the_last_test(row: Row, wanted: float) -> bool:
  """Whether most runs that came to a target came to it no sooner."""
  tests = [run.get('evaluations', []) for run in row.runs.values()]
  found = [(row.score.first(each, wanted), each[-1]) for each in tests if each]
  last = [first is end for first, end in found if first is not None]
  return 2 * sum(last) > len(last)


def _shown(row: Row) -> str:
  return page.NONE if row.difference is None else str(row.difference)


def _written(ratio: float | None) -> str:
  return page.NONE if ratio is None else f'{ratio:,.1f}'


def _with_unit(row: Row) -> str:
  # Points need no word where they are usual.
  unit = '' if row.score.unit == scores.ACCURACY.unit else row.score.unit
  return f'{_shown(row)} {unit}'.rstrip()


def _counted(number: float, what: str) -> str:
  return f'{number:g} {what}' + ('' if number == 1 else 's')


def _mean(row: Row, name: str) -> float | None:
  """Of a number of bytes or a ratio, over the runs; None without any."""
  numbers = [run['comm'][name] for run in row.runs.values()]
  return statistics.fmean(numbers) if numbers else None


def _sent(measured: Measured, row: Row) -> float | None:
  """How many times as much a worker of the dense row sends."""
  dense = measured.rows.get(row.beside)
  own = _mean(row, 'sent_bytes_per_step')
  other = dense and _mean(dense, 'sent_bytes_per_step')
  return other / own if own and other else None


# Of a row: messages by their size, and what a worker sends.
_RATIOS: Mapping[str, Callable[[Measured, Row], float | None]] = {
  'last stage': lambda _, row: _mean(row, 'ratio'),
  'whole run': lambda _, row: _mean(row, 'run_average_ratio'),
  'sent, last stage': _sent,
}
