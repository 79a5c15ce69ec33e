"""What rows say beside each other: the questions of the tables, answered."""

from collections.abc import Sequence
from typing import NamedTuple

from experiments.papers import interval
from experiments.papers import metrics
from experiments.papers import page
from experiments.papers import table as papers
from experiments.program import tables
from experiments.results_page import claims
from experiments.results_page.measured import Measured


class Answer(NamedTuple):
  """What two rows of a table say.

  Attributes:
    question: that they answer.
    by: the column by which they are compared.
    found: how far the row is from the other, in the unit of the score.
  """

  question: papers.Question
  by: metrics.Metric
  found: interval.Interval


def of(measured: Measured) -> list[Answer]:
  """Returns the answers of a table, as far as its rows were run."""
  table, answers = measured.table, []
  for question in table.questions:
    found = page.difference(
      table,
      measured.record,
      measured.size,
      question.row,
      question.other,
      question.metric,
    )
    if found is not None:
      by = metrics.METRICS[question.metric or table.metrics[0]]
      answers.append(Answer(question, by, found))
  return answers


def table(measured: Measured) -> str:
  """Returns a line for each answer of a table; '' if there is none."""
  lines = [
    (
      answer.question.asks,
      f'`{answer.question.row}`',
      f'`{answer.question.other}`',
      answer.by.heading,
      str(answer.found),
      str(answer.found.n),
      claims.verdict(answer.found, answer.by.score),
    )
    for answer in of(measured)
  ]
  unit = measured.table.score.unit if lines else ''
  heads = ('asked', 'row', 'beside', 'by', unit, 'seeds', 'verdict')
  return tables.markdown(heads, lines) if lines else ''


def side_by_side(all_measured: Sequence[Measured]) -> list[str]:
  """Returns the same questions beside each other, where several tables ask.

  Args:
    all_measured: tables that were measured.

  Returns:
    Tables with a column for each that asks. A question that fewer of them ask
    is in the table of the others, if there is one.
  """
  asked: dict[str, dict[str, Answer]] = {}
  for measured in all_measured:
    for answer in of(measured):
      asked.setdefault(answer.question.asks, {})[measured.title] = answer
  # What most tables ask first, so that the others find their place.
  widest = sorted((own for own in asked.values() if len(own) > 1), key=len)
  columns: list[tuple[str, ...]] = []
  for told in reversed(widest):
    if not any({*told} <= {*titles} for titles in columns):
      columns.append(tuple(told))
  lines: dict[tuple[str, ...], list[list[str]]] = {}
  for asks, told in asked.items():
    fits = [titles for titles in columns if {*told} <= {*titles}]
    if len(told) > 1:
      cells = [_cell(told.get(title)) for title in fits[0]]
      lines.setdefault(fits[0], []).append([asks, *cells])
  return [
    tables.markdown(('asked', *titles), rows) for titles, rows in lines.items()
  ]


def _cell(answer: Answer | None) -> str:
  """Returns an answer in a cell: number, unit, seeds."""
  if answer is None:
    return page.NONE
  return f'{answer.found} {answer.by.score.unit} ({answer.found.n})'
