"""docs/large_models.md shows what was recorded; the study on a tiny model."""

import json
import math
import pathlib

from experiments.program import errors
from experiments.studies.large_models import model
from experiments.studies.large_models import page
from experiments.studies.large_models import plans
from experiments.studies.large_models import steps
import jax
from jax.sharding import PartitionSpec as P
import numpy as np
import pytest

_ROOT = pathlib.Path(__file__).parents[3]
_RECORD = json.loads(
  (_ROOT / 'experiments/results/large_models.json').read_text()
)
_PAGE = (_ROOT / 'docs/large_models.md').read_text()
_TINY = model.Transformer(
  layers=2, width=64, heads=4, vocabulary=510, context=16, shards=4
)


@pytest.mark.parametrize('part', [x for x in page.TABLES if x in _RECORD])
def test_the_page_has_the_recorded_tables(part):
  for table in page.TABLES[part]:
    assert table(_RECORD[part]) in _PAGE, f'paste what --parts={part} prints'


def test_the_page_has_the_sizes_of_the_models():
  for part in ('steps', 'plans'):
    assert f'{_RECORD[part]["parameters"]:,} parameters' in _PAGE


def test_what_was_recorded_is_what_was_planned():
  loss = _loss_bytes(_RECORD['steps']['mesh']['replica'])
  for row in _RECORD['steps']['rows']:
    assert row['sent_bytes'] == row['plan_bytes'] + loss, row['scheme']


def _loss_bytes(replicas):
  """What the mean of the loss adds to a plan: an all-reduce of 4 bytes."""
  return math.ceil(8 * (replicas - 1) / replicas)


@pytest.fixture(scope='module')
def rows():
  mesh = steps.make_mesh(steps.devices_here(2, 4))
  return {
    name: steps.compiled(name, _TINY, mesh, 1)
    for name in ('dense', 'dgc_chunk')
  }


@pytest.mark.slow
def test_a_compiled_step_sends_what_is_planned(rows):
  for row in rows.values():
    assert row['sent_bytes'] == row['plan_bytes'] + _loss_bytes(2)
    crossing = [c for c in row['collectives'] if 'replica' in c['axes']]
    assert {c['axes'] for c in crossing} == {'replica'}
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
    inside = [c for c in row['collectives'] if c['axes'] == 'fsdp']
    kinds = {c['kind'] for c in inside}
    assert kinds == {'all_gather', 'reduce_scatter', 'all_reduce'}


@pytest.mark.slow
def test_memory_is_that_of_a_device(rows):
  shard = 4 * _TINY.parameters / 4
  # Parameters and a momentum; DGC has what is pending beside it.
  for name, copies in (('dense', 2), ('dgc_chunk', 3)):
    row = rows[name]
    assert copies * shard < row['argument_bytes'] < 1.2 * copies * shard
    assert row['peak_bytes'] > row['argument_bytes'] + shard


def test_the_gradient_is_that_of_a_model_that_is_not_sharded():
  tiny = model.Transformer(1, 16, 2, 30, 8, shards=4)
  rng = np.random.default_rng(0)
  params = jax.tree.map(
    lambda x: rng.normal(size=x.shape).astype(np.float32), tiny.shapes()
  )
  tokens = rng.integers(0, 30, (4, 9)).astype(np.int32)
  mesh = steps.make_mesh(steps.devices_here(1, 4))
  with jax.set_mesh(mesh):
    found = jax.jit(tiny.value_and_grad())(params, tokens)
  whole = jax.tree.map(lambda _: P(), tiny.specs())
  want = jax.jit(jax.value_and_grad(lambda p: tiny.loss(p, whole, tokens)))(
    params
  )
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5),
    found,
    want,
  )


def test_models_have_the_sizes_that_the_page_names():
  gpt = model.Transformer(24, 2048, 16, 50_257, 1024, 4)
  assert gpt.parameters == _RECORD['steps']['parameters']
  assert 1.3e9 < gpt.parameters < 1.32e9
  specs = gpt.specs()
  assert specs['tokens'] == P(None, 'fsdp')  # 4 does not divide 50,257
  assert specs['blocks'][0]['down'] == {'kernel': P('fsdp', None), 'bias': P()}


def test_exchange_times_are_bytes_over_the_rate():
  assert page.exchange_ms(1_000_000, 1, 1) == pytest.approx(8)
  assert page.exchange_ms(1_000_000, 10, 4) == pytest.approx(3.2)


def test_trees_have_one_size():
  for leaves in (10, 100, 1000):
    tree = plans.tree(leaves, 16_000_000)
    assert len(tree) == leaves
    assert sum(x.size for x in tree.values()) == 16_000_000
  with pytest.raises(errors.ConfigError, match='at least 128 a leaf'):
    plans.tree(10, 1000)


def test_a_mistake_is_refused():
  with pytest.raises(errors.ConfigError, match='--heads must divide --width'):
    model.Transformer(1, 64, 5, 10, 10)
  with pytest.raises(errors.ConfigError, match='need 64 devices'):
    steps.devices_here(16, 4)


@pytest.mark.slow
def test_the_program_keeps_the_other_parts(tmp_path, program):
  path = tmp_path / 'large.json'
  path.write_text('{"steps": {"rows": []}}')
  done = program(
    'studies.large_models',
    *(f'--json={path}', '--parts=plans,leaves', '--vocabulary=500'),
    *('--plan_layers=1', '--plan_width=64', '--leaves=2', '--elements=1000'),
  )
  assert done.returncode == 0, done.stderr
  record = json.loads(path.read_text())
  assert record['steps'] == {'rows': []}
  assert record['plans']['command'].startswith(
    'python -m experiments.studies.large_models --json='
  )
  for part in ('plans', 'leaves'):
    (table,) = page.TABLES[part]
    assert table(record[part]) in done.stdout
  names = {row['scheme'] for row in record['plans']['rows']}
  assert {'dgc', 'dgc_chunk', 'power_sgd'} < names and 'gtopk' not in names
