"""Data sets by name, each in its published format.

Here are those of images. `language`, `speech` and `translation` have the
others, and samplers of their own. The small ones are held in memory; ImageNet's
files, and those of speech, are read as they are needed.
"""

from experiments.data import dataset
from experiments.data import folders
from experiments.data.batches import Ahead as Ahead
from experiments.data.batches import Batch as Batch
from experiments.data.batches import Sampler as Sampler
from experiments.data.dataset import Dataset as Dataset
from experiments.data.dataset import Split as Split
from experiments.data.dataset import normalise as normalise

NAMES = ('cifar10', 'digits', 'fashion_mnist', 'imagenet', 'mnist')


def load(
  name: str,
  directory: str = '',
  test_split: str = 'test',
  image_size: int = 224,
) -> Dataset:
  """Returns a data set.

  Args:
    name: one of `NAMES`.
    directory: root of all data sets or the set's own folder; unused by digits.
    test_split: `'test'` is the set's own test split; `'validation'` never
      looks at it and holds out a fifth of the training set instead, for
      choosing settings; CIFAR-10 also takes the stem of a training file.
    image_size: pixels of a side of what is seen of an image of ImageNet; the
      other sets have a size of their own.

  Raises:
    ConfigError: an unknown split.
    DataFileError: a file is missing or damaged.
  """
  if test_split == 'validation':
    # CIFAR-10 without its test file can still be split for validation.
    own = 'data_batch_5' if name == 'cifar10' else 'test'
    whole = load(name, directory, own, image_size)
    train, held_out = dataset.hold_out(whole.train, dataset.VALIDATION_FRACTION)
    return whole._replace(train=train, test=held_out)
  if name == 'cifar10':
    from experiments.data import cifar10

    return cifar10.load(directory, test_split)
  folders.check_split(name, test_split, ('test', 'validation'))
  if name == 'digits':
    from experiments.data import digits  # scikit-learn takes a second

    return digits.load()
  if name == 'imagenet':
    from experiments.data import imagenet  # needs Pillow

    return imagenet.load(directory, image_size)
  from experiments.data import idx

  return idx.load(name, directory)
