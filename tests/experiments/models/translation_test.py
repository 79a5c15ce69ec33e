"""Translation models have the published sizes; steps are teacher forcing."""

import functools

from experiments import models
from experiments.models import translation
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests import marks
from tests.experiments.models import sequences

_SIZES = [
  ('attention_small', 8_000, 8_000, 5_205_568),
  # The local-gradient paper, section 4.1: 119 M and 225 M.
  ('attention_ro_en', 66_000, 50_000, 118_906_704),
  ('attention_ro_en_lstm', 66_000, 50_000, 126_783_312),
  ('attention_en_de', 86_400, 86_400, 224_968_064),
]


@pytest.mark.parametrize(
  ('name', 'source', 'target', 'parameters'),
  marks.few(_SIZES, _SIZES[0]),
)
def test_parameters(name, source, target, parameters):
  model = models.create(name, target).clone(source_classes=source)
  words, written = jnp.ones((2, 5), jnp.int32), jnp.ones((2, 3), jnp.int32)

  def run():
    variables = model.init(jax.random.key(0), words, written, train=False)
    return variables['params'], model.apply(
      variables, words, written, train=False
    )

  params, logits = jax.eval_shape(run)
  assert sequences.sizes(params)[0] == parameters
  assert logits.shape == (2, 3, target)


def test_every_translation_model_is_tested():
  assert {name for name, *_ in _SIZES} == set(models.TRANSLATION)


_SOURCE = np.asarray([[3, 4, 5, 6], [5, 2, 0, 0], [1, 6, 2, 0]])
_TARGET = np.asarray([[1, 4, 2, 6, 3], [1, 5, 5, 2, 0], [1, 3, 2, 0, 0]])
_DEEP = models.Translator(
  7, 8, 4, 3, 'lstm', encoder_depth=2, decoder_depth=3, dropout=0.5
)
_PLAIN = models.Translator(7, embedding=4, units=3, layer_norm=False)


@pytest.fixture(
  scope='module',
  params=marks.few([_DEEP, _PLAIN], _DEEP),
  ids=['deep', 'plain'],
)
def made(request):
  model = request.param
  return model, sequences.drawn(
    lambda: model.init(jax.random.key(0), _SOURCE, _TARGET, train=False)
  )


@functools.partial(jax.jit, static_argnames=('model', 'train'))
def _applied(model, variables, source, target, rngs=None, train=False):
  return model.apply(variables, source, target, train=train, rngs=rngs)


@functools.partial(jax.jit, static_argnames='model')
def _begun(model, variables, source):
  encoded = model.apply(variables, source, method='encode')
  return encoded, model.apply(variables, encoded, method='start')


@functools.partial(jax.jit, static_argnames='model')
def _step(model, variables, encoded, state, tokens):
  return model.apply(variables, encoded, state, tokens, method='step')


def _logits(made, source=_SOURCE, target=_TARGET, **options):
  return np.asarray(_applied(*made, source, target, **options))


@pytest.mark.slow
def test_step_by_step_is_teacher_forcing(made):
  encoded, state = _begun(*made, _SOURCE)
  stepped = []
  for tokens in _TARGET.T:
    logits, state = _step(*made, encoded, state, tokens)
    stepped.append(logits)
  expected = _logits(made)
  np.testing.assert_allclose(np.stack(stepped, axis=1), expected, atol=1e-5)
  assert np.ptp(expected) > 0.1


@pytest.mark.slow
def test_what_is_encoded_may_be_repeated_for_a_beam(made):
  encoded, state = _begun(*made, _SOURCE)
  twice = [
    jax.tree.map(lambda x: jnp.repeat(x, 2, axis=0), tree)
    for tree in (encoded, state)
  ]
  tokens = np.asarray([1, 2, 1, 2, 1, 2])
  both, _ = _step(*made, *twice, tokens)
  one, _ = _step(*made, encoded, state, np.asarray([2, 2, 2]))
  np.testing.assert_allclose(both[1::2], one, atol=1e-5)


@pytest.mark.slow
def test_padding_of_the_source_changes_nothing(made):
  expected = _logits(made)
  padded = np.pad(_SOURCE, [(0, 0), (0, 3)])
  np.testing.assert_allclose(_logits(made, padded), expected, atol=1e-5)
  alone = _logits(made, _SOURCE[1:2, :2], _TARGET[1:2])
  np.testing.assert_allclose(alone, expected[1:2], atol=1e-5)


@pytest.mark.slow
def test_nothing_attends_to_padding(made):
  """Also where the encoder's states there were not zero."""
  model, variables = made
  encoded, state = _begun(*made, _SOURCE)
  there = encoded.mask[..., None]
  changed = translation.Encoded(
    jnp.where(there, encoded.states, 9.0),
    jnp.where(there, encoded.keys, 9.0),
    encoded.mask,
  )
  tokens = _TARGET[:, 0]
  first, second = (
    _step(*made, e, state, tokens)[0] for e in (encoded, changed)
  )
  np.testing.assert_allclose(first, second, atol=1e-6)
  np.testing.assert_allclose(
    state[0], model.apply(variables, changed, method='start')[0], atol=1e-6
  )


@pytest.mark.slow
def test_a_sentence_of_padding_gives_numbers(made):
  assert np.all(np.isfinite(_logits(made, np.zeros_like(_SOURCE))))


@pytest.mark.slow
def test_every_source_word_counts(made):
  source, target = (np.repeat(x[:1], 4, axis=0) for x in (_SOURCE, _TARGET))
  expected = _logits(made, source, target)
  found = _logits(made, np.where(np.eye(4), 1, source), target)
  assert np.all(np.abs(found - expected).max((1, 2)) > 1e-5)


def test_a_word_changes_nothing_before_it(made):
  expected, other = _logits(made), _TARGET.copy()
  other[:, 2] = 4
  found = _logits(made, target=other)
  np.testing.assert_allclose(found[:, :2], expected[:, :2], atol=1e-6)
  assert np.abs(found[1:, 2:] - expected[1:, 2:]).max() > 1e-3


@pytest.mark.slow
def test_dropout_is_for_training_only():
  made = (
    _DEEP,
    sequences.drawn(
      lambda: _DEEP.init(jax.random.key(0), _SOURCE, _TARGET, train=False)
    ),
  )

  def trained(seed):
    key = {'dropout': jax.random.key(seed)}
    return _logits(made, train=True, rngs=key)

  np.testing.assert_array_equal(trained(0), trained(0))
  assert np.abs(trained(0) - trained(1)).max() > 1e-3
