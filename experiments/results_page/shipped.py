"""gradsparse/advise/recorded.py: what `gs.advise` quotes of the records."""

from collections.abc import Iterator, Mapping
import json
import pathlib

from experiments.papers import table as papers
from experiments.results_page import claims
from experiments.results_page import measured as measuring
from experiments.run import scores
from gradsparse.advise import candidates

# Below the root of the repository.
MODULE = pathlib.Path('gradsparse/advise/recorded.py')
ESTIMATES = pathlib.Path('experiments/results/accelerators.json')
RECORDS = pathlib.Path('experiments/results/papers')
TARGET, TREE = 'v5e:2x4', 'resnet50'
_TABLES = 'schemes_'

_HEAD = f'''\
"""The recorded results of the schemes that `gs.advise` compares.

Written by `python -m experiments.advise_records`, which reads
{ESTIMATES} and {RECORDS}.
"""

from typing import NamedTuple


class Loss(NamedTuple):
  """The final result of a scheme compared with dense, with the same seeds.

  Attributes:
    row: the scheme's row in RESULTS.md.
    difference: from the dense row, with its interval.
    seeds: number of seeds.
    verdict: the comparison in words.
    as_good: whether it ended as well as dense; None where it cannot be told.
  """

  row: str
  difference: str
  seeds: int
  verdict: str
  as_good: bool | None


# Time from gradients to parameters, in steps of momentum SGD: XLA's estimate
# for a TPU {TARGET}, {TREE}, 8 workers.
STEPS_OF_SGD = {{
'''


def module(catalogue: Mapping[str, papers.Table], root: pathlib.Path) -> str:
  """Returns the text of the module.

  Args:
    catalogue: the tables by name.
    root: of the repository.

  Raises:
    FileError: a record is damaged, or another table's.
  """
  lines = [_HEAD.rstrip('\n'), *_estimates(root), '}']
  tasks = []
  losses = []
  tables = {n: t for n, t in catalogue.items() if n.startswith(_TABLES)}
  found = measuring.read(tables, root / RECORDS)
  for measured in measuring.find(tables, found):
    task = measured.name.removeprefix(_TABLES)
    rows = list(_losses(measured, task))
    if not rows:
      continue
    row = next(row for row in measured.rows.values() if row.score)
    size = measured.size.replace('_', ' ')
    title = f'{measured.table.title}, {size} setting'
    tasks += [
      f'  {task!r}: (',
      f'    {title!r},',
      f'    {_unit(row.score)!r},',
      '  ),',
    ]
    losses += rows
  return '\n'.join(
    [
      *lines,
      '',
      '# Task -> (the source of the differences, their unit).',
      'TASKS = {',
      *tasks,
      '}',
      '',
      '# (task, row) -> result.',
      'LOSSES = {',
      *losses,
      '}',
      '',
    ]
  )


def _estimates(root: pathlib.Path) -> Iterator[str]:
  wanted = {c.estimate for c in candidates.CANDIDATES} - {''}
  for row in json.loads((root / ESTIMATES).read_text()):
    here = (row['target'], row['tree'], row['slices']) == (TARGET, TREE, 1)
    if here and row['scheme'] in wanted:
      yield f'  {row["scheme"]!r}: {round(row["cycles_x_sgd"], 2)},'


def _unit(score: scores.Score) -> str:
  same = score.unit == score.name
  text = score.unit if same else f'{score.unit} of {score.name}'
  return text if score.rises else f'{text}, less is better'


def _losses(measured: measuring.Measured, task: str) -> Iterator[str]:
  wanted = {c.records.get(task) for c in candidates.CANDIDATES}
  for name, row in measured.rows.items():
    if name not in wanted or row.difference is None or row.score is None:
      continue
    good = claims.holds(row)
    # One seed tells nothing sure, but what ended far worse is no advice.
    far = row.score.advantage(row.difference.mean) < -row.score.wide
    good = False if good is None and far else good
    yield f'  ({task!r}, {name!r}): Loss('
    yield f'    {name!r},'
    yield f'    {str(row.difference)!r},'
    yield f'    {row.difference.n},'
    yield f'    {claims.verdict_of(row)!r},'
    yield f'    {good},'
    yield '  ),'
