"""A table is as wide as what is in it, wherever it goes."""

from experiments.program import tables


def test_nothing_is_cut_off():
  long = 'x' * 150
  table = tables.make(('name', 'bytes'), [(long, '1,234'), ('b', '5')])
  lines = tables.text(table).splitlines()
  assert lines[0].split() == ['name', 'bytes']
  assert lines[2].split() == [long, '1,234']
  assert lines[3].endswith('    5')  # numbers on the right
