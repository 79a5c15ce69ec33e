"""docs/flax_nnx.md runs as it stands, and shows what it prints."""

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
