"""QSVRG's rate: its configuration, its record, and a short run."""

import json
import pathlib
import textwrap

from configs import qsvrg as configs
from experiments.program import errors
from experiments.studies import qsvrg
import jax
import jax.numpy as jnp
import pytest

_ROOT = pathlib.Path(__file__).parents[3]
_RECORD = json.loads(
  (_ROOT / 'experiments' / 'results' / 'qsvrg.json').read_text()
)


def test_the_head_of_the_configuration_has_what_the_record_has():
  head = configs.__doc__
  shown = textwrap.indent(qsvrg.header(_RECORD), '  ')
  assert shown in head, 'paste what the program prints below its errors'
  assert 'python -m experiments.qsvrg --config=configs/qsvrg.py' in head
  assert _RECORD['setting'] == configs.get_config().to_dict()
  assert f'{_RECORD["qsvrg_factor_per_epoch"]:.3f}' in shown


def test_the_record_keeps_the_theorems_promise():
  left = _RECORD['excess_loss']['QSVRG']
  assert len(left) == 1 + _RECORD['setting']['epochs']
  assert qsvrg.rate(left) == _RECORD['qsvrg_factor_per_epoch'] < 0.9
  # What says how long a message is takes a word.
  bits = _RECORD['qsvrg_bits_per_message']
  assert bits < _RECORD['theorem_bits_per_message'] + 32


@pytest.mark.slow
def test_a_short_run_gives_what_is_kept():
  config = configs.get_config()
  config.update(epochs=1, inner_steps=100, num_workers=2)
  found = qsvrg.measure(config)
  assert {*found} == {*_RECORD} - {'command'}
  assert found['setting']['inner_steps'] == 100
  assert 100 < 8 * found['qsvrg_sent_bytes_per_epoch'][0] / 100 < 300
  for before, after in found['excess_loss'].values():
    assert 0 < after < before
  assert 'error of QSGD, epoch 1 ' in qsvrg.header(found)


@pytest.mark.slow
def test_the_learning_rate_is_that_of_both():
  config = configs.get_config()
  config.update(epochs=1, inner_steps=20, num_workers=2, learning_rate=1e-9)
  for before, after in qsvrg.measure(config)['excess_loss'].values():
    assert after == pytest.approx(before, rel=1e-5)


@pytest.mark.parametrize(
  'penalty', [pytest.param(0.01, marks=pytest.mark.slow), 0.1]
)
def test_the_optimum_is_that_of_the_loss(penalty):
  x, y = qsvrg.load(2)
  best = qsvrg.optimum(x, y, penalty)

  def mean(w):
    loss = jax.vmap(qsvrg.logistic(penalty), (None, 0))
    return loss(w, (x.reshape(-1, x.shape[-1]), y.reshape(-1))).mean()

  assert jnp.abs(jax.grad(mean)(jnp.asarray(best, jnp.float32))).max() < 1e-6
  nothing = jnp.zeros(len(best))
  assert qsvrg.excess(nothing, best, x, y, penalty) == pytest.approx(
    float(mean(nothing) - mean(jnp.asarray(best, jnp.float32))), rel=1e-4
  )


def test_a_field_that_is_missing_is_told():
  config = configs.get_config()
  del config.epochs
  with pytest.raises(errors.ConfigError, match='configs/qsvrg.py; missing: ep'):
    qsvrg.check(config)
