"""docs/write_a_scheme.md runs as it stands, and shows what it prints."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests import pages

# It runs the laws over a scheme.
pytestmark = pytest.mark.slow


@pytest.fixture(scope='module')
def page():
  return pages.run('write_a_scheme.md')


def test_the_page_prints_what_it_says(page):
  assert page.printed == page.said


def test_the_scheme_is_short(page):
  """Under 40 lines of code, imports apart."""
  parts = ('select', 'round_values', 'pack', 'unpack', 'two_bit_chunks')
  assert set(parts) < set(page.names)
  of_scheme = [code for code in page.code if 'class State' not in code]
  text = '\n'.join(block for block in of_scheme if 'def ' in block)
  lines = [
    line
    for line in text.splitlines()
    if line.strip() and not line.startswith(('import', 'from', 'print'))
  ]
  assert len(lines) < 40


def test_the_memory_is_error_feedback(page):
  names = page.names
  gs, extend = names['gs'], names['extend']

  def make(memory):
    compressor = extend.compressors.top_k(
      0.2, extend.codes.sparse(), scope='leaf', name='mine'
    )
    return gs.compressed_mean(
      memory, compressor, extend.exchanges.all_gather(), axis_name=None
    )

  ends = []
  for memory in (names['memory'], extend.memories.residual()):
    tx = make(memory)
    grads = {'w': jnp.arange(30.0).reshape(5, 6)}
    state = tx.init(grads)
    for _ in range(3):
      updates, state = tx.update(grads, state)
    ends.append((updates, gs.pending(state)))
  jax.tree.map(np.testing.assert_array_equal, *ends)
