"""docs/write_a_scheme.md runs as it stands, and shows what it prints."""

import contextlib
import io
import pathlib
import re

import pytest

PAGE = pathlib.Path(__file__).parents[1] / 'docs/write_a_scheme.md'
BLOCKS = re.findall(r'```(python|text)\n(.*?)```', PAGE.read_text(), re.DOTALL)


@pytest.fixture(scope='module')
def run():
  """(names that the page defines, what it printed)."""
  names, printed = {}, io.StringIO()
  with contextlib.redirect_stdout(printed):
    for number, (kind, block) in enumerate(BLOCKS):
      if kind == 'python':
        exec(compile(block, f'{PAGE.name}, block {number}', 'exec'), names)
  return names, printed.getvalue()


def test_the_page_prints_what_it_says(run):
  _, printed = run
  (said,) = [block for kind, block in BLOCKS if kind == 'text']
  assert printed == said


def test_the_scheme_is_short(run):
  """Under 40 lines of code, imports apart."""
  names, _ = run
  parts = ('select', 'round_values', 'pack', 'unpack', 'two_bit_chunks')
  assert set(parts) < set(names)
  code = [block for kind, block in BLOCKS if kind == 'python']
  text = '\n'.join(block for block in code if 'def ' in block)
  lines = [
    line
    for line in text.splitlines()
    if line.strip() and not line.startswith(('import', 'from', 'print'))
  ]
  assert len(lines) < 40
