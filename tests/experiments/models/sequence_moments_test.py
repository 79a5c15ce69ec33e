"""Gradients of sequence models: exact second moments, and under shard_map.

A warning is an error here: what is meant to be known is not copied silently.
"""

import functools

from experiments import models
import gradsparse as gs
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
import optax
import pytest
from tests import marks
from tests.experiments.models import sequences
from tests.moments import per_example

pytestmark = pytest.mark.filterwarnings('error:second moments')

_CONVOLUTION = (models.Convolution(3, (3, 3), (2, 2)),)
_SPEECH = models.DeepSpeech(5, 'gru', 2, 4, _CONVOLUTION, batch_norm=False)
_MODELS = {
  'lstm': models.LanguageLSTM(7, units=4, limit=0.5),
  'lstm_untied': models.LanguageLSTM(7, units=4, tied=False, limit=0.5),
  'gpt': models.GPT(7, width=8, layers=1, heads=2),
  'speech_gru': _SPEECH,
  'speech_lstm': _SPEECH.clone(cell='lstm', layers=1),
  'projected': models.ProjectedSpeech(5, layers=1, units=4, projection=3),
  'translation_gru': models.Translator(
    7, embedding=4, units=3, layer_norm=False
  ),
  'translation_lstm': models.Translator(7, None, 4, 3, 'lstm', 2, 3),
}


def _entropy(logits, labels):
  each = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
  return each.mean()


def _ctc(logits, frames, labels):
  behind = jnp.arange(logits.shape[1]) >= frames[:, None]
  each = optax.ctc_loss(
    logits,
    behind.astype(jnp.float32),
    labels,
    (labels == 0).astype(jnp.float32),
    # Like the logits, or its loop does not pass shard_map's check.
    log_epsilon=jnp.full_like(logits, -1e5, shape=()),
  )
  return each.mean()


def _batch(name, size):
  """Of so many examples; arrays have these first."""
  rng = np.random.default_rng(0)
  if 'lstm' in name.split('_')[0] or name == 'gpt':
    tokens = rng.integers(0, 7, (2, size, 4))
    return tokens[0], _MODELS[name].carry(size), tokens[1]
  if name.startswith('translation'):
    source = rng.integers(1, 7, (size, 4))
    source[0, 2:] = 0
    return source, rng.integers(1, 7, (size, 4))
  frames, labels = np.array([12, 9, 8, 11]), [[1, 2], [3, 0], [1, 4], [2, 2]]
  return sequences.draw(size, 12, 9), frames[:size], np.array(labels)[:size]


def _loss(model, variables, example, **options):
  """(loss of one example, what else the model has changed)."""
  example = jax.tree.map(lambda x: x[None], example)
  if isinstance(model, models.Translator):
    source, target = example
    logits, changed = model.apply(
      variables, source, target[:, :-1], mutable=['batch_stats'], **options
    )
    return _entropy(logits, target[:, 1:]), changed
  *inputs, labels = example
  (logits, second), changed = model.apply(
    variables, *inputs, mutable=['batch_stats'], **options
  )
  if isinstance(model, models.LanguageLSTM | models.GPT):
    return _entropy(logits, labels), changed
  return _ctc(logits, second, labels), changed


@functools.cache
def _case(name, size):
  """(loss of one example, parameters, batch)."""
  model, batch = _MODELS[name], _batch(name, size)
  inputs = batch if isinstance(model, models.Translator) else batch[:-1]
  variables = sequences.drawn(
    lambda: model.init(jax.random.key(0), *inputs, train=False)
  )

  def loss(params, example):
    return _loss(model, {'params': params}, example, train=False)[0]

  return loss, variables['params'], batch


@pytest.mark.slow
@pytest.mark.parametrize('name', marks.few(_MODELS, 'lstm'))
def test_second_moments_are_those_of_the_examples_one_by_one(name):
  per_example.check(*_case(name, 3), tolerance=3e-4)


@pytest.mark.slow
def test_second_moments_with_batch_norm_over_frames():
  """Examples share statistics, whatever their lengths."""
  model = _SPEECH.clone(batch_norm=True, batch_axis='examples', layers=1)
  batch = _batch('speech_gru', 3)
  variables = sequences.drawn(
    lambda: model.init(jax.random.key(0), *batch[:-1], train=False)
  )
  statistics = variables['batch_stats']

  def loss(params, example):
    both = {'params': params, 'batch_stats': statistics}
    return _loss(model, both, example, train=True)

  def of_batch(copies, batch):
    each, changed = jax.vmap(loss, axis_name='examples')(copies, batch)
    return each.mean(), changed

  @jax.jit
  def both(params, batch):
    fast = gs.value_and_grad_moments(loss, has_aux=True, axis_name='examples')
    slow = gs.batch_value_and_grad_moments(of_batch, has_aux=True)
    return fast(params, batch), slow(params, batch)

  (value, *found), (loss_expected, *expected) = both(variables['params'], batch)
  per_example.close(value, loss_expected, 1e-4)
  for ours, reference in zip(found, expected, strict=True):
    # Of a bias before a normalisation the gradient is zero, up to rounding.
    largest = max(np.max(np.abs(x)) for x in jax.tree.leaves(reference))
    jax.tree.map(
      functools.partial(np.testing.assert_allclose, atol=1e-4 * largest),
      ours,
      reference,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
  'name',
  marks.few(
    ['lstm', 'gpt', 'projected', 'speech_gru', 'translation_gru'],
    'lstm',
  ),
)
def test_gradients_under_shard_map_are_those_of_all_examples(name):
  """Loops begin with what differs between workers, as its check asks for."""
  loss, params, batch = _case(name, 4)
  mesh = jax.sharding.Mesh(jax.devices()[:2], ('workers',))

  def mean_loss(params, batch):
    return jax.vmap(loss, (None, 0))(params, batch).mean()

  def worker(params, batch):
    own = gs.workers.local(params, 'workers')
    found = jax.value_and_grad(mean_loss)(own, batch)
    return jax.lax.pmean(found, 'workers')

  sharded = jax.shard_map(
    worker, mesh=mesh, in_specs=(P(), P('workers')), out_specs=P()
  )
  found = jax.jit(sharded)(params, batch)
  expected = jax.jit(jax.value_and_grad(mean_loss))(params, batch)
  per_example.close(jax.device_get(found), expected, 1e-4)
