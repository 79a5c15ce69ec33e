"""Utterances in sound files, read when a step needs them, and their symbols."""

from collections.abc import Iterable, Sequence
from concurrent import futures
import itertools
import os
import pathlib
import string
from typing import Any, NamedTuple

from experiments.data import folders
from experiments.data.speech import features
from experiments.data.speech import sound
import numpy as np


class Alphabet(NamedTuple):
  """Symbols of transcripts; 0 is CTC's blank, and the padding.

  Attributes:
    symbols: the first has the number 1.
    separator: between two of them in a text.

  Example:
    >>> LETTERS.encode("it's")
    [11, 22, 2, 21]
    >>> DIGITS.decode([2, 3])
    'one two'
  """

  symbols: tuple[str, ...]
  separator: str

  @property
  def classes(self) -> int:
    """How many symbols a model tells apart, the blank among them."""
    return len(self.symbols) + 1

  def split(self, text: str) -> list[str]:
    """Returns the symbols of a text, whether known or not."""
    return text.split(self.separator) if self.separator else list(text)

  def encode(self, text: str) -> list[int]:
    """Returns the numbers of a text's symbols, all of which are known."""
    numbers = {symbol: 1 + index for index, symbol in enumerate(self.symbols)}
    return [numbers[symbol] for symbol in self.split(text)] if text else []

  def decode(self, numbers: Sequence[int]) -> str:
    """Returns the text of symbols, none of which is the blank."""
    return self.separator.join(self.symbols[number - 1] for number in numbers)


LETTERS = Alphabet((' ', "'", *string.ascii_lowercase), '')
_WORDS = 'zero one two three four five six seven eight nine'
DIGITS = Alphabet(tuple(_WORDS.split()), ' ')


class Utterance(NamedTuple):
  """What somebody said."""

  files: tuple[str, ...]  # one after the other
  text: str  # in symbols of an alphabet


class Corpus(NamedTuple):
  """Speech for training and for testing."""

  train: 'Recordings'
  test: 'Recordings'

  @classmethod
  def of(cls, parts: Iterable[Sequence[Utterance]], *heard: Any) -> 'Corpus':
    """Returns a corpus of utterances: those to train on, those to test on."""
    return cls(*(Recordings(part, *heard) for part in parts))


class Recordings:
  """Utterances of which a step takes some.

  Attributes:
    utterances: all of them.
    alphabet: of their texts.
    rate: samples a second.
    frames: int[n], how long they are.
    characters: int[n], symbols of their texts.
    needed: int[n], frames that CTC needs at least: one a symbol, and one
      between two that are equal.
  """

  def __init__(
    self,
    utterances: Sequence[Utterance],
    alphabet: Alphabet,
    rate: int,
    source: folders.Source,
  ):
    """Reads the headers of the files.

    Args:
      utterances: in files of one channel.
      alphabet: of their texts.
      rate: samples a second of the files.
      source: where users get them, for the messages.

    Raises:
      DataFileError: a file is missing or damaged, or a text has a symbol that
        the alphabet does not have.
    """
    self.utterances = utterances
    self.alphabet = alphabet
    self.rate = rate
    self._source = source
    self._pool = futures.ThreadPoolExecutor(os.cpu_count(), 'sound')
    for utterance in utterances:
      self._check(utterance)
    files = list(dict.fromkeys(f for u in utterances for f in u.files))
    samples = dict(
      zip(files, self._pool.map(self._samples, files), strict=True)
    )
    lengths = [sum(samples[f] for f in u.files) for u in utterances]
    self.frames = features.num_frames(np.array(lengths, int), rate)
    counts = [_counts(alphabet.encode(u.text)) for u in utterances]
    self.characters, self.needed = np.array(counts, int).reshape(-1, 2).T

  @property
  def bins(self) -> int:
    """How many numbers a frame has."""
    return features.num_bins(self.rate)

  def take(
    self, rows: np.ndarray, frames: int, characters: int
  ) -> dict[str, np.ndarray]:
    """Reads some utterances.

    Args:
      rows: which.
      frames: to which their features are padded.
      characters: to which their labels are padded.

    Returns:
      `features`, float32[rows, frames, bins], `frames`, int32[rows], `labels`,
      int32[rows, characters], and `characters`, int32[rows]; padded with 0.

    Raises:
      DataFileError: a file is damaged.
    """
    padded = np.zeros((len(rows), frames, self.bins), np.float32)
    labels = np.zeros((len(rows), characters), np.int32)

    def read(position):
      utterance = self.utterances[rows[position]]
      signals = [
        sound.read(pathlib.Path(file), self.rate, self._source)
        for file in utterance.files
      ]
      found = features.log_spectrogram(np.concatenate(signals), self.rate)
      padded[position, : len(found)] = found
      numbers = self.alphabet.encode(utterance.text)
      labels[position, : len(numbers)] = numbers

    for _ in self._pool.map(read, range(len(rows))):
      pass  # raises what a thread has raised
    return {
      'features': padded,
      'frames': self.frames[rows].astype(np.int32),
      'labels': labels,
      'characters': self.characters[rows].astype(np.int32),
    }

  def _samples(self, file: str) -> int:
    return sound.samples(pathlib.Path(file), self.rate, self._source)

  def _check(self, utterance: Utterance) -> None:
    unknown = set(self.alphabet.split(utterance.text) if utterance.text else ())
    unknown -= set(self.alphabet.symbols)
    if unknown:
      raise self._source.damaged(
        pathlib.Path(utterance.files[0]),
        f'its transcript has {min(unknown)!r}',
        f'{", ".join(map(repr, self.alphabet.symbols))}',
      )


def _counts(labels: list[int]) -> tuple[int, int]:
  """How many labels there are, and how many frames CTC needs for them."""
  repeats = sum(a == b for a, b in itertools.pairwise(labels))
  return len(labels), len(labels) + repeats
