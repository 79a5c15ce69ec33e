"""docs/write_a_scheme.md runs as it stands, and shows what it prints."""

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
  text = '\n'.join(block for block in page.code if 'def ' in block)
  lines = [
    line
    for line in text.splitlines()
    if line.strip() and not line.startswith(('import', 'from', 'print'))
  ]
  assert len(lines) < 40
