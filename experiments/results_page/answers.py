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
    A table for all that share questions, a column each.
  """
  told = [({a.question.asks: a for a in of(m)}, m) for m in all_measured]
  groups: list[list[tuple[dict[str, Answer], Measured]]] = []
  for answers, m in told:
    shared = [g for g in groups if any({*answers} & {*own} for own, _ in g)]
    if shared:
      shared[0].append((answers, m))
    elif answers:
      groups.append([(answers, m)])
  return [_beside(group) for group in groups if len(group) > 1]


def _beside(group: Sequence[tuple[dict[str, Answer], Measured]]) -> str:
  asked = [{*answers} for answers, _ in group]
  lines = [
    (asks, *(_cell(answers.get(asks)) for answers, _ in group))
    for asks in group[0][0]
    if sum(asks in own for own in asked) > 1
  ]
  return tables.markdown(('asked', *(m.title for _, m in group)), lines)


def _cell(answer: Answer | None) -> str:
  """Returns an answer in a cell: number, unit, seeds."""
  if answer is None:
    return page.NONE
  return f'{answer.found} {answer.by.score.unit} ({answer.found.n})'
