"""The same questions stand beside each other, and rows beside their dense."""

import dataclasses

from experiments.results_page import answers
from experiments.results_page import claims
from experiments.results_page import sections
import pytest
from tests.experiments.results_page import made_up


@pytest.fixture(scope='module')
def measured(tmp_path_factory):
  root = tmp_path_factory.mktemp('root')
  made_up.write(root)
  return made_up.measure(root)


def test_tables_that_share_a_question_have_a_column_each(measured):
  other = measured._replace(name='other')
  silent = measured._replace(
    table=dataclasses.replace(measured.table, questions=())
  )
  (found,) = answers.side_by_side([measured, silent, other])
  assert found.splitlines() == [
    '| asked | `made_up`, quick setting | `other`, quick setting |',
    '| --- | --- | --- |',
    f'| with it, without |{" +2.13 ± 1.00 points (3) |" * 2}',
  ]


def test_a_table_that_shares_with_two_groups_joins_both(measured):
  """Of tables a to d, c alone asks what a and b do and what d does."""
  question, *_ = measured.table.questions

  def asking(name, *asked):
    questions = [dataclasses.replace(question, asks=asks) for asks in asked]
    table = dataclasses.replace(measured.table, questions=tuple(questions))
    return measured._replace(name=name, table=table)

  found = answers.side_by_side(
    [
      asking('a', 'first', 'of one'),
      asking('b', 'first', 'second'),
      asking('c', 'first', 'second', 'third'),
      asking('d', 'third'),
    ]
  )
  told = [text.splitlines() for text in found]
  assert [
    (lines[0].split('`')[1::2], [line.split(' |')[0] for line in lines[2:]])
    for lines in told
  ] == [
    (['a', 'b', 'c'], ['| first', '| second']),
    (['c', 'd'], ['| third']),
  ]
  assert told[0][3].split(' | ')[1] == '-'  # a does not ask it


def test_one_table_has_nobody_beside_it(measured):
  assert answers.side_by_side([measured]) == []


def test_the_dense_row_is_named_where_there_are_several(measured):
  for made in (claims.table(measured), sections.results(measured)):
    assert '| beside |' not in made
  rows = dict(measured.rows)
  rows['below'] = rows['below']._replace(beside='same')
  several = measured._replace(rows=rows)
  for made in (claims.table(several), sections.results(several)):
    assert made.startswith('| row | beside |')
    assert '| `below` | `same` |' in made
    assert '| `above` | `dense` |' in made
