"""Models have the published sizes."""

from experiments import models
from experiments.program import errors
import jax
import jax.numpy as jnp
import pytest


@pytest.mark.parametrize(
  ('name', 'shape', 'parameters'),
  [
    ('convnet', (8, 8, 1), 283_786),
    ('mlp', (8, 8, 1), 17_226),
    ('resnet20', (32, 32, 3), 269_722),  # He et al. 2016, table 6: 0.27 M
    ('resnet110', (32, 32, 3), 1_727_962),  # 1.7 M
  ],
)
def test_parameters(name, shape, parameters):
  model = models.create(name, 10)
  images = jnp.zeros((2, *shape))

  def run():
    variables = model.init(jax.random.key(0), images, train=False)
    return variables['params'], model.apply(variables, images, train=False)

  params, logits = jax.eval_shape(run)
  assert sum(leaf.size for leaf in jax.tree.leaves(params)) == parameters
  assert logits.shape == (2, 10)


def test_unknown_model_lists_the_known():
  with pytest.raises(errors.ConfigError, match='convnet, mlp, resnet20'):
    models.create('resnet', 10)
