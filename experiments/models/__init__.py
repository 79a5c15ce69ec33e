"""Flax models by name, of each kind of data."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from experiments.models.alexnet import AlexNet
from experiments.models.convnet import ConvNet
from experiments.models.inception import BNInception
from experiments.models.language import LanguageLSTM
from experiments.models.mlp import MLP
from experiments.models.resnet import CifarResNet
from experiments.models.resnet import ResNet
from experiments.models.vgg import CifarVGG
from experiments.models.vgg import ImageNetVGG
from experiments.models.vgg import VGGLike
from experiments.program import errors
from flax import linen as nn

__all__ = [
  'NAMES',
  'AlexNet',
  'BNInception',
  'CifarResNet',
  'CifarVGG',
  'ConvNet',
  'ImageNetVGG',
  'LanguageLSTM',
  'MLP',
  'ResNet',
  'VGGLike',
  'check_images',
  'create',
]


class _Model(NamedTuple):
  """How a model is made.

  Attributes:
    make: from the number of classes.
    side: pixels that its images must have at least, so that something is left
      of them after the last pooling.
  """

  make: Callable[[int], nn.Module]
  side: int = 1


_OF_IMAGES: Mapping[str, _Model] = {
  'alexnet': _Model(lambda classes: AlexNet(classes), 63),
  'alexnet_ungrouped': _Model(lambda classes: AlexNet(classes, groups=1), 63),
  'bn_inception': _Model(lambda classes: BNInception(classes)),
  'convnet': _Model(lambda classes: ConvNet(classes), 2),
  'logistic': _Model(lambda classes: MLP(classes, widths=())),
  'mlp': _Model(lambda classes: MLP(classes)),
  'perceptron': _Model(lambda classes: MLP(classes, widths=(4096,))),
  'resnet8': _Model(lambda classes: CifarResNet(classes, blocks=1)),
  'resnet20': _Model(lambda classes: CifarResNet(classes, blocks=3)),
  'resnet50': _Model(lambda classes: ResNet(classes)),
  'resnet110': _Model(lambda classes: CifarResNet(classes, blocks=18)),
  'resnet152': _Model(lambda classes: ResNet(classes, blocks=(3, 8, 36, 3))),
  'vgg16': _Model(lambda classes: CifarVGG(classes), 32),
  'vgg19': _Model(lambda classes: ImageNetVGG(classes), 32),
  'vgg_like': _Model(lambda classes: VGGLike(classes), 32),
}
_OF_TEXT: Mapping[str, Callable[[int], nn.Module]] = {
  'lstm_ptb': lambda symbols: LanguageLSTM(symbols),
  'lstm_ptb_untied': lambda symbols: LanguageLSTM(symbols, tied=False),
  'lstm_small': lambda symbols: LanguageLSTM(symbols, units=200, dropout=0.0),
}

# Makes a model from its number of classes, by kind of data and name.
KINDS: Mapping[str, Mapping[str, Callable[[int], nn.Module]]] = {
  'images': {name: model.make for name, model in _OF_IMAGES.items()},
  'text': _OF_TEXT,
}
NAMES = tuple(name for kind in KINDS.values() for name in kind)


def create(name: str, classes: int, kind: str = 'images') -> nn.Module:
  """Returns the model called `name` with `classes` outputs.

  A model of images is called as `model.apply(variables, images, train=bool)`,
  takes normalised images `[batch, height, width, channels]` and returns logits.
  One with batch normalisation has an attribute `batch_axis`.

  A model of text is called as `model.apply(variables, tokens, carry,
  train=bool)`, takes symbols, int32[batch, time], and what it has carried from
  the window before, and returns logits and what is carried on;
  `model.carry(batch)` is what the first window takes.

  One with dropout also needs `rngs={'dropout': key}` where `train` is true.

  Args:
    name: one of `NAMES`.
    classes: number of outputs; of text, the size of the vocabulary.
    kind: of the data, one of `KINDS`.

  Raises:
    ConfigError: no model for this kind of data has this name.
  """
  if name not in KINDS[kind]:
    raise errors.ConfigError(
      f'model.name must be one of {", ".join(KINDS[kind])} for {kind}, got '
      f'{name!r}'
    )
  return KINDS[kind][name](classes)


def check_images(name: str, shape: Sequence[int]) -> None:
  """Raises unless a model can take images of this shape.

  Args:
    name: of the model.
    shape: height, width, channels.

  Raises:
    ConfigError: they are too small.
  """
  side = _OF_IMAGES[name].side
  if min(shape[:2]) < side:
    raise errors.ConfigError(
      f'model.name {name} needs images of {side} x {side} pixels or more, got '
      f'{shape[0]} x {shape[1]}'
    )
