"""Pairs of sentences as numbers, in little memory."""

from collections.abc import Iterable
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


def encode(lines: Iterable[str], vocabulary: bpe.Vocabulary) -> Ragged:
  """Returns the numbers of sentences, which are read as they are needed."""
  dtype = np.uint16 if vocabulary.size <= 1 << 16 else np.int32
  values, lengths, lines = [np.empty(0, dtype)], [np.empty(0, int)], iter(lines)
  while chunk := list(itertools.islice(lines, _CHUNK)):
    rows = vocabulary.encode(chunk)
    values.append(np.fromiter(itertools.chain.from_iterable(rows), dtype))
    lengths.append(np.array([len(row) for row in rows]))
  return Ragged(np.concatenate(values), np.cumsum(np.concatenate(lengths)))
