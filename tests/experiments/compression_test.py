"""The optimizer chain: where momentum, weight decay and clipping go."""

from experiments import communication
from experiments import compression
import gradsparse as gs
import jax.numpy as jnp
import numpy as np
import optax
import pytest


def _chain(scheme, arguments, **changes):
  settings = {
    'axis_name': None,
    'optimizer': 'sgd',
    'learning_rate': optax.constant_schedule(0.5),
    'momentum': 0.9,
    **changes,
  }
  return compression.make_transformation(scheme, arguments, **settings)


def _run(tx, steps=4):
  params = {'w': jnp.arange(1.0, 5.0).reshape(2, 2)}
  state = tx.init(params)
  for step in range(steps):
    grads = {'w': jnp.cos(params['w'] + step)}
    updates, state = tx.update(grads, state, params)
    params = optax.apply_updates(params, updates)
  return np.asarray(params['w'])


def _all_of_it():
  # Everything is sent and nothing masked: momentum SGD.
  return {'density': 1.0, 'factor_masking': False}


@pytest.mark.parametrize('nesterov', [False, True])
def test_momentum_is_inside_dgc_or_after_the_others_never_twice(nesterov):
  plain = _run(optax.sgd(0.5, 0.9, nesterov=nesterov))
  dense = _run(_chain('dense', {}, nesterov=nesterov))
  dgc = _run(_chain('dgc', _all_of_it(), nesterov=nesterov))
  np.testing.assert_allclose(dense, plain, rtol=1e-6)
  # DGC's Nesterov (eq. 10) is the same sum in another order.
  np.testing.assert_allclose(dgc, plain, rtol=1e-5)


def test_an_explicit_momentum_wins():
  named = _run(_chain('dgc', {**_all_of_it(), 'momentum': 0.5}))
  np.testing.assert_allclose(named, _run(optax.sgd(0.5, 0.5)), rtol=1e-5)


def test_adam_after_dgc_leaves_no_momentum_inside():
  dgc = _run(_chain('dgc', _all_of_it(), optimizer='adam'))
  np.testing.assert_allclose(dgc, _run(optax.adam(0.5)), rtol=1e-5)


def test_weight_decay_is_on_the_local_gradient():
  decayed = _run(_chain('dense', {}, weight_decay=0.1))
  expected = _run(
    optax.chain(optax.add_decayed_weights(0.1), optax.sgd(0.5, 0.9))
  )
  np.testing.assert_allclose(decayed, expected, rtol=1e-6)


def test_clipping_precedes_the_scheme():
  clipped = _run(_chain('dense', {}, clip_norm=0.25))
  expected = _run(
    optax.chain(optax.clip_by_global_norm(0.25), optax.sgd(0.5, 0.9))
  )
  np.testing.assert_allclose(clipped, expected, rtol=1e-5)


def test_learning_rates():
  cosine = compression.learning_rate_schedule('cosine', 0.1, 100)
  assert float(cosine(0)) == pytest.approx(0.1)
  assert float(cosine(100)) == pytest.approx(0.0, abs=1e-8)
  steps = compression.learning_rate_schedule('steps', 0.1, 64_000)
  found = [float(steps(at)) for at in (31_999, 32_001, 48_001)]
  assert found == pytest.approx([0.1, 0.01, 0.001])


def test_a_smaller_learning_rate_while_the_density_falls():
  kwargs = {'warmup_steps': 20, 'warmup_factor': 0.25}
  for name in compression.SCHEDULES:
    plain = compression.learning_rate_schedule(name, 0.1, 64)
    warmed = compression.learning_rate_schedule(name, 0.1, 64, **kwargs)
    for step, factor in ((0, 0.25), (19, 0.25), (20, 1.0), (63, 1.0)):
      assert float(warmed(step)) == pytest.approx(factor * float(plain(step)))


def test_the_optimizer_follows_it():
  schedule = compression.learning_rate_schedule(
    'constant', 0.5, 4, warmup_steps=2, warmup_factor=0.1
  )
  tx = _chain('dense', {}, learning_rate=schedule, momentum=0.0)
  params = {'w': jnp.zeros((2, 2))}
  state = tx.init(params)
  for expected in (0.05, 0.05, 0.5, 0.5):
    updates, state = tx.update({'w': jnp.ones((2, 2))}, state, params)
    np.testing.assert_allclose(updates['w'], -expected, rtol=1e-6)


def test_every_paper_has_its_warmup_and_any_can_be_had():
  def densities(scheme, warmup):
    stages = compression.warmup_stages(scheme, {'density': 0.001}, 8, warmup)
    return [stage.density for stage in stages]

  assert densities('dgc', 'paper')[1] == 0.0625
  assert densities('gtopk', 'paper')[1] == 0.0725
  assert densities('dgc', 'gtopk') == densities('gtopk', 'paper')
  assert densities('gtopk', 'dgc') == densities('dgc', 'paper')


def test_the_linear_drop_ratio_is_one_program_until_the_final_density():
  falling, final = compression.warmup_stages(
    'gradient_dropping', {'density': 0.01}, 10, 'linear_drop_ratio'
  )
  found = [falling.density_at(step) for step in (0, 5, 9)]
  assert found == pytest.approx([1.0, 0.505, 0.109])
  assert final == (10, 0.01) and final.density_at(10) == 0.01


class _Plan:
  dense_bytes = 1000

  def __init__(self, payload_bytes, rungs=()):
    self.payload_bytes = payload_bytes
    self.sent_bytes = 3 * payload_bytes
    self.rungs = rungs


def test_bytes_of_a_run_with_stages():
  stages = compression.warmup_stages('dgc', {'density': 0.001}, 8)
  assert [stage.first_step for stage in stages] == [0, 2, 4, 6, 8]
  gtopk = compression.warmup_stages('gtopk', {'density': 0.001}, 8)
  assert [stage.density for stage in gtopk] == [
    0.25,
    0.0725,
    0.015,
    0.004,
    0.001,
  ]
  payloads = np.repeat([500, 100, 50, 20, 10], 2)
  traffic = communication.Communication(
    stages, [_Plan(p) for p in payloads[::2]]
  )
  for step, sent in enumerate(np.cumsum(3 * payloads), 1):
    line = traffic.count(step, 0.0)  # the plan knows better
    assert line['comm/sent_bytes_total'] == sent
    if step == 3:  # a run that ends inside the warm-up
      assert traffic.summary()['payload_bytes_per_step'] == 10
      assert traffic.summary()['sent_bytes_total'] == 3300
  summary = traffic.summary()
  assert summary['ratio'] == 100
  assert summary['run_average_payload_bytes_per_step'] == 136
  assert summary['run_average_sent_bytes_per_step'] == 3 * 136
  assert summary['run_average_ratio'] == pytest.approx(10_000 / 1360)
  both = communication.last_and_average(summary, 'ratio', '{:.1f}x')
  assert both == '100.0x\n7.4x'
  same = dict.fromkeys(summary, 5.0)
  assert communication.last_and_average(same, 'sent_bytes_per_step') == '5'


def test_bytes_of_a_density_that_falls_each_step():
  arguments = {'density': 0.01, 'min_size': 0}
  stages = compression.warmup_stages(
    'gradient_dropping', arguments, 4, 'linear_drop_ratio'
  )

  def chain(density):
    changed = {**arguments, 'density': density}
    return _chain('gradient_dropping', changed, axis_name='workers')

  falling, final = chains = [chain(stage.density) for stage in stages]
  params = {'w': jnp.zeros((50, 40)), 'b': jnp.zeros(40)}
  plans = communication.plan_stages(stages, chains, params, 4)
  traffic = communication.Communication(stages, plans)
  for step, tx in enumerate([falling] * 4 + [final] * 2):
    sent = gs.plan(tx, params, 4, step=step)
    assert sent.sent_bytes > 0
    line = traffic.count(step + 1, sent.payload_bytes)
    assert line['comm/payload_bytes'] == sent.payload_bytes
    assert line['comm/sent_bytes'] == sent.sent_bytes
    assert line['comm/density'] == pytest.approx(max(1 - 0.99 * step / 4, 0.01))
  # The run ends at the density that was asked for, not at a message above it.
  summary = traffic.summary()
  static = gs.plan(chain(0.01), params, 4)
  assert summary['payload_bytes_per_step'] == static.payload_bytes
  assert summary['sent_bytes_per_step'] == static.sent_bytes
  assert summary['run_average_ratio'] < summary['ratio']


def test_bytes_that_depend_on_the_data_are_those_that_were_sent():
  stages = (compression.Stage(0, None),)
  # Beside a message of 100, 200 or 400 bytes there are 8 of dense leaves.
  plan = _Plan(408, rungs=((100, 300), (200, 600), (400, 1200)))
  traffic = communication.Communication(stages, [plan])
  lines = [traffic.count(step, p) for step, p in enumerate((108, 408, 108), 1)]
  assert [line['comm/payload_bytes'] for line in lines] == [108, 408, 108]
  assert [line['comm/sent_bytes'] for line in lines] == [324, 1224, 324]
  again = communication.Communication(stages, [plan])
  again.restore(traffic.to_dict())
  for counted in (traffic, again):
    assert counted.summary()['payload_bytes_per_step'] == 208
    assert counted.summary()['sent_bytes_total'] == 1872
