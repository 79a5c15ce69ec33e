"""A speech model's loss and its test."""

from experiments.data import speech
from experiments.tasks import speech as task
from experiments.training import gradients
from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests import marks
from tests.experiments.data import sounds


class _Ears(nn.Module):
  """Hears two frames at a time."""

  classes: int
  batch_axis: str | None = None

  @nn.compact
  def __call__(self, features, frames, *, train):
    x = nn.Conv(self.classes, (3,), (2,), padding=1)(features)
    x = nn.BatchNorm(not train, axis_name=self.batch_axis)(x)
    return x, -(-frames // 2)


@pytest.fixture(scope='module')
def made(tmp_path_factory):
  """(the task, its parameters and statistics)."""
  root = tmp_path_factory.mktemp('data')
  sounds.write_fsdd(root)
  corpus = speech.load('fsdd', str(root), transcripts='words')
  one = task.Speech(_Ears(corpus.train.alphabet.classes), corpus, 3)
  variables = one.init(jax.random.key(0))
  return (
    one,
    jax.tree.map(lambda x: x + 0.01, variables.params),
    (variables.statistics),
  )


def _batch(one):
  sampler = speech.Sampler(
    one.corpus.train, num_workers=1, batch_size=4, seed=0, stride=one.stride
  )
  return jax.tree.map(lambda x: x[0], sampler.batch(0))


def _loss_by_paths(logits, labels):
  """-log of the sum over all paths of a short utterance."""
  logs = np.asarray(jax.nn.log_softmax(logits), np.float64)
  paths = {(): 0.0}
  for frame in logs:
    paths = {
      (*path, symbol): total + value
      for path, total in paths.items()
      for symbol, value in enumerate(frame)
    }

  def said(path):
    kept = [s for at, s in enumerate(path) if not at or s != path[at - 1]]
    return [s for s in kept if s]

  right = [total for path, total in paths.items() if said(path) == labels]
  return -np.logaddexp.reduce(right)


def test_the_loss_is_of_all_paths_that_say_the_text():
  logits = np.random.default_rng(0).normal(size=(1, 5, 3))
  inputs = {'labels': jnp.array([[2, 2, 0]]), 'characters': jnp.array([2])}
  inputs |= {'features': None, 'frames': None}

  class Heard(task.Speech):
    """Whatever it hears, the same."""

    def apply(self, params, statistics, *inputs, key=None):
      return (jnp.asarray(logits), jnp.array([4])), statistics

  found, *_ = Heard(None, None)._heard({}, {}, inputs)
  expected = _loss_by_paths(logits[0, :4], [2, 2])
  np.testing.assert_allclose(found, [expected], rtol=1e-5)


def test_it_knows_how_many_frames_its_model_takes_for_one(made):
  assert made[0].stride == 2


@pytest.mark.parametrize('moments', marks.few([False, True], True))
def test_it_has_gradients_and_second_moments(made, moments):
  one, params, statistics = made
  function = gradients.with_moments if moments else gradients.plain
  got = jax.jit(lambda batch: function(one, params, statistics, (), batch))(
    _batch(one)
  )
  assert np.isfinite(got.loss) and got.loss > 0
  for tree in (got.grads, *([got.second_moment] if moments else [])):
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(tree))
    assert np.any(tree['Conv_0']['kernel'])
  assert not np.array_equal(
    got.statistics['BatchNorm_0']['mean'], statistics['BatchNorm_0']['mean']
  )


@pytest.mark.slow
def test_processes_share_a_test(made):
  one, params, statistics = made
  test = one.make_test()
  whole = test(params, statistics, 0, 1)
  shared = sum(test(params, statistics, part, 3) for part in range(3))
  np.testing.assert_allclose(shared, whole, rtol=1e-5)
  words = [u.text.split() for u in one.corpus.test.utterances]
  assert whole[2] == sum(map(len, words))
  tested = one.scores(whole)
  assert set(tested) == {'test/loss', 'test/wer'}
  assert tested['test/wer'] == whole[1] / whole[2]
  assert tested['test/loss'] == pytest.approx(whole[0] / len(words))


@pytest.mark.slow
def test_parameters_are_put_on_the_device_once(made, check_one_copy):
  check_one_copy(*made)


def test_what_is_said_rightly_is_no_error(made, monkeypatch):
  one, params, statistics = made
  order = [
    row
    for part in speech.walk(one.corpus.test, batch_size=one.test_batch)
    for row in part.rows
  ]
  texts = iter([one.corpus.test.utterances[row].text for row in order])
  encode = one.corpus.test.alphabet.encode

  def heard(logits, frames):
    del frames
    return [encode(next(texts)) for _ in logits]

  monkeypatch.setattr(task.ctc, 'greedy', heard)
  total = one.make_test()(params, statistics, 0, 1)
  assert one.scores(total)['test/wer'] == 0
