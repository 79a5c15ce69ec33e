"""A step between replicas on CPUs, compiled and never run; see large_step.py.

docs/large_models.md has what came of a large model.
"""

import dataclasses
import math

import jax
import numpy as np
import pytest
from tests.experiments import large_step
from tests.experiments.faults import attempts

_REPLICAS, _SHARDS = 2, 4
_AXIS, _INSIDE = large_step.AXIS, large_step.INSIDE
_MODEL = large_step.from_environment(width=64, shards=_SHARDS)
# The default order is for speed on many cores, and keeps everything longer.
_OPTIONS = {'xla_cpu_scheduler_type': 'CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED'}


def _mesh(replicas):
  devices = np.array(jax.devices()[: replicas * _SHARDS])
  return large_step.mesh(devices.reshape(replicas, _SHARDS))


@pytest.fixture(scope='module')
def rows():
  found = {}
  names = large_step.SCHEMES if _MODEL.large else ('dense', 'dgc_chunk')
  for name in names:
    found[name] = large_step.compiled(name, _MODEL, _mesh(_REPLICAS), _OPTIONS)[
      1
    ]
    jax.clear_caches()
  mesh = {_AXIS: _REPLICAS, _INSIDE: _SHARDS}
  made = {
    'parameters': _MODEL.parameters,
    'mesh': mesh,
    'rows': [*found.values()],
  }
  attempts.keep({'steps': made})
  return found


@pytest.mark.slow
def test_a_compiled_step_sends_what_is_planned(rows):
  for row in rows.values():
    loss = math.ceil(8 * (_REPLICAS - 1) / _REPLICAS)  # an all-reduce of 4 B
    assert row['sent_bytes'] == row['plan_bytes'] + loss
    crossing = [c for c in row['collectives'] if _AXIS in c['axes']]
    assert {c['axes'] for c in crossing} == {_AXIS}
    # Between two replicas each of these collectives sends its operand once.
    total = sum(c['bytes'] * c['times'] for c in crossing)
    assert total == row['sent_bytes']
  assert rows['dgc_chunk']['sent_bytes'] < rows['dense']['sent_bytes'] / 10


@pytest.mark.slow
def test_the_scheme_leaves_fsdp_as_it_is(rows):
  """It gathers nothing; its devices agree on a few numbers."""
  more = rows['dgc_chunk']['inside_bytes'] - rows['dense']['inside_bytes']
  assert abs(more) < 100
  for row in rows.values():
    kinds = {c['kind'] for c in row['collectives'] if c['axes'] == _INSIDE}
    assert kinds == {'all_gather', 'reduce_scatter', 'all_reduce'}


@pytest.mark.slow
def test_memory_is_that_of_a_device(rows):
  shard = 4 * _MODEL.parameters / _SHARDS
  # Parameters and a momentum; DGC has what is pending beside it.
  for name, copies in (('dense', 2), ('dgc_chunk', 3)):
    row = rows[name]
    assert copies * shard < row['argument_bytes'] < 1.2 * copies * shard
    assert row['peak_bytes'] > row['argument_bytes'] + shard


@pytest.mark.slow
@pytest.mark.skipif(_MODEL.large, reason='the parameters are made here')
@pytest.mark.parametrize('scanned', [False, True])
def test_the_gradient_is_that_of_a_model_that_is_not_sharded(scanned):
  rng = np.random.default_rng(0)
  model, whole = (
    dataclasses.replace(_MODEL, scanned=scanned, shards=shards)
    for shards in (_SHARDS, 1)
  )
  params = jax.tree.map(
    lambda x: 0.1 * rng.normal(size=x.shape).astype(np.float32), model.shapes()
  )
  tokens = (4, model.context + 1)
  tokens = rng.integers(0, model.vocabulary, tokens).astype(np.int32)
  with jax.set_mesh(_mesh(1)):
    found = jax.jit(model.value_and_grad())(params, tokens)
  loss = lambda p: whole.loss(p, whole.specs(), tokens)
  want = jax.jit(jax.value_and_grad(loss))
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5),
    found,
    want(params),
  )


def test_the_page_has_what_was_recorded():
  page, record = (
    attempts.page('large_models'),
    attempts.recorded('large_models'),
  )
  for part in ('steps', 'plans'):
    assert f'{record[part]["parameters"]:,} parameters' in page
  for row in record['steps']['rows']:
    assert row['sent_bytes'] == row['plan_bytes'] + 4
    less = record['steps']['rows'][0]['sent_bytes'] / row['sent_bytes']
    shown = f'| {row["scheme"]} | {row["sent_bytes"]:,} | {less:,.0f} |'
    assert shown in page
  for row in record['plans']['rows']:
    assert f'| {row["scheme"]} | {row["payload_bytes"]:,} |' in page
