"""CMU's AN4: people who say letters, words and numbers, at 16 kHz.

As published, with transcripts in capitals and sound files of any folder below
wav/, converted to wav or flac, or in the NIST's format as they come:

  DIR/an4/etc/an4_train.transcription, an4_test.transcription
    <s> ENTER FIFTY ONE </s> (an253-fash-b)
  DIR/an4/wav/an4_clstk/fash/an253-fash-b.sph

or as lists of sound files and files with their transcripts, whose paths begin
at the folder of the list, or at the root:

  DIR/an4/an4_train_manifest.csv, an4_test_manifest.csv
    wav/an253-fash-b.wav,txt/an253-fash-b.txt

948 utterances are for training and 130 for testing.
"""

import pathlib
import re

from experiments.data import dataset
from experiments.data import folders
from experiments.data.speech import alphabet as alphabets
from experiments.data.speech import recordings

SOURCE = (
  'http://www.speech.cs.cmu.edu/databases/an4/ (an4_sphere.tar.gz, its folders '
  'etc/ and wav/)'
)
FOLDERS = ('an4', 'AN4')
RATE = 16_000
SUFFIXES = ('.wav', '.flac', '.sph')
_TRANSCRIPTION = 'etc/an4_{}.transcription'
_MANIFEST = 'an4_{}_manifest.csv'
_LINE = re.compile(r'(?:<s>)?(.*?)(?:</s>)?\s*\(([^()]+)\)')


def load(
  directory: str, test_split: str, alphabet: alphabets.Alphabet
) -> recordings.Corpus:
  """Returns AN4, in either of its two forms.

  Args:
    directory: root of all data sets, or the folder with etc/ or the lists.
    test_split: `'test'` is the published one; `'validation'` holds out a fifth
      of the utterances for training instead.
    alphabet: of the transcripts.

  Raises:
    DataFileError: a file is missing or damaged.
  """
  forms = {
    _TRANSCRIPTION.format('train'): (_TRANSCRIPTION, _transcribed),
    _MANIFEST.format('train'): (_MANIFEST, _listed),
  }
  folder = folders.find(directory, FOLDERS, tuple(forms), source=SOURCE)
  name, read = next(
    (form for marker, form in forms.items() if (folder / marker).exists()),
    (_TRANSCRIPTION, _transcribed),
  )
  train = read(folder, name.format('train'))
  if test_split == 'test':
    test = read(folder, name.format('test'))
  else:
    rest, held_out = dataset.held_out_rows(
      len(train), dataset.VALIDATION_FRACTION
    )
    test = [train[row] for row in held_out]
    train = [train[row] for row in rest]
  return recordings.Corpus(
    recordings.Recordings(train, alphabet, RATE, SOURCE),
    recordings.Recordings(test, alphabet, RATE, SOURCE),
  )


def _transcribed(folder: pathlib.Path, name: str) -> list[recordings.Utterance]:
  """Returns the utterances of a file of transcripts."""
  paths = {
    path.stem: path
    for path in sorted((folder / 'wav').rglob('*'))
    if path.suffix in SUFFIXES
  }
  utterances = []
  expected = 'lines such as <s> GO </s> (an251-fash-b)'
  for number, line in enumerate(_lines(folder / name, expected), 1):
    found = _LINE.fullmatch(line)
    if found is None:
      raise folders.damaged(
        folder / name, f'line {number} is {line!r}', expected, SOURCE
      )
    path = paths.get(found[2])
    if path is None:
      raise folders.missing(
        folder / f'wav/.../{found[2]}{SUFFIXES[0]}',
        f'it, or the same as {" or ".join(SUFFIXES[1:])}',
        SOURCE,
      )
    utterances.append(_utterance(path, found[1]))
  return utterances


def _listed(folder: pathlib.Path, name: str) -> list[recordings.Utterance]:
  """Returns the utterances of a list of files."""
  utterances = []
  expected = 'lines with the path of a sound file, a comma and that of its text'
  for number, line in enumerate(_lines(folder / name, expected), 1):
    file, comma, text_file = line.partition(',')
    if not comma:
      raise folders.damaged(
        folder / name, f'line {number} is {line!r}', expected, SOURCE
      )
    text = ' '.join(_lines(folder / text_file, 'a transcript', empty=True))
    utterances.append(_utterance(folder / file, text))
  return utterances


def _utterance(path: pathlib.Path, text: str) -> recordings.Utterance:
  return recordings.Utterance((str(path),), ' '.join(text.lower().split()))


def _lines(path: pathlib.Path, expected: str, empty: bool = False) -> list[str]:
  """Returns the lines of a file that are not empty."""
  lines = folders.read_text(path, expected, SOURCE).split('\n')
  lines = [line.strip() for line in lines if line.strip()]
  if not lines and not empty:
    raise folders.damaged(path, 'no line', expected, SOURCE)
  return lines
