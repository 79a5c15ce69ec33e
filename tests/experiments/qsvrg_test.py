"""QSVRG's rate: its configuration, its record, and a short run."""

import json
import pathlib

from configs import qsvrg as configs
import pytest
from tests.bad_input import programs

_RECORD = json.loads(
  (
    pathlib.Path(__file__).parents[2] / 'experiments/results/qsvrg.json'
  ).read_text()
)


def test_the_record_keeps_the_theorems_promise():
  assert _RECORD['setting'] == configs.get_config().to_dict()
  left = _RECORD['excess_loss']['QSVRG']
  assert len(left) == 1 + _RECORD['setting']['epochs']
  assert _RECORD['qsvrg_factor_per_epoch'] < 0.9
  # What says how long a message is takes a word.
  bits = _RECORD['qsvrg_bits_per_message']
  assert bits < _RECORD['theorem_bits_per_message'] + 32


@pytest.mark.slow
@pytest.mark.parametrize('rate', [0.05, 1e-9])
def test_a_short_run_gives_what_is_kept(tmp_path, rate):
  fields = {'epochs': 1, 'inner_steps': 100, 'num_workers': 2}
  fields['learning_rate'] = rate
  status, said = programs.run(
    'qsvrg',
    f'--json={tmp_path / "found.json"}',
    '--config=configs/qsvrg.py',
    *(f'--config.{name}={value}' for name, value in fields.items()),
  )
  assert status == 0, said
  found = json.loads((tmp_path / 'found.json').read_text())
  assert {*found} == {*_RECORD}
  assert found['setting'].items() >= fields.items()
  assert 100 < 8 * found['qsvrg_sent_bytes_per_epoch'][0] / 100 < 300
  for before, after in found['excess_loss'].values():
    # What both begin with does not depend on how the data are dealt out.
    assert before == pytest.approx(_RECORD['excess_loss']['QSGD'][0], rel=0.02)
    if rate < 1e-6:  # it is that of both
      assert after == pytest.approx(before, rel=1e-5)
    else:
      assert 0 < after < before
