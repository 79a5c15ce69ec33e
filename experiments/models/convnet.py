"""The demo's convolutional network."""

from flax import linen as nn
import jax


class ConvNet(nn.Module):
  """Two convolutions, a pooling and two dense layers, in the MNIST manner.

  283,786 parameters on 8 x 8 images with 10 classes, most of them in the
  first dense layer: the shape of network that compression likes best.

  Attributes:
    classes: number of outputs.
  """

  classes: int

  @nn.compact
  def __call__(self, images: jax.Array, *, train: bool) -> jax.Array:
    del train  # the same in training and in testing
    x = nn.relu(nn.Conv(32, (3, 3))(images))
    x = nn.relu(nn.Conv(64, (3, 3))(x))
    x = nn.max_pool(x, (2, 2), strides=(2, 2))
    x = x.reshape(x.shape[0], -1)
    x = nn.relu(nn.Dense(256)(x))
    return nn.Dense(self.classes)(x)
