"""Sentences of encoder-decoder models, by beam search.

A model is three functions of its variables: what it makes of the source, the
state before the first token, and the logits and state after one more token. All
arrays have the sentences as their first axis.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from experiments.data.translation import bpe
import jax
import jax.numpy as jnp


class Model(NamedTuple):
  """An encoder-decoder model.

  Attributes:
    encode: of (variables, source int32[n, S]), a pytree.
    start: of (variables, encoded), the state before the first token.
    step: of (variables, encoded, state, tokens int32[n]), logits float32[n, V]
      of the next token, and the state after these.
  """

  encode: Callable[[Any, jax.Array], Any]
  start: Callable[[Any, Any], Any]
  step: Callable[[Any, Any, Any, jax.Array], tuple[jax.Array, Any]]


class Decoded(NamedTuple):
  """What a model says."""

  tokens: jax.Array  # int32[n, T], padded after END; without BEGIN
  log_probability: jax.Array  # float32[n], of the tokens, END counted


Decode = Callable[[Any, jax.Array], Decoded]


def of_flax(module: Any) -> Model:
  """Returns the model of a Flax module with such methods."""

  def encode(variables, source):
    return module.apply(variables, source, method='encode')

  def start(variables, encoded):
    return module.apply(variables, encoded, method='start')

  def step(variables, encoded, state, tokens):
    return module.apply(variables, encoded, state, tokens, method='step')

  return Model(encode, start, step)


def make_beam_search(
  model: Model,
  *,
  beam: int,
  length_penalty: float = 1.0,
  max_length: int | None = None,
) -> Decode:
  """Returns a function that follows the most likely sentences side by side.

  A sentence that ends keeps its place in the beam, so the others have one less.
  When all have ended, the best is that of the largest log-probability divided
  by its number of tokens to the power of `length_penalty`. A beam of 1 is
  greedy.

  It is a function of variables and source, and is compiled for each shape.

  Args:
    model: says padding and BEGIN never, whatever their logits are.
    beam: how many sentences.
    length_penalty: 0 prefers short sentences, 1 is the mean over tokens.
    max_length: tokens of a sentence at most, END counted; what is longer is cut
      off. None: 8 more than twice the length of the padded source.
  """

  @jax.jit
  def decode(variables, source):
    length = max_length or 2 * source.shape[1] + 8
    encoded = model.encode(variables, source)
    state = model.start(variables, encoded)
    encoded, state = jax.tree.map(
      lambda x: jnp.repeat(x, beam, axis=0), (encoded, state)
    )

    def going_on(loop):
      at, beams, _ = loop
      return (at < length) & ~jnp.all(beams.ended | jnp.isneginf(beams.total))

    def body(loop):
      at, beams, state = loop
      logits, state = model.step(variables, encoded, state, beams.last.ravel())
      logs = _log_probabilities(logits)
      beams, parents = _extended(beams, logs.reshape(-1, beam, logs.shape[-1]))
      at_parents = (beam * jnp.arange(len(source))[:, None] + parents).ravel()
      state = jax.tree.map(lambda x: x[at_parents], state)
      written = jnp.where(beams.grown, beams.last, bpe.PAD)
      tokens = _of_parents(beams.tokens, parents).at[:, :, at].set(written)
      return at + 1, beams._replace(tokens=tokens), state

    first = 0, _first_beams(len(source), beam, length), state
    _, beams, _ = jax.lax.while_loop(going_on, body, first)
    best = (beams.total / beams.lengths**length_penalty).argmax(-1)[:, None]
    found = (_of_parents(x, best)[:, 0] for x in (beams.tokens, beams.total))
    return Decoded(*found)

  return decode


class _Beams(NamedTuple):
  """Sentences that are followed; those of total -inf are not there yet."""

  tokens: jax.Array  # int32[n, beam, T]
  last: jax.Array  # int32[n, beam], their last tokens
  total: jax.Array  # float32[n, beam], log-probabilities
  lengths: jax.Array  # float32[n, beam], tokens
  ended: jax.Array  # bool[n, beam]
  grown: jax.Array  # bool[n, beam], whether by the last step


def _first_beams(count: int, beam: int, length: int) -> _Beams:
  shape = (count, beam)
  return _Beams(
    jnp.full((*shape, length), bpe.PAD, jnp.int32),
    jnp.full(shape, bpe.BEGIN, jnp.int32),
    jnp.where(jnp.arange(beam) == 0, jnp.zeros(shape), -jnp.inf),
    jnp.zeros(shape),
    jnp.zeros(shape, bool),
    jnp.zeros(shape, bool),
  )


def _extended(beams: _Beams, logs: jax.Array) -> tuple[_Beams, jax.Array]:
  """Returns the best sentences of one token more, and what they came from.

  Args:
    beams: before.
    logs: float32[n, beam, V], log-probabilities of the next token.

  Returns:
    The sentences but for `tokens`, and int32[n, beam].
  """
  count, beam, size = logs.shape
  totals = beams.total[:, :, None] + logs
  # What has ended comes first, once.
  stays = jnp.where(jnp.arange(size) == bpe.PAD, jnp.inf, -jnp.inf)
  order = jnp.where(beams.ended[:, :, None], stays, totals)
  best, flat = jax.lax.top_k(order.reshape(count, beam * size), beam)
  parents, new = flat // size, (flat % size).astype(jnp.int32)
  ended = _of_parents(beams.ended, parents)
  found = _Beams(
    beams.tokens,
    jnp.where(ended, bpe.END, new),
    jnp.where(ended, _of_parents(beams.total, parents), best),
    _of_parents(beams.lengths, parents) + ~ended,
    ended | ((new == bpe.END) & ~jnp.isneginf(best)),
    ~ended,
  )
  return found, parents


def _of_parents(values: jax.Array, parents: jax.Array) -> jax.Array:
  """Returns the entries of the second axis that belong to the parents."""
  return values[jnp.arange(len(values))[:, None], parents]


def _log_probabilities(logits: jax.Array) -> jax.Array:
  """Of tokens that may be said; float32."""
  logs = jax.nn.log_softmax(logits.astype(jnp.float32))
  return logs.at[..., jnp.array([bpe.PAD, bpe.BEGIN])].set(-jnp.inf)
