"""Models have the published sizes, and dropout happens where it should."""

import warnings

from experiments import data
from experiments import models
from experiments import tasks
from experiments.models import alexnet
from experiments.program import errors
from experiments.training import gradients
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests import marks

_CIFAR, _IMAGENET, _MNIST = (32, 32, 3), (224, 224, 3), (28, 28, 1)


_SIZES = [
  ('convnet', (8, 8, 1), 10, 283_786),
  ('mlp', (8, 8, 1), 10, 17_226),
  ('logistic', _MNIST, 10, 28 * 28 * 10 + 10),
  ('perceptron', _MNIST, 10, 785 * 4096 + 4097 * 10),
  ('resnet8', _CIFAR, 10, 75_290),
  ('resnet20', _CIFAR, 10, 269_722),  # He et al. 2016, table 6: 0.27 M
  ('resnet110', _CIFAR, 10, 1_727_962),  # 1.7 M
  ('vgg16', _CIFAR, 10, 14_728_266),  # gtopkssgd, models/vgg.py
  ('vgg_like', _CIFAR, 10, 14_987_200),  # Chainer, examples/cifar
  ('resnet50', _IMAGENET, 1000, 25_557_032),  # torchvision, DGC's table 3
  ('resnet152', _IMAGENET, 1000, 60_192_808),  # torchvision; QSGD: 60 M
  ('vgg19', _IMAGENET, 1000, 143_667_240),  # torchvision; QSGD: 143 M
  ('alexnet', _IMAGENET, 1000, 60_965_224),  # Caffe, DGC's table 3
  ('alexnet', (227, 227, 3), 1000, 60_965_224),  # Caffe's crops
  ('alexnet_ungrouped', _IMAGENET, 1000, 62_378_344),  # QSGD: 62 M
  # Of 11,295,240 elsewhere; CNTK's convolutions have no biases.
  ('bn_inception', _IMAGENET, 1000, 11_295_240 - 10_016),
]
_DEEP = ('bn_inception', 'resnet50', 'resnet110', 'resnet152')


@pytest.mark.parametrize(
  ('name', 'shape', 'classes', 'parameters'),
  marks.few(_SIZES, *(case for case in _SIZES if case[0] not in _DEEP)),
)
def test_parameters(name, shape, classes, parameters):
  model = models.create(name, classes)
  images = jnp.zeros((2, *shape))

  def run():
    variables = model.init(jax.random.key(0), images, train=False)
    return variables['params'], model.apply(variables, images, train=False)

  params, logits = jax.eval_shape(run)
  assert sum(leaf.size for leaf in jax.tree.leaves(params)) == parameters
  assert logits.shape == (2, classes)


def test_every_model_is_tested():
  assert {name for name, *_ in _SIZES} == set(models.KINDS['images'])


@pytest.mark.parametrize(
  ('name', 'vectors'), [('alexnet', 10_568), ('resnet50', 54_120)]
)
def test_dgcs_ratios_follow_from_how_much_is_one_dimensional(name, vectors):
  model, images = models.create(name, 1000), jnp.zeros((1, *_IMAGENET))
  made = jax.eval_shape(
    lambda: model.init(jax.random.key(0), images, train=False)
  )
  leaves = jax.tree.leaves(made['params'])
  assert sum(leaf.size for leaf in leaves if leaf.ndim == 1) == vectors


def test_unknown_model_lists_the_known():
  with pytest.raises(errors.ConfigError, match='convnet, logistic, mlp'):
    models.create('resnet', 10)


@pytest.mark.parametrize('kind', models.KINDS)
def test_a_model_for_something_else_lists_those_of_the_kind(kind):
  others = {name for k in models.KINDS if k != kind for name in models.KINDS[k]}
  for name in (*others, 'unknown'):
    with pytest.raises(errors.ConfigError, match=f'for {kind}, got') as raised:
      models.create(name, 10, kind)
    message = str(raised.value).split(', got')[0]
    assert all(known in message for known in models.KINDS[kind])
    assert not any(f' {other},' in message for other in others)
  for name in models.KINDS[kind]:
    models.create(name, 10, kind)


def test_every_name_is_of_one_kind_only():
  names = [name for kind in models.KINDS.values() for name in kind]
  assert len(names) == len(set(names))
  assert tuple(names) == models.NAMES


@pytest.mark.parametrize(
  ('name', 'side'), [('alexnet', 63), ('vgg16', 32), ('vgg_like', 32)]
)
def test_images_that_nothing_is_left_of_are_refused(name, side):
  models.check_images(name, (side, side, 3))
  logits, _ = jax.eval_shape(
    lambda: models.create(name, 3).init_with_output(
      jax.random.key(0), jnp.zeros((1, side, side, 3)), train=False
    )
  )
  assert logits.shape == (1, 3)
  with pytest.raises(errors.ConfigError, match=f'{side} x {side} pixels or mo'):
    models.check_images(name, (side, side - 1, 3))


def _task(model, shape):
  return tasks.Classification(model, shape, mean=[0.0], std=[1.0])


def _gradients(model, side, function):
  """The shapes of what a function of `gradients` returns for a model."""
  task = _task(model, (side, side, 3))
  inputs = {
    'images': jnp.zeros((2, side, side, 3)),
    'labels': jnp.zeros(2, jnp.int32),
  }

  def run():
    made = task.init(jax.random.key(0))
    batch = data.Batch(inputs, jnp.zeros(2, jnp.uint32))
    return made, function(task, *made, (), batch)

  return jax.eval_shape(run)


@pytest.mark.parametrize(
  'name',
  marks.few(
    [
      'alexnet',
      'bn_inception',
      'logistic',
      'resnet8',
      'resnet50',
      'vgg16',
      'vgg19',
      'vgg_like',
    ],
    'resnet8',
    'vgg_like',
  ),
)
def test_every_kind_of_model_has_gradients(name):
  side = 63 if name == 'alexnet' else 32
  made, got = _gradients(models.create(name, 10), side, gradients.plain)
  alike = jax.tree.map(lambda x, y: x.shape == y.shape, made.params, got.grads)
  assert all(jax.tree.leaves(alike))
  assert jax.tree.structure(got.statistics) == jax.tree.structure(
    made.statistics
  )


@pytest.mark.slow
@pytest.mark.parametrize(
  'model',
  [
    models.VGGLike(3, stages=((4, 2), (6, 2)), width=8),
    models.ResNet(3, blocks=(1, 2)),
  ],
  ids=['vgg_like', 'resnet50'],
)
def test_the_variance_papers_networks_need_no_copies_of_their_weights(model):
  with warnings.catch_warnings():
    warnings.filterwarnings('error', 'second moments')
    _gradients(model, 8, gradients.with_moments)


_TINY = models.VGGLike(3, stages=((4, 2),), width=8)


@pytest.fixture(scope='module')
def tiny():
  """Variables of a small VGG-like network, images, labels."""
  rng = np.random.default_rng(0)
  images = jnp.asarray(rng.normal(size=(4, 4, 4, 3)), jnp.float32)
  variables = jax.jit(
    lambda: _TINY.init(jax.random.key(0), images, train=False)
  )()
  return variables, images, jnp.asarray([0, 1, 2, 1])


@pytest.mark.slow
def test_dropout_is_for_training_only_and_follows_the_noise(tiny):
  variables, images, labels = tiny
  params, statistics = variables['params'], variables['batch_stats']
  test = jax.jit(lambda: _TINY.apply(variables, images, train=False))
  np.testing.assert_array_equal(test(), test())

  @jax.jit
  def loss(noise):
    batch = data.Batch({'images': images, 'labels': labels}, noise)
    return gradients.plain(
      _task(_TINY, (4, 4, 3)), params, statistics, (), batch
    ).loss

  first, second = jnp.asarray([[0, 1], [0, 2]], jnp.uint32)
  assert loss(first) == loss(first) != loss(second)


@pytest.mark.slow
def test_second_moments_of_a_network_with_dropout(tiny):
  """Against the slow way: each example has a copy of the parameters."""
  variables, images, labels = tiny
  params, statistics = variables['params'], variables['batch_stats']
  noise = jnp.asarray([3, 4], jnp.uint32)
  batch = data.Batch({'images': images, 'labels': labels}, noise)
  task = _task(_TINY, (4, 4, 3))
  got = jax.jit(
    lambda batch: gradients.with_moments(task, params, statistics, (), batch)
  )(batch)
  model = _TINY.clone(batch_axis='examples')
  keys = jax.random.split(
    jax.random.wrap_key_data(noise, impl='threefry2x32'), len(labels)
  )

  def one(params, image, key):
    logits, _ = model.apply(
      {'params': params, 'batch_stats': statistics},
      image[None],
      train=True,
      mutable=['batch_stats'],
      rngs={'dropout': key},
    )
    return logits[0]

  def loss(copies):
    logits = jax.vmap(one, axis_name='examples')(copies, images, keys)
    return optax.softmax_cross_entropy_with_integer_labels(
      logits, labels
    ).mean()

  copies = jax.tree.map(lambda p: jnp.stack([p] * len(labels)), params)
  value, own = jax.jit(jax.value_and_grad(loss))(copies)
  np.testing.assert_allclose(got.loss, value, rtol=1e-5)
  for found, expected in (
    (got.grads, jax.tree.map(lambda g: g.sum(0), own)),
    (got.second_moment, jax.tree.map(lambda g: (g * g).sum(0), own)),
  ):
    scale = max(float(jnp.max(jnp.abs(x))) for x in jax.tree.leaves(expected))
    assert scale > 0
    for f, e in zip(
      jax.tree.leaves(found), jax.tree.leaves(expected), strict=True
    ):
      np.testing.assert_allclose(f, e, rtol=1e-3, atol=1e-5 * scale)


def test_response_normalisation_is_over_five_channels():
  x = np.random.default_rng(0).normal(size=(2, 3, 3, 7)) * 100
  found = alexnet._response_norm(jnp.asarray(x, jnp.float32))
  for channel in range(7):
    near = x[..., max(0, channel - 2) : channel + 3]
    sums = np.sum(near**2, axis=-1)
    expected = x[..., channel] / (1 + 1e-4 / 5 * sums) ** 0.75
    np.testing.assert_allclose(found[..., channel], expected, rtol=1e-5)
