"""Speech models have the published sizes, and padding does not leak."""

from experiments import models
from experiments.models import frame_norm
from experiments.program import errors
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests import marks
from tests.experiments.models import sequences


@pytest.mark.slow
@pytest.mark.parametrize(
  ('name', 'classes', 'bins', 'parameters', 'vectors'),
  [
    # DGC, table 4: 448.08 MB, ratio 608.
    ('deepspeech_gru', 29, 161, 117_461_168, 16_992),
    ('deepspeech_lstm', 29, 161, 50_663_168, 8_192),
    ('deepspeech_small', 11, 81, 364_608, 432),
    # QSGD, table 1: 13 M; CNTK's lstmp-3layer-opt.ndl.
    ('projected_lstm', 132, 363, 13_634_692, 21_636),
  ],
)
def test_parameters(name, classes, bins, parameters, vectors):
  model = models.create(name, classes)
  features, frames = jnp.zeros((2, 31, bins)), jnp.asarray([31, 4])

  def run():
    variables = model.init(jax.random.key(0), features, frames, train=False)
    return variables['params'], model.apply(
      variables, features, frames, train=False
    )

  params, (logits, fewer) = jax.eval_shape(run)
  assert sequences.sizes(params) == (parameters, vectors)
  left = 31 if name == 'projected_lstm' else 16
  assert logits.shape == (2, left, classes)
  assert fewer.shape == (2,)


def test_every_speech_model_is_tested():
  cases = test_parameters.pytestmark[0].args[1]
  assert {name for name, *_ in cases} == set(models.SPEECH)


def test_what_dgcs_ratio_says_of_its_network():
  model = models.create('deepspeech_gru', 29)
  features, frames = jnp.zeros((1, 9, 161)), jnp.asarray([9])
  made = jax.eval_shape(
    lambda: model.init(jax.random.key(0), features, frames, train=False)
  )
  kernel = made['params']['GRU_0']['input']['kernel']
  assert kernel.shape == (672, 3 * 1200)
  assert round(sequences.dgc_ratio(made['params'])) == 608  # its table 4


_TWO = (
  models.Convolution(2, (5, 3), (2, 2)),
  models.Convolution(3, (3, 3), (1, 1)),
)
_TINY = {
  'gru': models.DeepSpeech(5, 'gru', 2, 4, _TWO),
  'lstm': models.DeepSpeech(5, 'lstm', 2, 4, _TWO),
  'projected': models.ProjectedSpeech(5, layers=2, units=4, projection=3),
}
_FRAMES = np.asarray([11, 4, 7])
_FEATURES = sequences.draw(3, 11, 7)


def _variables(model):
  return sequences.drawn(
    lambda: model.init(jax.random.key(0), _FEATURES, _FRAMES, train=False)
  )


def _run(model, variables, features, frames, train):
  """(logits of the real frames, new running averages)."""
  (logits, left), changed = jax.jit(
    lambda: model.apply(
      variables, features, frames, train=train, mutable=['batch_stats']
    )
  )()
  real = [np.asarray(x[:n]) for x, n in zip(logits, left, strict=True)]
  return real, jax.tree.map(np.asarray, changed.get('batch_stats', {}))


def _alike(first, second, tolerance=1e-5):
  for x, y in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
    np.testing.assert_allclose(x, y, atol=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize('train', [False, True])
@pytest.mark.parametrize('name', _TINY)
def test_what_is_behind_an_utterance_changes_nothing(name, train):
  model = _TINY[name]
  variables = _variables(model)
  expected = _run(model, variables, _FEATURES, _FRAMES, train)
  padded = np.pad(_FEATURES, [(0, 0), (0, 4), (0, 0)])
  noise = 100 * sequences.draw(*padded.shape, seed=1)
  there = np.arange(15) < _FRAMES[:, None]
  padded = np.where(there[..., None], padded, noise)
  found = _run(model, variables, padded, _FRAMES, train)
  _alike(found, expected, 1e-4)
  assert max(np.ptp(x) for x in expected[0]) > 0.1


@pytest.mark.parametrize('name', marks.few(_TINY, 'projected'))
def test_an_utterance_alone_is_as_in_a_batch(name):
  model = _TINY[name]
  variables = _variables(model)
  whole, _ = _run(model, variables, _FEATURES, _FRAMES, False)
  n = _FRAMES[1]
  alone, _ = _run(model, variables, _FEATURES[1:2, :n], _FRAMES[1:2], False)
  _alike(alone, whole[1:2], 1e-4)


def test_n_frames_become_half_as_many():
  model = _TINY['gru']
  frames = jnp.arange(1, 12)
  features = jnp.zeros((11, 11, 7))

  def run():
    found, _ = model.init_with_output(
      jax.random.key(0), features, frames, train=False
    )
    return found

  left = jax.jit(lambda: run()[1])()
  np.testing.assert_array_equal(left, -(-np.arange(1, 12) // 2))
  assert jax.eval_shape(run)[0].shape[1] == left.max()


@pytest.mark.slow
def test_both_directions_see_the_whole_utterance():
  model = _TINY['gru']
  variables = _variables(model)
  before, _ = _run(model, variables, _FEATURES, _FRAMES, False)
  features = _FEATURES.copy()
  features[0, 10] += 1
  after, _ = _run(model, variables, features, _FRAMES, False)
  assert np.abs(after[0][0] - before[0][0]).max() > 1e-5
  _alike(after[1:], before[1:])


@pytest.mark.slow
def test_batch_statistics_are_of_real_frames_and_each_counts_once():
  x = sequences.draw(3, 11, 2, 5)
  there = np.arange(11) < _FRAMES[:, None]
  norm = frame_norm.FrameNorm(use_running_average=False)
  variables = norm.init(jax.random.key(0), x, there)
  found, changed = norm.apply(variables, x, there, mutable=['batch_stats'])
  real = x[there]
  mean, var = real.mean((0, 1)), real.var((0, 1))
  expected = (real - mean) / np.sqrt(var + 1e-5)
  np.testing.assert_allclose(np.asarray(found)[there], expected, atol=1e-4)
  averages = changed['batch_stats']
  np.testing.assert_allclose(averages['mean'], 0.1 * mean, atol=1e-5)
  np.testing.assert_allclose(averages['var'], 0.9 + 0.1 * var, atol=1e-5)
  # Over an axis of examples the same; a mean of means would not be.
  apart = frame_norm.FrameNorm(use_running_average=False, axis_name='examples')
  each, _ = jax.vmap(
    lambda x, t: apart.apply(
      variables, x[None], t[None], mutable=['batch_stats']
    ),
    axis_name='examples',
  )(x, there)
  np.testing.assert_allclose(np.asarray(each)[:, 0][there], expected, atol=1e-4)
  # In testing the running averages count.
  tested = frame_norm.FrameNorm(use_running_average=True).apply(
    {**variables, 'batch_stats': averages}, x, there
  )
  expected = (x - averages['mean']) / np.sqrt(averages['var'] + 1e-5)
  np.testing.assert_allclose(tested, expected, atol=1e-4)


def test_a_batch_without_a_real_frame_gives_numbers():
  norm = frame_norm.FrameNorm(use_running_average=False)
  found, _ = norm.init_with_output(
    jax.random.key(0), jnp.ones((1, 2, 3)), jnp.zeros((1, 2), bool)
  )
  assert np.all(np.isfinite(found))


@pytest.mark.parametrize(
  ('name', 'bins'), [('deepspeech_gru', 81), ('deepspeech_small', 21)]
)
def test_spectrograms_that_nothing_is_left_of_are_refused(name, bins):
  model = models.create(name, 5)

  def made(bins):
    features = jnp.zeros((1, 4, bins))
    return jax.eval_shape(
      lambda: model.init(
        jax.random.key(0), features, jnp.asarray([4]), train=False
      )
    )

  made(bins)
  with pytest.raises(errors.ConfigError, match=f'{bins} bins or more, got'):
    made(bins - 1)
