"""Writes what `gs.advise` quotes of this project's records.

  python -m experiments.advise_records

Run it in the root of the repository, after records have changed. It reads
experiments/results and writes gradsparse/advise/recorded.py, all but its head.
With `--check` it writes nothing, and exits with status 1 if that differs.
"""

from collections.abc import Iterator
import json
import pathlib

from absl import flags
from experiments.papers import catalogue
from experiments.papers import judging
from experiments.papers import outcomes
from experiments.program import command_line
from experiments.program import files
from experiments.results_page import page
from experiments.run import scores
from gradsparse.advise import candidates

_ROOT = command_line.define_path('root', '.', 'root of the repository')
_CHECK = flags.DEFINE_bool(
  'check', False, 'compare with the records, and write nothing'
)

MODULE = pathlib.Path('gradsparse/advise/recorded.py')
ESTIMATES = pathlib.Path('experiments/results/accelerators.json')
TARGET, TREE = 'v5e:2x4', 'resnet50'
_BEGIN = 'STEPS_OF_SGD = {\n'
_TABLES = 'schemes_'
_MARGINS = 2  # beyond which a difference is far, or an interval wide


def module(root: pathlib.Path) -> str:
  """Returns the text of the module; what is before the numbers stays.

  Args:
    root: of the repository.

  Raises:
    FileError: a record is damaged, or another table's.
  """
  head, _, _ = (root / MODULE).read_text().partition(_BEGIN)
  tasks, losses = [], []
  tables = {n: catalogue.load(n) for n in catalogue.NAMES if _TABLES in n}
  for name, runs in page.runs_of(tables, root).groupby('table', sort=False):
    task, score = name.removeprefix(_TABLES), tables[name].score
    size = runs['size'].iloc[0].replace('_', ' ')
    unit = (
      score.unit
      if score.unit == score.name
      else (f'{score.unit} of {score.name}')
    )
    unit += '' if score.rises else ', less is better'
    title = f'{tables[name].title}, {size} setting'
    tasks += [f'  {task!r}: (', f'    {title!r},', f'    {unit!r},', '  ),']
    wanted = {c.records.get(task) for c in candidates.CANDIDATES}
    for row, each in outcomes.outcomes(tables[name], runs).items():
      if row in wanted and each.difference:
        words, good = _said(each.difference, score)
        losses += [
          f'  ({task!r}, {row!r}): Loss(',
          f'    {row!r},',
          f'    {str(each.difference)!r},',
          f'    {each.difference.n},',
          f'    {words!r},',
          f'    {good},',
          '  ),',
        ]
  return (
    head
    + _BEGIN
    + '\n'.join(
      [
        *_estimates(root),
        '}',
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
  )


def _said(
  found: judging.Interval, score: scores.Score
) -> tuple[str, bool | None]:
  """Returns what a difference says in words, and whether it is as good.

  None where that cannot be told. A row that ended far behind is no advice,
  however few its seeds.
  """
  wide, mean = _MARGINS * score.margin, score.advantage(found.mean)
  if found.half is None:
    said = 'one seed: no interval' if found.n == 1 else 'alike: no interval'
    return said, False if mean < -wide else None
  if abs(mean) > found.half:
    return ('better', True) if mean > 0 else ('worse', False)
  if found.half > wide:
    return 'too wide to tell', False if mean < -wide else None
  return 'no difference seen', True


def _estimates(root: pathlib.Path) -> Iterator[str]:
  wanted = {c.estimate for c in candidates.CANDIDATES} - {''}
  for row in json.loads((root / ESTIMATES).read_text()):
    here = (row['target'], row['tree'], row['slices']) == (TARGET, TREE, 1)
    if here and row['scheme'] in wanted:
      yield f'  {row["scheme"]!r}: {round(row["cycles_x_sgd"], 2)},'


def main() -> int | None:
  """Writes the module and says where, or compares it."""
  root = _ROOT.value
  text = module(root)
  if _CHECK.value:
    return int(text != (root / MODULE).read_text())
  files.write_bytes(root / MODULE, text.encode())
  print(root / MODULE)
  return None


if __name__ == '__main__':
  command_line.run(main)
