"""docs/your_training_loop.md runs as it stands, before and after."""

import pytest
from tests import pages

pytest.importorskip('flax', reason='needs the `experiments` extra')
pytest.importorskip('orbax.checkpoint', reason='needs the `experiments` extra')

pytestmark = pytest.mark.slow


@pytest.fixture(scope='module')
def page():
  return pages.run('your_training_loop.md')


def test_the_page_prints_what_it_says(page):
  loops = [line for line in page.printed.splitlines() if 'the loss' in line]
  # Each loop twice: as it was, and as it becomes.
  assert loops == [
    f'with {name} the loss fell below 0.2: True'
    for name in ('pmap', 'loss scaling', 'shard_map')
    for _ in range(2)
  ]
  others = [line for line in page.printed.splitlines() if line not in loops]
  assert others == page.said.splitlines()


def test_a_step_is_compiled_once(page):
  assert page.names['train']._cache_size() == 1


def test_the_loops_are_differences(page):
  assert page.differences == 3
