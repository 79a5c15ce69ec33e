"""BLEU of translations as they are written, by sacrebleu.

Post 2018, arXiv 1804.08771: scores are comparable where the signatures agree.
"""

from collections.abc import Sequence

import numpy as np
from sacrebleu.metrics import bleu

_ORDERS = 4  # of n-grams


def counts(hypotheses: Sequence[str], references: Sequence[str]) -> np.ndarray:
  """Returns what the score is made of, for a part of a test set.

  Args:
    hypotheses: translations, not cut into tokens.
    references: of the same sentences, one each.

  Returns:
    int64[10]: length of the hypotheses and of the references in tokens, then
    the n-grams of 1 to 4 tokens that are right, and those that there are.

  """
  if not hypotheses:
    return np.zeros(2 + 2 * _ORDERS, np.int64)
  found = bleu.BLEU().corpus_score(list(hypotheses), [list(references)])
  return np.array(
    [found.sys_len, found.ref_len, *found.counts, *found.totals], np.int64
  )


def score(total: np.ndarray) -> float:
  """Returns BLEU, from 0 to 100, of counts that were added up."""
  hypothesis, reference, *ngrams = np.asarray(total).astype(int).tolist()
  counted = ngrams[:_ORDERS], ngrams[_ORDERS:], hypothesis, reference
  return bleu.BLEU.compute_bleu(*counted, smooth_method='exp').score
