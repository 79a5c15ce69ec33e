"""The Penn Treebank's text as Mikolov prepared it, in words or characters.

  DIR/ptb/ptb.train.txt, ptb.valid.txt, ptb.test.txt

A sentence a line, words between spaces; rare words are <unk>, numbers are N.
Of the words, the end of a line is the symbol <eos>: 929,589, 73,760 and 82,430
symbols. Of the characters it is the line feed, and spaces around a line do not
count: 5,017,482, 393,042 and 442,423 symbols.
"""

import collections
import pathlib
from typing import NamedTuple

from experiments.data import folders
import numpy as np

SOURCE = folders.Source(
  ('ptb', 'simple-examples/data', 'penn'),
  'https://www.fit.vutbr.cz/~imikolov/rnnlm/ (simple-examples.tgz, its folder '
  'data/); the text is that of https://catalog.ldc.upenn.edu/LDC99T42',
)
NAMES = ('ptb', 'ptb_characters')
TRAIN_FILE = 'ptb.train.txt'
_TEST_FILES = {'test': 'ptb.test.txt', 'validation': 'ptb.valid.txt'}
_EXPECTED = 'sentences, one a line'
_UNKNOWN = '<unk>'
_END_OF_LINE = {'ptb': '<eos>', 'ptb_characters': '\n'}


class Corpus(NamedTuple):
  """A text for training, one for testing, and what their numbers stand for."""

  train: np.ndarray  # int32[n], symbols in the order of the text
  test: np.ndarray  # int32[m], likewise
  symbols: tuple[str, ...]  # by number, the most frequent first
  end: int  # number of the symbol that ends a line; stands before a text


def load(name: str, directory: str = '', test_split: str = 'test') -> Corpus:
  """Returns the text in words (`'ptb'`) or in characters.

  Symbols are numbered by the training file alone. A word that is only in the
  other file becomes <unk>.

  Args:
    name: one of `NAMES`.
    directory: root of all data sets, or the folder with the three files.
    test_split: `'test'` tests on ptb.test.txt; `'validation'` on ptb.valid.txt,
      and never looks at the other.

  Raises:
    ConfigError: an unknown split.
    DataFileError: a file is missing or damaged, or the tested one has a symbol
      that the training file does not have, and no <unk> to take its place.
  """
  folders.check_split(name, test_split, [*_TEST_FILES])
  folder = SOURCE.find(directory, 'ptb.*.txt')
  text = _read(folder / TRAIN_FILE, name)
  counts = collections.Counter(text)
  symbols = tuple(sorted(counts, key=lambda symbol: (-counts[symbol], symbol)))
  numbers = {symbol: number for number, symbol in enumerate(symbols)}
  tested = folder / _TEST_FILES[test_split]
  return Corpus(
    _numbered(text, numbers, folder / TRAIN_FILE),
    _numbered(_read(tested, name), numbers, tested),
    symbols,
    numbers[_END_OF_LINE[name]],
  )


def _read(path: pathlib.Path, name: str) -> list[str]:
  """Returns the symbols of a file."""
  text = SOURCE.read_text(path, _EXPECTED)
  if not text.strip():
    raise SOURCE.damaged(path, 'no text', _EXPECTED)
  symbols: list[str] = []
  for line in text.removesuffix('\n').split('\n'):
    symbols += line.split() if name == 'ptb' else line.strip()
    symbols.append(_END_OF_LINE[name])
  return symbols


def _numbered(text, numbers, path: pathlib.Path) -> np.ndarray:
  """Returns the numbers of symbols, int32[n]."""
  unknown = set(text) - set(numbers)
  if unknown and _UNKNOWN not in numbers:
    told = f'{min(unknown)!r} is not in {TRAIN_FILE}'
    raise SOURCE.damaged(path, told, f'its symbols, or {_UNKNOWN} among them')
  other = numbers.get(_UNKNOWN, 0)
  found = (numbers.get(symbol, other) for symbol in text)
  return np.fromiter(found, np.int32, len(text))
