"""CMU's AN4: people who say letters, words and numbers, at 16 kHz.

As published, with transcripts in capitals and sound files of any folder below
wav/, converted to wav or flac, or in the NIST's format as they come:

  DIR/an4/etc/an4_train.transcription, an4_test.transcription
    <s> ENTER FIFTY ONE </s> (an253-fash-b)
  DIR/an4/wav/an4_clstk/fash/an253-fash-b.sph

948 utterances are for training and 130 for testing.
"""

import pathlib
import re

from experiments.data import dataset
from experiments.data import folders
from experiments.data.speech import recordings

SOURCE = folders.Source(
  ('an4', 'AN4'),
  'http://www.speech.cs.cmu.edu/databases/an4/ (an4_sphere.tar.gz, its folders '
  'etc/ and wav/)',
)
RATE = 16_000
SUFFIXES = ('.wav', '.flac', '.sph')
_TRANSCRIPTION = 'etc/an4_{}.transcription'
_LINE = re.compile(r'(?:<s>)?(.*?)(?:</s>)?\s*\(([^()]+)\)')


def load(
  directory: str, test_split: str, alphabet: recordings.Alphabet
) -> recordings.Corpus:
  """Returns AN4.

  Args:
    directory: root of all data sets, or the folder with etc/.
    test_split: `'test'` is the published one; `'validation'` holds out a fifth
      of the utterances for training instead.
    alphabet: of the transcripts.

  Raises:
    DataFileError: a file is missing or damaged.
  """
  marker = _TRANSCRIPTION.format('train')
  folder = SOURCE.find(directory, marker)
  train = _transcribed(folder, marker)
  if test_split == 'test':
    test = _transcribed(folder, _TRANSCRIPTION.format('test'))
  else:
    rest, held_out = dataset.held_out_rows(
      len(train), dataset.VALIDATION_FRACTION
    )
    test = [train[row] for row in held_out]
    train = [train[row] for row in rest]
  return recordings.Corpus.of((train, test), alphabet, RATE, SOURCE)


def _transcribed(folder: pathlib.Path, name: str) -> list[recordings.Utterance]:
  """Returns the utterances of a file of transcripts."""
  there = sorted((folder / 'wav').rglob('*'))
  paths = {path.stem: path for path in there if path.suffix in SUFFIXES}
  utterances = []
  expected = 'lines such as <s> GO </s> (an251-fash-b)'
  text = SOURCE.read_text(folder / name, expected)
  lines = [line.strip() for line in text.split('\n') if line.strip()]
  if not lines:
    raise SOURCE.damaged(folder / name, 'no line', expected)
  for number, line in enumerate(lines, 1):
    found = _LINE.fullmatch(line)
    if found is None:
      raise SOURCE.damaged(
        folder / name, f'line {number} is {line!r}', expected
      )
    path = paths.get(found[2])
    if path is None:
      raise SOURCE.missing(
        folder / f'wav/.../{found[2]}{SUFFIXES[0]}',
        f'it, or the same as {" or ".join(SUFFIXES[1:])}',
      )
    said = ' '.join(found[1].lower().split())
    utterances.append(recordings.Utterance((str(path),), said))
  return utterances
