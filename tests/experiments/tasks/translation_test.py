"""A translation model's loss and its test."""

from configs import default
from experiments import tasks
from experiments.data import translation
from experiments.tasks import translation as task
from experiments.training import gradients
from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests import marks

_WORDS = ('a', 'bird', 'cat', 'dog', 'eats', 'fish')


class _Echo(nn.Module):
  """Says the piece of the source at the same place, and then the next."""

  classes: int

  def setup(self):
    self.words = nn.Embed(self.classes, 8)
    self.out = nn.Dense(self.classes)

  def __call__(self, source, target, *, train):
    del train
    return self.out(
      self.words(source[:, : target.shape[1]]) + 0 * self.words(target)
    )

  def encode(self, source):
    return source

  def start(self, encoded):
    return jnp.zeros(len(encoded), jnp.int32)

  def step(self, encoded, state, tokens):
    del tokens
    piece = jnp.take_along_axis(encoded, state[:, None], axis=1, mode='clip')
    return 20.0 * jax.nn.one_hot(piece[:, 0], self.classes), state + 1


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """Has sentences whose translations are themselves."""
  folder = tmp_path_factory.mktemp('wmt')
  rng = np.random.default_rng(0)
  for part, count in (('train', 60), ('valid', 5), ('test', 11)):
    lines = [
      ' '.join(rng.choice(_WORDS, rng.integers(4, 9))) for _ in range(count)
    ]
    for language in ('en', 'de'):
      (folder / f'{part}.{language}').write_text('\n'.join(lines) + '\n')
  return str(folder)


@pytest.fixture(scope='module')
def corpus(folder):
  return translation.load('wmt', folder, vocabulary=40)


def _made(corpus, beam=1):
  one = task.Translation(_Echo(corpus.vocabulary.size), corpus, beam)
  return one, one.init(jax.random.key(0)).params


def _batch(corpus):
  sampler = translation.Sampler(
    corpus.train, num_workers=1, batch_size=5, seed=0
  )
  return jax.tree.map(lambda x: x[0], sampler.batch(1))


def test_the_loss_is_the_mean_over_pieces(corpus):
  one, params = _made(corpus)
  batch = _batch(corpus)
  got = jax.jit(lambda: gradients.plain(one, params, {}, (), batch))()
  source, target = batch.inputs['source'], batch.inputs['target']
  logits = one.model.apply(
    {'params': params}, source, target[:, :-1], train=True
  )
  losses = optax.softmax_cross_entropy_with_integer_labels(
    logits, target[:, 1:]
  )
  real = target[:, 1:] != 0
  np.testing.assert_allclose(
    got.loss, np.asarray(losses)[real].mean(), rtol=1e-5
  )
  assert got.counts['words'] == real.sum()


def test_second_moments_are_of_pairs(corpus):
  one, params = _made(corpus)
  batch = _batch(corpus)
  got = jax.jit(lambda: gradients.with_moments(one, params, {}, (), batch))()

  def of_pair(pair):
    inputs = jax.tree.map(lambda x: x[pair : pair + 1], batch.inputs)
    return gradients.plain(
      one, params, {}, (), batch._replace(inputs=inputs)
    ).grads

  pairs = [jax.jit(of_pair, static_argnums=0)(pair) for pair in range(5)]
  jax.tree.map(
    lambda m, *g: np.testing.assert_allclose(
      m, sum(np.square(x / 5) for x in g), rtol=1e-4, atol=1e-9
    ),
    got.second_moment,
    *pairs,
  )


@pytest.mark.parametrize('beam', marks.few([1, 3], 3))
@pytest.mark.parametrize('processes', marks.few([1, 3], 3))
def test_what_is_right_has_a_bleu_of_100(corpus, beam, processes):
  one, params = _made(corpus, beam)
  test = one.make_test()
  total = sum(test(params, {}, part, processes) for part in range(processes))
  tested = one.scores(total)
  assert set(tested) == {'test/loss', 'test/sentence_loss', 'test/bleu'}
  assert tested['test/bleu'] == pytest.approx(100)
  lengths = corpus.test.target.lengths + 1  # with the end
  assert total[1] == lengths.sum()
  assert tested['test/loss'] == total[0] / total[1] > 0
  assert tested['test/sentence_loss'] == total[0] / len(lengths)


@pytest.mark.slow
@pytest.mark.parametrize('beam', [1, 3])
def test_parameters_are_put_on_the_device_once(corpus, beam, check_one_copy):
  one, params = _made(corpus, beam)
  check_one_copy(one, params, {})


@pytest.mark.parametrize('most', [1, 2])
def test_a_configuration_says_how_many_shapes_there_are(folder, most):
  config = default.get_config()
  config.data.update(name='wmt', dir=folder, vocabulary=40, buckets=most)
  config.model.name = 'attention_small'
  config.train.batch_size = 4
  made, sampler = tasks.build(config, num_workers=2, workers=(0, 1))
  batches = map(sampler.batch, range(sampler.steps_per_epoch))
  shapes = {batch.inputs['source'].shape for batch in batches}
  assert len(shapes) == most == made.num_buckets
