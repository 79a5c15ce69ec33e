"""One vocabulary of pieces of words for two languages.

Byte-pair encoding (Sennrich et al. 2016, arXiv 1508.07909), by sentencepiece.
"""

from collections.abc import Sequence
import io
import re

from experiments.program import errors
import numpy as np
import sentencepiece

# Numbers that are no piece of a word.
PAD, BEGIN, END, UNKNOWN = range(4)


class Vocabulary:
  """Pieces of words, by number; 0 is padding, 1 begin, 2 end, 3 unknown.

  Attributes:
    size: how many numbers there are.
    pieces: by number, as sentencepiece writes them.
    model: bytes of sentencepiece's model.
  """

  def __init__(self, model: bytes):
    """Takes what `train` has made."""
    self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    self.model = model
    self.size = self._processor.get_piece_size()
    numbers = range(self.size)
    self.pieces = tuple(self._processor.id_to_piece(n) for n in numbers)

  def encode(self, lines: Sequence[str]) -> list[list[int]]:
    """Returns the pieces of sentences, without begin and end."""
    return self._processor.encode(list(lines))

  def decode(self, rows: np.ndarray) -> list[str]:
    """Returns the sentences, as they are written, up to the first end.

    Args:
      rows: int[n, length], with or without begin, padding and end.
    """
    rows = np.asarray(rows).tolist()
    # Padding and begin are read as nothing.
    return self._processor.decode(
      [row[: row.index(END)] if END in row else row for row in rows]
    )


def train(lines: Sequence[str], size: int) -> Vocabulary:
  """Returns the vocabulary of some text; the same each time.

  Every character of the text is in it, so unknown is only what others have.

  Args:
    lines: sentences of both languages.
    size: how many numbers there are.

  Raises:
    ConfigError: there are more characters, or fewer pieces.
  """
  model = io.BytesIO()
  try:
    sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=iter(lines),
      model_writer=model,
      model_type='bpe',
      vocab_size=size,
      character_coverage=1.0,
      normalization_rule_name='identity',
      pad_id=PAD,
      bos_id=BEGIN,
      eos_id=END,
      unk_id=UNKNOWN,
      input_sentence_size=0,  # all of them, in their order
      shuffle_input_sentence=False,
      num_threads=1,
      minloglevel=2,  # errors
    )
  except RuntimeError as error:
    words = re.sub(r'.*\] *', '', f'{error}').partition(' or decrease')[0]
    raise errors.ConfigError(
      f'data.vocabulary={size} does not fit the training text: {words}'
    ) from error
  return Vocabulary(model.getvalue())
