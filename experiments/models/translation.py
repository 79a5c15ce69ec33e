"""Attentional encoder-decoders (Bahdanau et al. 2015, arXiv 1409.0473).

With vocabularies of so many words (source and target):

  attention_ro_en       66,000, 50,000  118,906,704
  attention_ro_en_lstm  66,000, 50,000  126,783,312
  attention_en_de       86,400, 86,400  224,968,064
  attention_small        8,000,  8,000    5,205,568  for quick rows

The local-gradient paper (section 4.1) trains two models with layer
normalisation in Marian, and names their sources, sizes and little more:

  Ro-En  "single layer attentional encoder-decoder bidirectional LSTM consisting
         of 119M parameters". With GRU cells, Marian's usual sizes (512, 1024)
         and the vocabularies of its example for this task
         (marian-examples/training-basics) it is 119 M; with LSTM cells and all
         else the same 127 M. Sennrich et al. 2016, whose system it follows, had
         GRU cells too. configs/local_table1.py has LSTM cells, as printed, and
         50,300 words on both sides, which make 119 M too.
  En-De  "eight layers of LSTM consisting of 225M parameters", after Sennrich et
         al. 2017. That system has deep transitions, four cells in the encoder
         and eight in the decoder (marian-examples/wmt2017-uedin), and so has
         this one. No vocabulary is printed: 86,400 words on both sides make
         225 M, and are ours.

Dropout is ours as well: the paper does not say whether there was any.
"""

from typing import NamedTuple

from experiments.models import recurrent
from flax import linen as nn
import jax
import jax.numpy as jnp


class Encoded(NamedTuple):
  """A source sentence, as the decoder sees it; the batch is the first axis.

  Attributes:
    states: float32[batch, source words, 2 * units].
    keys: float32[batch, source words, 2 * units], what attention compares.
    mask: bool[batch, source words], which are no padding.
  """

  states: jax.Array
  keys: jax.Array
  mask: jax.Array


class Translator(nn.Module):
  """Reads a sentence in both directions, and writes another word by word.

  Encoder and decoder are deep transitions: in each step the state passes
  several cells. The decoder's first cell gets the word before, its second what
  it attends to (Nematus' conditional GRU), the others nothing. The next word
  follows from the word before, the state and what was attended to.

  Token 0 is padding. Dropout is on embeddings, encoder states and the last
  hidden layer.

  Attributes:
    classes: words of the target's vocabulary.
    source_classes: of the source's; None: as many.
    embedding: width of the embeddings, and of the last hidden layer.
    units: of each cell. Attention has twice as many, as the encoder's states.
    cell: 'gru' or 'lstm'.
    encoder_depth: cells in a step of either direction.
    decoder_depth: cells in a step, two or more.
    layer_norm: in cells, attention, first state and last hidden layer.
    dropout: share of activations that become zero in training.
  """

  classes: int
  source_classes: int | None = None
  embedding: int = 512
  units: int = 1024
  cell: str = 'gru'
  encoder_depth: int = 1
  decoder_depth: int = 2
  layer_norm: bool = True
  dropout: float = 0.2

  def setup(self):
    def layer(**options):
      return recurrent.Layer(self._cells(self.encoder_depth), **options)

    self.source = nn.Embed(self.source_classes or self.classes, self.embedding)
    self.target = nn.Embed(self.classes, self.embedding)
    self.forwards, self.backwards = layer(), layer(backwards=True)
    self.cells = self._cells(self.decoder_depth)
    self.first_state = self._normed(self.units)
    self.key = self._normed(2 * self.units)
    self.query = self._normed(2 * self.units, use_bias=False)
    self.score = nn.Dense(1, use_bias=False)
    self.hidden = self._normed(self.embedding)
    self.word = nn.Dense(self.classes)
    self.drop = nn.Dropout(self.dropout)

  def _cells(self, depth: int) -> tuple[recurrent.Cell, ...]:
    kind = recurrent.CELLS[self.cell]
    return tuple(
      kind(self.units, layer_norm=self.layer_norm) for _ in range(depth)
    )

  def _normed(self, features: int, use_bias: bool = True) -> nn.Module:
    """A dense layer; normalised, its bias comes after that."""
    if not self.layer_norm:
      return nn.Dense(features, use_bias=use_bias)
    dense = nn.Dense(features, use_bias=False)
    return nn.Sequential([dense, nn.LayerNorm(use_bias=use_bias)])

  def __call__(
    self, source: jax.Array, target: jax.Array, *, train: bool
  ) -> jax.Array:
    """Says of each word of a translation which comes next.

    Args:
      source: int32[batch, source words].
      target: int32[batch, words], the translation up to its last word but one,
        with the beginning of a sentence in front.
      train: with dropout.

    Returns:
      Logits float32[batch, words, classes].
    """
    encoded = self.encode(source, train=train)
    words = self._dropped(self.target(target), train)
    scan = recurrent.scan(_decode, in_axes=(1, nn.broadcast))
    inputs = self.cells[0].inputs(words)
    _, (outputs, attended) = scan(self, self.start(encoded), inputs, encoded)
    return self._logits(words, outputs, attended, train)

  def encode(self, source: jax.Array, *, train: bool = False) -> Encoded:
    """Reads the source sentences, int32[batch, source words]."""
    mask = source != 0
    words = self._dropped(self.source(source), train)
    layers = self.forwards, self.backwards
    directions = [layer(words, mask=mask)[0] for layer in layers]
    states = self._dropped(jnp.concatenate(directions, axis=-1), train)
    return Encoded(states, self.key(states), mask)

  def start(self, encoded: Encoded) -> recurrent.State:
    """The decoder's state before the first word.

    All parts of it are the same: made of the mean of the encoder's states.
    """
    there = encoded.mask[..., None]
    total = jnp.sum(encoded.states, axis=1, where=there)
    mean = total / jnp.maximum(jnp.sum(there, axis=1), 1)
    parts = len(self.cells[0].zero(mean))
    return (jnp.tanh(self.first_state(mean)),) * parts

  def step(
    self, encoded: Encoded, state: recurrent.State, tokens: jax.Array
  ) -> tuple[jax.Array, recurrent.State]:
    """One word further, without dropout.

    Args:
      encoded: see `encode`.
      state: of the decoder, from `start` or from the step before.
      tokens: int32[batch], the word before; at first the beginning of a
        sentence.

    Returns:
      (logits float32[batch, classes], state).
    """
    words = self.target(tokens)
    inputs = self.cells[0].inputs(words)
    state, (output, attended) = _decode(self, state, inputs, encoded)
    return self._logits(words, output, attended, False), state

  def _attend(self, output: jax.Array, encoded: Encoded) -> jax.Array:
    """The mean of the encoder's states, weighted by how well they fit."""
    fit = jnp.tanh(encoded.keys + self.query(output)[:, None])
    scores = self.score(fit)[..., 0]
    # Finite, so that a sentence of padding only gives no NaN.
    lowest = jnp.finfo(scores.dtype).min
    weights = nn.softmax(jnp.where(encoded.mask, scores, lowest))
    return jnp.einsum('bs,bsd->bd', weights, encoded.states)

  def _logits(self, words, outputs, attended, train):
    joined = jnp.concatenate([words, outputs, attended], axis=-1)
    return self.word(self._dropped(jnp.tanh(self.hidden(joined)), train))

  def _dropped(self, x: jax.Array, train: bool) -> jax.Array:
    return self.drop(x, deterministic=not train)


def _decode(model: Translator, state, inputs: jax.Array, encoded: Encoded):
  """One step: the new state, and its output with what was attended to."""
  first, second, *others = model.cells
  state = first(state, inputs)
  attended = model._attend(state[0], encoded)
  state = second(state, second.inputs(attended))
  for cell in others:
    state = cell(state, cell.inputs(None))
  return state, (state[0], attended)
