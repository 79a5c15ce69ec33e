"""LibriSpeech in its published folders: read books, at 16 kHz.

  DIR/LibriSpeech/train-clean-100/19/198/19-198-0000.flac
  DIR/LibriSpeech/train-clean-100/19/198/19-198.trans.txt
    19-198-0000 NORTHANGER ABBEY

A first number is of a speaker, the next of a chapter. All folders train-* that
are there are trained on; together the three of them have 960 hours.
"""

import pathlib

from experiments.data import folders
from experiments.data.speech import recordings

SOURCE = folders.Source(
  ('LibriSpeech', 'librispeech'),
  'https://www.openslr.org/12 (train-*.tar.gz, dev-* and test-*)',
)
RATE = 16_000
TEST_FOLDERS = ('test-clean', 'test-other', 'dev-clean', 'dev-other')
_SPLITS = {'test': 'test-clean', 'validation': 'dev-clean'}
_EXPECTED = 'lines such as 19-198-0000 NORTHANGER ABBEY'


def load(
  directory: str, test_split: str, alphabet: recordings.Alphabet
) -> recordings.Corpus:
  """Returns LibriSpeech, or what else lies in such folders.

  Args:
    directory: root of all data sets, or the folder with train-*/.
    test_split: `'test'` tests on test-clean, `'validation'` on dev-clean; or
      one of `TEST_FOLDERS`.
    alphabet: of the transcripts.

  Raises:
    DataFileError: a folder or a file is missing or damaged.
  """
  folder = SOURCE.find(directory, 'train-*/')
  parts = map(_transcribed, sorted(folder.glob('train-*/')))
  train = [utterance for part in parts for utterance in part]
  if not train:
    raise SOURCE.missing(folder / 'train-*', 'folders of speakers')
  test = _transcribed(folder / _SPLITS.get(test_split, test_split))
  return recordings.Corpus.of((train, test), alphabet, RATE, SOURCE)


def _transcribed(part: pathlib.Path) -> list[recordings.Utterance]:
  """Returns the utterances below a folder, by speaker and chapter."""
  if not part.is_dir():
    raise SOURCE.missing(part, 'a folder for each speaker')
  files = sorted(part.glob('*/*/*.trans.txt'))
  if not files:
    raise SOURCE.damaged(part, 'no transcript', 'SPEAKER/CHAPTER/*.trans.txt')
  utterances = []
  for file in files:
    text = SOURCE.read_text(file, _EXPECTED)
    chapter = file.name.removesuffix('.trans.txt')
    for line in filter(None, map(str.strip, text.split('\n'))):
      name, _, said = line.partition(' ')
      if not name.startswith(f'{chapter}-'):
        raise SOURCE.damaged(file, f'line {line!r}', _EXPECTED)
      path = file.with_name(f'{name}.flac')
      utterances.append(
        recordings.Utterance((str(path),), ' '.join(said.lower().split()))
      )
  return utterances
