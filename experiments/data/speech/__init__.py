"""Speech with its transcripts, by the name of the set."""

from experiments.data.speech import an4
from experiments.data.speech import fsdd
from experiments.data.speech import librispeech
from experiments.data.speech.alphabet import DIGITS
from experiments.data.speech.alphabet import LETTERS
from experiments.data.speech.alphabet import Alphabet
from experiments.data.speech.recordings import Corpus
from experiments.data.speech.recordings import Recordings
from experiments.data.speech.recordings import Utterance
from experiments.data.speech.sampler import Sampler
from experiments.data.speech.sampler import walk
from experiments.program import errors

__all__ = [
  'AHEAD',
  'DIGITS',
  'LETTERS',
  'NAMES',
  'TRANSCRIPTS',
  'Alphabet',
  'Corpus',
  'Recordings',
  'Sampler',
  'Utterance',
  'load',
  'walk',
]

NAMES = ('an4', 'fsdd', 'librispeech')
TRANSCRIPTS = ('letters', 'words')
AHEAD = 2  # batches to read before they are asked for


def load(
  name: str,
  directory: str = '',
  test_split: str = 'test',
  transcripts: str = 'letters',
) -> Corpus:
  """Returns a set of utterances, whose files are read when they are needed.

  Args:
    name: one of `NAMES`; `'fsdd'` is made into strings of digits.
    directory: root of all data sets or the set's own folder.
    test_split: `'test'` is the set's own; `'validation'` never looks at it; for
      librispeech also the name of one of its folders for tests.
    transcripts: in `'letters'`, or in `'words'`, of which fsdd has ten; the
      other sets have too many.

  Raises:
    ConfigError: an unknown name, split or kind of transcripts.
    DataFileError: a file is missing or damaged.
  """
  if name not in NAMES:
    raise errors.ConfigError(
      f'data.name must be one of {", ".join(NAMES)}, got {name!r}'
    )
  known = ('letters',) if name != 'fsdd' else TRANSCRIPTS
  if transcripts not in known:
    raise errors.ConfigError(
      f'data.transcripts must be {" or ".join(known)} for {name}, '
      f'got {transcripts!r}'
    )
  splits = ('test', 'validation')
  if name == 'librispeech':
    splits += librispeech.TEST_FOLDERS
  if test_split not in splits:
    raise errors.ConfigError(
      f'data.test_split must be one of {", ".join(splits)} for {name}, '
      f'got {test_split!r}'
    )
  sets = {'an4': an4, 'fsdd': fsdd, 'librispeech': librispeech}
  alphabet = LETTERS if transcripts == 'letters' else DIGITS
  return sets[name].load(directory, test_split, alphabet)
