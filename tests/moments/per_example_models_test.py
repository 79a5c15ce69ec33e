"""Sums and squares in one backward pass, of models made of Flax's layers.

A warning is an error here: what is meant to be known is not copied silently.
"""

import functools

from experiments import models
from experiments.models import resnet
from flax import linen as nn
import gradsparse as gs
import jax
import numpy as np
import optax
import pytest
from tests.moments.per_example import check
from tests.moments.per_example import close
from tests.moments.per_example import draw

pytestmark = pytest.mark.filterwarnings('error:second moments')
NAME = 'examples'


class Recurrent(nn.Module):
  """Embedding, LSTM and a dense layer, as for language."""

  @nn.compact
  def __call__(self, tokens):
    x = nn.Embed(7, 5)(tokens)
    return nn.Dense(7)(nn.RNN(nn.OptimizedLSTMCell(4))(x))


class Normal(nn.Module):
  """What layers there are, in few parameters."""

  @nn.compact
  def __call__(self, x):
    x = nn.Conv(4, (3, 3), strides=2)(x)
    x = nn.GroupNorm(2)(nn.ConvTranspose(4, (2, 2), strides=(2, 2))(x))
    x = nn.Conv(8, (3, 3), feature_group_count=4)(x).reshape(len(x), -1, 8)
    x = x + nn.MultiHeadDotProductAttention(2, use_bias=False)(x)
    return nn.DenseGeneral((2, 3), axis=(1, 2))(x).reshape(len(x), -1)


def entropy(logits, labels):
  each = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
  return each.mean()


def flax_case(name, size):
  """(loss of one example, parameters, batch)."""
  rng = np.random.default_rng(size)
  if name == 'lstm':
    model = Recurrent()
    batch = tuple(rng.integers(0, 7, (size, 6)) for _ in range(2))
  else:
    model = Normal() if name == 'layers' else models.MLP(6, (5,))
    batch = draw(size, 6, 4, 3, seed=size), rng.integers(0, 6, size)
  options = {'train': True} if name == 'mlp' else {}

  def loss(params, example):
    x, label = example
    return entropy(model.apply(params, x[None], **options), label[None])

  params = jax.jit(functools.partial(model.init, **options))(
    jax.random.key(1), batch[0][:1]
  )
  return loss, params, batch


@pytest.mark.slow
@pytest.mark.parametrize(
  'name, size',
  [('mlp', 1), ('mlp', 4), ('lstm', 4), ('layers', 3)],
)
def test_models_of_flax_are_known(name, size):
  check(*flax_case(name, size), tolerance=1e-4)


class Residual(nn.Module):
  """A part of the experiments' residual networks."""

  @nn.compact
  def __call__(self, x):
    x = resnet.BasicBlock(4, 2, batch_axis=NAME)(x, train=True)
    return nn.Dense(3)(x.mean((1, 2)))


@pytest.mark.slow
def test_a_residual_block_with_batch_normalisation():
  model, batch = Residual(), (draw(3, 6, 6, 2), np.arange(3) % 3)
  mapped = jax.vmap(model.init, (None, 0), axis_name=NAME)
  shapes = jax.eval_shape(mapped, jax.random.key(0), batch[0][:, None])
  variables = jax.tree.map(lambda s: draw(*s.shape[1:]) ** 2, shapes)
  statistics = variables['batch_stats']

  def loss(params, example):
    image, label = example
    logits, changed = model.apply(
      {'params': params, 'batch_stats': statistics},
      image[None],
      mutable=['batch_stats'],
    )
    return entropy(logits, label[None]), changed

  def of_batch(copies, batch):
    each, changed = jax.vmap(loss, axis_name=NAME)(copies, batch)
    return each.mean(), changed

  @jax.jit
  def both(params, batch):
    fn = gs.value_and_grad_moments(loss, has_aux=True, axis_name=NAME)
    slow = gs.batch_value_and_grad_moments(of_batch, has_aux=True)
    return fn(params, batch), slow(params, batch)

  close(*both(variables['params'], batch), 1e-4)
