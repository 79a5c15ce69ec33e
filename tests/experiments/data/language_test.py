"""Text for language models: its symbols, its windows, and what is tested."""

import os

from experiments.data import language
from experiments.program import errors
import numpy as np
import pytest

FILES = {
  'train': ' the cat <unk> the dog \n the end \n',
  'valid': ' the end \n',
  'test': ' the cow \n',
}


@pytest.fixture
def folder(tmp_path):
  made = tmp_path / 'ptb'
  made.mkdir()
  for part, text in FILES.items():
    (made / f'ptb.{part}.txt').write_text(text)
  return made


def _words(corpus, numbers):
  return [corpus.symbols[number] for number in numbers]


def test_words_are_numbered_by_how_often_they_are(folder):
  corpus = language.load('ptb', str(folder))
  assert corpus.symbols == ('the', '<eos>', '<unk>', 'cat', 'dog', 'end')
  assert corpus.train.tolist() == [0, 3, 2, 0, 4, 1, 0, 5, 1]
  assert corpus.train.dtype == corpus.test.dtype == np.int32
  # The cow is in the test file only.
  assert _words(corpus, corpus.test) == ['the', '<unk>', '<eos>']
  assert corpus.symbols[corpus.end] == '<eos>'


def test_characters_have_no_spaces_around_a_line(folder):
  (folder / 'ptb.test.txt').write_text(' the cat \n\n')
  corpus = language.load('ptb_characters', str(folder.parent))
  assert ''.join(_words(corpus, corpus.train)) == (
    'the cat <unk> the dog\nthe end\n'
  )
  assert ''.join(_words(corpus, corpus.test)) == 'the cat\n\n'
  assert corpus.symbols[corpus.end] == '\n'


def test_validation_never_looks_at_the_test_file(folder):
  (folder / 'ptb.test.txt').unlink()
  corpus = language.load('ptb', str(folder), 'validation')
  assert _words(corpus, corpus.test) == ['the', 'end', '<eos>']
  with pytest.raises(errors.DataFileError, match='test.txt is missing.*rnnlm'):
    language.load('ptb', str(folder))


@pytest.mark.parametrize(
  'name, part, content, says',
  [
    ('ptb', 'train', b'\n \n', 'train.txt is damaged: no text; expected sente'),
    ('ptb', 'test', b'', 'test.txt is damaged: no text'),
    ('ptb', 'train', b'caf\xe9 \n', 'train.txt is damaged: .*utf-8'),
    ('ptb', 'train', b'the end\n', "'cow' is not in ptb.train.txt; .*<unk>"),
    ('ptb_characters', 'test', b'fox', "damaged: 'f' is not in ptb.train"),
  ],
)
def test_damaged_files_are_named(folder, name, part, content, says):
  (folder / f'ptb.{part}.txt').write_bytes(content)
  with pytest.raises(errors.DataFileError, match=says):
    language.load(name, str(folder))


def test_unknown_names_and_splits_are_told(folder):
  with pytest.raises(errors.ConfigError, match="validation .* got 'valid'"):
    language.load('ptb', str(folder), 'valid')
  with pytest.raises(errors.DataFileError, match="no data set 'ptb'"):
    language.load('ptb', str(folder.parent.parent / 'none'))


def _windows(size=100, **changes):
  settings = {'num_workers': 2, 'batch_size': 3, 'length': 4, 'seed': 0}
  text = np.arange(size, dtype=np.int32)
  return language.Windows(text, **{**settings, **changes})


def test_a_row_goes_on_where_it_was():
  windows = _windows()
  assert windows.steps_per_epoch == 4  # 16 columns
  steps = [windows.batch(step).inputs for step in range(4)]
  for batch in steps:
    assert {array.dtype for array in batch.values()} == {
      np.dtype(np.int32),
      np.dtype(bool),
    }
    np.testing.assert_array_equal(batch['targets'], batch['tokens'] + 1)
  rows = np.concatenate([batch['tokens'] for batch in steps], axis=-1)
  assert rows.shape == (2, 3, 16)
  np.testing.assert_array_equal(
    rows.reshape(6, 16), 16 * np.arange(6)[:, None] + np.arange(16)
  )
  assert windows.counts['left_out'] == 100 - rows.size


def test_rows_begin_anew_with_an_epoch():
  windows = _windows()
  first = [windows.batch(step).inputs['first'] for step in range(9)]
  assert [array.all() for array in first] == [i % 4 == 0 for i in range(9)]
  assert [array.any() for array in first] == [i % 4 == 0 for i in range(9)]
  for name, array in windows.batch(2).inputs.items():
    np.testing.assert_array_equal(windows.batch(6).inputs[name], array)
  assert windows.position(7) == (7, 1, 18)


def test_the_last_window_has_its_targets():
  windows = _windows(97)  # 6 rows of 16, and one beyond
  assert windows.steps_per_epoch == 4 and windows.counts['left_out'] == 1
  assert windows.batch(3).inputs['targets'].max() == 96
  with pytest.raises(errors.ConfigError, match='25 symbols; .* has 24'):
    _windows(24)
  assert _windows(25).steps_per_epoch == 1


def test_a_process_gets_the_windows_of_its_workers():
  whole, own = _windows().batch(5), _windows(workers=[1]).batch(5)
  for name, array in own.inputs.items():
    np.testing.assert_array_equal(array, whole.inputs[name][1:])
  np.testing.assert_array_equal(own.noise, whole.noise[1:])
  assert not np.array_equal(whole.noise, _windows().batch(1).noise)
  assert not np.array_equal(whole.noise, _windows(seed=1).batch(5).noise)
  # Inner workers share what would be their worker's.
  shared = _windows(num_workers=6, batch_size=1).batch(5).inputs
  for name, array in shared.items():
    np.testing.assert_array_equal(
      array.reshape(whole.inputs[name].shape), whole.inputs[name]
    )


@pytest.mark.parametrize('rows, length', [(1, 4), (3, 4), (2, 100), (7, 1)])
@pytest.mark.parametrize('processes', [1, 2, 3, 4, 12])
def test_a_walk_covers_each_symbol_once(rows, length, processes):
  text = np.arange(1, 31, dtype=np.int32)
  columns = -(-len(text) // rows)
  seen, weight, begins = [], 0.0, []
  for process in range(processes):
    known, number = None, -1
    for number, window in enumerate(
      language.walk(
        text,
        0,
        rows=rows,
        length=length,
        process=process,
        processes=processes,
      )
    ):
      assert window['tokens'].shape == (-(-rows // processes), length)
      assert window['tokens'].dtype == np.int32
      assert window['first'].all() == window['first'].any() == (number == 0)
      counts = window['weights'] > 0
      np.testing.assert_array_equal(
        window['tokens'][counts], window['targets'][counts] - 1
      )
      seen += window['targets'][counts].tolist()
      weight += window['weights'].sum()
      begins += window['targets'][counts[:, 0] & window['first'], 0].tolist()
      going_on = counts[:, 0]
      if known is not None:  # a row goes on where it was
        np.testing.assert_array_equal(
          window['tokens'][going_on, 0], known[going_on]
        )
      known = window['targets'][:, -1]
    # No process has fewer windows than others, though it may have no row.
    assert number + 1 == -(-columns // length)
  assert sorted(seen) == text.tolist() and weight == len(text)
  # The text is cut in the same places by however many processes.
  assert sorted(begins) == text[::columns].tolist()
  if rows == 1:
    assert seen == text.tolist()


@pytest.mark.slow
@pytest.mark.skipif(
  not os.environ.get('GRADSPARSE_DATA'), reason='needs GRADSPARSE_DATA'
)
def test_the_real_text_has_its_published_counts():
  words = language.load('ptb')
  assert (len(words.train), len(words.test)) == (929_589, 82_430)
  assert len(words.symbols) == 10_000
  assert words.symbols[:3] == ('the', '<unk>', '<eos>')
  assert len(language.load('ptb', '', 'validation').test) == 73_760
  characters = language.load('ptb_characters')
  assert len(characters.train) == 5_017_482
  assert len(characters.test) == 442_423
  assert len(characters.symbols) == 50
  held_out = language.load('ptb_characters', '', 'validation')
  assert len(held_out.test) == 393_042
