"""Sound files: wav, flac, and the NIST's sph."""

import pathlib
import re
from typing import Any

from experiments.data import folders
import numpy as np
import soundfile

# What libsndfile says of a wav file that ends too early.
_CUT_OFF = re.compile(r'^data : (\d+) \(should be (\d+)\)', re.MULTILINE)
_UNKNOWN = 0x7FFFFFFF  # bytes; from here on a wav file's size is made up
_COUNT = re.compile(rb'sample_count -i (\d+)')  # of an sph file
_HEADER_BYTES = 1024  # of an sph file


def samples(path: pathlib.Path, rate: int, source: folders.Source) -> int:
  """Returns how many samples a file has; reads its header only.

  Args:
    path: of the file.
    rate: samples a second that it must have, in one channel.
    source: where users get it, for the messages.

  Raises:
    DataFileError: it is missing or damaged, or has another rate.
  """
  info = _opened(path, rate, source, soundfile.info)
  found = f'{info.samplerate:,} Hz and {info.channels} channels'
  if (info.samplerate, info.channels) != (rate, 1):
    raise source.damaged(path, found, _expected(rate))
  promised = _promised(path, info)
  if promised is not None and promised > info.frames:
    found = f'{info.frames:,} of {promised:,} samples'
    raise source.damaged(path, found, _expected(rate))
  if not info.frames:
    raise source.damaged(path, 'no samples', _expected(rate))
  return info.frames


def read(path: pathlib.Path, rate: int, source: folders.Source) -> np.ndarray:
  """Returns the samples of a file, float32[samples] from -1 to 1.

  Args:
    path: of the file.
    rate: samples a second, see `samples`.
    source: where users get it, for the messages.

  Raises:
    DataFileError: it is missing or damaged.
  """

  def signal(name):
    return soundfile.read(name, dtype='float32')[0]

  return _opened(path, rate, source, signal)


def _promised(path: pathlib.Path, info: Any) -> int | None:
  """How many samples the header says; None if it says nothing else."""
  if path.suffix == '.sph':
    with path.open('rb') as file:
      count = _COUNT.search(file.read(_HEADER_BYTES))
    return int(count[1]) if count else None
  sizes = _CUT_OFF.search(info.extra_info)
  if sizes is None or int(sizes[1]) >= _UNKNOWN:
    return None
  return info.frames * int(sizes[1]) // max(int(sizes[2]), 1)


def _opened(path, rate, source, use):
  if not path.exists():
    raise source.missing(path, _expected(rate))
  try:
    return use(str(path))
  # A folder of that name is an OSError or one of libsndfile's.
  except (OSError, soundfile.SoundFileError) as error:
    raise source.damaged(path, f'{error}', _expected(rate)) from error


def _expected(rate: int) -> str:
  return f'sound of {rate:,} Hz in one channel'
