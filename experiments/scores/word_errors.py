"""Word error rate of transcripts, by jiwer.

(substitutions + deletions + insertions) / words of the references, over the
whole test set. It may exceed 1.
"""

from collections.abc import Sequence

import jiwer
import numpy as np


def counts(hypotheses: Sequence[str], references: Sequence[str]) -> np.ndarray:
  """Returns what the rate is made of, for a part of a test set.

  Words are between spaces, however many. Of an empty reference all words of
  the hypothesis are errors.

  Args:
    hypotheses: transcripts.
    references: of the same utterances.

  Returns:
    int64[2]: errors, and words of the references.

  """
  if not hypotheses:
    return np.zeros(2, np.int64)
  # Not its rate: of references without any word it says 1.
  found = jiwer.process_words(list(references), list(hypotheses))
  missed = found.substitutions + found.deletions
  return np.array([missed + found.insertions, missed + found.hits], np.int64)


def rate(total: np.ndarray) -> float:
  """Returns the share of errors, of counts that were added up.

  Raises:
    ValueError: no reference has a word.
  """
  errors, words = np.asarray(total).tolist()
  if not words:
    raise ValueError('no reference has a word, so there is no word error rate')
  return errors / words
