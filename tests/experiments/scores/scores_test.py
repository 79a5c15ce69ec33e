"""Perplexity, BLEU, word error rate, and what CTC's frames say."""

import itertools
import math

from experiments.scores import bleu
from experiments.scores import ctc
from experiments.scores import entropy
from experiments.scores import word_errors
import numpy as np
import pytest
import sacrebleu

REFERENCES = [
  'A man is standing on a hill, and looks down.',
  'Two dogs run.',
  '',
  'A child in a red coat sits on the stairs of a house.',
]
HYPOTHESES = [
  'A man stands on a hill and looks down.',
  'Two dogs run.',
  'Nothing',
  'A child in a red coat sits on the steps of a house.',
]


def test_perplexity_and_bits_are_of_the_mean():
  assert entropy.perplexity(0.0, 7) == 1.0
  np.testing.assert_allclose(entropy.perplexity(2 * math.log(50), 2), 50)
  assert 1e300 < entropy.perplexity(1e6, 10) < math.inf
  assert math.isnan(entropy.perplexity(math.nan, 10))
  np.testing.assert_allclose(entropy.bits_per_symbol(4 * math.log(2), 2), 2)


def test_bleu_is_that_of_sacrebleu_whoever_counts():
  known = sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score
  whole = bleu.counts(HYPOTHESES, REFERENCES)
  assert 10 < known < 90
  np.testing.assert_allclose(bleu.score(whole), known)
  parts = [
    bleu.counts(HYPOTHESES[part], REFERENCES[part])
    for part in (slice(0, 1), slice(1, 4), slice(4, 9))
  ]
  np.testing.assert_array_equal(sum(parts), whole)
  np.testing.assert_allclose(bleu.score(whole.astype(np.float64)), known)


@pytest.mark.parametrize(
  'hypotheses',
  [
    [''] * 4,
    ['A man', 'dogs', '', 'coat'],
    ['A man is down', 'dogs', '', 'of a house in a coat'],  # no 4-gram
    REFERENCES,
  ],
)
def test_bleu_of_poor_and_of_perfect_translations(hypotheses):
  known = sacrebleu.corpus_bleu(hypotheses, [REFERENCES]).score
  found = bleu.score(bleu.counts(hypotheses, REFERENCES))
  np.testing.assert_allclose(found, known)
  assert (found > 99) == (hypotheses is REFERENCES)


def test_bleu_of_nothing():
  assert bleu.score(np.zeros(10)) == 0


def _distance(said, words):
  """Levenshtein's distance by its definition."""
  table = np.zeros((len(said) + 1, len(words) + 1), int)
  table[:, 0], table[0] = np.arange(len(said) + 1), np.arange(len(words) + 1)
  for i, j in itertools.product(range(len(said)), range(len(words))):
    table[i + 1, j + 1] = min(
      table[i, j + 1] + 1,
      table[i + 1, j] + 1,
      table[i, j] + (said[i] != words[j]),
    )
  return table[-1, -1]


def test_word_errors_are_edits_of_words():
  rng = np.random.default_rng(0)
  said, words = (
    [
      ' '.join(rng.choice(['one', 'two', 'six'], rng.integers(0, 7)))
      for _ in range(60)
    ]
    for _ in range(2)
  )
  edits = sum(
    _distance(a.split(), b.split()) for a, b in zip(said, words, strict=True)
  )
  counts = word_errors.counts(said, words)
  assert counts.tolist() == [edits, sum(len(text.split()) for text in words)]
  assert word_errors.rate(counts) == edits / counts[1]
  parts = [word_errors.counts(said[i::3], words[i::3]) for i in range(3)]
  np.testing.assert_array_equal(sum(parts), counts)


@pytest.mark.parametrize(
  'said, words, counts',
  [
    ([''], [''], [0, 0]),
    (['one two'], [''], [2, 0]),  # whose rate jiwer says is 1
    ([''], ['one two'], [2, 2]),
    (['one', 'two'], ['', 'two'], [1, 1]),
    ([' one   two '], ['one two'], [0, 2]),
    (['One'], ['one'], [1, 1]),
    (['a b c'], ['d'], [3, 1]),
    ([], [], [0, 0]),
  ],
)
def test_word_errors_where_there_is_little_to_hear(said, words, counts):
  found = word_errors.counts(said, words)
  assert found.tolist() == counts
  if counts[1]:
    assert word_errors.rate(found) == counts[0] / counts[1]
  else:
    with pytest.raises(ValueError, match='no reference has a word'):
      word_errors.rate(found)


def _frames(*paths):
  """Logits whose best paths these are."""
  logits = np.random.default_rng(0).random((len(paths), len(paths[0]), 4))
  for row, path in enumerate(paths):
    logits[row, np.arange(len(path)), list(path)] += 1
  return logits.astype(np.float32)


def test_ctc_collapses_repeats_and_drops_blanks():
  logits = _frames((0, 1, 1, 0, 1, 2, 2, 0), (3, 3, 3, 3, 0, 0, 0, 0), (0,) * 8)
  assert ctc.greedy(logits, np.array([8, 8, 8])) == [[1, 1, 2], [3], []]
  # Frames after the last one are padding.
  assert ctc.greedy(logits, np.array([5, 0, 3])) == [[1, 1], [], []]


def test_ctc_reads_each_path_as_its_definition_does():
  paths = list(itertools.product(range(4), repeat=4))
  found = ctc.greedy(_frames(*paths), np.full(len(paths), 4))
  for path, said in zip(paths, found, strict=True):
    assert said == [symbol for symbol, _ in itertools.groupby(path) if symbol]
