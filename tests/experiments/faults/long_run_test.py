"""Very many steps of a small model: nothing may grow or drift.

A perceptron learns digits whose labels are drawn anew for one image in ten, in
each step: however long it trains, gradients do not vanish. Each worker has a
device of its own. What is measured at points on the way is in docs/faults.md,
for

  GRADSPARSE_STEPS=100000 python -m pytest -m slow ...

The test takes so many steps of each scheme, 320 if not given.
"""

import os
import pathlib
import resource
import time

from experiments import data
from experiments.hosts.placement import AXIS
from experiments.hosts.placement import make_placement
from experiments.models import mlp
from experiments.program import tables
import gradsparse as gs
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
import numpy as np
import optax
import pandas as pd
import pytest
from tests.experiments.faults import attempts

_STEPS = int(os.environ.get('GRADSPARSE_STEPS', 320))
_POINTS = 100 if _STEPS >= 10_000 else 16
_CHUNK = _STEPS // _POINTS // 5  # steps in one call of the compiled program
_WORKERS = 2
_BATCH = 16  # examples of a worker
_AXIS = AXIS
_COMPILED = '/jax/core/compile/backend_compile_duration'
# Of the memory in use, over the second half of the run. The first half is for
# caches and the allocator to come to rest.
_GROWTH = 0.01
# Of the residual norm in the last quarter, against that in the second one.
_ABOVE = 1.25

_SCHEMES = {
  'dgc': gs.dgc(0.01, min_size=0, axis_name=_AXIS),
  'gtopk': gs.gtopk(0.01, min_size=0, axis_name=_AXIS),
  'power_sgd': gs.power_sgd(2, axis_name=_AXIS),
}


def _programs(name, placement):
  """(state, batch, some steps as a program, check of agreement)."""
  digits = data.load('digits', '', 'test')
  rows = len(digits.train.labels) // _WORKERS
  batch = jax.tree.map(
    lambda x: x.reshape(_WORKERS, rows, *x.shape[1:]),
    digits.train.take(np.arange(rows * _WORKERS)),
  )
  model = mlp.MLP(digits.classes, (32,))
  tx = optax.chain(
    optax.add_decayed_weights(1e-4),
    _SCHEMES[name],  # DGC has a momentum of its own
    optax.sgd(0.05, momentum=None if name == 'dgc' else 0.9),
  )

  def params():
    images = jnp.zeros((1, *batch.images.shape[2:]), jnp.float32)
    return model.init(jax.random.key(0), images, train=False)['params']

  def create():
    made = params()
    opt_state = gs.workers.init(tx, made, _WORKERS, _AXIS)
    return {'step': jnp.int32(0), 'params': made, 'opt_state': opt_state}

  def loss_fn(params, images, labels):
    logits = model.apply({'params': params}, images, train=True)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return losses.mean()

  def one(state, split):
    keys = jax.random.split(
      jax.random.fold_in(jax.random.key(1), state['step'])
    )
    chosen = jax.random.randint(keys[0], [_BATCH], 0, rows)
    drawn = jax.random.randint(keys[1], [_BATCH], 0, 10 * digits.classes)
    labels = jnp.where(drawn < digits.classes, drawn, split.labels[chosen])
    images = data.normalise(split.images[chosen], digits.mean, digits.std)
    own = gs.workers.local(state['params'], _AXIS)
    loss, grads = jax.value_and_grad(loss_fn)(own, images, labels)
    updates, opt_state = tx.update(grads, state['opt_state'], own)
    new = {
      'step': state['step'] + 1,
      'params': optax.apply_updates(state['params'], updates),
      'opt_state': opt_state,
    }
    norm = gs.metrics(opt_state)['residual_norm']
    return new, (norm, gs.workers.mean(loss, _AXIS))

  def many(state, split):
    state, (norms, losses) = jax.lax.scan(
      lambda state, _: one(state, split), state, length=_CHUNK
    )
    rejected = gs.metrics(state['opt_state'])['rejected_steps']
    return state, (jnp.mean(norms), jnp.max(norms), jnp.mean(losses), rejected)

  shared, own = PartitionSpec(), PartitionSpec(_AXIS)
  opt_specs = gs.workers.specs(tx, jax.eval_shape(params), _WORKERS, _AXIS)
  specs = {'step': shared, 'params': shared, 'opt_state': opt_specs}

  def parallel(function, in_specs, out_specs):
    return gs.workers.parallel(
      function,
      runner=placement.runner,
      num_workers=placement.axes,
      in_specs=in_specs,
      out_specs=out_specs,
      devices=placement.devices,
    )

  run = parallel(many, (specs, own), (specs, (own, own, shared, own)))
  prints = parallel(
    lambda state: gs.workers.fingerprint(state, specs), (specs,), shared
  )

  def check(state):
    gs.workers.check_agreement(prints(state), state, specs)

  state = placement.compile(create, specs)()
  return state, placement.batch(batch), run, check


def _point(step, told, compilations):
  """What is measured after some steps."""
  live = jax.live_arrays()
  norms, largest, losses, rejected = zip(*told, strict=True)
  pages = int(pathlib.Path('/proc/self/statm').read_text().split()[1])
  usage = resource.getrusage(resource.RUSAGE_SELF)
  return {
    'step': step,
    'rss_bytes': pages * resource.getpagesize(),
    'peak_bytes': usage.ru_maxrss * 1024,
    'live_arrays': len(live),
    'live_bytes': sum(x.nbytes for x in live),
    'compilations': compilations,  # since the first call had returned
    'residual_norm': float(np.mean(norms)),
    'largest_residual_norm': float(np.max(largest)),
    'loss': float(np.mean(losses)),
    'rejected_steps': int(np.max(rejected[-1])),
  }


def _measured(name):
  """The points of a run."""
  placement = make_placement('shard_map', _WORKERS)
  state, batch, run, check = _programs(name, placement)
  told, points, compiled = [], [], []

  def count(event, _, **__):
    compiled.extend([1] * (event == _COMPILED))

  jax.monitoring.register_event_duration_secs_listener(count)
  try:
    for done in range(_CHUNK, _STEPS + 1, _CHUNK):
      state, values = run(state, batch)
      told.append(jax.device_get(values))
      if done == _CHUNK:
        check(state)
        compiled.clear()
      if done % (_STEPS // _POINTS) == 0:
        check(state)  # raises where workers have drifted apart
        points.append(_point(done, told, len(compiled)))
        told.clear()
  finally:
    jax.monitoring.unregister_event_duration_listener(count)
  return points


def _summary(points):
  """Numbers for the table, and `wrong`: what does not hold, in words."""
  half, quarter = len(points) // 2, len(points) // 4
  steps, rss, norms, arrays = (
    [point[name] for point in points]
    for name in ('step', 'rss_bytes', 'residual_norm', 'live_arrays')
  )
  last = points[-1]
  growth = rss[-1] - rss[half]
  early, late = np.mean(norms[quarter:half]), np.mean(norms[-quarter:])
  wrong = {
    'memory grew': growth > _GROWTH * rss[half],
    'live arrays grew': max(arrays) > arrays[0],
    'programs were compiled later': last['compilations'] > 0,
    'the residual norm rose': not np.isfinite(norms).all()
    or late > _ABOVE * early,
    'steps were rejected': last['rejected_steps'] > 0,
  }

  def slope(values):
    return float(np.polyfit(steps[half:], values[half:], 1)[0])

  return {
    'rss_bytes': rss[-1],
    'rss_growth_bytes': growth,
    'rss_slope_bytes_per_step': slope(rss),
    'live_arrays': arrays[-1],
    'compilations': last['compilations'],
    'largest_residual_norm': max(p['largest_residual_norm'] for p in points),
    'residual_norm': norms[-1],
    'residual_norm_slope_per_step': slope(norms),
    'loss': last['loss'],
    'wrong': [what for what, holds in wrong.items() if holds],
  }


@pytest.fixture(scope='module')
def rows():
  """Of the record, which is kept as it grows."""
  return []


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize('name', _SCHEMES)
def test_nothing_grows(name, rows):
  began = time.perf_counter()
  points = _measured(name)
  row = {
    'scheme': name,
    'steps': _STEPS,
    'workers': _WORKERS,
    'seconds': round(time.perf_counter() - began, 3),
    **_summary(points),
    'points': points,
  }
  rows.append(row)
  attempts.keep({'rows': rows})
  wrong = {*row['wrong']}
  if _STEPS < 10_000:
    # So soon norms still rise, and the allocator has not come to rest.
    wrong -= {'memory grew', 'the residual norm rose'}
  assert not wrong
  assert row['loss'] < 2.3


def _points(**changes):
  """Of a good run, but for what is given as a function of the number."""
  good = {
    'step': lambda n: 100 * (n + 1),
    'rss_bytes': lambda n: 500_000_000 + min(n, 3) * 10_000_000 + n % 2 * 4096,
    'live_arrays': lambda n: 38,
    'compilations': lambda n: 0,
    'residual_norm': lambda n: 2.0 + 0.1 * (n % 3),
    'largest_residual_norm': lambda n: 3.0,
    'loss': lambda n: 0.5,
    'rejected_steps': lambda n: 0,
  }
  made = {**good, **changes}
  return [{name: of(n) for name, of in made.items()} for n in range(12)]


@pytest.mark.parametrize(
  'changes, wrong',
  [
    ({}, []),
    ({'rss_bytes': lambda n: 10**8 + n * 10**6}, ['memory grew']),
    ({'live_arrays': lambda n: 38 + n // 11}, ['live arrays grew']),
    ({'compilations': lambda n: n // 11}, ['programs were compiled later']),
    ({'residual_norm': lambda n: 1.0 + n}, ['the residual norm rose']),
    (
      {'residual_norm': lambda n: np.nan if n == 2 else 1.0},
      ['the residual norm rose'],
    ),
    ({'rejected_steps': lambda n: n // 8}, ['steps were rejected']),
  ],
)
def test_a_bad_run_is_told(changes, wrong):
  assert _summary(_points(**changes))['wrong'] == wrong


# Columns of docs/faults.md.
_COLUMNS = {
  'scheme': lambda row: row['scheme'],
  'steps': lambda row: f'{row["steps"]:,}',
  'memory (MB)': lambda row: f'{row["rss_bytes"] / 1e6:.0f}',
  'growth (kB)': lambda row: f'{row["rss_growth_bytes"] / 1e3:.0f}',
  'live arrays': lambda row: f'{row["live_arrays"]}',
  'compiled later': lambda row: f'{row["compilations"]}',
  'residual norm largest': lambda row: f'{row["largest_residual_norm"]:.3g}',
  'at the end': lambda row: f'{row["residual_norm"]:.3g}',
  'slope (a step)': lambda r: f'{r["residual_norm_slope_per_step"]:+.1e}',
  'loss': lambda row: f'{row["loss"]:.3f}',
  'seconds': lambda row: f'{row["seconds"]:.0f}',
}


def test_the_page_has_the_recorded_table():
  rows = attempts.recorded('long_run')['rows']
  cells = [[of(row) for of in _COLUMNS.values()] for row in rows]
  table = tables.markdown(pd.DataFrame(cells, columns=[*_COLUMNS]))
  assert table in attempts.page('faults'), f'paste\n{table}'
  for row in rows:
    assert row['steps'] == 100_000
    found = _summary(row['points'])
    assert found.pop('wrong') == []
    wanted = {name: row[name] for name in found}
    assert found == pytest.approx(wanted, abs=1e-10)
