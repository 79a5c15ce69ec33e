"""QSGD's speech model: three LSTM layers with projections (Sak et al. 2014).

QSGD's table 1 has an LSTM for AN4 with 13 M parameters, and says of it that the
networks are CNTK's. CNTK's example for AN4
(Examples/Speech/AN4/Config/lstmp-3layer-opt.ndl) has 13,634,692, with 363
numbers a frame (33 bins of 11 frames) and 132 outputs; that table rounds down
(AlexNet's 62.4 M are 62 M there). So this is that network. CNTK trains it on
the phonetic state of each frame, which AN4 itself does not have. Here it is
trained by CTC as the other speech models are, which is ours.
"""

from collections.abc import Sequence

from experiments.models import recurrent
from flax import linen as nn
import jax
import jax.numpy as jnp


class ProjectedLSTM(recurrent.Cell):
  """An LSTM with peepholes whose output is a projection; (output, memory).

  i = sigmoid(W_i x + U_i r + p_i c + b_i);  f likewise
  c <- f c + i tanh(W_g x + U_g r + b_g)
  r <- P (sigmoid(W_o x + U_o r + p_o c + b_o) tanh(c)), with the new c

  Attributes:
    projection: numbers in the output.
  """

  projection: int = 512

  gates = 4

  def setup(self):
    super().setup()
    self.project = self._product(self.projection)
    self.peepholes = [
      self.param(f'peephole_{gate}', self.peephole_init, (self.features,))
      for gate in 'ifo'
    ]

  def peephole_init(self, key: jax.Array, shape: tuple[int]) -> jax.Array:
    """A peephole begins like a kernel of one column."""
    return self.kernel_init(key, (*shape, 1))[:, 0]

  @property
  def widths(self) -> Sequence[int]:
    return self.projection, self.features

  def __call__(
    self, state: recurrent.State, inputs: jax.Array
  ) -> recurrent.State:
    output, memory = state
    of_i, of_f, of_o = self.peepholes
    gates = inputs + self._from_output(output)
    i, f, g, o = jnp.split(gates, 4, axis=-1)
    keep = nn.sigmoid(f + of_f * memory) * memory
    memory = keep + nn.sigmoid(i + of_i * memory) * jnp.tanh(g)
    hidden = nn.sigmoid(o + of_o * memory) * jnp.tanh(memory)
    return self.project(hidden), memory


class ProjectedSpeech(nn.Module):
  """Layers of projected LSTMs over the frames, and a character for each.

  Attributes:
    classes: outputs.
    layers: how many.
    units: memory of each layer.
    projection: output of each layer.
  """

  classes: int
  layers: int = 3
  units: int = 1024
  projection: int = 512

  @nn.compact
  def __call__(
    self, features: jax.Array, frames: jax.Array, *, train: bool
  ) -> tuple[jax.Array, jax.Array]:
    """Logits for each frame.

    Args:
      features: float32[batch, frames, bins].
      frames: int32[batch], how many of them each utterance has.
      train: makes no difference.

    Returns:
      (logits float32[batch, frames, classes], frames).
    """
    del train
    init = recurrent.uniform(0.05)  # CNTK's 'uniform'
    x = features
    for _ in range(self.layers):
      cell = ProjectedLSTM(
        self.units, projection=self.projection, kernel_init=init
      )
      x, _ = recurrent.Layer((cell,))(x)
    return nn.Dense(self.classes, kernel_init=init)(x), frames
