"""docs/sharded_models.md runs as it stands, and shows what it prints."""

import pytest
from tests import pages

pytest.importorskip('flax', reason='needs the `experiments` extra')

pytestmark = pytest.mark.slow


@pytest.fixture(scope='module')
def page():
  return pages.run('sharded_models.md')


def test_the_page_prints_what_it_says(page):
  assert page.printed == page.said


def test_what_crosses_replicas_is_planned_but_for_the_loss(page):
  plan, audit = page.names['plan'], page.names['audit']
  loss = 4  # bytes; between two replicas an all-reduce sends each once
  assert audit.sent_by_axis['replica'] == plan.sent_by_axis['replica'] + loss


def test_each_device_exchanges_its_own_shards(page):
  """No collective crosses both axes, and the message is gathered once."""
  audit = page.names['audit']
  assert {c.axes for c in audit.collectives} == {('replica',), ('fsdp',)}
  gathered = [
    c
    for c in audit.collectives
    if c.axes == ('replica',) and c.kind == 'all_gather'
  ]
  assert len(gathered) == 1 and gathered[0].workers == 2
