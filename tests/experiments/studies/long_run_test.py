"""A long run, short; and what a verdict finds in the points of a bad one."""

import json
import pathlib

from experiments.hosts import placement
from experiments.studies.long_run import run
from experiments.studies.long_run import verdict
import gradsparse as gs
import jax
import jax.numpy as jnp
import numpy as np
import pytest


def _points(**changes):
  """Of a good run, but for what is given as a function of the number."""
  good = {
    'step': lambda n: 100 * (n + 1),
    'rss_bytes': lambda n: 500_000_000 + min(n, 3) * 10_000_000 + n % 2 * 4096,
    'peak_bytes': lambda n: 600_000_000,
    'live_arrays': lambda n: 38,
    'live_bytes': lambda n: 4096,
    'compilations': lambda n: 0,
    'residual_norm': lambda n: 2.0 + 0.1 * (n % 3),
    'largest_residual_norm': lambda n: 3.0,
    'loss': lambda n: 0.5,
    'rejected_steps': lambda n: 0,
  }
  made = {**good, **changes}
  return [
    run.Point(**{name: of(n) for name, of in made.items()}) for n in range(12)
  ]


def test_a_good_run_is_not_accused():
  found = verdict.summary(_points())
  assert found['wrong'] == []
  assert found['largest_residual_norm'] == 3
  assert abs(found['residual_norm_slope_per_step']) < 1e-3


@pytest.mark.parametrize(
  ('changes', 'named'),
  [
    ({'rss_bytes': lambda n: 10**8 + n * 10**6}, 'memory grew'),
    ({'live_arrays': lambda n: 38 + n // 11}, 'live arrays grew from 38 to 39'),
    ({'compilations': lambda n: n // 11}, '1 programs were compiled'),
    ({'residual_norm': lambda n: 1.0 + n}, 'residual norm rose'),
    ({'residual_norm': lambda n: np.nan if n == 2 else 1.0}, 'norm rose'),
    ({'rejected_steps': lambda n: n // 8}, '1 steps were rejected'),
  ],
)
def test_a_bad_run_is_told(changes, named):
  (wrong,) = verdict.summary(_points(**changes))['wrong']
  assert named in wrong


def test_compilations_are_counted():
  with run._compilations() as compiled:
    jax.jit(lambda x: x * 3 + 1)(jnp.ones(7)).block_until_ready()
    assert compiled.count
    before = compiled.count
  jax.jit(lambda x: x * 3 + 2)(jnp.ones(7)).block_until_ready()
  assert compiled.count == before  # nobody listens any more


def test_the_page_has_the_recorded_table():
  root = pathlib.Path(__file__).parents[3]
  record = json.loads((root / 'experiments/results/long_run.json').read_text())
  table = verdict.page_table(record['rows'])
  assert table in (root / 'docs/faults.md').read_text()
  assert all(row['steps'] == 100_000 for row in record['rows'])
  assert not any(row['compilations'] for row in record['rows'])


@pytest.mark.slow
def test_a_short_run_holds(tmp_path, program):
  file = tmp_path / 'long_run.json'
  done = program(
    'studies.long_run',
    '--schemes=power_sgd,qsgd',
    '--steps=320',
    '--points=16',
    '--chunk=4',
    f'--json={file}',
    timeout=580,
  )
  record = json.loads(file.read_text())
  for row in record['rows']:
    # So soon norms still rise, and the allocator has not come to rest.
    assert row['compilations'] == 0 and row['loss'] < 2.3
    assert row['live_arrays'] == row['points'][0]['live_arrays']
    assert [p['step'] for p in row['points']] == list(range(20, 321, 20))
  assert 'power_sgd' in done.stdout and record['environment']['devices'] == 2
  sizes = {
    row['scheme']: row['largest_residual_norm'] for row in record['rows']
  }
  assert sizes['power_sgd'] > 0 == sizes['qsgd']


@pytest.mark.slow
def test_a_drift_is_seen(monkeypatch):
  """What differs by one bit from the start differs ever after."""
  make = placement.Placement.compile

  def damaged(self, function, *specs):
    made = make(self, function, *specs)
    return (lambda: spoiled(made())) if function.__name__ == 'create' else made

  def spoiled(state):
    kernel = state.params['Dense_1']['kernel']
    shards = [shard.data for shard in kernel.addressable_shards]
    shards[1] = shards[1].at[0, 0].add(2.0**-10)
    state.params['Dense_1']['kernel'] = (
      jax.make_array_from_single_device_arrays(
        kernel.shape, kernel.sharding, shards
      )
    )
    return state

  monkeypatch.setattr(placement.Placement, 'compile', damaged)
  with pytest.raises(gs.workers.DisagreementError, match='Dense_1.* worker 1 '):
    for _ in run.measure('qsgd', steps=8, every=8, chunk=4, num_workers=2):
      pass
