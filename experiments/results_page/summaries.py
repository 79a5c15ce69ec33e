"""The tables of RESULTS.md: schemes by task, runs on a slow network."""

from collections.abc import Mapping
import pathlib
from typing import Any

from experiments.papers import judging
from experiments.papers import outcomes
from experiments.papers import page
from experiments.papers import table as papers
from experiments.program import files
import pandas as pd

# The tasks that have every scheme: heading, and unit of the difference.
TASKS = {
  'schemes_cifar10': 'CIFAR-10, points',
  'schemes_digits': 'digits, points',
  'schemes_ptb': 'PTB, % perplexity',
  'schemes_speech': 'speech, points WER',
  'schemes_translation': 'translation, BLEU',
}
# Fields of a scheme that its label leaves out: they suit one network.
_OF_A_NETWORK = {
  *('clip_norm', 'min_size', 'threshold', 'alpha', 'bucket_size', 'warmup'),
  *('sample_rate', 'momentum'),
}
_WORDS = {
  'warmup_steps': lambda value: 'warm-up',
  # More than any run has: never.
  'param_sync_every': lambda value: 'averages' if value < 10**6 else '',
  'levels': lambda value: f'{int(value).bit_length() + 1} bits',
  'local_gradient': lambda value: value.upper(),
  'scope': lambda value: f'by {value}',
  'rank': lambda value: f'rank {value:g}',
  'memory': lambda value: 'memory',
}


def task(name: str) -> str:
  """Returns the task of a table."""
  return TASKS.get(name, name).split(',')[0]


def label(run: pd.Series) -> str:
  """Returns what a scheme is, alike in all tables."""
  head = 'config.compression.'
  own = run.dropna().filter(like=head)
  given = {name.removeprefix(head): value for name, value in own.items()}
  name = given.pop('name', 'dense')
  words = [
    str(_WORDS.get(key, str)(value))
    for key, value in given.items()
    if key not in _OF_A_NETWORK and value
  ]
  return ', '.join([f'`{name}`', *sorted(filter(None, words))])


def schemes(
  found: Mapping[str, Mapping[str, outcomes.Outcome]],
) -> pd.DataFrame:
  """Returns a line for each scheme that has three seeds on some task.

  A row is shown only if trials enclose its learning rate and that of its dense
  row.
  """
  cells: dict[str, dict[str, list[str]]] = {}
  judged = set()
  for name, heading in TASKS.items():
    for each in found.get(name, {}).values():
      of_one_task = {'rate', 'parts'} & set(each.row.groups)
      if of_one_task or not each.row.beside or not len(each.runs):
        continue
      beside = found[name][each.row.beside]
      if each.runs['doubt'].any() or beside.runs['doubt'].any():
        continue
      scheme = label(each.runs.iloc[0])
      cells.setdefault(scheme, {}).setdefault(heading, []).append(_cell(each))
      if each.difference and each.difference.n >= judging.FEWEST:
        judged.add(scheme)
  return page.columns(
    [
      {'scheme': scheme}
      | {h: '<br>'.join(own.get(h, ())) for h in TASKS.values()}
      for scheme, own in sorted(cells.items())
      if scheme in judged
    ]
  )


def _cell(each: outcomes.Outcome) -> str:
  """Returns difference, bytes and verdict of a row."""
  found, said = each.difference, each.verdict.removeprefix('open, ')
  kinds = {'adam': 'Adam', 'unclipped': 'unclipped'}
  beside = [words for kind, words in kinds.items() if kind in each.row.beside]
  sent = page.form('{:,.0f}', each.sent_ratio)
  shown = ', '.join([f'{found}', f'{sent}x', said, *beside])
  return f'**{shown}**' if said == judging.SUPPORTED else shown


def slow_runs(
  folder: pathlib.Path, tables: Mapping[str, papers.Table]
) -> dict[str, dict[str, Any]]:
  """Returns the trainings on a slow network: rows by table and name.

  Their records are those of `experiments.benchmarks.training`. Each row gets
  its `score`, a `target` that is worse than dense by the margin, and `first`,
  the first test that reached it.
  """
  found = {}
  for name, table in tables.items():
    kept = files.read_json(folder / f'{name}.json')
    if kept is None:
      continue
    rates = {row['rate'] for row in kept['rows']}

    def named(setting: str, rate: str, rates=rates) -> str:
      own, _, _ = setting.partition(':')
      return own if len(rates) == 1 else f'{own}, {rate}'

    rows = {named(row['setting'], row['rate']): row for row in kept['rows']}
    for row in rows.values():
      own, _, _ = row['setting'].partition(':')
      beside = table.rows[own].beside or own
      dense = rows.get(named(beside, row['rate']))
      row['target'] = table.score.target(table.score.of(dense))
      row['score'] = table.score.of(row)
      row['first'] = table.score.first(row['evaluations'], row['target'])
      parts = row['breakdown_ms']
      rest = sum(ms for part, ms in parts.items() if part != 'other')
      parts['other'] = row['step_ms'] - rest
    found[name] = rows
  return found


def networks(slow: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
  """Returns a line for each training on a slow network."""
  return page.columns(
    [
      {
        'task': task(name),
        'row': name_of_row,
        'a step, ms': f'{row["step_ms"]:,.0f}',
        'of it exchange': f'{row["breakdown_ms"]["exchange"]:,.0f}',
        'whole run, s': f'{row["seconds"]:,.0f}',
        'of it compiling': f'{row["compile_seconds"]:,.0f}',
        'score': f'{row["score"]:.2f}',
        'target': f'{row["target"]:.2f}',
        's to target': f'{row["first"]["seconds"]:,.0f}'
        if row['first']
        else 'not in this run',
      }
      for name, rows in slow.items()
      for name_of_row, row in rows.items()
    ]
  )
