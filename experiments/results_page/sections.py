"""A section a table: what was measured, how, where and by which command."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments.papers import metrics
from experiments.papers import page
from experiments.papers import table as papers
from experiments.papers import target
from experiments.program import tables
from experiments.results_page import claims
from experiments.results_page.measured import Measured
from experiments.run import machine
import ml_collections

_KIB = 2**10
_MIB = 2**20
# What a worker takes a batch of, where it is no images.
_OF_A_BATCH: Mapping[str, str] = {
  'an4': 'utterances',
  'fsdd': 'utterances',
  'librispeech': 'utterances',
  'multi30k': 'pairs of sentences',
  'ptb': 'rows of {window} words',
  'ptb_characters': 'rows of {window} characters',
  'wmt': 'pairs of sentences',
}
# What 'validation' is, where it is not a fifth of the training set.
_VALIDATION: Mapping[str, str] = {
  'fsdd': 'strings of its recordings 5 to 9',
  'librispeech': 'dev-clean',
  **dict.fromkeys(
    ('multi30k', 'ptb', 'ptb_characters', 'wmt'), 'its validation file'
  ),
}
_SIZES = {
  papers.FULL: 'the full setting',
  papers.HELD_OUT: 'the full setting, but for the part of the training set '
  'that is held out to test on',
  papers.QUICK: 'short runs of a small network, not the setting of a paper',
}

_Of = Callable[[ml_collections.ConfigDict], Any]


def _of_a_batch(config: ml_collections.ConfigDict) -> str:
  words = _OF_A_BATCH.get(config.data.name, 'images')
  return words.format(window=config.train.get('bptt_length'))


def _tested_on(config: ml_collections.ConfigDict) -> str:
  name, split = config.data.name, config.data.test_split
  if split == 'test':
    return 'its test file'
  if split == 'validation':
    return _VALIDATION.get(name, 'a fifth of its training set')
  return split


# Text around the values, and what they are; those of all rows, each once.
_NETWORK: tuple[tuple[str, _Of], ...] = (
  ('{} on ', lambda c: c.model.name),
  ('{}', lambda c: c.data.name),
)
_SETTING = (
  *_NETWORK,
  (', tested on {}; ', _tested_on),
  ('{} workers, ', lambda c: c.parallel.num_workers),
  ('{} ', lambda c: c.train.batch_size),
  ('{} each; ', _of_a_batch),
  ('{} steps; ', lambda c: f'{c.train.steps:,}'),
  ('learning rate {}, ', lambda c: f'{c.train.learning_rate:g}'),
  ('{}; ', lambda c: c.optimizer.schedule),
  ('{}, ', lambda c: c.optimizer.name),
  ('momentum {}, ', lambda c: f'{c.optimizer.momentum:g}'),
  ('weight decay {}', lambda c: f'{c.optimizer.weight_decay:g}'),
)

_RATIO = 'ratio'
_MEANS: Mapping[str, Callable[[Mapping[str, Any]], float]] = {
  'ratio, last stage': lambda run: run['comm']['ratio'],
  'ratio, whole run': lambda run: run['comm']['run_average_ratio'],
  'sent a step, KiB, whole run': lambda run: (
    run['comm']['run_average_sent_bytes_per_step'] / _KIB
  ),
  'seconds': lambda run: run['seconds'],
}


def setting(measured: Measured) -> str:
  """Returns the setting of the rows in a line."""
  return f'{_told(measured, _SETTING)}: {_SIZES[measured.size]}.'


def network(measured: Measured) -> str:
  """Returns the network of the rows and its data."""
  return _told(measured, _NETWORK)


def _told(measured: Measured, parts: Sequence[tuple[str, _Of]]) -> str:
  configs = [
    measured.table.config(measured.table.rows[name], measured.size, True)
    for name in measured.rows
  ]
  return ''.join(
    text.format(either([str(of(each)) for each in configs]))
    for text, of in parts
  )


def either(words: Sequence[str]) -> str:
  """Returns words as 'a, b or c', each once."""
  *others, last = dict.fromkeys(words)
  return f'{", ".join(others)} or {last}' if others else last


def places(measured: Measured) -> str:
  """Returns hardware, versions and dates of all runs."""
  dates: dict[str, list[str]] = {}
  for run in _runs(measured):
    found = run['environment']
    versions = ', '.join(
      f'{name} {found[name]}'
      for name in ('flax', 'optax', 'numpy', 'python')
      if name in found
    )
    where = ', '.join(filter(None, [machine.place(found), versions]))
    dates.setdefault(where, []).append(run['date'])
  return '; '.join(
    f'{where} ({" to ".join(dict.fromkeys([min(when), max(when)]))})'
    for where, when in dates.items()
  )


def commands(measured: Measured) -> list[str]:
  """Returns what was typed for these runs, each command once."""
  return list(dict.fromkeys(run['command'] for run in _runs(measured)))


def results(measured: Measured) -> str:
  """Returns the table of what was measured, published numbers beside it."""
  table, rows = measured.table, list(measured.rows.values())
  columns = {'row': [f'`{row.name}`' for row in rows]}
  if measured.several:
    columns['beside'] = [measured.beside(row) for row in rows]
  for metric in table.metrics:
    if metric == _RATIO:
      continue  # both of them below
    heading = metrics.METRICS[metric].heading
    columns[f'{heading}, published'] = [
      page.published(table.rows[row.name], metric) for row in rows
    ]
    columns[heading] = [page.ours(table, row.runs, metric) for row in rows]
  if measured.compared:
    heading = table.score.to_dense
    columns[f'{heading}, published'] = [
      page.points(table, table.rows[row.name]) for row in rows
    ]
    columns[heading] = [
      page.NONE if row.difference is None else str(row.difference)
      for row in rows
    ]
    columns['verdict'] = [
      claims.verdict_of(row) if row.beside else page.NONE for row in rows
    ]
  columns['ratio, published'] = [
    page.published(table.rows[row.name], _RATIO) for row in rows
  ]
  for heading, of in _MEANS.items():
    columns[heading] = [page.mean(row.runs, of) for row in rows]
  columns['runs'] = [str(len(row.runs)) for row in rows]
  # What no paper printed needs no column.
  shown = {
    heading: cells
    for heading, cells in columns.items()
    if {*cells} != {page.NONE}
  }
  return tables.markdown(tuple(shown), list(zip(*shown.values(), strict=True)))


def targets(measured: Measured) -> str:
  """Returns bytes and seconds until each row came to its target."""
  score = measured.table.score
  lines = []
  for row in measured.rows.values():
    wanted = target.score(
      measured.table, measured.record, measured.size, row.name
    )
    found = None
    if wanted is not None:
      found = target.reached(row.runs, len(row.failures), score, wanted)
    cells = [page.NONE] * 3
    if found:
      cells = [
        f'{found.reached} of {found.seeds}',
        _shown(found.sent_bytes, _MIB, '{:,.3f}'),
        _shown(found.seconds, 1, '{:,.0f}'),
      ]
    shown = page.NONE if wanted is None else f'{wanted:.{score.digits}f}'
    lines.append((f'`{row.name}`', shown, *cells))
  return tables.markdown(
    (
      'row',
      f'target ({score.symbol or score.name})',
      'seeds that reached it',
      'sent, MiB',
      'seconds',
    ),
    lines,
  )


def failures(measured: Measured) -> list[str]:
  """Returns a line for each run that came to no end."""
  return [
    f'`{row.name}`, seed {seed}: {failure["why"]}'
    for row in measured.rows.values()
    for seed, failure in row.failures.items()
  ]


def _runs(measured: Measured) -> Sequence[Mapping[str, Any]]:
  return [run for row in measured.rows.values() for run in row.runs.values()]


def _shown(number: float | None, unit: float, form: str) -> str:
  return page.NONE if number is None else form.format(number / unit)
