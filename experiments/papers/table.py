"""A table or figure of a paper as data: its rows, and the setting of each."""

import ast
from collections.abc import Iterable, Mapping
import dataclasses
from typing import Any, NamedTuple

from experiments.config import schemes
from experiments.papers import building
from experiments.papers import metrics
from experiments.papers import quick
from experiments.program import errors
from experiments.run import scores
from gradsparse.arguments import did_you_mean
import ml_collections

FULL = 'full'  # as the paper trains
HELD_OUT = 'held_out'  # the same, tested on a part of the training set
QUICK = 'quick'
SIZES = (FULL, HELD_OUT, QUICK)

# What a full run needs beside this project.
GPU_HOURS = 'a GPU for hours'
GPU_DAYS = 'GPUs for days'
IMAGENET = 'the files of ImageNet'
MNIST = 'the files of MNIST'
CIFAR = 'CIFAR-10 with its test file'
PTB = "Mikolov's text of the Penn Treebank"
AN4 = 'the files of AN4'
LIBRISPEECH = 'the files of LibriSpeech'
FSDD = 'the recordings of FSDD'
MULTI30K = 'the files of Multi30k'
WMT = 'the files of WMT'


def _value(text: str) -> Any:
  """Returns a Python literal, or else the text itself."""
  try:
    return ast.literal_eval(text)
  except (SyntaxError, ValueError):
    return text


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
  """One training of a table.

  Attributes:
    fields: of both settings: the scheme, and what else tells this row from
      the others.
    published: what the paper printed, by names of `metrics.METRICS`; empty
      where it is in a figure only.
    beside: the row that this one is compared to, with the same seeds.
    points: what the paper printed of the difference to it, in the unit of the
      table's score, where that is all that it printed.
    full: fields of the paper's setting beside the table's.
    quick: fields of the quick setting beside the table's.
    chosen_rate: the learning rate that did best in trials of the setting that
      is run here, the quick one or the only one; it is instead of the others.
    needs: what the full setting needs beside what all rows of the table do.
    groups: rows of a group change the same thing, and are drawn together.
  """

  fields: Mapping[str, Any]
  published: Mapping[str, float] = dataclasses.field(default_factory=dict)
  beside: str = ''
  points: float | None = None
  full: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  quick: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  chosen_rate: float | None = None
  needs: tuple[str, ...] = ()
  groups: tuple[str, ...] = ()

  @property
  def chosen(self) -> dict[str, float]:
    """The learning rate that trials chose, if they did."""
    rate = self.chosen_rate
    return {} if rate is None else {'train.learning_rate': rate}


class Question(NamedTuple):
  """What two rows of a table answer.

  Attributes:
    asks: in a few words, such as 'warm-up on, off'.
    row: whose score is looked at.
    other: with whose it is compared, with the same seeds.
    metric: the score, of `metrics.METRICS`; '' is the table's first. Its
      differences have the unit of that one's.
  """

  asks: str
  row: str
  other: str
  metric: str = ''


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
  """A table or figure.

  Attributes:
    title: what it compares.
    source: paper and place.
    metrics: names of `metrics.METRICS`, the columns that are printed; by the
      first its rows are compared, if that is a score.
    full: fields of the paper's setting that all rows share.
    quick: fields of the quick setting that all rows share, beside
      `quick.fields`. None: the full setting takes minutes, and is the only one.
    rows: by name; the first is the default.
    needs: what the full setting of every row needs.
    middle: what is reported of several runs, one of `metrics.MIDDLES`; the
      mean unless the paper says otherwise.
    missing: what the paper has and this project lacks: why, by what.
    questions: what rows answer beside how far each is from dense.
  """

  title: str
  source: str
  metrics: tuple[str, ...]
  full: Mapping[str, Any]
  rows: Mapping[str, Row]
  quick: Mapping[str, Any] | None = dataclasses.field(default_factory=dict)
  needs: tuple[str, ...] = ()
  middle: str = 'mean'
  missing: Mapping[str, str] = dataclasses.field(default_factory=dict)
  questions: tuple[Question, ...] = ()

  def get_config(self, name: str = '') -> ml_collections.ConfigDict:
    """Returns a row's configuration, for `get_config` of a file in configs/.

    Args:
      name: of a row, the full setting; with `:quick` or `:held_out` behind
        it, that one, where the table has it.

    Raises:
      ConfigError: the table has no such row.
    """
    row, _, size = name.partition(':')
    if size not in ('', *self.sizes):
      raise errors.ConfigError(
        'after the name of a row there may be one of :'
        f'{", :".join(self.sizes)}, got {name!r}'
      )
    return self.config(self.row(row or next(iter(self.rows))), size or FULL)

  def with_schemes(self, names: Iterable[str]) -> 'Table':
    """Returns the table with a row for each scheme of the user's own.

    The row is trained as its dense row is: the first that another is beside.

    Args:
      names: each `package.module:factory`, then `,NAME=VALUE` for arguments of
        the factory, and for other fields by their dotted names.

    Raises:
      ConfigError: there is no such factory.
    """
    beside = next(row.beside for row in self.rows.values() if row.beside)
    added = {}
    for name in names:
      factory, *given = name.split(',')
      schemes.factory(factory)
      fields = {'compression.name': factory}
      for each in given:
        key, _, value = each.partition('=')
        own = '.' in key or key in building.DERIVED
        fields[key if own else f'compression.{key}'] = _value(value)
      dense = self.rows[beside]
      rate = None if 'train.learning_rate' in fields else dense.chosen_rate
      fields = {**dense.fields, **fields}
      added[name] = dataclasses.replace(
        dense, fields=fields, published={}, beside=beside, chosen_rate=rate
      )
    return dataclasses.replace(self, rows={**self.rows, **added})

  def row(self, name: str) -> Row:
    """Returns a row.

    Raises:
      ConfigError: there is none of this name.
    """
    if name not in self.rows:
      raise errors.ConfigError(
        f'this config has no setting {name!r}{did_you_mean(name, self.rows)}; '
        f'it has {", ".join(self.rows)}'
      )
    return self.rows[name]

  def config(self, row: Row, size: str) -> ml_collections.ConfigDict:
    """Returns a row's configuration.

    Args:
      row: of this table.
      size: of `sizes`.

    Raises:
      ConfigError: nothing can be held out.
    """
    if size == QUICK:
      own = {**self.quick, **row.fields, **row.quick, **row.chosen}
      shared = quick.fields(own, self._full(row)['data.name'])
      return building.build({**shared, **own})
    fields = self._full(row)
    if size == HELD_OUT:
      if not self.holds_out(row):
        raise errors.ConfigError(
          f'a part is held out of {", ".join(quick.HELD_OUT)} only, where the '
          f'full setting is not tested on it; this row has '
          f'{fields["data.name"]}'
        )
      fields['data.test_split'] = quick.HELD_OUT[fields['data.name']]
      fields['data.final_split'] = ''
    return building.build(fields)

  def _full(self, row: Row) -> dict[str, Any]:
    """Returns the fields of a row's full setting."""
    chosen = row.chosen if self.quick is None else {}
    return {**self.full, **row.fields, **row.full, **chosen}

  @property
  def sizes(self) -> tuple[str, ...]:
    """Those of `SIZES` that it has."""
    held = any(self.holds_out(row) for row in self.rows.values())
    has = {FULL: True, HELD_OUT: held, QUICK: self.quick is not None}
    return tuple(size for size in SIZES if has[size])

  def holds_out(self, row: Row) -> bool:
    """Whether a part of the data of a row's full setting can be held out.

    It cannot where that is what the full setting is tested on.
    """
    fields = self._full(row)
    split = quick.HELD_OUT.get(fields['data.name'])
    return split not in (None, fields.get('data.test_split'))

  @property
  def score(self) -> scores.Score | None:
    """By what its rows are compared; None where they are not."""
    return metrics.METRICS[self.metrics[0]].score

  def needed(self, row: Row) -> tuple[str, ...]:
    """What a row's full setting needs beside this project."""
    return (*self.needs, *row.needs)

  def points(self, row: Row) -> float | None:
    """Returns the published difference to the dense row, if there is one.

    In the unit of the table's score.
    """
    if row.points is not None or not row.beside or not self.score:
      return row.points
    first = self.metrics[0]
    mine, its = (r.published.get(first) for r in (row, self.rows[row.beside]))
    return None if None in (mine, its) else self.score.difference(mine, its)
