"""What an editor and a prompt show: names, types, and what a scheme is."""

import importlib.util
import pathlib
import subprocess
import sys

import gradsparse as gs
import jax
from jax.sharding import PartitionSpec as P
import optax
import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]


@pytest.mark.parametrize('module', [gs, gs.workers])
def test_dir_lists_the_public_names_only(module):
  assert dir(module) == sorted(module.__all__)
  assert all(hasattr(module, name) for name in dir(module))


def test_a_scheme_says_how_it_was_made():
  assert (
    repr(gs.dgc(0.001, axis_name='workers', momentum=0.5, min_size=None))
    == "gs.dgc(density=0.001, momentum=0.5, axis_name='workers')"
  )
  assert repr(gs.dense(axis_name=None)) == 'gs.dense(axis_name=None)'
  schedule = gs.schedules.dgc_warmup(0.001, warmup_steps=4)
  text = repr(gs.dgc(schedule, axis_name=('a', 'b')))
  assert text.startswith('gs.dgc(density=DensitySchedule(')
  assert text.endswith("axis_name=('a', 'b'))")

  def half(step):
    return 0.5

  assert 'density=half,' in repr(gs.dgc(half, axis_name='w'))


@pytest.mark.parametrize('name', gs.recipes.RECIPES)
def test_every_recipe_does(name):
  recipe = gs.recipes.RECIPES[name]
  text = repr(recipe.make(axis_name='workers'))
  assert text.startswith(f'gs.{name}(') and "axis_name='workers'" in text
  again = eval(text, {'gs': gs})
  assert repr(again) == text
  assert getattr(gs, name) is recipe.factory


def test_what_goes_around_a_scheme_says_it_too():
  scheme = gs.dgc(0.1, axis_name='w')
  inside = "gs.dgc(density=0.1, axis_name='w')"
  chain = optax.chain(scheme, optax.sgd(0.1))
  for made, text in (
    (gs.sharded(scheme, P()), f'gs.sharded(tx={inside}, param_specs=P())'),
    (gs.accumulate(scheme, every=2), f'gs.accumulate(tx={inside}, every=2)'),
    (gs.accumulate(chain, every=2), 'gs.accumulate(tx=..., every=2)'),
    (
      gs.local_gradient(scheme),
      f'gs.local_gradient(inner={inside})',
    ),
    (
      gs.skip_rejected(scheme, max_consecutive=3),
      f'gs.skip_rejected(inner={inside}, max_consecutive=3)',
    ),
    (
      gs.clip_local_norm(1.0, axis_name='w'),
      "gs.clip_local_norm(threshold=1.0, axis_name='w')",
    ),
  ):
    assert repr(made).replace('PartitionSpec', 'P') == text
    assert isinstance(made, optax.GradientTransformationExtraArgs)


def test_one_made_of_sockets_says_what_it_is_made_of():
  scheme = gs.dense(axis_name='w').scheme
  text = repr(gs.compressed_mean(**scheme._asdict()))
  assert text.startswith("gs.compressed_mean(compressor='dense', exchange=")


def test_clipping_takes_the_keywords_of_what_follows_it():
  tx = gs.clip_local_norm(1.0, axis_name=None)
  grads = {'w': jax.numpy.ones(4)}
  updates, _ = tx.update(grads, tx.init(grads), second_moment=grads)
  assert float(updates['w'][0]) == 0.5


GOOD = """
import gradsparse as gs
import jax
from jax.sharding import PartitionSpec as P
import optax

params = {'w': jax.numpy.zeros((4, 4))}
tx = optax.chain(
  gs.dgc(0.001, scope='leaf', values='bfloat16', axis_name='workers'),
  optax.sgd(0.1),
)
state = gs.workers.init(tx, params, {'workers': 2})
specs = gs.workers.specs(tx, params, 2)


def step(state: optax.OptState, batch: jax.Array) -> optax.OptState:
  return state


run = gs.workers.parallel(
  step,
  runner='shard_map',
  num_workers=2,
  in_specs=(specs, P('workers')),
  out_specs=specs,
)
text: str = run.lower(state, params['w']).compile().as_text() or ''
print(gs.audit(text).sent_bytes, gs.metrics(state)['sent_bytes'].shape)
print(gs.audit(run, state, params['w']).sent_by_axis)
"""

BAD = (
  "gs.dgc(0.001, scope='leaves', axis_name='workers')",
  'gs.dgc(0.001)',
  "gs.local_gradient(gs.dgc(0.1, axis_name=None), 'mean')",
  "gs.workers.parallel(print, runner='vmap', num_workers=2, in_specs=(),"
  ' out_specs=())',
)


@pytest.mark.slow
def test_a_users_file_type_checks(tmp_path):
  """And mistakes in words are seen before anything runs."""
  if importlib.util.find_spec('mypy') is None:
    pytest.skip('needs mypy')
  good, bad = tmp_path / 'good.py', tmp_path / 'bad.py'
  good.write_text(GOOD)
  bad.write_text('\n'.join(['import gradsparse as gs', *BAD]))
  done = subprocess.run(
    [sys.executable, '-m', 'mypy', str(good), str(bad)],
    cwd=REPOSITORY,
    capture_output=True,
    text=True,
  )
  errors = [line for line in done.stdout.splitlines() if ': error:' in line]
  assert not [line for line in errors if 'good.py' in line], done.stdout
  for number, _ in enumerate(BAD, 2):
    assert any(f'bad.py:{number}: ' in line for line in errors), done.stdout
