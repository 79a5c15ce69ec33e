"""How plans, audits and schemes show themselves in a notebook."""

from xml.etree import ElementTree

import gradsparse as gs
from gradsparse import tables
import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
import optax
import pytest


def read(shown):
  """The tables of a text of HTML, as lists of cells, and its paragraphs."""
  # Whatever is not well-formed, or not escaped, does not parse as XML.
  root = ElementTree.fromstring(f'<div>{shown}</div>')
  found = [
    [[cell.text for cell in row] for row in table]
    for table in root.findall('table')
  ]
  return found, [note.text for note in root.findall('p')]


def test_what_looks_like_html_is_escaped():
  shown = tables.as_html([('<b>', '&'), ('"a"', '</td>')], notes=['1 < 2'])
  assert '<b>' not in shown
  assert read(shown) == ([[['<b>', '&'], ['"a"', '</td>']]], ['1 < 2'])


def test_without_lines_there_are_notes_only():
  assert tables.as_html([], notes=['nothing']) == '<p>nothing</p>'


def test_columns_are_flush_as_in_the_text():
  lines = [('name', 'n'), ('a', '10')]
  assert tables.as_text(lines) == 'name   n\na     10'
  root = ElementTree.fromstring(tables.as_html(lines))
  assert [[cell.get('style') for cell in row] for row in root] == [
    ['text-align: left', 'text-align: right']
  ] * 2


PARAMS = {'w<1>': jnp.zeros((100, 64)), 'b': jnp.zeros(64)}


@pytest.mark.slow
def test_a_plan_shows_the_cells_that_it_prints():
  schedule = gs.schedules.dgc_warmup(0.001, warmup_steps=8)
  tx = gs.dgc(schedule, axis_name='workers')
  plan = gs.plan(gs.accumulate(tx, every=3), PARAMS, 4)
  (leaves, stages), notes = read(plan._repr_html_())
  assert ["['w<1>']", '6,400'] == leaves[2][:2]
  assert stages[0][0] == 'exchanges' and len(stages) == 1 + len(plan.stages)
  assert notes == ['in one of 3 updates; nothing in the others']
  lines = [' '.join(row) for row in leaves], [' '.join(row) for row in stages]
  shown = [*lines[0], *notes, *lines[1]]
  assert [' '.join(x.split()) for x in str(plan).splitlines()] == shown


def test_a_plan_without_schedule_is_one_table():
  plan = gs.plan(gs.dense(axis_name='w'), PARAMS, 2)
  ((leaves,), notes) = read(plan._repr_html_())
  assert leaves[-1][0] == 'total' and not notes


def audit_of(reduce):
  mesh = jax.make_mesh(
    (2,), ('w',), axis_types=(AxisType.Auto,), devices=jax.devices()[:2]
  )
  run = jax.shard_map(reduce, mesh=mesh, in_specs=P('w'), out_specs=P())
  return gs.audit(run, jnp.zeros((2, 6)))


def test_an_audit_shows_its_collectives():
  audit = audit_of(lambda x: jax.lax.psum(x, 'w'))
  (lines,), notes = read(audit._repr_html_())
  assert lines == [
    ['collective', 'operand B', 'workers', 'over'],
    ['all_reduce', '24', '2', 'w'],
  ]
  assert notes == ['sent by a worker: 24 B', 'over w: 24 B']
  assert str(audit).splitlines()[-2:] == [notes[0], '  ' + notes[1]]


def test_an_audit_of_branches_shows_them_and_their_sizes():
  def either(x):  # no collective is outside of the branches
    return jax.lax.cond(
      x[0, 0] > 0,
      lambda: jax.lax.psum(x[:, 0], 'w'),
      lambda: jax.lax.psum(x, 'w')[:, 1],
    )

  shown = audit_of(either)._repr_html_()
  assert '<table' in shown
  (lines,), notes = read(shown)
  assert sorted(int(line[1]) for line in lines[1:]) == [4, 24]
  assert lines[1][0] == 'branch 1 of 2: all_reduce'
  assert any(note.startswith('one of') for note in notes)


def test_an_audit_of_nothing_says_so():
  _, notes = read(gs.audit(lambda x: 2 * x, 1.0)._repr_html_())
  assert 'the program has no collectives' in notes[1]


@pytest.mark.parametrize('name', gs.recipes.RECIPES)
def test_a_scheme_shows_what_it_is_made_of(name):
  tx = gs.recipes.RECIPES[name].make(axis_name='workers')
  ((lines,), notes) = read(tx._repr_html_())
  assert [row[0] for row in lines] == ['scheme', 'keeps', 'sends', 'exchanges']
  assert lines[0][1] == repr(tx)
  assert lines[3][1].startswith(tx.scheme.exchange.name) and not notes


def shown_of(tx):
  (lines,), _ = read(tx._repr_html_())
  return dict(lines)


def test_a_scheme_says_what_it_keeps_and_whether_it_is_biased():
  dgc = shown_of(gs.dgc(0.1, axis_name=('a', 'b')))
  assert dgc['keeps'] == 'momentum, velocity: 8 bytes a parameter'
  assert dgc['sends'] == 'dgc, biased'
  assert dgc['exchanges'] == "all-gather, workers along 'a' and 'b'"
  alone = shown_of(gs.qsgd(7, axis_name=None))
  assert alone['keeps'] == 'nothing' and alone['sends'] == 'qsgd, unbiased'
  assert alone['exchanges'] == 'nothing, it is one worker'


def test_what_goes_around_a_scheme_shows_its_call():
  tx = gs.skip_rejected(optax.sgd(0.1))
  assert shown_of(tx) == {'transformation': repr(tx)}
