"""Writes what `gs.advise` quotes of this project's records.

  python -m experiments.advise_records

Run it in the root of the repository, after records have changed. It reads
experiments/results and writes gradsparse/advise/recorded.json.
With `--check` it writes nothing, and exits with status 1 if that differs.
"""

import pathlib
from typing import Any

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

RECORDED = pathlib.Path('gradsparse/advise/recorded.json')
ESTIMATES = pathlib.Path('experiments/results/accelerators.json')
TARGET, TREE = 'v5e:2x4', 'resnet50'
# Task -> the table of its trainings.
_TABLES = {'resnet20': 'cifar10_resnet20', 'gpt': 'between_sites'} | {
  task: f'schemes_{task}'
  for task in ('cifar10', 'digits', 'ptb', 'speech', 'translation')
}
_FAR = 2  # margins


def recorded(root: pathlib.Path) -> dict[str, Any]:
  """Returns the content of `RECORDED`, by what the records say.

  Args:
    root: of the repository.

  Raises:
    FileError: a record is damaged, or another table's.
  """
  steps, tasks, losses = {}, {}, {}
  wanted = {candidate.estimate for candidate in candidates.CANDIDATES} - {''}
  for row in files.read_json(root / ESTIMATES):
    here = (row['target'], row['tree'], row['slices']) == (TARGET, TREE, 1)
    if here and row['scheme'] in wanted:
      taken = row['cycles_x_sgd'] + row['kernels_x_sgd']
      steps[row['scheme']] = round(taken, 2)
  tables = {name: catalogue.load(name) for name in _TABLES.values()}
  found = dict(list(page.runs_of(tables, root).groupby('table')))
  for task, name in _TABLES.items():
    runs, score = found[name], tables[name].score
    size = runs['size'].iloc[0].replace('_', ' ')
    of = '' if score.unit == score.name else f' of {score.name}'
    less = '' if score.rises else ', less is better'
    title = f'{tables[name].title}, {size} setting (docs/results/{name}.md)'
    tasks[task] = [title, f'{score.unit}{of}{less}']
    rows = {c.records.get(task) for c in candidates.CANDIDATES}
    losses[task] = {
      row: [str(told), told.n, each.verdict, _as_good(each, score)]
      for row, each in outcomes.outcomes(tables[name], runs).items()
      if row in rows and (told := each.difference)
    }
  return {'steps_of_sgd': steps, 'tasks': tasks, 'losses': losses}


def _as_good(each: outcomes.Outcome, score: scores.Score) -> bool | None:
  """Returns whether a row ended as well as dense; None if that is open.

  A row that ended far behind is no advice, however few its seeds.
  """
  far = score.advantage(each.difference.mean) < -_FAR * score.margin
  if far or judging.CONTRADICTED in each.verdict:
    return False
  return True if judging.SUPPORTED in each.verdict else None


def main() -> int | None:
  """Writes the file and says where, or compares it."""
  path = _ROOT.value / RECORDED
  found = recorded(_ROOT.value)
  if _CHECK.value:
    return int(found != files.read_json(path))
  files.write_json(path, found)
  print(path)
  return None


if __name__ == '__main__':
  command_line.run(main)
