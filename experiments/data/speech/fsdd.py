"""Strings of digits, made of the Free Spoken Digit Dataset.

  DIR/fsdd/recordings/{digit}_{speaker}_{number}.wav

A recording is one digit, at 8 kHz. A string is two to five recordings of one
speaker, one after the other. As published, numbers 0 to 4 are for testing.
"""

import pathlib
import re

from experiments.data import folders
from experiments.data.speech import recordings
import numpy as np

SOURCE = folders.Source(
  ('fsdd/recordings', 'free-spoken-digit-dataset/recordings', 'recordings'),
  'https://github.com/Jakobovski/free-spoken-digit-dataset (its folder '
  'recordings/)',
)
RATE = 8000
_NAME = re.compile(r'(\d)_(.+)_(\d+)')
_LENGTHS = range(2, 6)  # digits of a string
_USES = 4  # strings that have a given recording
# Numbers of the recordings that are tested, and where those for training begin.
_SPLITS = {'test': (range(5), 5), 'validation': (range(5, 10), 10)}


def load(
  directory: str, test_split: str, alphabet: recordings.Alphabet, seed: int = 0
) -> recordings.Corpus:
  """Returns strings of digits; no recording is for training and for testing.

  Args:
    directory: root of all data sets, or the folder with the recordings.
    test_split: `'test'` tests on recordings 0 to 4; `'validation'` on 5 to 9,
      and never looks at those.
    alphabet: digits, or letters.
    seed: decides which recordings are in a string.

  Raises:
    DataFileError: a file is missing or damaged, or a speaker has only one.
  """
  folder = SOURCE.find(directory, '[0-9]_*_[0-9]*.wav')
  tested, first = _SPLITS[test_split]
  train: dict[str, list[pathlib.Path]] = {}
  test: dict[str, list[pathlib.Path]] = {}
  for path in sorted(folder.glob('*.wav')):
    name = _NAME.fullmatch(path.stem)
    if name is None:
      raise SOURCE.damaged(
        path, 'a name of its own', 'names such as 7_jackson_32.wav'
      )
    number = int(name[3])
    if number in tested:
      test.setdefault(name[2], []).append(path)
    elif number >= first:
      train.setdefault(name[2], []).append(path)
  rng = np.random.RandomState(seed)  # NumPy guarantees its stream for good
  parts = (_strings(folder, part, rng) for part in (train, test))
  return recordings.Corpus.of(parts, alphabet, RATE, SOURCE)


def _strings(folder, spoken, rng) -> list[recordings.Utterance]:
  """Returns strings that have each recording the same number of times.

  Args:
    folder: of the recordings, for the message.
    spoken: recordings of each speaker.
    rng: decides.
  """
  expected = f'{_LENGTHS[0]} or more recordings for training and for testing'
  if not spoken:
    raise SOURCE.damaged(folder, 'none of one part', expected)
  strings = []
  for _ in range(_USES):
    for speaker, paths in spoken.items():
      if len(paths) < _LENGTHS[0]:
        raise SOURCE.damaged(folder, f'{len(paths)} of {speaker}', expected)
      left = [paths[index] for index in rng.permutation(len(paths))]
      while left:
        # What remains is nothing, or enough for another string.
        fitting = [
          length
          for length in _LENGTHS
          if len(left) - length == 0 or len(left) - length >= _LENGTHS[0]
        ]
        length = fitting[rng.randint(len(fitting))]
        said, left = left[:length], left[length:]
        digits = [int(path.name[0]) for path in said]
        text = ' '.join(recordings.DIGITS.symbols[digit] for digit in digits)
        strings.append(recordings.Utterance(tuple(map(str, said)), text))
  return strings
