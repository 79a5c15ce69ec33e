"""The claim of the demo: within a point of dense, over several seeds."""

from experiments.studies import claims
from experiments.studies import scheme_runs
import pytest


def test_claim_is_the_paired_mean():
  rows = claims.compare(
    {
      'dense': [0.98, 0.99, 0.97],
      'good': [0.96, 0.99, 0.97],
      'bad': [0.96, 0.98, 0.96],
    }
  )
  assert rows['good']['mean_difference_points'] == pytest.approx(-0.67)
  assert rows['good']['within_one_point']
  assert rows['bad']['difference_points'] == [-2, -1, -1]
  assert not rows['bad']['within_one_point']


def test_every_scheme_is_compared_to_dense_with_its_seed(tmp_path, monkeypatch):
  asked = []

  def train(config, workdir, progress, command):
    del progress
    asked.append((config.compression.name, config.train.seed, workdir.name))
    accuracy = 0.97 if config.compression.name == 'dense' else 0.95
    return {'final': {'test_accuracy': accuracy}, 'seconds': 1.0, 'comm': {}}

  monkeypatch.setattr(scheme_runs.train, 'train_and_evaluate', train)
  rows = claims.measure(tmp_path, ['qsgd'], [1])
  assert asked == [('dense', 1, 'dense_seed1'), ('qsgd', 1, 'qsgd_seed1')]
  assert rows['qsgd']['mean_difference_points'] == -2
  assert 'FAILS' in claims.verdicts(rows)
