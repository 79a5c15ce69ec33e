"""Beam search, beside all sentences that a small model can say."""

import functools
import itertools
import math
from typing import NamedTuple

from experiments.data.translation import bpe
from experiments.scores import decoding
from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests import marks

PAD, BEGIN, END = bpe.PAD, bpe.BEGIN, bpe.END
SIZE, UNITS, LENGTH, SENTENCES = 5, 4, 4, 3
WORDS = range(3, SIZE)


class Toy(nn.Module):
  """What it says next depends on all that it has said, and on the source."""

  @nn.compact
  def _layers(self, tokens, state, encoded):
    embedded = nn.Embed(SIZE, UNITS, name='embed')(tokens)
    joined = jnp.concatenate([embedded, state, encoded], -1)
    state = jnp.tanh(nn.Dense(UNITS, name='cell')(joined))
    return nn.Dense(SIZE, name='out')(state), state

  def __call__(self, source):
    encoded = self.encode(source)
    state = self.start(encoded)
    return self.step(encoded, state, jnp.full(len(source), BEGIN))

  def encode(self, source):
    return {'summary': jnp.sin(source[:, :UNITS].astype(jnp.float32))}

  def start(self, encoded):
    return encoded['summary'] / 2

  def step(self, encoded, state, tokens):
    return self._layers(tokens, state, encoded['summary'])


class Case(NamedTuple):
  model: decoding.Model
  variables: dict
  source: jax.Array
  logs: list  # of each sentence: log-probability of all that may be said


@functools.cache
def _toy(seed):
  module = Toy()
  source = jax.random.randint(jax.random.key(seed), (SENTENCES, 6), 3, 50)
  variables = module.init(jax.random.key(seed), source)
  # Far from equal probabilities, and from always the same.
  variables = jax.tree.map(lambda x: 3 * x, variables)
  model = decoding.of_flax(module)
  logs = [_log_probabilities(model, variables, row[None]) for row in source]
  return Case(model, variables, source, logs)


def _log_probabilities(model, variables, source):
  """Of all tokens, one after the other, that may be said after this source."""
  encoded = model.encode(variables, source)
  found = {(): 0.0}
  going_on = [((), model.start(variables, encoded))]
  for _ in range(LENGTH):
    said, states = zip(*going_on, strict=True)
    rows = np.zeros(len(said), int)
    logits, states = model.step(
      variables,
      {name: array[rows] for name, array in encoded.items()},
      jnp.concatenate(states),
      jnp.array([tokens[-1] if tokens else BEGIN for tokens in said]),
    )
    logs = np.asarray(jax.nn.log_softmax(logits), float)
    going_on = []
    for row, tokens in enumerate(said):
      for new in (END, *WORDS):
        found[(*tokens, new)] = found[tokens] + logs[row, new]
        if new != END:
          going_on.append(((*tokens, new), states[row : row + 1]))
  return found


def _all_sentences():
  """All that end in time, and those that are cut off."""
  for length in range(LENGTH):
    for words in itertools.product(WORDS, repeat=length):
      yield (*words, END)
  yield from itertools.product(WORDS, repeat=LENGTH)


def _tokens(row):
  row = np.asarray(row).tolist()
  said = row[: row.index(PAD)] if PAD in row else row
  assert not any(row[len(said) :]) and END not in said[:-1]
  return tuple(said)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('seed', 'length_penalty'),
  marks.few(itertools.product((0, 1), (0.0, 0.6, 1.0)), (0, 1.0), (1, 0.6)),
)
def test_a_wide_beam_finds_the_best_of_all_sentences(seed, length_penalty):
  toy = _toy(seed)
  everything = list(_all_sentences())
  search = decoding.make_beam_search(
    toy.model,
    beam=len(everything),
    length_penalty=length_penalty,
    max_length=LENGTH,
  )
  decoded = search(toy.variables, toy.source)
  lengths = set()
  for sentence in range(SENTENCES):
    logs = toy.logs[sentence]
    best = max(everything, key=lambda t: logs[t] / len(t) ** length_penalty)
    assert _tokens(decoded.tokens[sentence]) == best
    np.testing.assert_allclose(
      decoded.log_probability[sentence], logs[best], rtol=1e-4
    )
    lengths.add(len(best))
  assert decoded.tokens.dtype == jnp.int32


def _searched(logs, beam, length_penalty):
  """A beam search by the words of its docstring, without arrays."""
  followed = [((), 0.0)]
  for _ in range(LENGTH):
    ended = [each for each in followed if END in each[0]]
    grown = [
      ((*tokens, new), logs[(*tokens, new)])
      for tokens, _ in followed
      if END not in tokens
      for new in (END, *WORDS)
    ]
    grown.sort(key=lambda each: -each[1])
    followed = ended + grown[: beam - len(ended)]
  return max(followed, key=lambda e: e[1] / len(e[0]) ** length_penalty)


@pytest.mark.slow
@pytest.mark.parametrize('beam, seeds', [(2, 4), (3, 4), (3, 1)])
def test_a_beam_keeps_its_best_sentences(beam, seeds):
  other = 0
  for seed in range(seeds):
    toy = _toy(seed)
    search = decoding.make_beam_search(
      toy.model, beam=beam, length_penalty=1.0, max_length=LENGTH
    )
    decoded = search(toy.variables, toy.source)
    greedy = decoding.make_beam_search(toy.model, beam=1, max_length=LENGTH)(
      toy.variables, toy.source
    )
    for sentence in range(SENTENCES):
      tokens, total = _searched(toy.logs[sentence], beam, 1.0)
      assert _tokens(decoded.tokens[sentence]) == tokens
      np.testing.assert_allclose(
        decoded.log_probability[sentence], total, rtol=1e-4
      )
      other += tokens != _tokens(greedy.tokens[sentence])
  assert other  # or nothing was searched


@pytest.mark.slow
@pytest.mark.parametrize('seed', marks.few(range(4), 0))
def test_a_beam_of_one_takes_the_likeliest_token(seed):
  toy = _toy(seed)
  greedy = decoding.make_beam_search(toy.model, beam=1, max_length=LENGTH)(
    toy.variables, toy.source
  )
  for sentence in range(SENTENCES):
    said = ()
    while len(said) < LENGTH and END not in said:
      said = max(
        ((*said, token) for token in (END, *WORDS)),
        key=toy.logs[sentence].get,
      )
    assert _tokens(greedy.tokens[sentence]) == said
    np.testing.assert_allclose(
      greedy.log_probability[sentence],
      toy.logs[sentence][said],
      rtol=1e-4,
    )


def _counting(words, after=END):
  """A model that says `words` and then `after`, of padding most of all."""
  steps = []

  def step(variables, encoded, state, tokens):
    steps.append(1)
    logits = jax.nn.one_hot(jnp.where(state < words, 3, after), SIZE) * 9
    logits = logits.at[:, PAD].set(20.0).at[:, BEGIN].set(20.0)
    return logits, state + 1

  def start(variables, encoded):
    return jnp.zeros(len(encoded), jnp.int32)

  model = decoding.Model(lambda variables, source: source, start, step)
  return model, steps


@pytest.mark.parametrize('beam', marks.few([1, 2], 2))
def test_sentences_end_with_end_or_where_there_is_no_room(beam):
  source = jnp.ones((2, 5), jnp.int32)
  model, steps = _counting(6)
  decode = decoding.make_beam_search(model, beam=beam)
  tokens = decode({}, source).tokens
  assert tokens.shape == (2, 2 * 5 + 8)
  assert tokens.tolist() == [[3] * 6 + [END] + [PAD] * 11] * 2
  traced = len(steps)
  decode({}, source + 1)
  assert len(steps) == traced  # nothing is compiled again
  endless, _ = _counting(0, after=4)
  decode = decoding.make_beam_search(endless, beam=beam)
  assert decode({}, source).tokens.tolist() == [[4] * 18] * 2


def test_a_search_stops_when_all_sentences_have_ended():
  # A state that counts steps: of a longer loop it would tell.
  source = jnp.ones((2, 500), jnp.int32)
  model, _ = _counting(3)
  called = []

  def step(variables, encoded, state, tokens):
    jax.debug.callback(lambda: called.append(1))
    return model.step(variables, encoded, state, tokens)

  counted = model._replace(step=step)
  decoding.make_beam_search(counted, beam=1)({}, source)
  jax.effects_barrier()
  assert len(called) == 4


def _chain(odds):
  """A model whose next token depends on the last one only.

  Args:
    odds: of the next tokens, for each last one.
  """
  size = 1 + max(odds)
  table = np.full((size, size), -np.inf, np.float32)
  for last, following in odds.items():
    for token, odd in following.items():
      table[last, token] = math.log(odd)

  def step(variables, encoded, state, tokens):
    return jnp.asarray(table)[tokens], state

  return decoding.Model(
    lambda variables, source: source, lambda variables, encoded: encoded, step
  )


def test_short_sentences_win_without_a_length_penalty():
  model = _chain(
    {BEGIN: {END: 0.45, 3: 0.55}, 3: {END: 0.7, 4: 0.3}, 4: {END: 1.0}}
  )
  source = jnp.ones((1, 3), jnp.int32)
  for penalty, said in ((0.0, (END,)), (1.0, (3, END))):
    search = decoding.make_beam_search(model, beam=3, length_penalty=penalty)
    decoded = search({}, source)
    assert _tokens(decoded.tokens[0]) == said
    assert np.isfinite(decoded.log_probability).all()


def test_what_is_never_said_takes_no_place_in_a_beam():
  # At first there is one sentence only, later four, of which the least likely
  # has the largest mean in the end.
  model = _chain(
    {
      BEGIN: {3: 1.0},
      3: {4: 0.5, 5: 0.5},
      4: {6: 0.5, 7: 0.5},
      5: {8: 0.4, 9: 0.6},
      6: {END: 1.0},
      7: {END: 1.0},
      8: {8: 1.0},
      9: {END: 1.0},
    }
  )
  search = decoding.make_beam_search(model, beam=4, max_length=20)
  decoded = search({}, jnp.ones((1, 3), jnp.int32))
  assert _tokens(decoded.tokens[0]) == (3, 5, *[8] * 18)
  np.testing.assert_allclose(decoded.log_probability, math.log(0.2), rtol=1e-5)
