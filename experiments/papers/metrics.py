"""The columns of the papers' tables, and how a run of ours gives them."""

from collections.abc import Callable, Mapping, Sequence
import statistics
from typing import Any, NamedTuple

from experiments.run import scores

Run = Mapping[str, Any]  # of a `record.Record`


class Metric(NamedTuple):
  """A column.

  Attributes:
    heading: with its unit.
    form: of a number.
    of: takes a run and returns its number; None where it has none.
    score: the score of which it is. The first column of a table says by what
      its rows are compared.
  """

  heading: str
  form: str
  of: Callable[[Run], float | None]
  score: scores.Score | None = None


def _of_a_test(score: scores.Score, heading: str = '') -> Metric:
  """The column of a score at the end of a run, on `data.test_split`."""
  heading = heading or score.label.removeprefix('test ')
  return Metric(heading, score.form, lambda run: score.of(run['final']), score)


def _of_the_final_split(score: scores.Score) -> Metric:
  """The column of a score on `data.final_split`."""

  def last(run: Run) -> float | None:
    return score.of(run.get('final_split', {}))

  return Metric(score.label, score.form, last, score)


def _of_one_worker(score: scores.Score) -> Metric:
  """The column of a score of the first worker's own model.

  Where all have the same model it is that of all. Elsewhere a test takes the
  mean of all workers' parameters, which is an average that is not counted.
  """

  def own(run: Run) -> float | None:
    differ = run['setting'].get('compression.local_gradient')
    tested = run.get('one_worker') if differ else run
    return score.of(tested['final']) if tested else None

  return Metric(f'{score.name}, one worker', score.form, own, score)


def _a_second(what: str) -> Metric:
  def of(run: Run) -> float | None:
    count, milliseconds = run.get(f'step_{what}'), run['step_ms']
    # Too few lines were logged, or the data have none of it.
    return 1e3 * count / milliseconds if count and milliseconds else None

  return Metric(f'{what}/s', '{:,.0f}', of)


def _hours_to(bleu: float) -> Metric:
  """The column of the time to the first test with so much BLEU."""

  def hours(run: Run) -> float | None:
    test = scores.BLEU.first(run.get('evaluations', ()), bleu)
    return None if test is None else test['seconds'] / 3600

  return Metric(f'h to {bleu}', '{:.2f}', hours)


def _of_comm(heading: str, form: str, name: str, unit: float = 1) -> Metric:
  return Metric(heading, form, lambda run: run['comm'][name] / unit)


METRICS: Mapping[str, Metric] = {
  'top1': _of_a_test(scores.ACCURACY, 'top-1 (%)'),
  'top5': _of_a_test(scores.TOP5, 'top-5 (%)'),
  'perplexity': _of_a_test(scores.PERPLEXITY),
  'bits': _of_a_test(scores.BITS),
  'wer': _of_a_test(scores.WER, 'WER (%)'),
  'bleu': _of_a_test(scores.BLEU),
  'cross_entropy': _of_a_test(scores.CROSS_ENTROPY),
  'worker_perplexity': _of_one_worker(scores.PERPLEXITY),
  'worker_wer': _of_one_worker(scores.WER),
  'worker_bleu': _of_one_worker(scores.BLEU),
  'test_bleu': _of_the_final_split(scores.BLEU),
  'test_perplexity': _of_the_final_split(scores.PERPLEXITY),
  # In nats a sentence, as Marian has it.
  'sentence_ce': Metric(
    'CE', '{:.1f}', lambda run: run['final'].get('test_sentence_loss')
  ),
  # Of papers only: of frames.
  'printed_top1': Metric('top-1 (%)', '{:.2f}', lambda run: None),
  # Of the whole run, as the variance paper has it.
  'elements': _of_comm('n / sent', '{:,.1f}', 'run_average_element_ratio'),
  # Of the last stage, as DGC's paper has them.
  'message': _of_comm(
    'message (MiB)', '{:.2f}', 'payload_bytes_per_step', 2**20
  ),
  'ratio': _of_comm('ratio', '{:,.0f}', 'ratio'),
  'images': _a_second('images'),
  'words': _a_second('words'),
  'hours': Metric('hours', '{:.2f}', lambda run: run['seconds'] / 3600),
  'hours_to_33.5': _hours_to(33.5),
  'hours_to_34.5': _hours_to(34.5),
}

# What may be reported of several seeds.
MIDDLES: Mapping[str, Callable[[Sequence[float]], float]] = {
  'mean': statistics.fmean,
  'median': statistics.median,
}
