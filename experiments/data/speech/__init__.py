"""Speech with its transcripts, by the name of the set."""

from experiments.data import folders
from experiments.data.speech import an4
from experiments.data.speech import fsdd
from experiments.data.speech import librispeech
from experiments.data.speech.recordings import DIGITS as DIGITS
from experiments.data.speech.recordings import LETTERS as LETTERS
from experiments.data.speech.recordings import Corpus as Corpus
from experiments.data.speech.recordings import Recordings as Recordings
from experiments.data.speech.recordings import Utterance as Utterance
from experiments.data.speech.sampler import Sampler as Sampler
from experiments.data.speech.sampler import walk as walk
from experiments.program import errors

_SETS = {'an4': an4, 'fsdd': fsdd, 'librispeech': librispeech}
_TRANSCRIPTS = ('letters', 'words')
AHEAD = 2  # batches to read before they are asked for


def load(
  name: str,
  directory: str = '',
  test_split: str = 'test',
  transcripts: str = 'letters',
) -> Corpus:
  """Returns a set of utterances, whose files are read when they are needed.

  Args:
    name: of `_SETS`; `'fsdd'` is made into strings of digits.
    directory: root of all data sets or the set's own folder.
    test_split: `'test'` is the set's own; `'validation'` never looks at it; for
      librispeech also the name of one of its folders for tests.
    transcripts: in `'letters'`, or in `'words'`, of which fsdd has ten; the
      other sets have too many.

  Raises:
    ConfigError: an unknown split or kind of transcripts.
    DataFileError: a file is missing or damaged.
  """
  known = ('letters',) if name != 'fsdd' else _TRANSCRIPTS
  if transcripts not in known:
    raise errors.ConfigError(
      f'data.transcripts must be {" or ".join(known)} for {name}, '
      f'got {transcripts!r}'
    )
  splits = ('test', 'validation')
  if name == 'librispeech':
    splits += librispeech.TEST_FOLDERS
  folders.check_split(name, test_split, splits)
  alphabet = LETTERS if transcripts == 'letters' else DIGITS
  return _SETS[name].load(directory, test_split, alphabet)
