"""LSTM language models of the papers (Zaremba et al. 2014, arXiv 1409.2329).

With a vocabulary of 10,000 words:

  lstm_1500          51,034,000  DGC, section 4: tied (its table 4: 194.68 MB)
  lstm_1500_untied   66,034,000  gTop-k; its code, models/lstm.py
  lstm_200            2,653,200  Zaremba's small one, tied; for quick rows

Each gate has two sets of biases, as PyTorch's LSTM does, which both papers use:
without them DGC's ratio of 462 would be 518. The large ones begin as in
PyTorch's word_language_model: embeddings and output within 0.1, LSTMs within
1 / sqrt(units), but for biases, which are zeros here.
"""

from experiments.models import layers
from experiments.models import recurrent
from flax import linen as nn
import jax
import jax.numpy as jnp


class LanguageLSTM(nn.Module):
  """Embedding, layers of LSTM, and a word after each word.

  Dropout is on the connections that are not recurrent: what goes into each
  layer, and what comes out of the last. Weights begin uniform, biases as zeros.

  Attributes:
    classes: words of the vocabulary.
    units: of each layer, and of the embedding.
    layers: how many.
    tied: the embedding is the output's matrix too (Press & Wolf 2016; Inan et
      al. 2016).
    dropout: share of activations that become zero in training.
    limit: the largest initial weight.
    lstm_limit: that of the LSTMs; None: the same.
  """

  classes: int
  units: int = 1500
  layers: int = 2
  tied: bool = True
  dropout: float = 0.65
  limit: float = 0.1
  lstm_limit: float | None = None

  def carry(self, batch: int) -> tuple[recurrent.State, ...]:
    """The hidden state where a text begins: zeros.

    Args:
      batch: how many texts.

    Returns:
      For each layer (output, memory), float32[batch, units].
    """
    zeros = jnp.zeros((batch, self.units))
    return ((zeros, zeros),) * self.layers

  @nn.compact
  def __call__(
    self, tokens: jax.Array, carry: tuple[recurrent.State, ...], *, train: bool
  ) -> tuple[jax.Array, tuple[recurrent.State, ...]]:
    """Reads some words more of each text.

    Args:
      tokens: int32[batch, steps].
      carry: the hidden state, see `carry`.
      train: with dropout.

    Returns:
      (logits float32[batch, steps, classes] of the word after each, the hidden
      state after the last).
    """
    init = recurrent.uniform(self.limit)
    lstm_init = recurrent.uniform(self.lstm_limit or self.limit)
    embed = nn.Embed(self.classes, self.units, embedding_init=init)
    x = layers.dropout(embed(tokens), self.dropout, train=train)
    after = []
    for number in range(self.layers):
      cell = recurrent.LSTM(self.units, bias_sets=2, kernel_init=lstm_init)
      x, state = recurrent.Layer((cell,))(x, carry[number])
      x = layers.dropout(x, self.dropout, train=train)
      after.append(state)
    if not self.tied:
      return nn.Dense(self.classes, kernel_init=init)(x), tuple(after)
    bias = self.param('bias', nn.initializers.zeros, (self.classes,))
    return embed.attend(x) + bias, tuple(after)
