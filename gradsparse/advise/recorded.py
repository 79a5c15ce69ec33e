"""The recorded results of the schemes that `gs.advise` compares.

Written by `python -m experiments.advise_records`, which reads
experiments/results/accelerators.json and experiments/results/papers.
"""

from typing import NamedTuple


class Loss(NamedTuple):
  """The final result of a scheme compared with dense, with the same seeds.

  Attributes:
    row: the scheme's row in RESULTS.md.
    difference: from the dense row, with its interval.
    seeds: number of seeds.
    verdict: the comparison in words.
    as_good: whether it ended as well as dense; None where it cannot be told.
  """

  row: str
  difference: str
  seeds: int
  verdict: str
  as_good: bool | None


# Time from gradients to parameters, in steps of momentum SGD: XLA's estimate
# for a TPU v5e:2x4, resnet50, 8 workers.
STEPS_OF_SGD = {
  'sign_majority': 3.01,
  'power_sgd': 6.33,
  'dropping': 7.4,
  'one_bit': 8.46,
  'terngrad': 9.09,
  'gtopk': 9.13,
  'qsgd4': 9.13,
  'dgc': 9.37,
  'ef21': 10.44,
}

# Task -> (the source of the differences, their unit).
TASKS = {
  'cifar10': (
    'Every scheme on CIFAR-10, 4 workers, quick setting',
    'points of accuracy',
  ),
  'digits': (
    'Every scheme on handwritten digits, 4 workers, full setting',
    'points of accuracy',
  ),
  'ptb': (
    'Every scheme on PTB, 4 workers, quick setting',
    '% of perplexity, less is better',
  ),
  'speech': (
    'Every scheme on strings of spoken digits, 4 workers, quick setting',
    'points of word error rate, less is better',
  ),
  'translation': (
    'Every scheme on Multi30k En-De, 4 workers, quick setting',
    'BLEU',
  ),
}

# (task, row) -> result.
LOSSES = {
  ('cifar10', 'dgc'): Loss(
    'dgc',
    '+0.15 ± 1.20',
    5,
    'no difference seen',
    True,
  ),
  ('cifar10', 'dgc_4bit'): Loss(
    'dgc_4bit',
    '-0.56 ± 0.92',
    5,
    'no difference seen',
    True,
  ),
  ('cifar10', 'gtopk'): Loss(
    'gtopk',
    '-9.00 ± 3.20',
    3,
    'worse',
    False,
  ),
  ('cifar10', 'dropping_0.01'): Loss(
    'dropping_0.01',
    '-2.65 ± 3.09',
    3,
    'too wide to tell',
    False,
  ),
  ('cifar10', 'qsgd_4bit'): Loss(
    'qsgd_4bit',
    '-0.59 ± 1.65',
    5,
    'no difference seen',
    True,
  ),
  ('cifar10', 'terngrad'): Loss(
    'terngrad',
    '-0.76',
    1,
    'one seed: no interval',
    None,
  ),
  ('cifar10', 'one_bit'): Loss(
    'one_bit',
    '-1.14',
    1,
    'one seed: no interval',
    None,
  ),
  ('cifar10', 'sign'): Loss(
    'sign',
    '-43.35',
    1,
    'one seed: no interval',
    False,
  ),
  ('cifar10', 'power_sgd'): Loss(
    'power_sgd',
    '-0.82',
    1,
    'one seed: no interval',
    None,
  ),
  ('digits', 'gradient_dropping'): Loss(
    'gradient_dropping',
    '-0.09 ± 1.44',
    3,
    'no difference seen',
    True,
  ),
  ('digits', 'dgc'): Loss(
    'dgc',
    '+0.37 ± 1.05',
    3,
    'no difference seen',
    True,
  ),
  ('digits', 'dgc_exponent4'): Loss(
    'dgc_exponent4',
    '+0.00 ± 0.69',
    3,
    'no difference seen',
    True,
  ),
  ('digits', 'gtopk_0.001'): Loss(
    'gtopk_0.001',
    '+0.46 ± 1.44',
    3,
    'no difference seen',
    True,
  ),
  ('digits', 'ef21'): Loss(
    'ef21',
    '-0.46 ± 1.74',
    3,
    'no difference seen',
    True,
  ),
  ('digits', 'qsgd'): Loss(
    'qsgd',
    '+0.37 ± 0.80',
    3,
    'no difference seen',
    True,
  ),
  ('digits', 'qsgd_scatter'): Loss(
    'qsgd_scatter',
    '+0.09 ± 1.74',
    3,
    'no difference seen',
    True,
  ),
  ('digits', 'terngrad'): Loss(
    'terngrad',
    '+0.00 ± 0.69',
    3,
    'no difference seen',
    True,
  ),
  ('digits', 'one_bit_sgd'): Loss(
    'one_bit_sgd',
    '-0.65 ± 2.22',
    3,
    'too wide to tell',
    None,
  ),
  ('digits', 'one_bit_sgd_scatter'): Loss(
    'one_bit_sgd_scatter',
    '+0.37 ± 0.80',
    3,
    'no difference seen',
    True,
  ),
  ('digits', 'sign_majority'): Loss(
    'sign_majority',
    '+0.46 ± 1.44',
    3,
    'no difference seen',
    True,
  ),
  ('digits', 'power_sgd'): Loss(
    'power_sgd',
    '+0.09 ± 1.59',
    3,
    'no difference seen',
    True,
  ),
  ('ptb', 'dropping'): Loss(
    'dropping',
    '+6.30 ± 3.69',
    3,
    'worse',
    False,
  ),
  ('ptb', 'dgc'): Loss(
    'dgc',
    '+27.21',
    1,
    'one seed: no interval',
    False,
  ),
  ('ptb', 'gtopk'): Loss(
    'gtopk',
    '+9.14',
    1,
    'one seed: no interval',
    False,
  ),
  ('ptb', 'qsgd_4bit'): Loss(
    'qsgd_4bit',
    '-1.18',
    1,
    'one seed: no interval',
    None,
  ),
  ('ptb', 'terngrad'): Loss(
    'terngrad',
    '+234.36',
    1,
    'one seed: no interval',
    False,
  ),
  ('speech', 'dropping'): Loss(
    'dropping',
    '+3.03 ± 6.65',
    3,
    'too wide to tell',
    False,
  ),
  ('speech', 'dgc'): Loss(
    'dgc',
    '-0.25 ± 1.62',
    3,
    'no difference seen',
    True,
  ),
  ('speech', 'gtopk'): Loss(
    'gtopk',
    '+5.53 ± 14.84',
    3,
    'too wide to tell',
    False,
  ),
  ('speech', 'qsgd_4bit'): Loss(
    'qsgd_4bit',
    '+0.11 ± 1.14',
    3,
    'no difference seen',
    True,
  ),
  ('speech', 'terngrad'): Loss(
    'terngrad',
    '+1.83',
    1,
    'one seed: no interval',
    None,
  ),
  ('translation', 'gtopk'): Loss(
    'gtopk',
    '-5.73',
    1,
    'one seed: no interval',
    False,
  ),
  ('translation', 'qsgd_4bit'): Loss(
    'qsgd_4bit',
    '+0.08',
    1,
    'one seed: no interval',
    None,
  ),
  ('translation', 'terngrad'): Loss(
    'terngrad',
    '-3.11',
    1,
    'one seed: no interval',
    False,
  ),
  ('translation', 'adam_dgc'): Loss(
    'adam_dgc',
    '-9.60',
    1,
    'one seed: no interval',
    False,
  ),
  ('translation', 'adam_dropping'): Loss(
    'adam_dropping',
    '-8.39',
    1,
    'one seed: no interval',
    False,
  ),
}
