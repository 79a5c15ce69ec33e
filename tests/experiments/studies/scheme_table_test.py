"""The README's tables: of schemes as the code gives it, of the demo."""

import pathlib

from experiments.studies import scheme_table
import pytest

_README = pathlib.Path(__file__).parents[3] / 'README.md'


def test_readme_has_the_generated_table():
  assert scheme_table.markdown() in _README.read_text(), (
    'paste the output of `python -m experiments.scheme_table` into README.md'
  )


def test_the_demos_ratios_are_there_at_the_end_and_over_the_whole_run():
  lines = _README.read_text().splitlines()
  first = next(i for i, line in enumerate(lines) if '| test accuracy |' in line)
  head, _, *rows = lines[first : lines.index('', first)]
  assert head.count('whole run') == 3
  for row in rows:
    cells = [cell.strip().replace(',', '') for cell in row.split('|')[3:-1]]
    message, mean_message, _, _, ratio, mean_ratio = map(float, cells)
    for size, shown in ((message, ratio), (mean_message, mean_ratio)):
      assert shown == pytest.approx(4 * 283_786 / size, rel=0.01)
