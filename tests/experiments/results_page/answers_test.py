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
