"""How RESULTS.md is to be read: its claim, its columns, its targets.

The units are those of the scores by which the measured tables compare.
"""

from collections.abc import Callable, Sequence

from experiments.results_page import claims
from experiments.results_page import sections
from experiments.results_page.measured import Measured
from experiments.run import scores

ANSWERS = """\
What the papers claim of parts of their methods, asked of several tables: the
difference of two rows, paired by seed, and in brackets of how many seeds. Which
rows, and by which score, is said below with each table.
"""


def scores_of(measured: Sequence[Measured]) -> tuple[scores.Score, ...]:
  """Returns the scores of the measured tables, each once."""
  found = dict.fromkeys(m.table.score for m in measured if m.compared)
  return tuple(score for score in found if score) or (scores.ACCURACY,)


def claim(shown: Sequence[scores.Score]) -> str:
  """Returns the claim that is tested, and when it holds."""
  side = 'above zero' + _else(shown, ' (below, where less is better)')
  wide = _amounts(shown, lambda score: score.wide)
  return f"""\
**At {claims.RATIO:,} times fewer bytes, training ends as well as dense.** That
is the claim to test, row by row, by each of three ratios. It holds for a row if
the interval of its difference to dense contains zero or lies {side}, is not
wider than {wide} to each side, and if no run of it failed.
"""


def tables(shown: Sequence[scores.Score]) -> tuple[str, ...]:
  """Returns what the columns of the tables say."""
  wide = _amounts(shown, lambda score: score.wide)
  turned = _else(shown, '; the other way round where less is better')
  return (
    *(_difference(score) for score in shown),
    """\
Ratio: the gradient's bytes in float32 by those of one worker's message. In the
last stage, which papers print, and over the whole run, warm-up included.
*Sent*: what a worker of the dense row sends in a step of the last stage, by
what one of this row does. A dense ring all-reduce sends each worker's gradient
less than twice, an all-gather hands a message on to all others: with 4 workers
that is half of the ratio, with 32 a sixteenth.
""",
    f"""\
*{claims.NO_DIFFERENCE}*: the interval contains zero. The wider it is, the less
that says; *{claims.TOO_WIDE}*: it contains zero, and reaches more than {wide}
to each side. *{claims.BETTER}*, *{claims.WORSE}*: it lies above or below
zero{turned}. Of twenty rows that are as good as dense, one is expected to be
called so by chance.
""",
    f"""\
*{claims.ONE_SEED}*, *{claims.ALIKE}*: the seeds do not tell how sure the number
is. *{claims.ALL_FAILED}*: the run diverged, or so many of them if a number is
before it; differences are without these runs.
""",
  )


def targets(shown: Sequence[scores.Score]) -> str:
  """Returns what a target is, and how rows came to it."""
  margins = _amounts(shown, lambda score: score.margin)
  more = _else(shown, ' (or so much more, where less is better)')
  return f"""\
Bytes and time to a target: the first test that is as good as the dense row's
mean final score less {margins}{more}. Sent by one worker until
then, and seconds until then; medians over seeds, where a seed that never
reached it counts as later than all others, and so does a run that failed. `-`:
there is no median, or the record has no tests. Where a run was tested
only twice, these numbers are coarse. The workers share one machine without a
network between them, so seconds are those of computing, and say little where a
machine had other work to do.
"""


def _difference(score: scores.Score) -> str:
  unit = f'{score.unit} of the latter' if score.relative else score.unit
  return (
    f'Difference: test {score.name} at the end less that of the dense run with '
    f"the same seed, in {unit}; mean and Student's 95 % interval over seeds."
    + _else([score], ' Less is better.')
  )


def _amounts(
  shown: Sequence[scores.Score], of: Callable[[scores.Score], float]
) -> str:
  return sections.either([score.amount(of(score)) for score in shown])


def _else(shown: Sequence[scores.Score], words: str) -> str:
  """Returns words that are needed where less is better somewhere."""
  return '' if all(score.rises for score in shown) else words
