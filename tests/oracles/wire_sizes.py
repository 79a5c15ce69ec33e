"""Sizes of messages by counting alone, and the models that papers count on.

A model is a dict from name to shape, in Flax layouts (kernels end in the output
features). The totals in PUBLISHED follow from the architectures:

- AlexNet: CaffeNet with the two-group convolutions 2, 4 and 5, biases
  everywhere.
- ResNet-50: bottlenecks with projection shortcuts, no convolution biases; scale
  and bias of each batch normalisation; a classifier with bias.
- PTB LSTM: 10,000 words, two layers of 1500, the output matrix tied to the
  embedding, an output bias, and two bias vectors a layer (cuDNN).
- DeepSpeech: two convolutions (41×11 and 21×11, 32 features, with biases) each
  with batch normalisation; 161 spectrogram bins shrink to 21, so 21·32 = 672
  inputs; seven bidirectional GRUs of 1200 without biases, the directions
  summed, so each next layer sees 1200; batch normalisation before layers 2 to 7
  and before the classifier; 29 characters without a bias.

References: arXiv 1712.01887, tables 3 and 4; arXiv 1705.07878 (TernGrad's row);
Elias, J. ACM 21(2), 1974 (sorted indices).
"""

import math

from tests.oracles import chunks
from tests.oracles import sparse

MIB = 2**20

# Parameters, of them 1-D, and the ratio printed by DGC's tables 3 and 4.
PUBLISHED = {
  'alexnet': (60_965_224, 10_568, 597),
  'resnet50': (25_557_032, 54_120, 277),
  'ptb_lstm': (51_034_000, 34_000, 462),
  'deepspeech': (117_461_168, 16_992, 608),
}


def message_bytes(words):
  """Of so many words and one for the verdict; long messages fill rows."""
  words += 1
  return 4 * (words if words < 12_800 else 128 * math.ceil(words / 128))


def alexnet():
  shapes = {}
  for name, kernel in {
    'conv1': (11, 11, 3, 96),
    'conv2': (5, 5, 96 // 2, 256),
    'conv3': (3, 3, 256, 384),
    'conv4': (3, 3, 384 // 2, 384),
    'conv5': (3, 3, 384 // 2, 256),
    'fc6': (6 * 6 * 256, 4096),
    'fc7': (4096, 4096),
    'fc8': (4096, 1000),
  }.items():
    shapes[f'{name}.kernel'] = kernel
    shapes[f'{name}.bias'] = kernel[-1:]
  return shapes


def resnet50():
  shapes = {}

  def convolution(name, window, inputs, outputs):
    shapes[f'{name}.kernel'] = (window, window, inputs, outputs)
    shapes[f'{name}.norm.scale'] = (outputs,)
    shapes[f'{name}.norm.bias'] = (outputs,)

  convolution('stem', 7, 3, 64)
  inputs = 64
  stages = ((3, 64), (4, 128), (6, 256), (3, 512))
  for stage, (blocks, width) in enumerate(stages):
    for block in range(blocks):
      name = f'stage{stage}.block{block}'
      convolution(f'{name}.conv1', 1, inputs, width)
      convolution(f'{name}.conv2', 3, width, width)
      convolution(f'{name}.conv3', 1, width, 4 * width)
      if block == 0:
        convolution(f'{name}.shortcut', 1, inputs, 4 * width)
      inputs = 4 * width
  shapes['head.kernel'] = (2048, 1000)
  shapes['head.bias'] = (1000,)
  return shapes


def ptb_lstm(*, bias_sets=2, tied=True):
  vocabulary, width, layers = 10_000, 1500, 2
  shapes = {'embedding': (vocabulary, width)}
  for layer in range(layers):
    shapes[f'lstm{layer}.input_kernel'] = (width, 4 * width)
    shapes[f'lstm{layer}.hidden_kernel'] = (width, 4 * width)
    for b in range(bias_sets):
      shapes[f'lstm{layer}.bias{b}'] = (4 * width,)
  if not tied:
    shapes['output.kernel'] = (width, vocabulary)
  shapes['output.bias'] = (vocabulary,)
  return shapes


def deepspeech():
  width, features, characters = 1200, 32, 29
  shapes = {}

  def norm(name, size):
    shapes[f'{name}.scale'] = (size,)
    shapes[f'{name}.bias'] = (size,)

  bins = 161
  inputs = 1
  for i, height in enumerate((41, 21)):
    shapes[f'conv{i}.kernel'] = (height, 11, inputs, features)
    shapes[f'conv{i}.bias'] = (features,)
    norm(f'conv{i}.norm', features)
    bins = (bins - height) // 2 + 1
    inputs = features
  inputs = bins * features
  assert inputs == 672, inputs
  for layer in range(7):
    if layer:
      norm(f'gru{layer}.norm', inputs)
    for direction in ('forward', 'backward'):
      name = f'gru{layer}.{direction}'
      shapes[f'{name}.input_kernel'] = (inputs, 3 * width)
      shapes[f'{name}.hidden_kernel'] = (width, 3 * width)
    inputs = width
  norm('head.norm', width)
  shapes['head.kernel'] = (width, characters)
  return shapes


MODELS = {
  'alexnet': alexnet,
  'resnet50': resnet50,
  'ptb_lstm': ptb_lstm,
  'deepspeech': deepspeech,
}


def cifar_resnet(depth):
  """ResNet-20, -110, …: 6n + 2 layers, shortcuts without parameters."""
  shapes = {'stem.kernel': (3, 3, 3, 16)}
  norms = [16]
  inputs = 16
  for stage, width in enumerate((16, 32, 64)):
    for layer in range(2 * ((depth - 2) // 6)):
      shapes[f'stage{stage}.conv{layer}.kernel'] = (3, 3, inputs, width)
      norms.append(width)
      inputs = width
  for i, width in enumerate(norms):
    shapes[f'norm{i}.scale'] = (width,)
    shapes[f'norm{i}.bias'] = (width,)
  shapes['head.kernel'] = (64, 10)
  shapes['head.bias'] = (10,)
  return shapes


def parameters(shapes):
  return sum(math.prod(shape) for shape in shapes.values())


def one_dimensional(shapes):
  return sum(math.prod(s) for s in shapes.values() if len(s) < 2)


def dense_bytes(shapes):
  return 4 * parameters(shapes)


def dgc_bytes(shapes, density=0.001, *, whole_k=False):
  """1-D leaves float32; of all others 32-bit values and 16-bit run lengths.

  Args:
    shapes: of the parameters.
    density: fraction that is sent of each compressed leaf.
    whole_k: False counts k = density·n as a fraction, as the paper's tables do;
      True rounds k up a leaf, as a real message must.
  """
  total = 4 * one_dimensional(shapes)
  for shape in shapes.values():
    if len(shape) >= 2:
      n = math.prod(shape)
      total += (sparse.count(density, n) if whole_k else density * n) * 6
  return total


def dgc_ratio(shapes, density=0.001, *, whole_k=False):
  return dense_bytes(shapes) / dgc_bytes(shapes, density, whole_k=whole_k)


def terngrad_bytes(shapes, dense=()):
  """Two bits an element, float32 for the leaves named; scalers not counted."""
  bits = 0
  for name, shape in shapes.items():
    bits += math.prod(shape) * (32 if name in dense else 2)
  return bits / 8


def run_length_entries(indices):
  """Entries of DGC's code: (32-bit value, 16-bit zeros before it).

  A gap of 2^16 zeros or more needs escapes: 2^16 - 1 zeros and a zero value
  cover 2^16 elements.

  >>> [run_length_entries([i]) for i in (0, 65_535, 65_536, 131_071, 131_072)]
  [1, 1, 2, 2, 3]
  """
  entries = 0
  last = -1
  for i in sorted(indices):
    entries += 1 + (i - last - 1) // 2**16
    last = i
  return entries


def qsgd_bytes(n, bits, bucket_size):
  """Fixed-width code of a leaf: b bits an element, a float32 scale a bucket."""
  return bits * n / 8 + 4 * math.ceil(n / bucket_size)


def variance_bytes(sent, tensors):
  """A 32-bit word an element that is sent, and e_M (a byte) once a tensor."""
  return 4 * sent + tensors


def elias_fano_bits(count, n):
  """Sorted indices below n: l low bits each, and the high parts in unary.

  >>> [elias_fano_bits(4 * k, 4096 * k) / (4 * k) for k in (1, 100)]
  [12.0, 12.0]
  """
  return min(
    count * low + count + (n >> low) for low in range(n.bit_length() + 1)
  )


def chunk_index_bits(chunk_size):
  """Bits of a place in a chunk; which chunk it is, follows from its rank.

  >>> [chunk_index_bits(m) for m in (1, 2, 4095, 4096, 4097)]
  [0, 1, 12, 12, 13]
  """
  return (chunk_size - 1).bit_length()


def chunk_count(shapes, density, chunk_size):
  """Elements that chunk-wise selection sends of these leaves."""
  return sum(
    sum(chunks.counts(math.prod(shape), density, chunk_size))
    for shape in shapes.values()
  )
