"""The program that sets the papers' numbers beside their models."""

import json

import pytest
from tests.bad_input import programs


def test_writes_the_table_and_the_picture(tmp_path, capsys):
  status, said = programs.run('cost_model', f'--workdir={tmp_path}')
  assert status == 0, said
  assert 'AlexNet, 32 GPUs, dense: table VII' in capsys.readouterr().out
  assert (tmp_path / 'dgc_fig6.png').read_bytes().startswith(b'\x89PNG')
  numbers = json.loads((tmp_path / 'cost_model.json').read_text())
  (row,) = [
    row
    for row in numbers['printed_and_model']
    if row['what'].startswith('AlexNet, 32 GPUs, dense')
  ]
  assert row['printed'] == pytest.approx(52.5, abs=0.02)
  assert row['model'] == pytest.approx(4.7, abs=0.06)
