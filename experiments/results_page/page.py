"""RESULTS.md and the pages of docs/results: their text, and writing them.

In the template, `{{TABLE ROW}}` is the difference of a row to its dense row,
and `{{TABLE ROW KEY}}` another number of it, see `_VALUES`, or a field of its
configuration, `compression.NAME`. `{{TABLE ROW/OTHER [METRIC]}}` is the
difference of two rows, with ` better` behind it whether that supports that the
first is better, and with `sent` how many times more bytes it sends. A comment
`table: NAME` is a table of `summaries`.
"""

from collections.abc import Mapping, Sequence
import pathlib
import re
from typing import Any

from configs import default
from experiments.papers import judging
from experiments.papers import metrics
from experiments.papers import outcomes
from experiments.papers import page
from experiments.papers import record as records
from experiments.papers import table as papers
from experiments.program import errors
from experiments.program import files
from experiments.program import tables
from experiments.results_page import pictures
from experiments.results_page import summaries
from experiments.run import machine
import pandas as pd

# Below the root of the repository.
PAGE = pathlib.Path('RESULTS.md')
FOLDER = pathlib.Path('docs/results')
RECORDS = pathlib.Path('experiments/results/papers')
RATES = pathlib.Path('experiments/results/rates')
NETWORKS = pathlib.Path('experiments/results/networks')
TEMPLATE = pathlib.Path('experiments/results/RESULTS.template.md')

# Chosen by trials, as the rate is.
_CHOSEN = ('compression.alpha', 'compression.threshold')
_DEFAULT_RATE = default.get_config().train.learning_rate
# By key, of an outcome and its table.
_VALUES = {
  'score': lambda each, table: table.score.form.format(
    each.middle(table.metrics[0], table.middle)
  ),
  'verdict': lambda each, table: each.verdict,
  'sent': lambda each, table: f'{each.sent_ratio:,.1f}',
  'last': lambda each, table: f'{each.middle("comm.ratio"):,.1f}',
}

# Pictures of several tables, and what they show.
_SHARED = {
  'curves.png': 'Learning curves',
  'slow_network_step.png': 'The parts of a step on a slow network',
}


def runs_of(
  catalogue: Mapping[str, papers.Table], root: pathlib.Path
) -> pd.DataFrame:
  """Returns all runs on record, a line a run, with `outcomes.doubt`.

  Args:
    catalogue: the tables by name.
    root: of the repository.

  Raises:
    FileError: a record is damaged, or another table's.
  """
  found = []
  for name, table in catalogue.items():
    path = root / RECORDS / f'{name}.json'
    record = records.Record(path, name, table)
    trials = files.read_json(root / RATES / f'{name}.json') or []
    for frame in filter(len, map(record.frame, table.sizes)):
      found.append(
        frame.assign(doubt=[_doubt(run, trials) for run in frame.iloc])
      )
  return pd.concat(found)


def _doubt(run: pd.Series, trials: Sequence[Mapping[str, Any]]) -> str:
  """Returns what puts a run's rate in doubt: '' if trials enclose it.

  Only the longest trials with the row's own alpha and threshold count: fewer
  steps need a larger rate.
  """
  fixed = {
    name: value
    for name in _CHOSEN
    if pd.notna(value := run.get(f'config.{name}'))
  }.items()
  own = [each for each in trials if each['row'] == run['row']]
  own = [each for each in own if fixed <= each['setting'].items()]
  steps = [each['setting'].get('train.steps', 0) for each in own]
  both = zip(own, steps, strict=True)
  rates = [each['learning_rate'] for each, n in both if n == max(steps)]
  rate = run.get('config.train.learning_rate')
  rate = _DEFAULT_RATE if pd.isna(rate) else rate
  if rates and min(rates) < rate < max(rates):
    return ''
  return 'at an edge' if rates else 'at one rate'


def content(
  catalogue: Mapping[str, papers.Table], root: pathlib.Path
) -> tuple[dict[pathlib.Path, str], dict[pathlib.Path, pictures.Draw]]:
  """Returns the texts, and the pictures, none of which is drawn yet.

  Args:
    catalogue: the tables by name.
    root: of the repository.
  """
  runs = runs_of(catalogue, root)
  frames = {
    name: frame.dropna(axis='columns', how='all').copy()
    for name, frame in runs.groupby('table', sort=False)
  }
  there = {name: catalogue[name] for name in frames}
  found = {n: outcomes.outcomes(there[n], frames[n]) for n in frames}
  slow = summaries.slow_runs(root / NETWORKS, there)
  of_tasks = {name: slow[name] for name in summaries.TASKS if name in slow}
  made = {
    'schemes': summaries.schemes(found),
    'networks': summaries.networks(of_tasks),
  }
  template = (root / TEMPLATE).read_text()
  text = re.sub(
    r'<!-- table: (\w+) -->', lambda m: tables.markdown(made[m[1]]), template
  )
  text = re.sub(
    r'\{\{([^}]+)\}\}', lambda m: value(m[1], catalogue, frames, found), text
  )
  drawn = pictures.drawn(there, found, slow)
  texts = {PAGE: text, FOLDER / 'tables.md': _index(catalogue, runs, drawn)}
  for name, frame in frames.items():
    shown = [each for each in drawn if name in each]
    texts[FOLDER / f'{name}.md'] = _page(name, there[name], frame, shown)
    if name in slow and name not in summaries.TASKS:
      text = tables.markdown(summaries.networks({name: slow[name]}))
      texts[FOLDER / f'{name}.md'] += f'\n## On a slow network\n\n{text}\n'
  return texts, {FOLDER / name: draw for name, draw in drawn.items()}


def value(
  expression: str,
  catalogue: Mapping[str, papers.Table],
  frames: Mapping[str, pd.DataFrame],
  found: Mapping[str, Mapping[str, outcomes.Outcome]],
) -> str:
  """Returns the number that the template names.

  Raises:
    ConfigError: there is no such row, or nothing of it on record.
  """
  try:
    name, row, *rest = expression.split()
    table, (row, _, other) = catalogue[name], row.partition('/')
    if rest == ['published']:
      return f'{table.points(table.rows[row]):+z.2f}'
    if rest[:1] == ['printed']:
      metric = metrics.METRICS[rest[1]]
      return metric.form.format(table.rows[row].published[rest[1]])
    if rest and rest[0].startswith('compression.'):
      return f'{found[name][row].runs[f"config.{rest[0]}"].iloc[0]:g}'
    if rest and not other:
      return _VALUES[rest[0]](found[name][row], table)
    metric = next((each for each in rest if each != 'better'), '')
    told = found[name][row].difference
    if rest == ['sent']:  # and another row
      sent = [found[name][each].sent_ratio for each in (other, row)]
      return f'{sent[0] / sent[1]:.1f}'
    if other:
      told = outcomes.difference(table, frames[name], row, other, metric)
    score = metrics.METRICS[metric or table.metrics[0]].score
    if 'better' in rest:
      doubt = outcomes.doubt(frames[name], row, other)
      return judging.better(told, score, doubt)
    return f'{told} {score.unit} ({judging.seeds(told.n)})'
  except (KeyError, TypeError, AttributeError, ValueError) as error:
    raise errors.ConfigError(f'{{{{{expression}}}}}: {error!r}') from error


def write(
  catalogue: Mapping[str, papers.Table], root: pathlib.Path
) -> list[pathlib.Path]:
  """Writes texts and pictures, and returns their paths."""
  texts, drawn = content(catalogue, root)
  for path, text in texts.items():
    files.write_bytes(root / path, text.encode())
  for path, draw in drawn.items():
    files.write_bytes(root / path, draw())
  return [*texts, *drawn]


def differences(
  catalogue: Mapping[str, papers.Table], root: pathlib.Path
) -> list[str]:
  """Returns what is there and is not what `write` would write, in words.

  Of pictures only whether they are there: another machine draws them with
  other letters.
  """
  texts, drawn = content(catalogue, root)
  found = [
    f'{path} is not what the records say'
    for path, text in texts.items()
    if not (root / path).exists() or (root / path).read_text() != text
  ]
  there = {p.relative_to(root) for p in (root / FOLDER).glob('*')}
  found += [f'{path} is missing' for path in sorted({*drawn} - there)]
  extra = there - {*texts, *drawn}
  return found + [f'{path} is of no record' for path in sorted(extra)]


def _index(catalogue, runs: pd.DataFrame, drawn: Mapping[str, Any]) -> str:
  """Returns the list of all tables, and pictures of several tables."""
  parts = [
    '# All tables',
    'What each is, and which rows are on record.',
    tables.markdown(page.contents(catalogue, runs)),
    *(f'![{_SHARED[each]}]({each})' for each in drawn if each in _SHARED),
  ]
  return '\n\n'.join(parts) + '\n'


def _page(name: str, table: papers.Table, frame, shown: list[str]) -> str:
  """Returns the page of a table, from its finished runs and its pictures."""
  size = frame['size'].iloc[0].replace('_', ' ')
  config = f'configs/{name}.py'
  done = frame[frame['status'] == 'finished']
  places = sorted({f'{p}' for p in done.apply(_place, axis=1)})
  parts = [
    f'# {name}',
    f'{table.title}; {table.source}; {size} setting of '
    f'[{config}](../../{config}).',
    *(f'![{name}]({each})' for each in shown),
    tables.markdown(page.results(table, frame)),
  ]
  if len(answers := page.answers(table, frame)):
    said = 'One row beside another, paired by seed:'
    parts += [said, tables.markdown(answers)]
  parts += [
    f'Measured on {"; ".join(places)}, by',
    '\n'.join(['```sh', *dict.fromkeys(done['command']), '```']),
  ]
  return '\n\n'.join(parts) + '\n'


def _place(run: pd.Series) -> str:
  head = 'environment.'
  found = {k.removeprefix(head): v for k, v in run.items() if head in k}
  return f'{machine.place(found)} ({run["date"]})'
