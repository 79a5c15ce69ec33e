"""Scores: units, which of two is better, and what a target is."""

from experiments.run import scores
import pytest


def test_fractions_are_shown_in_percent_and_others_as_they_are():
  final = {'test_accuracy': 0.986, 'test_wer': 0.129, 'test_bleu': 34.45}
  assert scores.ACCURACY.of(final) == pytest.approx(98.6)
  assert scores.WER.of(final) == pytest.approx(12.9)
  assert scores.BLEU.of(final) == 34.45
  assert scores.PERPLEXITY.of(final) is None
  assert scores.WER.of({'test_wer': 0.0}) == 0.0  # measured, and perfect


def test_a_test_of_a_line_is_named_as_in_a_summary():
  line = {'step': 3, 'test/wer': 0.5, 'test/loss': 2.0, 'train/loss': 1.0}
  assert scores.tested(line) == {'test_wer': 0.5, 'test_loss': 2.0}
  assert scores.tested({'step': 3, 'train/loss': 1.0}) == {}


@pytest.mark.parametrize(
  ('score', 'mine', 'other', 'difference', 'target'),
  [
    # In points; 93 - 1.
    (scores.ACCURACY, 94.0, 93.0, 1.0, 92.0),
    # 12.9 + 1.
    (scores.WER, 14.1, 12.9, 1.2, 13.9),
    # In percent of the other; 2 % above 80.
    (scores.PERPLEXITY, 82.0, 80.0, 2.5, 81.6),
    (scores.PERPLEXITY, 78.0, 80.0, -2.5, 81.6),
    (scores.BITS, 1.5, 1.25, 20.0, 1.275),
    (scores.BLEU, 34.0, 34.5, -0.5, 33.5),
  ],
)
def test_differences_and_targets(score, mine, other, difference, target):
  assert score.difference(mine, other) == pytest.approx(difference)
  assert score.target(other) == pytest.approx(target)


@pytest.mark.parametrize('score', scores.SCORES.values())
def test_as_good_as_the_target_is_good_enough_and_worse_is_not(score):
  assert score.reaches(50.0, 50.0)
  better, worse = (51.0, 49.0) if score.rises else (49.0, 51.0)
  assert score.reaches(better, 50.0) and not score.reaches(worse, 50.0)
  assert score.advantage(score.difference(better, 50.0)) > 0
  # Worse by no more than the margin.
  assert score.reaches(50.0, score.target(50.0))
  assert not score.reaches(score.target(50.0), 50.0)


def test_less_is_better_of_errors_and_of_losses():
  assert {s.key for s in scores.SCORES.values() if not s.rises} == {
    'wer',
    'perplexity',
    'bits_per_character',
    'loss',
  }


def test_a_run_is_judged_by_its_own_score_and_told_in_words():
  assert scores.worded({'test_accuracy': 0.9861, 'test_loss': 0.1}) == (
    'test accuracy 98.61%'
  )
  speech = {'test_loss': 3.0, 'test_wer': 0.129}
  assert scores.main_of(speech) is scores.WER
  assert scores.worded(speech) == 'test word error rate 12.90%'
  language = {'test_loss': 4.28, 'test_perplexity': 72.24}
  assert scores.worded(language) == 'test perplexity 72.24'
  translation = language | {'test_bleu': 34.45}
  assert scores.worded(translation) == 'test BLEU 34.45'
  characters = language | {'test_bits_per_character': 1.25}
  assert scores.main_of(characters) is scores.BITS
  assert scores.worded({'test_loss': 1.5}) == 'test cross-entropy 1.500 nats'
  assert scores.main_of({}) is None and scores.worded({}) == ''


def test_labels_have_their_units():
  assert scores.ACCURACY.form.format(98.6) == '98.60'
  assert scores.ACCURACY.label == 'test accuracy (%)'
  assert scores.BLEU.label == 'test BLEU'
  assert scores.CROSS_ENTROPY.label == 'test cross-entropy (nats)'
  assert scores.titled('BLEU to dense') == 'BLEU to dense'
  assert scores.titled('points to dense') == 'Points to dense'
