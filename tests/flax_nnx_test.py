"""docs/flax_nnx.md runs as it stands, and shows what it prints."""

import gradsparse as gs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests import pages

pytest.importorskip('flax', reason='needs the `experiments` extra')

pytestmark = pytest.mark.slow


@pytest.fixture(scope='module')
def page():
  return pages.run('flax_nnx.md')


def test_the_page_prints_what_it_says(page):
  assert page.printed == page.said


def test_a_step_is_compiled_once(page):
  assert page.names['train']._cache_size() == 1
  assert page.names['train_on_two']._cache_size() == 1


def test_a_checkpoint_restores_what_was_saved(page):
  mesh, run = page.names['mesh'], page.names['run']
  params, opt_state, stats, number = page.names['restored'](
    page.names['folder'], 4, mesh
  )
  jax.tree.map(
    np.testing.assert_array_equal,
    {
      'params': params,
      'opt_state': opt_state,
      'stats': stats,
      'number': number,
    },
    run,
  )


def test_boxes_of_nnx_for_arrays_are_named(page):
  nnx = page.names['nnx']
  boxed = nnx.state(page.names['model'], nnx.Param)
  specs = gs.workers.specs(page.names['tx'], boxed, 4, 'data')
  step = gs.workers.wrap(
    lambda state: state,
    mesh=page.names['mesh'],
    axis_name='data',
    in_specs=(specs,),
    out_specs=specs,
  )
  with pytest.raises(ValueError, match='Flax NNX: call nnx.as_pure on both'):
    jax.eval_shape(step, page.names['opt_state'])


def test_each_worker_drops_units_of_its_own(page):
  nnx = page.names['nnx']

  def kept(number):
    model = page.names['Net'](nnx.Rngs(0, dropout=1))
    nnx.reseed(model, dropout=page.names['key_of'](number))
    return model.drop(jnp.ones(100)) > 0

  first, second = (
    jax.vmap(lambda _, n=n: kept(n), axis_name='data')(jnp.arange(4))
    for n in range(2)
  )
  assert np.unique(np.concatenate([first, second]), axis=0).shape[0] == 8
