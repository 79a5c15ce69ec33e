"""What a test of a model counts."""

from experiments import data
from experiments import tasks
from experiments.hosts.placement import make_placement
from experiments.tasks import classification
from experiments.training import evaluation
from experiments.training import training_step
from flax import linen as nn
import jax.numpy as jnp
import numpy as np
import pytest


class _Pixels(nn.Module):
  """Its logits are the pixels; in training it would drop some."""

  @nn.compact
  def __call__(self, x, train=False):
    return nn.Dropout(0.5, deterministic=not train)(x.reshape(len(x), -1))


def _tested(images, labels):
  classes = images.shape[2]
  state = training_step.TrainState(jnp.int32(0), {}, {}, ())
  task = tasks.Classification(
    _Pixels(),
    image_shape=images.shape[1:],
    mean=[0.0],
    std=[1.0],
    classes=classes,
    examples=data.Split(images, labels),
  )
  evaluate = evaluation.Evaluation(task, make_placement('simulate', 2), False)
  return evaluate(evaluate.models(state)[evaluation.MEAN])


@pytest.mark.parametrize('batch_size', [7, 500])
def test_top_1_and_top_5(batch_size, monkeypatch):
  monkeypatch.setattr(classification, '_IMAGES', batch_size)
  rng = np.random.default_rng(0)
  images = np.stack(
    [rng.permutation(20).reshape(1, 20, 1) for _ in range(40)]
  ).astype(np.uint8)
  labels = rng.integers(0, 20, 40).astype(np.int32)
  labels[:12] = images[:12].argmax(axis=2).ravel()
  own = images.reshape(40, 20)[np.arange(40), labels]
  tested = _tested(images, labels)
  assert tested['test/accuracy'] == np.mean(own == 19) >= 0.3
  assert tested['test/top5_accuracy'] == np.mean(own >= 15) < 1
  assert tested['test/top5_accuracy'] > tested['test/accuracy']
  logits = images.reshape(40, 20).astype(float)
  losses = np.log(np.exp(logits).sum(1)) - own
  np.testing.assert_allclose(tested['test/loss'], losses.mean(), rtol=1e-6)


def test_equal_logits_are_no_success():
  images, labels = np.ones((20, 1, 20, 1), np.uint8), np.arange(20, dtype='i4')
  assert _tested(images, labels)['test/top5_accuracy'] == 5 / 20


def test_five_of_five_classes_say_nothing():
  images, labels = np.ones((4, 1, 5, 1), np.uint8), np.arange(4, dtype='i4')
  assert set(_tested(images, labels)) == {'test/loss', 'test/accuracy'}


class _Scaled(nn.Module):
  """Its logits are the pixels, times a number for each."""

  @nn.compact
  def __call__(self, x, train=False):
    x = x.reshape(len(x), -1)
    return x * self.param('scale', nn.initializers.ones, x.shape[-1:])


def test_smoothed_parameters_are_what_is_tested():
  images = np.array([[[[1], [2], [3]]]] * 4, np.uint8)
  task = tasks.Classification(
    _Scaled(),
    image_shape=(1, 3, 1),
    mean=[0.0],
    std=[1.0],
    classes=3,
    examples=data.Split(images, np.zeros(4, np.int32)),
  )
  raw, smoothed = ({'scale': jnp.array(x)} for x in ([1.0] * 3, [9.0, 1, 1]))
  evaluate = evaluation.Evaluation(task, make_placement('simulate', 2), False)

  def tested(state):
    return evaluate(evaluate.models(state)[evaluation.MEAN])

  state = training_step.TrainState(jnp.int32(0), raw, {}, ())
  assert tested(state)['test/accuracy'] == 0
  assert tested(state._replace(smoothed=smoothed))['test/accuracy'] == 1


class _Shifted(nn.Module):
  """Its logits are the pixels, a parameter and a running average."""

  @nn.compact
  def __call__(self, x, train=False):
    x = x.reshape(len(x), -1)
    mean = self.variable('batch_stats', 'mean', jnp.zeros, x.shape[-1:])
    bias = self.param('bias', nn.initializers.zeros, x.shape[-1:])
    return x + bias + mean.value


@pytest.mark.parametrize(
  ('runner', 'inner'), [('simulate', 1), ('shard_map', 1), ('shard_map', 2)]
)
def test_one_worker_has_its_own_parameters_and_statistics(runner, inner):
  placement = make_placement(runner, 2, inner)
  task = tasks.Classification(
    _Shifted(),
    image_shape=(1, 2, 1),
    mean=[0.0],
    std=[1.0],
    classes=2,
    examples=data.Split(
      np.zeros((4, 1, 2, 1), np.uint8), np.zeros(4, np.int32)
    ),
  )
  evaluate = evaluation.Evaluation(task, placement, differ=True)
  # The first worker's logits are 3 and 0, the mean's 0.5 and 0.
  bias = jnp.array([[2.0, 0], [-1, 0]])
  mean = jnp.array([[1.0, 0], [-1, 0]])
  if inner > 1:
    mean = (
      jnp.stack([mean, mean], axis=1).at[:, :, 0].add(jnp.array([-1.0, 1.0]))
    )
  state = training_step.TrainState(
    jnp.int32(0), {'bias': bias}, {'mean': mean}, ()
  )
  models = evaluate.models(state)
  for name, first in ((evaluation.MEAN, 0.5), (evaluation.ONE_WORKER, 3.0)):
    tested = evaluate(models[name])
    loss = np.log1p(np.exp(-first))
    np.testing.assert_allclose(tested['test/loss'], loss, rtol=1e-6)
