"""What `gs.advise` takes and refuses, and what its model of a network says."""

import json
import re

import gradsparse as gs
from gradsparse.advise import __main__ as program
from gradsparse.advise import costs
from gradsparse.advise import param_shapes
from gradsparse.advise import question
import jax
import jax.numpy as jnp
import pytest
from tests import pipes
from tests.advise.questions import ASKED
from tests.advise.questions import FEW
from tests.advise.questions import TREE


def test_below_the_break_even_bandwidth_it_wins():
  base, scheme = costs.Exchange(10**8, 6, 0.05), costs.Exchange(10**6, 3)
  wins, below = costs.break_even(base, scheme, 1e-4, 0.02)
  assert wins == 'below'
  for factor, faster in ((0.99, True), (1.01, False)):
    link = costs.Link(factor * below, 1e-4)
    theirs = costs.added(base, link, 0).expected
    assert (costs.added(scheme, link, 0.02).expected < theirs) == faster
  assert costs.break_even(scheme, base, 0, 0) == ('never', None)
  assert costs.break_even(costs.Exchange(9), costs.Exchange(1), 0, 0) == (
    'always',
    None,
  )


def test_rounds_by_transport():
  assert costs.rounds(['dense', 'dgc, all-gather', 'dgc, all-gather'], 8) == 21
  assert costs.rounds(['gtopk, gTop-k butterfly'], 8) == 3
  assert costs.rounds(['gtopk, gTop-k butterfly'], 9) == 5
  assert costs.rounds(['gtopk, gTop-k tree'], 9) == 8
  assert costs.rounds(['sign, majority vote'], 8) == 7
  assert costs.rounds(['sign, majority vote, reduce-scatter'], 8) == 14


@pytest.mark.parametrize('n', [1, 7, 1000, 25_000_000, 7 * 10**10])
def test_a_number_becomes_a_tree_of_so_many(n):
  assert param_shapes.elements(param_shapes.of(n)[0]) == n
  found = param_shapes.of(str(n))[0]
  assert param_shapes.elements(found) == n
  assert max(map(param_shapes.elements, jax.tree.leaves(found))) < 2**31 - 32


def test_trees_of_arrays_and_files_of_shapes_are_alike(tmp_path):
  file = tmp_path / 'shapes.json'
  file.write_text(json.dumps(TREE))
  arrays = {'kernel': jnp.zeros((512, 512)), 'bias': jnp.zeros(512)}
  assert (
    param_shapes.of(arrays)
    == param_shapes.of(TREE)
    == param_shapes.of(str(file))
  )
  file.write_text('25e6')
  assert param_shapes.of(str(file)) == param_shapes.of(25e6)


@pytest.mark.parametrize(
  'text, n',
  [('25M', 25e6), ('1.3B', 1.3e9), ('1.1b', 1.1e9), ('25,000,000', 25e6)],
)
def test_a_number_may_be_written_as_people_do(text, n):
  assert param_shapes.elements(param_shapes.of(text)[0]) == n


@pytest.mark.parametrize(
  'text, bits', [('10 Gbit/s', 1e10), ('900gbyte', 7.2e12), ('1e9bit', 1e9)]
)
def test_a_bandwidth_names_bits_or_bytes(text, bits):
  assert question.bits_per_second(text) == bits


@pytest.mark.parametrize(
  'wrong, error, says',
  [
    ({'params': 'resnet'}, ValueError, "params must be a number .*'resnet'"),
    ({'params': 0}, ValueError, 'params must be a finite number > 0, got 0'),
    ({'params': 1.5}, ValueError, 'params must be a whole number .* got 1.5'),
    ({'params': '1.3T'}, ValueError, r'in 1\.\.2e11, .* got 1.3e\+12'),
    ({'params': {'w': 'x'}}, TypeError, "params must have arrays .*'x'"),
    ({'params': {}}, ValueError, r'params must have an element, got \{\}'),
    ({'step_s': 0}, ValueError, r'step_s must be .* \(0, 100\], .* got 0'),
    ({'step_s': 150}, ValueError, 'seconds .* such as 0.15, got 150'),
    ({'latency_s': 50}, ValueError, r'seconds in 0\.\.10, .* got 50'),
    ({'memory_bandwidth': 819}, ValueError, 'bytes a second in 1e9.* got 819'),
    ({'sync_every': 0}, ValueError, 'sync_every must be at least 1, got 0'),
    ({'backward_s': 2}, ValueError, r'backward_s must be in 0\.\..* got 2'),
    ({'workers': 2.5}, TypeError, 'workers must be a whole number, got 2.5'),
    ({'workers': 0}, ValueError, r'workers must be in 1\.\.65536, got 0'),
    ({'inner': 0}, ValueError, r'inner must be in 1\.\.65536, got 0'),
    ({'bandwidth': '9 mph'}, ValueError, "bandwidth must be a rate .*'9 mph'"),
    ({'bandwidth': '1..5gbit'}, ValueError, 'bandwidth must be a rate > 0'),
    ({'bandwidth': '10'}, ValueError, "bandwidth .* '10gbit'.* got '10'"),
    ({'bandwidth': '9GB/s'}, ValueError, "'9gbyte' or '9gbit'.*'9GB/s'"),
    ({'bandwidth': '9Gbps'}, ValueError, "'9gbyte' or '9gbit'.*'9Gbps'"),
    ({'bandwidth': 10}, ValueError, 'bits a second in 1e4.*, got 10'),
    ({'bandwidth': '1e30gbit'}, ValueError, r'in 1e4\.\.1e15, got 1'),
    ({'params': 'a.json'}, ValueError, "params: there is no file 'a.json'"),
    ({'bandwidth': -1}, ValueError, 'bandwidth must be a number .* got -1'),
    ({'latency_s': -1}, ValueError, 'latency_s must be .* got -1'),
    ({'optimizer': 'lion'}, ValueError, "optimizer must be one of .*'lion'"),
    ({'task': 'go'}, ValueError, "task must be one of .*'go'"),
    ({'schemes': 'dgc 0.001'}, TypeError, 'schemes must be a list of labels'),
    ({'schemes': ['dgc']}, ValueError, "each of schemes must be .*'dgc'"),
    ({'schemes': FEW + FEW}, ValueError, 'schemes must have each label once'),
    ({'code_s': {'no': 1}}, ValueError, "each key of code_s must be .*'no'"),
    ({'calibrate': 1}, TypeError, 'calibrate must be True or False, got 1'),
    ({'memory_bandwidth': 0}, ValueError, 'memory_bandwidth must be .* got 0'),
  ],
)
def test_bad_input_is_refused_in_words(wrong, error, says):
  with pytest.raises(error, match=says):
    gs.advise(**{'params': TREE, **ASKED, **wrong})


def test_the_command_prints_the_verdict_first(capsys, tmp_path):
  file = tmp_path / 'advice.json'
  flags = ['--params=25e6', '--workers=8', '--step_ms=150']
  flags += ['--bandwidth=400gbit', '--schemes=power_sgd rank 2']
  assert program.main([*flags, f'--json={file}']) == 0
  said = capsys.readouterr().out
  assert said.startswith('Verdict: do not compress. At 400 Gbit/s a dense')
  assert json.loads(file.read_text())['decision'] == 'do not compress'


@pytest.mark.parametrize(
  'words',
  [
    'gradsparse',
    pytest.param(
      'gradsparse.advise --params=10 --workers=2 --step_ms=1 --bandwidth=1gbit',
      marks=pytest.mark.slow,
    ),
  ],
)
def test_a_command_that_nobody_reads_ends_quietly(words):
  assert pipes.unread('-m', *words.split()).stderr == ''


@pytest.mark.parametrize(
  'flag, says',
  [
    ('--bandwidth=fast', "bandwidth must be a rate > 0 .* got 'fast'"),
    ('--step_ms=-1', "--step_ms: must be a number of ms in .* got '-1'"),
    ('--step_ms=150ms', "without a unit, got '150ms'"),
    ('--memory_bandwidth=819e9', "GB/s in 1.*, got '819e9'"),
    ('--json=/', '--json must be a file that can be written, got /'),
    ('--workers=none', "--workers: invalid int value: 'none'"),
    (
      '--backward_ms=9',
      r'--backward_ms must be at most --step_ms \(1\), got 9',
    ),
  ],
)
def test_wrong_flags_are_refused_in_words(capsys, flag, says):
  good = ['--params=10', '--workers=2', '--step_ms=1', '--bandwidth=1gbit']
  with pytest.raises(SystemExit) as stopped:
    program.main([*good, flag])
  assert stopped.value.code == 2
  assert re.search(says, capsys.readouterr().err)
