"""Parallel text: its files, its pieces, and what a step sees of it."""

import gzip
import hashlib
import itertools
import os

from experiments import data
from experiments.data import translation
from experiments.data.translation import bpe
from experiments.data.translation import files
from experiments.data.translation import pairs
from experiments.program import errors
import numpy as np
import pytest

NOUNS = (('dog', 'Hund'), ('man', 'Mann'), ('tree', 'Baum'), ('café', 'Käfer'))
VERBS = (('sees', 'sieht'), ('eats', 'isst'), ('likes', 'mag'))
TESTED = (('The  dog.', 'Der\tHund.'), ('', 'ŵ'), ('A', ''))
VOCABULARY = 80


def _sentences():
  """Pairs of sentences of two to six words."""
  for (a, x), (v, w), (b, y) in itertools.product(NOUNS, VERBS, NOUNS):
    yield f'A {a} {v}.', f'Ein {x} {w}.'
    yield f'The {a} {v} the {b}.', f'Der {x} {w} den {y} .'


def _write(path, lines):
  content = ''.join(f'{line}\n' for line in lines).encode()
  path.parent.mkdir(exist_ok=True)
  path.write_bytes(gzip.compress(content) if path.suffix == '.gz' else content)


@pytest.fixture
def folder(tmp_path):
  """Multi30k, small: the files for training gzipped, the others plain."""
  made = tmp_path / 'multi30k'
  for part, end, chosen in (
    ('train', '.gz', list(_sentences())),
    ('val', '', list(_sentences())[:5]),
    ('test_2016_flickr', '', TESTED),
    ('other', '', [('A tree sees.', 'Ein Baum sieht.')]),
  ):
    for side, language in enumerate(('en', 'de')):
      lines = [pair[side] for pair in chosen]
      _write(made / f'{part}.{language}{end}', lines)
  return made


def _load(folder, *arguments, **changes):
  return translation.load(
    'multi30k', str(folder), *arguments, **{'vocabulary': VOCABULARY, **changes}
  )


def test_pieces_are_the_sentences_again(folder):
  corpus = _load(folder.parent)
  vocabulary, train = corpus.vocabulary, corpus.train
  assert vocabulary.size == VOCABULARY
  taken = train.take(np.arange(len(train.lengths)), int(train.lengths.max()))
  known = list(_sentences())
  assert vocabulary.decode(taken['source']) == [pair[0] for pair in known]
  assert vocabulary.decode(taken['target']) == [pair[1] for pair in known]
  for row, (source, target) in enumerate(known):
    for name, text, begin in (
      ('source', source, []),
      ('target', target, [bpe.BEGIN]),
    ):
      pieces = [*begin, *vocabulary.encode([text])[0], bpe.END]
      rest = taken[name].shape[1] - len(pieces)
      assert taken[name][row].tolist() == pieces + [bpe.PAD] * rest
  lengths = np.maximum(
    (taken['source'] > 0).sum(1), (taken['target'] > 0).sum(1)
  )
  np.testing.assert_array_equal(lengths, train.lengths)
  np.testing.assert_array_equal(taken['weights'], taken['target'][:, 1:] > 0)
  assert taken['source'].dtype == taken['target'].dtype == np.int32


def test_what_follows_the_first_end_is_not_read(folder):
  vocabulary = _load(folder).vocabulary
  dog, man = vocabulary.encode(['A dog', 'man'])
  rows = [
    [bpe.BEGIN, *dog, bpe.END, *man, bpe.END],
    [*dog, *man, bpe.END, bpe.PAD, bpe.PAD],
    [*dog, bpe.PAD, bpe.PAD],
    [bpe.END, *dog],
  ]
  length = max(map(len, rows))
  rows = np.array([row + [bpe.PAD] * (length - len(row)) for row in rows])
  assert vocabulary.decode(rows) == ['A dog', 'A dog man', 'A dog', '']


def test_the_vocabulary_is_made_of_the_training_files(folder):
  corpus = _load(folder)
  assert corpus.references == ('Der Hund.', 'ŵ', '')
  # No training file has this letter.
  assert bpe.UNKNOWN in corpus.test.target.take(np.array([1]), 8)
  assert bpe.UNKNOWN not in corpus.train.target.values
  assert corpus.test.source.lengths.tolist()[1:] == [0, 1]
  again = _load(folder, 'validation')
  assert again.vocabulary.model == corpus.vocabulary.model
  changed = _load(folder, vocabulary=90)
  assert changed.vocabulary.model != corpus.vocabulary.model


def test_splits_are_pairs_of_files(folder):
  assert len(_load(folder, 'validation').references) == 5
  assert _load(folder, 'other').references == ('Ein Baum sieht.',)
  for path in folder.glob('test*'):
    path.unlink()
  assert len(_load(folder, 'validation').references) == 5
  back = _load(folder, 'other', source='de', target='en')
  assert back.references == ('A tree sees.',)


def test_wmt_is_read_by_the_names_of_its_files(tmp_path):
  known = list(_sentences())
  for part in ('train', 'valid', 'test'):
    _write(tmp_path / f'wmt/{part}.ro', [pair[1] for pair in known])
    _write(tmp_path / f'wmt/{part}.en.gz', [pair[0] for pair in known])
  corpus = translation.load(
    'wmt', str(tmp_path), source='ro', target='en', vocabulary=VOCABULARY
  )
  assert corpus.references == tuple(pair[0] for pair in known)


def test_a_sample_of_a_large_set_makes_the_vocabulary(folder, monkeypatch):
  monkeypatch.setattr(files, '_LEARNT', 50)
  seen = []
  train = bpe.train

  def kept(lines, size):
    seen.extend(lines)
    return train(lines, size)

  monkeypatch.setattr(bpe, 'train', kept)
  monkeypatch.setattr(pairs, '_CHUNK', 7)
  corpus = _load(folder, vocabulary=60)
  assert 40 <= len(seen) <= 50
  assert seen[1] == list(_sentences())[4][0]
  assert sum('Ein' in line or 'Der' in line for line in seen) == len(seen) // 2
  assert len(corpus.train.lengths) == 96


def _numbers(corpus):
  return [array.tolist() for side in corpus.train for array in side]


def test_numbers_in_a_cache_are_those_without(folder, tmp_path, monkeypatch):
  monkeypatch.setattr(pairs, '_CHUNK', 7)  # many parts
  plain, cache = _load(folder), tmp_path / 'cache' / 'of_text'
  made = _load(folder, cache=str(cache))
  assert _numbers(made) == _numbers(plain)
  assert made.vocabulary.model == plain.vocabulary.model
  for side, other in zip(made.train, plain.train, strict=True):
    assert side.values.dtype == other.values.dtype == np.uint16
    assert side.ends.dtype == other.ends.dtype == np.int64
    assert not side.values.flags.writeable
  rows = np.array([5, 0, 95])
  for name, array in plain.train.take(rows, 20).items():
    np.testing.assert_array_equal(made.train.take(rows, 20)[name], array)
  # It is made once: for another test split, and by no other process.
  with monkeypatch.context() as patch:
    patch.setattr(bpe, 'train', None)
    assert _numbers(_load(folder, 'val', cache=str(cache))) == _numbers(plain)
  assert len([*cache.glob('*/')]) == 1
  # Of another vocabulary, and of another text, it is another.
  assert _load(folder, cache=str(cache), vocabulary=60).vocabulary.size == 60
  _write(folder / 'train.en.gz', ['A dog sees.'] * 96)
  assert len(_load(folder, cache=str(cache)).train.lengths) == 96
  assert len([*cache.glob('*/')]) == 3


@pytest.mark.parametrize('damage', ['shorter', 'other', 'gone', 'half'])
def test_a_damaged_cache_is_made_anew(folder, tmp_path, damage, caplog):
  cache = tmp_path / 'cache'
  plain = _numbers(_load(folder, cache=str(cache)))
  (place,) = cache.glob('*/')
  path = place / 'target.values.npy'
  content = path.read_bytes()
  if damage == 'shorter':
    path.write_bytes(content[:-2])
  elif damage == 'other':
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
  elif damage == 'gone':
    path.unlink()
  else:  # a process was killed while it wrote
    place.rename(place.with_suffix('.tmp'))
  assert _numbers(_load(folder, cache=str(cache))) == plain
  assert ('is damaged, and is made anew' in caplog.text) == (damage != 'half')
  assert [*cache.glob('*/')] == [place]


def test_a_cache_of_sentences_without_words(folder, tmp_path):
  _write(folder / 'train.en.gz', ['A dog.', ''])
  _write(folder / 'train.de.gz', ['', ''])
  corpus = _load(folder, cache=str(tmp_path / 'cache'), vocabulary=12)
  assert corpus.train.target.values.size == 0
  assert corpus.train.target.lengths.tolist() == [0, 0]
  (tmp_path / 'file').write_text('')
  with pytest.raises(errors.FileError, match='cannot make the folder .*file'):
    _load(folder, cache=str(tmp_path / 'file'), vocabulary=12)


def test_a_cache_is_not_filled_by_texts_that_are_not_parallel(folder, tmp_path):
  _write(folder / 'train.de.gz', ['Ein Hund.'])
  for _ in range(2):
    with pytest.raises(errors.DataFileError, match='train.de.gz is damaged: 1'):
      _load(folder, cache=str(tmp_path / 'cache'), vocabulary=50)
    found = (tmp_path / 'cache').glob('*/')
    assert all(path.suffix == '.tmp' for path in found)


def test_nothing_is_written_to_a_cache_that_is_whole(folder, tmp_path):
  path = tmp_path / 'cache'
  plain = _numbers(_load(folder, cache=str(path)))
  for lock in path.glob('*.lock'):
    lock.unlink()
  assert _numbers(_load(folder, cache=str(path))) == plain
  assert not [*path.glob('*.lock')]
  with pytest.raises(errors.FileError, match='there is no folder'):
    _load(folder, cache='a\0b')


@pytest.mark.parametrize(
  'file, change, says',
  [
    ('train.de.gz', None, 'train.de is missing; .*same as .gz.*multi30k'),
    ('train.de.gz', lambda c: c[:-9], 'train.de.gz is damaged: .*end'),
    ('train.de.gz', lambda c: b'', 'damaged: 0 lines; expected as many'),
    ('train.de.gz', lambda c: b'text', 'damaged: Not a gzipped file'),
    ('val.de', lambda c: c + b'more\n', 'val.de is damaged: 6 lines; .* 5,'),
    ('val.de', lambda c: b'\xff\n' + c, 'val.de is damaged: .*utf-8'),
    ('val.de', 'folder', 'val.de is damaged: .*directory'),
  ],
)  # fmt: skip
def test_damaged_files_are_named(folder, file, change, says):
  path = folder / file
  content = path.read_bytes()
  path.unlink()
  if change == 'folder':
    path.mkdir()
  elif change:
    path.write_bytes(change(content))
  with pytest.raises(errors.DataFileError, match=says):
    _load(folder, 'validation')


@pytest.mark.parametrize(
  'changes, says',
  [
    ({'test_split': 'train'}, "other than train, got 'train'"),
    ({'test_split': '../val'}, "other than train, got '../val'"),
    ({'target': 'en'}, "two languages, got 'en' twice"),
    ({'vocabulary': 9}, 'data.vocabulary=9 does not fit .* smaller'),
    ({'vocabulary': 9000}, 'data.vocabulary=9000 .* too high .*<='),
  ],
)
def test_what_cannot_be_is_told(folder, changes, says):
  asked = {'name': 'multi30k', 'directory': str(folder), **changes}
  with pytest.raises(errors.ConfigError, match=says):
    translation.load(**asked)


def test_missing_sets_and_languages_are_told(folder, tmp_path):
  with pytest.raises(errors.DataFileError, match=r'train.fr is missing'):
    _load(folder, target='fr')
  with pytest.raises(errors.DataFileError, match='statmt.org.*translation-ta'):
    translation.load('wmt', str(tmp_path))


def _ragged(lengths):
  values = np.concatenate([np.arange(4, 4 + length) for length in lengths])
  return pairs.Ragged(values.astype(np.uint16), np.cumsum(lengths))


def _pairs():
  """500 pairs; the last ones are too long, or empty."""
  lengths = np.random.default_rng(0).integers(1, 30, (2, 500))
  lengths[0, 490:495], lengths[1, 495:498] = 99, 0
  return pairs.Pairs(_ragged(lengths[0]), _ragged(lengths[1]))


def _sampler(**changes):
  settings = {
    'num_workers': 3,
    'batch_tokens': 120,
    'seed': 0,
    'max_length': 40,
    'num_buckets': 4,
  }
  return translation.Sampler(_pairs(), **{**settings, **changes})


def test_rows_of_different_lengths():
  ragged = _ragged(np.array([2, 0, 3]))
  assert ragged.lengths.tolist() == [2, 0, 3]
  assert ragged.take(np.array([2, 0, 1, 0]), 3).tolist() == [
    [4, 5, 6],
    [4, 5, 0],
    [0, 0, 0],
    [4, 5, 0],
  ]


def test_an_epoch_sees_each_pair_once_and_fills_its_budget():
  sampler, lengths = _sampler(), _pairs().lengths
  seen, shapes = [], set()
  for step in range(sampler.steps_per_epoch):
    inputs = sampler.batch(step).inputs
    source, target = inputs['source'], inputs['target']
    workers, rows, length = source.shape
    assert source.shape == target.shape and workers == 3
    assert rows == 120 // length and inputs['weights'].shape[2] == length - 1
    shapes.add(source.shape)
    assert (target[..., 0] == bpe.BEGIN).all()
    sides = (source > 0).sum(-1) - 1, (target > 0).sum(-1) - 2
    seen += zip(*(side.ravel().tolist() for side in sides), strict=True)
  assert 1 < len(shapes) <= 4
  assert (sampler.counts['empty'], sampler.counts['too_long']) == (3, 5)
  known = list(
    zip(*(side.lengths.tolist() for side in _pairs()), strict=True)
  )  # fmt: skip
  usable = [pair for pair in known if min(pair) and max(pair) < 50]
  assert len(usable) == 500 - 8 and lengths.max() > 40
  for pair in seen:
    usable.remove(pair)
  assert len(usable) == sampler.counts['left_out'] < 3 * 30


def test_weights_make_the_loss_a_mean_over_pieces():
  inputs = _sampler().batch(2).inputs
  weights, counted = inputs['weights'], inputs['target'][..., 1:] > 0
  assert weights.dtype == np.float32
  losses = np.random.default_rng(0).random(weights.shape)
  np.testing.assert_allclose(
    (weights * losses).sum(-1).mean(-1),
    [losses[w][counted[w]].mean() for w in range(3)],
    rtol=1e-6,
  )
  assert (weights[~counted] == 0).all()


def _equal(one, other):
  return all(
    np.array_equal(array, other.inputs[name])
    for name, array in one.inputs.items()
  ) and np.array_equal(one.noise, other.noise)


def test_a_step_is_a_pure_function_of_the_seed():
  sampler = _sampler()
  steps = range(sampler.steps_per_epoch + 2)
  seen = [sampler.batch(step) for step in steps]
  other = _sampler()
  assert all(_equal(other.batch(step), seen[step]) for step in reversed(steps))
  assert not _equal(seen[0], _sampler(seed=1).batch(0))
  own = _sampler(workers=[2, 0]).batch(1)
  for name, array in own.inputs.items():
    np.testing.assert_array_equal(array, seen[1].inputs[name][[2, 0]])
  np.testing.assert_array_equal(own.noise, seen[1].noise[[2, 0]])
  ahead = data.Ahead(_sampler(), 2, len(steps))
  assert all(_equal(ahead.batch(step), seen[step]) for step in steps)
  before = sum(b.inputs['source'][:, :, 0].size for b in seen[:3])
  assert sampler.position(3) == (3, 0, before)


def test_a_pair_that_is_beyond_the_budget_is_told():
  with pytest.raises(
    errors.ConfigError, match='must be 32 or more, for pai.*got 20'
  ):
    _sampler(batch_tokens=20)
  with pytest.raises(errors.ConfigError, match='examples a step; .* has 492'):
    _sampler(batch_tokens=32 * 500)


def test_a_step_computes_the_lengths_of_its_own_pairs_only(monkeypatch):
  """Those of all pairs take milliseconds a step, of millions of pairs."""
  sampler, before = _sampler(batch_size=5), _sampler(batch_size=5).batch(3)

  def lengths(ragged):
    raise AssertionError(f'of all {len(ragged.ends)} rows')

  monkeypatch.setattr(pairs.Ragged, 'lengths', property(lengths))
  for name, array in sampler.batch(3).inputs.items():
    np.testing.assert_array_equal(array, before.inputs[name])


def test_lengths_of_some_rows_are_those_of_all():
  ragged = _pairs().source
  rows = np.array([0, 7, 499, 0, 3])
  np.testing.assert_array_equal(ragged.lengths_of(rows), ragged.lengths[rows])


@pytest.mark.parametrize('processes', [1, 3])
def test_a_walk_covers_each_piece_once(processes):
  test = _pairs()
  seen, pieces, shapes = [], 0, set()
  for process in range(processes):
    for rows, inputs in translation.walk(
      test,
      batch_tokens=64,
      num_buckets=3,
      process=process,
      processes=processes,
    ):
      count = len(rows)
      assert (inputs['weights'][count:] == 0).all()
      real = (inputs['target'][:count] > 0).sum(-1) - 2
      np.testing.assert_array_equal(real, test.target.lengths[rows])
      pieces += inputs['weights'].sum()
      shapes.add(inputs['source'].shape)
      seen += rows.tolist()
  assert sorted(seen) == list(range(500))
  assert pieces == (test.target.lengths + 1).sum()
  assert len(shapes) <= 3


@pytest.mark.slow
@pytest.mark.skipif(
  not os.environ.get('GRADSPARSE_DATA'), reason='needs GRADSPARSE_DATA'
)
def test_the_real_captions_have_their_published_counts():
  corpus = translation.load('multi30k')
  assert len(corpus.train.lengths) == 29_000
  assert len(corpus.references) == len(corpus.test.lengths) == 1000
  assert corpus.vocabulary.size == 4000
  held_out = translation.load('multi30k', '', 'validation')
  assert len(held_out.references) == 1014
  model = hashlib.sha256(corpus.vocabulary.model).digest()
  assert model == hashlib.sha256(held_out.vocabulary.model).digest()
  assert bpe.UNKNOWN not in corpus.train.source.values
  sampler = translation.Sampler(
    corpus.train, num_workers=4, batch_tokens=1000, seed=0
  )
  assert sampler.counts['empty'] == sampler.counts['too_long'] == 0
  assert sampler.counts['left_out'] < 4 * 15
  rows = np.arange(1000)
  taken = corpus.test.take(rows, int(corpus.test.lengths.max()))
  decoded = corpus.vocabulary.decode(taken['target'])
  same = sum(map(str.__eq__, decoded, corpus.references))
  assert same > 990  # but for characters that the training files do not have
