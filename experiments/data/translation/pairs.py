"""Pairs of sentences as numbers, in little memory."""

from collections.abc import Iterable, Iterator
import itertools
from typing import NamedTuple

from experiments.data.translation import bpe
import numpy as np

_CHUNK = 100_000  # lines that are encoded together


class Ragged(NamedTuple):
  """Rows of different lengths."""

  values: np.ndarray  # uint16 or int32[sum of lengths], one row after the other
  ends: np.ndarray  # int64[n], where rows end

  @property
  def lengths(self) -> np.ndarray:
    """Of all rows, int64[n]; computed at each call."""
    return np.diff(self.ends, prepend=0)

  def lengths_of(self, rows: np.ndarray) -> np.ndarray:
    """Returns the lengths of some rows, int64[rows]."""
    return self.ends[rows] - np.where(rows > 0, self.ends[rows - 1], 0)

  def take(self, rows: np.ndarray, length: int) -> np.ndarray:
    """Returns some rows, int32[rows, length], padded with 0."""
    ends = self.ends[rows][:, None]
    starts = ends - self.lengths_of(rows)[:, None]
    at = starts + np.arange(length)
    inside = at < ends
    padded = np.full(at.shape, bpe.PAD, np.int32)
    padded[inside] = self.values[at[inside]]
    return padded


class Pairs(NamedTuple):
  """Sentences and their translations, without begin and end."""

  source: Ragged
  target: Ragged

  @property
  def lengths(self) -> np.ndarray:
    """What a padded pair must hold, begin and end counted, int64[n]."""
    return np.maximum(self.source.lengths + 1, self.target.lengths + 2)

  def take(self, rows: np.ndarray, length: int) -> dict[str, np.ndarray]:
    """Returns some pairs.

    Args:
      rows: int[n], which.
      length: to which they are padded, see `lengths`.

    Returns:
      `source`, int32[n, length], ends with `bpe.END`; `target`, likewise, which
      begins with `bpe.BEGIN` too; `weights`, float32[n, length - 1], 1 for each
      of target[1:] that is no padding.
    """
    source = self.source.take(rows, length)
    target = np.full_like(source, bpe.BEGIN)
    target[:, 1:] = self.target.take(rows, length - 1)
    each = np.arange(len(rows))
    source[each, self.source.lengths_of(rows)] = bpe.END
    target[each, self.target.lengths_of(rows) + 1] = bpe.END
    weights = (target[:, 1:] != bpe.PAD).astype(np.float32)
    return {'source': source, 'target': target, 'weights': weights}


def dtype_of(classes: int) -> type:
  """Returns the type of the numbers of so many pieces."""
  return np.uint16 if classes <= 1 << 16 else np.int32


def parts(lines: Iterable[str], vocabulary: bpe.Vocabulary) -> Iterator[Ragged]:
  """Yields the numbers of sentences part by part.

  Together they are the fields of all: `ends` go on from part to part.

  Args:
    lines: of sentences, which are read as they are needed.
    vocabulary: of their pieces.
  """
  dtype, end = dtype_of(vocabulary.size), np.int64(0)
  lines = iter(lines)
  while chunk := list(itertools.islice(lines, _CHUNK)):
    rows = vocabulary.encode(chunk)
    ends = end + np.cumsum([len(row) for row in rows], dtype=np.int64)
    end = ends[-1]
    yield Ragged(np.fromiter(itertools.chain.from_iterable(rows), dtype), ends)


def encode(lines: Iterable[str], vocabulary: bpe.Vocabulary) -> Ragged:
  """Returns the numbers of sentences, which are read as they are needed."""
  dtype = dtype_of(vocabulary.size)
  empty = Ragged(np.empty(0, dtype), np.empty(0, np.int64))
  made = zip(empty, *parts(lines, vocabulary), strict=True)
  return Ragged(*(np.concatenate(field) for field in made))
