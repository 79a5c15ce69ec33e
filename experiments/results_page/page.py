"""RESULTS.md: its text, and writing it with its pictures."""

from collections.abc import Mapping, Sequence
import pathlib
import textwrap
from typing import NamedTuple

from experiments.papers import record as records
from experiments.papers import table as papers
from experiments.program import files
from experiments.results_page import answers
from experiments.results_page import claims
from experiments.results_page import measured as measuring
from experiments.results_page import missing
from experiments.results_page import networks
from experiments.results_page import pictures
from experiments.results_page import reading
from experiments.results_page import sections
from experiments.results_page.measured import Measured

# Below the root of the repository.
PAGE = pathlib.Path('RESULTS.md')
PICTURES = pathlib.Path('docs/results')
RECORDS = pathlib.Path('experiments/results/papers')
NETWORKS = pathlib.Path('experiments/results/networks')

_WIDTH = 80

_HEAD = f"""\
Measured results of training with compressed gradients. `python -m
experiments.results_page` makes this page and its pictures from the records in
[{RECORDS}]({RECORDS}); nobody types its numbers.
[docs/papers.md](docs/papers.md) says what the tables are and how to run them.
"""


class Content(NamedTuple):
  """The page, and the pictures that it shows."""

  text: str
  pictures: Sequence[pictures.Picture]


def content(
  catalogue: Mapping[str, papers.Table], root: pathlib.Path
) -> Content:
  """Returns the page of what is on record; no picture is drawn yet.

  Args:
    catalogue: the tables by name.
    root: of the repository.

  Raises:
    FileError: a record is damaged, or another table's.
  """
  found = measuring.read(catalogue, root / RECORDS)
  measured = measuring.find(catalogue, found)
  fronts = {m.title: pictures.paretos(m) for m in measured}
  others = {
    m.title: [*pictures.differences(m), *pictures.questions(m)]
    for m in measured
  }
  shown = reading.scores_of(measured)
  parts = ['# Results', _fill(_HEAD), '## Claims', _fill(reading.claim(shown))]
  parts += ['\n'.join(_nested(claims.tested(measured)))]
  parts += ['How to read the tables:', _items(reading.tables(shown))]
  for m in measured:
    if m.compared and m.schemes:
      parts += [f'### Schemes of {m.title}', _fill(claims.summary(m))]
      parts += [claims.table(m), *_links(fronts[m.title])]
  if beside := answers.side_by_side(measured):
    parts += ['### One row beside another', _fill(reading.ANSWERS), *beside]
  parts += ['## Tables', _fill(reading.targets(shown))]
  for m in measured:
    parts += _section(m, others[m.title])
  slow = networks.read(catalogue, root / NETWORKS)
  by_time = [networks.drawn(training) for training in slow]
  if slow:
    parts += ['## On a slow network']
  for training, own in zip(slow, by_time, strict=True):
    parts += _network(training, own)
  parts += _missing(catalogue, found)
  drawn = [*fronts.values(), *others.values(), *by_time]
  return Content(
    '\n\n'.join(parts) + '\n', [picture for own in drawn for picture in own]
  )


def write(
  catalogue: Mapping[str, papers.Table], root: pathlib.Path
) -> list[pathlib.Path]:
  """Writes the page and its pictures, and returns their paths.

  Args:
    catalogue: the tables by name.
    root: of the repository.
  """
  made = content(catalogue, root)
  paths = [root / PAGE]
  files.write_bytes(paths[0], made.text.encode())
  for picture in made.pictures:
    paths.append(root / PICTURES / picture.name)
    files.write_bytes(paths[-1], picture.draw())
  return paths


def differences(
  catalogue: Mapping[str, papers.Table], root: pathlib.Path
) -> list[str]:
  """Returns what is there and is not what `write` would write, in words.

  Of pictures only whether they are there: another machine draws them with
  other letters.

  Args:
    catalogue: the tables by name.
    root: of the repository.
  """
  made = content(catalogue, root)
  page = root / PAGE
  found = []
  if not page.exists() or page.read_text() != made.text:
    found.append(f'{PAGE} is not what the records say')
  wanted = {picture.name for picture in made.pictures}
  there = {path.name for path in (root / PICTURES).glob('*.png')}
  found += [f'{PICTURES / name} is missing' for name in sorted(wanted - there)]
  return found + [
    f'{PICTURES / name} is of no record' for name in sorted(there - wanted)
  ]


def _section(m: Measured, drawn: Sequence[pictures.Picture]) -> list[str]:
  """Returns the paragraphs of a table."""
  table, config = m.table, f'configs/{m.name}.py'
  parts = [
    f'### {m.title}',
    _fill(
      f'{table.title}; {table.source}; [{config}]({config}). '
      f'Setting: {sections.setting(m)}'
    ),
  ]
  if where := sections.places(m):
    parts.append(_fill(f'Measured on {where}, by'))
    parts.append('\n'.join(['```sh', *sections.commands(m), '```']))
  parts += [sections.results(m), *_links(drawn)]
  if answered := answers.table(m):
    parts += ['One row beside another, paired by seed:', answered]
  if m.compared:
    parts += ['To the target:', sections.targets(m)]
  if failed := sections.failures(m):
    parts += ['Runs that failed:', _items(failed)]
  return parts


def _network(
  training: networks.Training, drawn: Sequence[pictures.Picture]
) -> list[str]:
  """Returns the paragraphs of a table's rows on one network."""
  return [
    f'### {networks.title(training)}',
    _fill(networks.text(training)),
    '\n'.join(['```sh', training.record['command'], '```']),
    networks.results(training),
    *_links(drawn),
  ]


def _missing(
  catalogue: Mapping[str, papers.Table],
  found: Mapping[str, records.Record],
) -> list[str]:
  """Returns the paragraphs on what is not on this page."""
  parts = [
    '## What is missing',
    _fill(
      'Rows with at least one finished run, of all rows of each table. A quick '
      'row takes minutes on two cores. What a table itself lacks: '
      '[docs/papers.md](docs/papers.md#what-is-missing).'
    ),
    missing.rows(catalogue, found),
  ]
  former = [
    f'`{name}`: {record.former()}'
    for name, record in found.items()
    if record.former()
  ]
  if former:
    parts.append(
      'Runs on record of rows whose setting has changed since, left out here:'
    )
    parts.append(_items(former))
  return [*parts, '## Other records', missing.others()]


def _links(drawn: Sequence[pictures.Picture]) -> list[str]:
  return [f'![{p.about}]({PICTURES / p.name})' for p in drawn]


def _items(lines: Sequence[str]) -> str:
  return '\n'.join(_fill(f'- {line}', indent='  ') for line in lines)


def _nested(lines: Mapping[str, Sequence[str]]) -> list[str]:
  return [
    '\n'.join(
      [_items([head]), *(textwrap.indent(_items([line]), '  ') for line in own)]
    )
    for head, own in lines.items()
  ]


def _fill(text: str, indent: str = '') -> str:
  return textwrap.fill(
    text.strip(),
    _WIDTH,
    subsequent_indent=indent,
    break_long_words=False,
    break_on_hyphens=False,
  )
