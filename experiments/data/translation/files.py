"""Parallel text in pairs of files, a sentence a line, plain or gzip.

  DIR/multi30k/train.en.gz, train.de.gz, val.*.gz, test_2016_flickr.*.gz
  DIR/wmt/train.ro, train.en, valid.*, test.*

Line i of one file is the translation of line i of the other. Runs of spaces
count as one.
"""

from collections.abc import Iterator, Sequence
import gzip
import itertools
import pathlib
from typing import NamedTuple
import zlib

from experiments.data import cache as caching
from experiments.data import folders
from experiments.data.translation import bpe
from experiments.data.translation import pairs
from experiments.program import errors
import numpy as np
import sentencepiece

_EXPECTED = 'sentences, one a line'
_MODEL = 'vocabulary.model'  # in a cache
# Of a cache: one more whenever `_lines`, `bpe` or `pairs` give other numbers.
_FORMAT = 2
_LEARNT = 2_000_000  # lines that the vocabulary is made of, at most


# Where they are, and what their files for validation and test are called.
_SETS = {
  'multi30k': (
    folders.Source(
      ('multi30k', 'multi30k-dataset/data/task1/raw'),
      'https://github.com/multi30k/dataset (data/task1/raw)',
    ),
    {'validation': 'val', 'test': 'test_2016_flickr'},
  ),
  'wmt': (
    folders.Source(
      ('wmt', 'wmt16', 'WMT'),
      'https://www.statmt.org/wmt16/translation-task.html, as plain text in '
      'files train.*, valid.* and test.* for each language',
    ),
    {'validation': 'valid', 'test': 'test'},
  ),
}
NAMES = tuple(_SETS)
TRAIN = 'train'


class Corpus(NamedTuple):
  """Pairs for training and for testing.

  Attributes:
    train: in the order of the files.
    test: likewise.
    references: translations that are tested against, as they are written.
    vocabulary: of both languages.
  """

  train: pairs.Pairs
  test: pairs.Pairs
  references: tuple[str, ...]
  vocabulary: bpe.Vocabulary


def load(
  name: str,
  directory: str = '',
  test_split: str = 'test',
  *,
  source: str = 'en',
  target: str = 'de',
  vocabulary: int = 4000,
  trained: Corpus | None = None,
  cache: str = '',
) -> Corpus:
  """Returns parallel text; its vocabulary is made of the training files alone.

  Args:
    name: one of `NAMES`.
    directory: root of all data sets, or the folder with the files.
    test_split: `'test'` tests on the set's own test files, `'validation'` on
      those for validation, and never looks at the others; or the name of a pair
      of files without the language, such as `'test_2017_flickr'`.
    source: language that is translated; the end of the files' names.
    target: language into which.
    vocabulary: pieces of words, of both languages together.
    trained: what another split of the same set gave: its training pairs and its
      vocabulary are taken, and not made once more.
    cache: folder that keeps the numbers of the training text, and maps them;
      empty: they are made each time, and held in memory.

  Raises:
    ConfigError: no other language, or a vocabulary that does not fit.
    DataFileError: a file is missing or damaged, or two are not parallel.
    FileError: the cache cannot be read or written.
  """
  if source == target:
    raise errors.ConfigError(
      f'data.source and data.target must be two languages, got {source!r} twice'
    )
  known, splits = _SETS[name]
  tested = splits.get(test_split, test_split)
  if tested == TRAIN or not tested or '/' in tested:
    raise errors.ConfigError(
      'data.test_split must be test, validation or the name of a pair of files '
      f'other than {TRAIN}, got {test_split!r}'
    )
  folder = known.find(directory, f'{TRAIN}.*')

  def files(part):
    return [
      _file(folder, f'{part}.{language}', known)
      for language in (source, target)
    ]

  train, test = files(TRAIN), files(tested)
  if trained:
    pieces, pairs_to_train = trained.vocabulary, trained.train
  elif cache:
    pieces, pairs_to_train = _kept(
      pathlib.Path(cache), train, vocabulary, known
    )
  else:
    pieces = bpe.train(_sample(train, known), vocabulary)
    pairs_to_train = _pairs(train, pieces, known)
  to_test = _pairs(test, pieces, known)
  return Corpus(pairs_to_train, to_test, tuple(_lines(test[1], known)), pieces)


def _file(folder, name: str, source: folders.Source) -> pathlib.Path:
  """Returns the path of a file, plain or gzip."""
  for path in (folder / name, folder / f'{name}.gz'):
    if path.exists():
      return path
  raise source.missing(folder / name, f'{_EXPECTED}, or the same as .gz')


def _lines(path: pathlib.Path, source: folders.Source) -> Iterator[str]:
  """Yields the sentences of a file."""
  try:
    with gzip.open(path) if path.suffix == '.gz' else path.open('rb') as file:
      for line in file:
        yield ' '.join(line.decode().split())
  except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
    raise source.damaged(path, f'{error}', _EXPECTED) from error


def _sample(paths: Sequence[pathlib.Path], source: folders.Source) -> list[str]:
  """Returns sentences of all files, every one or every so many."""
  count = sum(1 for path in paths for _ in _lines(path, source))
  every = -(-count // _LEARNT) or 1
  read = (itertools.islice(_lines(p, source), 0, None, every) for p in paths)
  return [*itertools.chain.from_iterable(read)]


def _pairs(paths, vocabulary, source: folders.Source) -> pairs.Pairs:
  """Returns the pairs of two files."""
  encoded = pairs.Pairs(
    *(pairs.encode(_lines(path, source), vocabulary) for path in paths)
  )
  one, other = (len(side.ends) for side in encoded)
  if one != other or not one:
    expected = f'as many as {paths[0]} has, {one:,}, and at least one'
    raise source.damaged(paths[1], f'{other:,} lines', expected)
  return encoded


def _kept(folder, paths, vocabulary: int, source: folders.Source) -> tuple:
  """Returns the vocabulary and the pairs of two files, from a cache."""

  def make(place: pathlib.Path) -> None:
    pieces = bpe.train(_sample(paths, source), vocabulary)
    (place / _MODEL).write_bytes(pieces.model)
    for side, ragged in _pairs(paths, pieces, source)._asdict().items():
      for field, array in ragged._asdict().items():
        np.save(place / f'{side}.{field}.npy', array)

  key = caching.key(
    paths, vocabulary, sentencepiece.__version__, _LEARNT, _FORMAT
  )
  place = caching.keep(folder, key, make)
  # Mapped into memory and not read: the processes of a host share them.

  def kept(side):
    names = (place / f'{side}.{field}.npy' for field in pairs.Ragged._fields)
    return pairs.Ragged(*(np.load(name, mmap_mode='r') for name in names))

  sides = map(kept, pairs.Pairs._fields)
  return bpe.Vocabulary((place / _MODEL).read_bytes()), pairs.Pairs(*sides)
