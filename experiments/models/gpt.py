"""A small transformer language model, in no paper of gradsparse.

  gpt_200k  width  64, 4 layers     197,184 parameters + 64 a word
  gpt_800k  width 128, 4 layers     787,584 parameters + 128 a word
  gpt_10m   width 384, 6 layers  10,621,824 parameters + 384 a word

Pre-norm, with RMS norms (Zhang & Sennrich 2019, arXiv 1910.07467), rotary
positions (Su et al. 2021, arXiv 2104.09864), GELU, no biases, and the embedding
as the output's matrix. Positions have no parameters, so that windows may be of
any length.
"""

from experiments.models import layers
from flax import linen as nn
import jax
import jax.numpy as jnp

_BASE = 10_000.0  # pairs turn by 1 a token, and by less, to nearly 1 / _BASE


def _rotated(x: jax.Array) -> jax.Array:
  """Turns pairs of elements by an angle that grows with the position.

  Args:
    x: [batch, steps, heads, even size].
  """
  half = x.shape[-1] // 2
  speeds = _BASE ** (-jnp.arange(half) / half)
  angles = jnp.arange(x.shape[1])[:, None, None] * speeds
  sin, cos = jnp.sin(angles), jnp.cos(angles)
  a, b = jnp.split(x, 2, axis=-1)
  return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


class GPT(nn.Module):
  """Embedding, blocks of attention and a dense part, and the next token.

  Initial weights are GPT-2's: normal with standard deviation 0.02, divided by
  the root of the number of residual branches where one ends.

  Attributes:
    classes: tokens of the vocabulary.
    width: of the residual stream.
    layers: how many blocks.
    heads: of the attention; each has an even share of the width.
    dropout: share of activations that become zero in training, of the embedding
      and of each branch.
  """

  classes: int
  width: int = 384
  layers: int = 6
  heads: int = 6
  dropout: float = 0.2

  def carry(self, batch: int) -> tuple[()]:
    """Nothing: a window does not see what came before it."""
    del batch
    return ()

  @nn.compact
  def __call__(
    self, tokens: jax.Array, carry: tuple[()], *, train: bool
  ) -> tuple[jax.Array, tuple[()]]:
    """Reads a window of each text.

    Args:
      tokens: int32[batch, steps].
      carry: (), as every language model takes one.
      train: with dropout.

    Returns:
      (logits float32[batch, steps, classes] of the token after each, ()).
    """
    normal = nn.initializers.normal(0.02)
    last = nn.initializers.normal(0.02 / (2 * self.layers) ** 0.5)
    embed = nn.Embed(self.classes, self.width, embedding_init=normal)

    def dense(x, features, init=normal):
      return nn.Dense(features, use_bias=False, kernel_init=init)(x)

    def dropped(x):
      return layers.dropout(x, self.dropout, train=train)

    x = dropped(embed(tokens))
    mask = nn.make_causal_mask(tokens)
    for _ in range(self.layers):
      joined = dense(nn.RMSNorm()(x), 3 * self.width)
      heads = joined.reshape(*tokens.shape, 3, self.heads, -1)
      q, k, v = (heads[:, :, number] for number in range(3))
      y = nn.dot_product_attention(_rotated(q), _rotated(k), v, mask=mask)
      x += dropped(dense(y.reshape(x.shape), self.width, last))
      y = nn.gelu(dense(nn.RMSNorm()(x), 4 * self.width))
      x += dropped(dense(y, self.width, last))
    return embed.attend(nn.RMSNorm()(x)), carry
