"""The program that sets the papers' numbers beside their models."""

import json

import pytest
from tests.bad_input import programs


def test_writes_and_prints_the_numbers(tmp_path, capsys):
  status, said = programs.run('cost_model', f'--workdir={tmp_path}')
  assert status == 0, said
  assert 'AlexNet, 32 GPUs, dense: table VII' in capsys.readouterr().out
  numbers = json.loads((tmp_path / 'cost_model.json').read_text())
  (row,) = [
    row
    for row in numbers['printed_and_model']
    if row['what'].startswith('AlexNet, 32 GPUs, dense')
  ]
  assert row['printed'] == pytest.approx(52.5, abs=0.02)
  assert row['model'] == pytest.approx(4.7, abs=0.06)
  for line in numbers['dgc_figure_6']:
    speedups = [line[f'{nodes}'] for nodes in (1, 2, 4, 8, 16, 32, 64)]
    assert speedups[0] == 1 and speedups[1:] == sorted(speedups[1:])
  assert line['model'] == 'ResNet-50' and line['scheme'] == 'DGC'
