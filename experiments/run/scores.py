"""What a test of a model measures: names, units, and which of two is better.

A test gives numbers by the names of `SCORES`: `test/NAME` in metrics.jsonl,
`test_NAME` of `final` in summary.json. Accuracies and the word error rate are
kept there as fractions and shown in percent.

Two scores are compared in the score's own unit. For accuracies and the word
error rate that is a point, for BLEU its point. Perplexity, bits a character and
cross-entropy have no such unit: how much worse 80 is than 75 depends on where
they are. Their differences are relative, in percent of the other.
"""

from collections.abc import Iterable, Mapping
import functools
import math
from typing import Any, NamedTuple

Test = Mapping[str, Any]  # of a record, or of a summary


class Score(NamedTuple):
  """A number that a test gives.

  Attributes:
    name: in words.
    key: of `SCORES`.
    symbol: the unit in which it is shown; '' where it has none.
    unit: of a difference.
    rises: whether more is better.
    scale: what is kept times this is what is shown.
    digits: that are shown behind the point.
    margin: in `unit`; what is worse by no more is as good for a target.
    relative: whether a difference is in percent of the other score.
    most: that can be shown.
  """

  name: str
  key: str
  symbol: str = '%'
  unit: str = 'points'
  rises: bool = True
  scale: float = 100.0
  digits: int = 2
  margin: float = 1.0
  relative: bool = False
  most: float = math.inf

  def of(self, final: Mapping[str, Any]) -> float | None:
    """Returns the score as it is shown; None if it was not measured.

    Args:
      final: of a summary, or a test in a record: by names such as `test_wer`.
    """
    kept = final.get(f'test_{self.key}')
    return None if kept is None else self.scale * kept

  def text(self, shown: float) -> str:
    """Returns a score with its unit, such as '98.61 %'."""
    unit = '' if self.symbol == self.name else self.symbol
    return f'{shown:.{self.digits}f} {unit}'.rstrip()

  @property
  def label(self) -> str:
    """Of an axis or a column, such as 'test accuracy (%)'."""
    unit = f' ({self.symbol})' if self.symbol not in ('', self.name) else ''
    return f'test {self.name}{unit}'

  @property
  def form(self) -> str:
    """Of a score as it is shown, for `str.format`."""
    return f'{{:.{self.digits}f}}'

  def difference(self, mine: float, other: float) -> float:
    """Returns by how much one score is above another, in `unit`."""
    return 100 * (mine / other - 1) if self.relative else mine - other

  def advantage(self, difference: float) -> float:
    """Returns a difference that is positive where the first is better."""
    return difference if self.rises else -difference

  def target(self, shown: float) -> float:
    """Returns the score that is worse by the margin."""
    worse = -self.margin if self.rises else self.margin
    return shown * (1 + worse / 100) if self.relative else shown + worse

  def reaches(self, shown: float, target: float) -> bool:
    """Whether a score is as good as a target."""
    return self.advantage(shown - target) >= 0

  def first(self, tests: Iterable[Test], target: float) -> Test | None:
    """Returns the first test that is as good as a target; None if none is.

    Args:
      tests: of a record, in the order of their steps.
      target: as the score is shown.
    """
    for test in tests:
      found = self.of(test)
      if found is not None and self.reaches(found, target):
        return test
    return None


ACCURACY = Score('accuracy', 'accuracy', most=100.0)
TOP5 = Score('top-5 accuracy', 'top5_accuracy', most=100.0)
WER = Score('word error rate', 'wer', rises=False)
BLEU = Score('BLEU', 'bleu', symbol='BLEU', unit='BLEU', scale=1.0, most=100.0)


# Scores that have no ceiling, and whose differences are relative.
_relative = functools.partial(
  Score, unit='%', rises=False, scale=1.0, margin=2.0, relative=True
)
PERPLEXITY = _relative('perplexity', 'perplexity', symbol='')
BITS = _relative('bits a character', 'bits_per_character', symbol='', digits=3)
CROSS_ENTROPY = _relative('cross-entropy', 'loss', symbol='nats', digits=3)

# What a run is judged by comes before what it has beside that.
_ALL = (ACCURACY, WER, BLEU, BITS, PERPLEXITY, CROSS_ENTROPY, TOP5)
SCORES: Mapping[str, Score] = {score.key: score for score in _ALL}


def titled(words: str) -> str:
  """Returns words as a title has them: 'BLEU to dense', 'Points to dense'."""
  return words[:1].upper() + words[1:]


def tested(line: Mapping[str, Any]) -> dict[str, float]:
  """Returns what was tested in a line of metrics.jsonl, named as in `final`."""
  known = [key for key in SCORES if f'test/{key}' in line]
  return {f'test_{key}': line[f'test/{key}'] for key in known}


def main_of(final: Mapping[str, Any]) -> Score | None:
  """Returns the score that a run is judged by: the first that it has."""
  return next((s for s in SCORES.values() if s.of(final) is not None), None)


def worded(final: Mapping[str, Any]) -> str:
  """Returns how good a run is, such as 'test accuracy 98.61%'; '' if unknown.

  Args:
    final: of a summary, or from `tested`.
  """
  score = main_of(final)
  if score is None:
    return ''
  return f'test {score.name} {score.text(score.of(final))}'.replace(' %', '%')
