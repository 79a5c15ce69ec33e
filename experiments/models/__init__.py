"""Flax models by name."""

from collections.abc import Callable, Mapping, Sequence

from experiments.models.alexnet import AlexNet
from experiments.models.convnet import ConvNet
from experiments.models.gpt import GPT
from experiments.models.inception import BNInception
from experiments.models.language_lstm import LanguageLSTM
from experiments.models.mlp import MLP
from experiments.models.projected_lstm import ProjectedSpeech
from experiments.models.resnet import CifarResNet
from experiments.models.resnet import ResNet
from experiments.models.speech import Convolution
from experiments.models.speech import DeepSpeech
from experiments.models.translation import Translator
from experiments.models.vgg import CifarVGG
from experiments.models.vgg import ImageNetVGG
from experiments.models.vgg import VGGLike
from experiments.program import errors
from flax import linen as nn

_Registry = Mapping[str, Callable[[int], nn.Module]]

IMAGES: _Registry = {
  'alexnet': lambda n: AlexNet(n),
  'alexnet_ungrouped': lambda n: AlexNet(n, groups=1),
  'bn_inception': lambda n: BNInception(n),
  'convnet': lambda n: ConvNet(n),
  'logistic': lambda n: MLP(n, widths=()),
  'mlp': lambda n: MLP(n),
  'perceptron': lambda n: MLP(n, widths=(4096,)),
  'resnet8': lambda n: CifarResNet(n, blocks=1),
  'resnet20': lambda n: CifarResNet(n, blocks=3),
  'resnet50': lambda n: ResNet(n),
  'resnet110': lambda n: CifarResNet(n, blocks=18),
  'resnet152': lambda n: ResNet(n, blocks=(3, 8, 36, 3)),
  'vgg16': lambda n: CifarVGG(n),
  'vgg19': lambda n: ImageNetVGG(n),
  'vgg_like': lambda n: VGGLike(n),
}
# Pixels that images must have at least on a side, so that something is left of
# them after the last pooling.
_SIDES = {
  **dict.fromkeys(('alexnet', 'alexnet_ungrouped'), 63),
  **dict.fromkeys(('vgg16', 'vgg19', 'vgg_like'), 32),
  'convnet': 2,
}

_LIMIT = 1500**-0.5  # PyTorch's, of an LSTM with so many units

LANGUAGE: _Registry = {
  'gpt_200k': lambda n: GPT(n, width=64, layers=4, heads=4, dropout=0.0),
  'gpt_800k': lambda n: GPT(n, width=128, layers=4, heads=4, dropout=0.0),
  'gpt_10m': lambda n: GPT(n),
  'lstm_200': lambda n: LanguageLSTM(n, units=200, dropout=0.0),
  'lstm_1500': lambda n: LanguageLSTM(n, lstm_limit=_LIMIT),
  'lstm_1500_untied': lambda n: LanguageLSTM(n, tied=False, lstm_limit=_LIMIT),
}
SPEECH: _Registry = {
  'deepspeech_gru': lambda n: DeepSpeech(n),
  'deepspeech_lstm': lambda n: DeepSpeech(n, 'lstm', layers=5, units=800),
  'deepspeech_small': lambda n: DeepSpeech(
    n, layers=2, units=96, convolutions=(Convolution(16, (11, 21), (2, 3)),)
  ),
  'projected_lstm': lambda n: ProjectedSpeech(n),
}
TRANSLATION: _Registry = {
  'attention_small': lambda n: Translator(n, embedding=128, units=256),
  'attention_ro_en': lambda n: Translator(n),
  'attention_ro_en_lstm': lambda n: Translator(n, cell='lstm'),
  'attention_en_de': lambda n: Translator(
    n, cell='lstm', encoder_depth=4, decoder_depth=8
  ),
}

# What a model is for, and the names of those models.
KINDS: Mapping[str, _Registry] = {
  'images': IMAGES,
  'language': LANGUAGE,
  'speech': SPEECH,
  'translation': TRANSLATION,
}
NAMES = tuple(name for kind in KINDS.values() for name in kind)


def create(name: str, classes: int, kind: str | None = None) -> nn.Module:
  """Returns the model called `name` with `classes` outputs.

  How a model is called depends on what it is for. One with dropout needs
  `rngs={'dropout': key}` where `train` is true, and one with batch
  normalisation has an attribute `batch_axis`.

    images       model.apply(variables, images [batch, height, width, channels],
                 train=bool) -> logits; images are normalised
    language     (tokens [batch, steps], carry) -> (logits, carry), where
                 `model.carry(batch)` is the first carry
    speech       (features [batch, frames, bins], frames [batch]) -> (logits,
                 their frames); class 0 is the blank
    translation  (source [batch, words], target [batch, words]) -> logits, and
                 the methods `encode`, `start` and `step`; 0 is padding

  Args:
    name: of the model.
    classes: outputs; the size of the vocabulary, or of the alphabet with the
      blank. A source vocabulary of another size:
      `model.clone(source_classes=...)`.
    kind: what the model is to be for, of `KINDS`; None: anything.

  Raises:
    ConfigError: an unknown name, or a model that is for something else.
  """
  for models in KINDS.values() if kind is None else (KINDS[kind],):
    if name in models:
      return models[name](classes)
  if kind:
    names = ', '.join(KINDS[kind])
    raise errors.ConfigError(
      f'model.name must be one of {names}, which are for {kind}, got {name!r}'
    )
  known = '; '.join(f'{k}: {", ".join(names)}' for k, names in KINDS.items())
  raise errors.ConfigError(
    f'model.name must be one of these, got {name!r}: {known}'
  )


def check_images(name: str, shape: Sequence[int]) -> None:
  """Raises unless a model can take images of this shape.

  Args:
    name: of the model.
    shape: height, width, channels.

  Raises:
    ConfigError: they are too small.
  """
  side = _SIDES.get(name, 1)
  if min(shape[:2]) < side:
    raise errors.ConfigError(
      f'model.name {name} needs images of {side} x {side} pixels or more, got '
      f'{shape[0]} x {shape[1]}'
    )
