"""What `gs.advise` returns: a verdict, a table of rows, the code to use."""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import html
import json
import textwrap
from typing import Any, Literal

from gradsparse import tables
from gradsparse.advise import costs
from gradsparse.advise import recorded

Decision = Literal['compress', 'do not compress', 'measure']
Source = Literal['', 'guess', 'measured', 'given']

_MARKS: Mapping[str, str] = {'guess': '~', 'measured': '*'}
_LEFT = (0, 10)  # columns of text, for `tables`


@dataclasses.dataclass(frozen=True)
class Row:
  """One scheme and the time of its step.

  Attributes:
    scheme: the scheme's label.
    sync_every: H; the scheme exchanges once in H steps. 1 is every step.
    sent_bytes: bytes that a worker sends in one exchange, all of its devices
      together, as `gs.plan` counts them.
    code_s: arithmetic of one exchange, seconds.
    code_source: the source of code_s: 'guess', 'measured' on this machine's
      device, 'given' by the caller, or '' where nothing is added.
    exchange_s: time of one exchange, hidden or not, seconds.
    step_s: average time of a step, seconds.
    step_least_s: the least that a measured step is expected to take, seconds.
    step_most_s: the most, seconds.
    speedup: the baseline's step_s divided by this row's.
    wins: 'below' the bandwidth of `wins_below`, 'always' or 'never'.
    wins_below: the bandwidth, in bits a second, below which the step is shorter
      than the baseline's; None if `wins` is not 'below'.
    state_bytes: bytes of the scheme's state on one device, without the
      optimizer's.
    loss: the result of the nearest recorded training; None if there is none.
    worse: the nearest one that ended worse than dense; None if there is none.
    note: a remark for users of the scheme.
  """

  scheme: str
  sync_every: int
  sent_bytes: int
  code_s: float
  code_source: Source
  exchange_s: float
  step_s: float
  step_least_s: float
  step_most_s: float
  speedup: float
  wins: costs.Wins
  wins_below: float | None
  state_bytes: int
  loss: recorded.Loss | None = None
  worse: recorded.Loss | None = None
  note: str = ''

  @property
  def bytes_a_step(self) -> float:
    """Bytes that a worker sends in a step, on average."""
    return self.sent_bytes / self.sync_every

  def surely_faster(self, other: Row) -> bool:
    """Whether this row's expected range lies below the other's."""
    return self.step_most_s < other.step_least_s


@dataclasses.dataclass(frozen=True)
class Advice:
  """Whether to compress, and with which scheme. `str()` prints all of it.

  >>> import gradsparse as gs
  >>> advice = gs.advise(
  ...   {'w': [512, 512]}, step_s=0.1, workers=4, bandwidth='400gbit',
  ...   schemes=['dgc 0.001'])
  >>> advice.decision, advice.baseline, advice.choice
  ('do not compress', 'dense bfloat16', 'dense bfloat16')

  Attributes:
    decision: 'compress', 'do not compress', or 'measure' where the expected
      ranges overlap, no record of the task tells how the scheme ended, or it
      ended worse on another task.
    verdict: the decision in sentences, with the numbers behind it.
    choice: label of the advised row.
    rows: one row for each scheme and one for the baseline, fastest step first.
    baseline: label of the baseline's row.
    code: program lines that build the advised scheme.
    assumptions: one sentence for each assumption.
    left_out: label -> why the scheme has no row.
    inputs: the numbers and words that were given, or their defaults.
  """

  decision: Decision
  verdict: str
  choice: str
  rows: tuple[Row, ...]
  baseline: str
  code: str
  assumptions: tuple[str, ...] = ()
  left_out: Mapping[str, str] = dataclasses.field(default_factory=dict)
  inputs: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def row(self, scheme: str) -> Row:
    """The row of a label.

    Raises:
      KeyError: no row has the label.
    """
    for row in self.rows:
      if row.scheme == scheme:
        return row
    raise KeyError(scheme)

  def table(self) -> str:
    """The rows as text; lines below the table explain its marks."""
    table = tables.as_text(self._lines(), _LEFT)
    return '\n'.join([table, *self._marks()])

  def _repr_html_(self) -> str:
    notes = [*self._marks(), *self._left_out(), *self.assumptions]
    return '\n'.join(
      [
        f'<p><b>Verdict:</b> {html.escape(self.verdict)}</p>',
        tables.as_html(self._lines(), _LEFT, notes),
        f'<pre>{html.escape(self.code)}</pre>',
      ]
    )

  def _lines(self) -> tables.Lines:
    head = (
      *('scheme', 'every', 'sent a step', 'code ms', 'exchange ms', 'step ms'),
      *('expected', 'x', 'wins below', 'state', 'recorded difference'),
    )
    return [head, *map(_cells, self.rows)]

  def _marks(self) -> list[str]:
    """Explains the marks in front of numbers."""
    lines = []
    sources = {row.code_source for row in self.rows}
    if 'guess' in sources:
      lines.append('~ a guess, perhaps twice or half of it')
    if 'measured' in sources:
      lines.append("* measured on this machine's device")
    return lines

  def _left_out(self) -> list[str]:
    return [f'left out: {label}: {why}' for label, why in self.left_out.items()]

  def to_json(self) -> str:
    """The advice as a JSON object; times in seconds, sizes in bytes."""
    plain: dict[str, Any] = dataclasses.asdict(self)
    for row in plain['rows']:
      for name in ('loss', 'worse'):
        row[name] = row[name] and row[name]._asdict()
    return json.dumps(plain, indent=2)

  def __str__(self) -> str:
    parts = [_filled(f'Verdict: {self.verdict}'), self.table()]
    if self.left_out:
      parts.append('\n'.join(map(_item, self._left_out())))
    parts.append('\n'.join(map(_item, self.assumptions)))
    parts.append(f'Use:\n\n{self.code}')
    return '\n\n'.join(parts)


def milliseconds(seconds: float) -> str:
  """Formats milliseconds with about three digits."""
  ms = 1e3 * seconds
  return f'{ms:,.0f}' if ms >= 100 else f'{ms:.3g}'


def nbytes(number: float) -> str:
  """Formats bytes in decimal units, with three digits."""
  unit, *larger = 'B', 'kB', 'MB', 'GB', 'TB'
  while larger and number >= 1000:
    number, (unit, *larger) = number / 1000, larger
  return f'{number:.0f} {unit}' if number >= 100 else f'{number:.3g} {unit}'


def rate(bits_per_second: float) -> str:
  """Formats a bandwidth in Gbit/s or Mbit/s, with three digits."""
  if bits_per_second >= 1e9:
    return f'{float(f"{bits_per_second / 1e9:.3g}"):g} Gbit/s'
  return f'{bits_per_second / 1e6:.3g} Mbit/s'


def _cells(row: Row) -> tuple[str, ...]:
  least, most = map(milliseconds, (row.step_least_s, row.step_most_s))
  mark = _MARKS.get(row.code_source, '')
  wins = row.wins if row.wins_below is None else rate(row.wins_below)
  loss = row.loss and (
    f'{row.loss.task} {row.loss.row}: {row.loss.difference}, {row.loss.verdict}'
  )
  return (
    row.scheme,
    f'{row.sync_every}',
    nbytes(row.bytes_a_step),
    mark + milliseconds(row.code_s / row.sync_every),
    milliseconds(row.exchange_s / row.sync_every),
    milliseconds(row.step_s),
    f'{least}-{most}',
    f'{row.speedup:.2f}',
    wins,
    nbytes(row.state_bytes),
    loss or '-',
  )


def _item(text: str) -> str:
  return _filled(text, '- ', '  ')


def _filled(text: str, first: str = '', then: str = '') -> str:
  lines = textwrap.wrap(
    text,
    80,
    initial_indent=first,
    subsequent_indent=then,
    break_on_hyphens=False,
  )
  return '\n'.join(lines)
