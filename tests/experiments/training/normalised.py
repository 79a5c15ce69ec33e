"""A small model with batch normalisation, made as the experiments' models."""

from flax import linen as nn


class Normalised(nn.Module):
  """A normalised dense layer."""

  classes: int = 3
  batch_axis: str | None = None

  @nn.compact
  def __call__(self, x, train=False):
    x = nn.Dense(self.classes)(x.reshape(len(x), -1))
    return nn.BatchNorm(not train, axis_name=self.batch_axis)(x)
