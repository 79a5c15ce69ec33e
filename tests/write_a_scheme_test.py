"""The pages of schemes and memories of one's own run as they stand."""

import gradsparse as gs
from gradsparse import extend
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
  text = '\n'.join(
    block for block in page.code if any(f'def {x}(' in block for x in parts)
  )
  lines = [
    line
    for line in text.splitlines()
    if line.strip() and not line.startswith(('import', 'from', 'print'))
  ]
  assert len(lines) < 40


def test_the_memory_is_error_feedback():
  names = pages.run('write_a_memory.md').names

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
