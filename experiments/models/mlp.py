"""Dense layers: a small network, QSGD's perceptron, logistic regression.

On MNIST:

  mlp         widths 128, 64    109,386
  perceptron  width 4096      3,256,330  QSGD, section 5, has "a two-layer
                                         perceptron"; the width is ours
  logistic    no hidden layer     7,850  multinomial logistic regression
"""

from collections.abc import Sequence

from flax import linen as nn
import jax


class MLP(nn.Module):
  """Dense layers with ReLU between them.

  Attributes:
    classes: number of outputs.
    widths: units of each hidden layer; without any, this is logistic
      regression, whose loss is convex.
  """

  classes: int
  widths: Sequence[int] = (128, 64)

  @nn.compact
  def __call__(self, images: jax.Array, *, train: bool) -> jax.Array:
    del train  # the same in training and in testing
    x = images.reshape(images.shape[0], -1)
    for width in self.widths:
      x = nn.relu(nn.Dense(width)(x))
    return nn.Dense(self.classes)(x)
