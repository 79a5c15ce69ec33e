"""A table is as wide as what is in it, wherever it goes."""

from experiments.program import tables
import pandas as pd


def test_nothing_is_cut_off(capsys):
  long = 'x' * 150
  columns = {'name': ('name', ''), 'MB': ('bytes', ',.1f', 1e6)}
  table = tables.cells(columns, [{'name': long, 'bytes': 2e9}, {'name': 'b'}])
  tables.show(table, 'a title')
  title, head, first, second, _ = capsys.readouterr().out.split('\n', 4)
  assert title == 'a title' and head.split() == ['name', 'MB']
  assert first.split() == [long, '2,000.0'] and second.split() == ['b', '-']
  tables.show(pd.DataFrame())
  assert capsys.readouterr().out == 'nothing yet\n\n'
  assert tables.markdown(table[1:]) == '| name | MB |\n| --- | --- |\n| b | - |'
