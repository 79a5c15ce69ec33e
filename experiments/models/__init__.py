"""Flax models by name."""

from collections.abc import Callable

from experiments.models.convnet import ConvNet
from experiments.models.mlp import MLP
from experiments.models.resnet import CifarResNet
from experiments.program import errors
from flax import linen as nn

__all__ = ['NAMES', 'CifarResNet', 'ConvNet', 'MLP', 'create']

_MODELS: dict[str, Callable[[int], nn.Module]] = {
  'convnet': lambda classes: ConvNet(classes),
  'mlp': lambda classes: MLP(classes),
  'resnet20': lambda classes: CifarResNet(classes, blocks=3),
  'resnet110': lambda classes: CifarResNet(classes, blocks=18),
}
NAMES = tuple(_MODELS)


def create(name: str, classes: int) -> nn.Module:
  """Returns the model called `name` with `classes` outputs.

  Every model is called as `model.apply(variables, images, train=bool)`, takes
  normalised images `[batch, height, width, channels]` and returns logits.

  Raises:
    ConfigError: an unknown name.
  """
  if name not in _MODELS:
    raise errors.ConfigError(
      f'model.name must be one of {", ".join(NAMES)}, got {name!r}'
    )
  return _MODELS[name](classes)
