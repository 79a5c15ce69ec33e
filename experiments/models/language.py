"""Language models of LSTM layers, as DGC's and gTop-k's papers train them.

Both are the word language model of PyTorch's examples: an embedding, two LSTM
layers of as many units, a layer of logits, and dropout between any two of them
but not over time. With 1500 units and 10,000 words that are 51,034,000
parameters where the embedding is also the matrix of the logits, 66,034,000
where it is not.
"""

from collections.abc import Sequence
import functools

from flax import linen as nn
import jax
import jax.numpy as jnp

# What is carried from a window to the next: cells and outputs of each layer.
Carry = Sequence[tuple[jax.Array, jax.Array]]


class LSTM(nn.Module):
  """A layer of LSTM cells with two sets of biases, as cuDNN has them.

  Gates are in the order input, forget, cell, output.

  Attributes:
    units: cells.
  """

  units: int

  @nn.compact
  def __call__(
    self, xs: jax.Array, carry: tuple[jax.Array, jax.Array]
  ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """Returns the outputs, and the states after the last.

    Args:
      xs: float32[batch, time, features].
      carry: cells and outputs before the first, float32[batch, units] each.
    """
    init = _uniform(self.units**-0.5)
    gates = 4 * self.units
    inputs = self.param('inputs', init, (xs.shape[-1], gates))
    recurrent = self.param('recurrent', init, (self.units, gates))
    input_bias = self.param('input_bias', init, (gates,))
    recurrent_bias = self.param('recurrent_bias', init, (gates,))
    # One product for all times.
    wanted = (xs @ inputs + input_bias).swapaxes(0, 1)

    def step(carry, wanted):
      cells, outputs = carry
      wanted = wanted + outputs @ recurrent + recurrent_bias
      enter, keep, new, leave = jnp.split(wanted, 4, axis=-1)
      cells = nn.sigmoid(keep) * cells + nn.sigmoid(enter) * jnp.tanh(new)
      outputs = nn.sigmoid(leave) * jnp.tanh(cells)
      return (cells, outputs), outputs

    carry, outputs = jax.lax.scan(step, carry, wanted)
    return outputs.swapaxes(0, 1), carry


class LanguageLSTM(nn.Module):
  """Logits of the next symbol, by LSTM layers.

  Attributes:
    symbols: of the vocabulary.
    units: of each layer, and of the embedding.
    layers: how many.
    tied: whether the embedding is also the matrix of the logits.
    dropout: share of what a layer sees that is dropped in training.
  """

  symbols: int
  units: int = 1500
  layers: int = 2
  tied: bool = True
  dropout: float = 0.65

  def carry(self, batch: int) -> Carry:
    """Returns what is carried to the first window of so many rows."""
    zeros = jnp.zeros((batch, self.units))
    return ((zeros, zeros),) * self.layers

  @nn.compact
  def __call__(
    self, tokens: jax.Array, carry: Carry, *, train: bool
  ) -> tuple[jax.Array, Carry]:
    """Returns logits, float32[batch, time, symbols], and what is carried on.

    Args:
      tokens: int32[batch, time].
      carry: of the window before, or what `carry` returns.
      train: whether to drop.
    """
    embed = nn.Embed(self.symbols, self.units, embedding_init=_uniform(0.1))
    drop = functools.partial(nn.Dropout, self.dropout, deterministic=not train)
    x = drop()(embed(tokens))
    after = []
    for before in carry:
      x, states = LSTM(self.units)(x, before)
      x = drop()(x)
      after.append(states)
    bias = self.param('bias', nn.initializers.zeros, (self.symbols,))
    if self.tied:
      logits = embed.attend(x)
    else:
      logits = nn.Dense(
        self.symbols, use_bias=False, kernel_init=_uniform(0.1), name='logits'
      )(x)
    return logits + bias, tuple(after)


def _uniform(scale: float) -> nn.initializers.Initializer:
  """Uniform between -scale and scale."""

  def init(key, shape, dtype=jnp.float32):
    return jax.random.uniform(key, shape, dtype, -scale, scale)

  return init
