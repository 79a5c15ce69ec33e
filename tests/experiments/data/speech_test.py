"""Sets of speech: what is read of their files, and what a step hears."""

import os

from experiments import data
from experiments.data import speech
from experiments.data.speech import features
from experiments.program import errors
import numpy as np
import pytest
import soundfile
from tests.experiments.data import sounds


def _texts(recordings):
  return [utterance.text for utterance in recordings.utterances]


def test_a_spectrogram_is_that_of_its_frames():
  rng = np.random.default_rng(0)
  signal = rng.normal(0, 0.1, 16_000 // 2).astype(np.float32)
  found = features.log_spectrogram(signal, 16_000)
  assert found.shape == (49, 161) and found.dtype == np.float32
  samples = np.array([8000, 320, 319, 480])
  assert features.num_frames(samples, 16_000).tolist() == [49, 1, 1, 2]
  # By the definition of the discrete Fourier transform.
  angles = 2 * np.pi * np.outer(np.arange(161), np.arange(320)) / 320
  frame = signal[160 * 3 :][:320] * np.hamming(320)
  power = (np.cos(angles) @ frame) ** 2 + (np.sin(angles) @ frame) ** 2
  known = np.log(power + 1e-8)
  shift, scale = found[3].mean(), found[3].std() / known.std()
  np.testing.assert_allclose(
    found[3], (known - known.mean()) * scale + shift, atol=1e-3
  )
  assert abs(found.mean()) < 1e-4 and abs(found.std() - 1) < 1e-4


def test_louder_is_the_same_and_silence_is_a_number():
  rng = np.random.default_rng(0)
  signal = rng.normal(0, 0.1, 4000).astype(np.float32)
  one, other = (features.log_spectrogram(s, 8000) for s in (signal, 2 * signal))
  assert np.abs(one - other).max() < 1e-3
  assert features.num_bins(8000) == one.shape[1] == 81
  for samples in (1, 4000):
    silent = features.log_spectrogram(np.zeros(samples, np.float32), 8000)
    assert np.abs(silent).max() < 1e-6 and len(silent) >= 1


@pytest.mark.parametrize('kind', ['words', 'letters'])
def test_strings_of_digits_never_share_a_recording(tmp_path, kind):
  sounds.write_fsdd(tmp_path)
  corpus = speech.load('fsdd', str(tmp_path), transcripts=kind)
  used = [
    {os.path.basename(f) for u in part.utterances for f in u.files}
    for part in corpus
  ]
  assert not used[0] & used[1]
  assert used[1] == {
    f'{digit}_{speaker}_{number}.wav'
    for digit in range(3)
    for speaker in ('ann', 'bob')
    for number in range(5)
  }
  assert len(used[0]) == 2 * 3 * 7
  for part in corpus:
    for files, text in part.utterances:
      names = [os.path.basename(file).split('_') for file in files]
      assert 2 <= len(files) <= 5
      assert len({speaker for _, speaker, _ in names}) == 1
      digits = ('zero', 'one', 'two')
      assert text == ' '.join(digits[int(digit)] for digit, _, _ in names)
      labels = part.alphabet.encode(text)
      assert len(labels) == (len(files) if kind == 'words' else len(text))
      assert part.alphabet.decode(labels) == text
  assert corpus.train.alphabet.classes == {'words': 11, 'letters': 29}[kind]
  again = speech.load('fsdd', str(tmp_path), transcripts=kind)
  assert again.train.utterances == corpus.train.utterances


def test_held_out_strings_use_no_test_recording(tmp_path):
  folder = sounds.write_fsdd(tmp_path)
  for digit in range(3):
    for number in range(5):
      for speaker in ('ann', 'bob'):
        (folder / f'{digit}_{speaker}_{number}.wav').write_bytes(b'')
  corpus = speech.load('fsdd', str(folder), 'validation')
  numbers = [
    {int(f[:-4].split('_')[-1]) for u in part.utterances for f in u.files}
    for part in corpus
  ]
  assert numbers == [{10, 11}, set(range(5, 10))]


def test_a_string_is_its_recordings_one_after_the_other(tmp_path):
  sounds.write_fsdd(tmp_path)
  test = speech.load('fsdd', str(tmp_path), transcripts='words').test
  row = [text.startswith('zero two') for text in _texts(test)].index(True)
  frames = int(test.frames[row])
  taken = test.take(np.array([row]), frames + 3, 8)
  heard = taken['features'][0]
  files = test.utterances[row].files
  assert sum(len(soundfile.read(f)[0]) for f in files) // 80 - 1 == frames
  assert taken['frames'] == [frames] and (heard[frames:] == 0).all()
  assert heard[2].argmax() == 500 // 50  # bins are 50 Hz apart
  assert (
    heard[len(soundfile.read(files[0])[0]) // 80 + 2].argmax() == 1500 // 50
  )
  assert taken['labels'][0, :2].tolist() == [1, 3]
  assert (taken['labels'][0, len(files) :] == 0).all()
  assert taken['characters'] == [len(files)]
  assert {name: array.dtype for name, array in taken.items()} == {
    'features': np.float32,
    'frames': np.int32,
    'labels': np.int32,
    'characters': np.int32,
  }


@pytest.mark.parametrize('suffix', ['.wav', '.flac', '.sph'])
def test_an4_is_read_as_it_is_published(tmp_path, suffix):
  folder = sounds.write_an4(tmp_path, suffix)
  corpus = speech.load('an4', str(tmp_path))
  assert _texts(corpus.train) == [t.lower() for t in sounds.AN4['train']]
  assert _texts(corpus.test) == ['no', 'stop']
  assert corpus.train.frames.tolist() == [39, 49, 59, 69, 79]
  assert corpus.train.bins == 161
  heard = corpus.train.take(np.array([1]), 49, 16)
  assert (heard['features'][0].argmax(-1) == 500 // 50).all()
  text = corpus.train.alphabet.decode(heard['labels'][0, :15])
  assert text == 'enter fifty one'
  (folder / 'etc/an4_test.transcription').unlink()
  held_out = speech.load('an4', str(folder), 'validation')
  assert len(held_out.test.utterances) == 1
  assert sorted(_texts(held_out.train) + _texts(held_out.test)) == (
    sorted(_texts(corpus.train))
  )


def test_librispeech_trains_on_all_that_is_there(tmp_path):
  folder = sounds.write_librispeech(tmp_path)
  corpus = speech.load('librispeech', str(tmp_path))
  assert _texts(corpus.train) == [
    'northanger abbey', "this little work's", 'chapter one', 'and also', 'he'
  ]  # fmt: skip
  assert corpus.train.frames.tolist() == [39, 49, 39, 49, 59]
  for split, texts in (
    ('test', ['tested']),
    ('validation', ['held out']),
    ('test-other', ['noisy', 'and far']),
  ):
    loaded = speech.load('librispeech', str(folder), split)
    assert _texts(loaded.test) == texts
  with pytest.raises(errors.DataFileError, match='dev-other is missing'):
    speech.load('librispeech', str(folder), 'dev-other')


def _sampler(recordings, **changes):
  settings = {'num_workers': 2, 'batch_size': 3, 'seed': 0, 'num_buckets': 3}
  return speech.Sampler(recordings, **{**settings, **changes})


def _equal(one, other):
  return all(
    np.array_equal(array, other.inputs[name])
    for name, array in one.inputs.items()
  ) and np.array_equal(one.noise, other.noise)


def test_a_step_is_a_pure_function_of_the_seed(tmp_path):
  sounds.write_fsdd(tmp_path)
  train = speech.load('fsdd', str(tmp_path), transcripts='words').train
  sampler = _sampler(train)
  steps = range(sampler.steps_per_epoch + 2)
  seen = [sampler.batch(step) for step in steps]
  other = _sampler(train)
  for step in (steps[-1], 1, 0):
    assert _equal(other.batch(step), seen[step])
  assert not _equal(seen[0], _sampler(train, seed=1).batch(0))
  own = _sampler(train, workers=[1]).batch(1)
  for name, array in own.inputs.items():
    np.testing.assert_array_equal(array, seen[1].inputs[name][1:])
  np.testing.assert_array_equal(own.noise, seen[1].noise[1:])
  shapes = {batch.inputs['features'].shape for batch in seen}
  assert 1 < len(shapes) <= 3
  for batch in seen:
    inputs = batch.inputs
    assert inputs['labels'].shape[:2] == inputs['frames'].shape == (2, 3)
    assert inputs['characters'].max() <= inputs['labels'].shape[-1]
    assert inputs['frames'].max() <= inputs['features'].shape[2]
  assert sampler.position(steps[-1])[:2] == (steps[-1], 1)
  ahead = data.Ahead(_sampler(train), speech.AHEAD, len(steps))
  assert all(_equal(ahead.batch(step), seen[step]) for step in steps)


def test_an_epoch_hears_each_utterance_once(tmp_path):
  sounds.write_fsdd(tmp_path)
  train = speech.load('fsdd', str(tmp_path)).train
  taken = []
  train.take = lambda rows, *_: taken.append(rows) or {'rows': rows}
  sampler = _sampler(train)
  for step in range(sampler.steps_per_epoch):
    sampler.batch(step)
  rows = np.concatenate(taken)
  assert len(rows) == len(set(rows.tolist()))
  assert len(rows) == len(train.utterances) - sampler.counts['left_out']
  assert sampler.counts['left_out'] < 6 and sampler.counts['unalignable'] == 0


def test_what_ctc_cannot_say_is_left_out_and_counted(tmp_path):
  folder = sounds.write_an4(tmp_path)
  train = speech.load('an4', str(folder)).train
  assert train.needed.tolist() == [2, 15, 3, 7, 4]
  path = folder / 'etc/an4_train.transcription'
  path.write_text(path.read_text().replace('HELP', 'HELLO OO'))
  train = speech.load('an4', str(folder)).train
  assert train.characters[-1] == 8 and train.needed[-1] == 8 + 2
  sampler = _sampler(train, num_workers=1, batch_size=1, stride=5)
  assert sampler.counts['unalignable'] == 1  # 49 // 5 frames for 15 letters
  said = [sampler.batch(step).inputs['characters'].item() for step in range(4)]
  assert sampler.steps_per_epoch == 4 and sorted(said) == [2, 3, 7, 8]


@pytest.mark.parametrize('processes', [1, 2])
def test_a_walk_hears_each_utterance_once(tmp_path, processes):
  sounds.write_fsdd(tmp_path)
  test = speech.load('fsdd', str(tmp_path)).test
  seen = []
  for process in range(processes):
    for rows, inputs in speech.walk(
      test, batch_size=4, process=process, processes=processes
    ):
      assert inputs['features'].shape[0] == 4 and 1 <= len(rows) <= 4
      for row, labels, count in zip(
        rows, inputs['labels'], inputs['characters'], strict=False
      ):
        text = test.alphabet.decode(labels[:count])
        assert text == test.utterances[row].text
      seen += rows.tolist()
  assert sorted(seen) == list(range(len(test.utterances)))


def test_files_are_read_when_a_step_needs_them(tmp_path):
  folder = sounds.write_an4(tmp_path)
  train = speech.load('an4', str(folder)).train
  path = folder / 'wav/an4_clstk/train/an4-train-b.wav'
  path.unlink()
  train.take(np.arange(4), 80, 16)
  with pytest.raises(errors.DataFileError, match='an4-train-b.wav is missing'):
    train.take(np.arange(5), 80, 16)


FLAC = 'train-clean-100/19/198/19-198-0001.flac'
SCRIPT = 'train-clean-100/19/198/19-198.trans.txt'
WAV = 'wav/an4_clstk/train/an0-train-b.wav'


@pytest.mark.parametrize(
  'name, file, change, says',
  [
    ('librispeech', FLAC, None, '0001.flac is missing; .* 16,000 Hz.*openslr'),
    ('librispeech', FLAC, lambda c: c[:40], '0001.flac is damaged: '),
    ('librispeech', FLAC, lambda c: c[:-400], '0001.flac is damaged: '),
    ('librispeech', FLAC, lambda c: b'', '0001.flac is damaged: '),
    ('librispeech', FLAC, 'folder', '0001.flac is damaged: '),
    ('librispeech', SCRIPT, None, 'clean-100 is damaged: no transcript;'),
    ('librispeech', SCRIPT, lambda c: c + b'1-1-1 X\n', "line '1-1-1 X'; exp"),
    ('librispeech', SCRIPT, lambda c: c + b'19-198-7 X\n', '7.flac is missi'),
    ('librispeech', SCRIPT, lambda c: c + b'\xff', 'trans.txt is damaged: .*8'),
    ('librispeech', SCRIPT, lambda c: c.replace(b'B', b'3'), "has '3'; expect"),
    ('an4', WAV, None, 'an0-train-b.wav is missing; expected it, or the same'),
    ('an4', WAV, lambda c: c[:-100], r'damaged: 6,350 of 6,400 samples'),
    ('an4', WAV, lambda c: c[:44], 'an0-train-b.wav is damaged: '),
    ('an4', 'etc/an4_test.transcription', None, 'transcription is missing'),
    ('an4', 'etc/an4_test.transcription', lambda c: b'\n', 'damaged: no line;'),
    ('an4', 'etc/an4_test.transcription', lambda c: b'GO', "line 1 is 'GO';"),
  ],
)  # fmt: skip
def test_damaged_files_are_named(tmp_path, name, file, change, says):
  write = {'an4': sounds.write_an4, 'librispeech': sounds.write_librispeech}
  path = write[name](tmp_path) / file
  content = path.read_bytes()
  path.unlink()
  if change == 'folder':
    path.mkdir()
  elif change:
    path.write_bytes(change(content))
  with pytest.raises(errors.DataFileError, match=says):
    train = speech.load(name, str(tmp_path)).train
    train.take(np.arange(len(train.utterances)), 80, 32)


@pytest.mark.parametrize(
  'form, says',
  [
    ({'rate': 44_100}, '44,100 Hz and 1 channels; expected sound of 16,000 Hz'),
    ({'channels': 2}, '16,000 Hz and 2 channels; expected .* one channel'),
    ({'seconds': 0}, 'damaged: no samples'),
  ],
)
def test_sound_of_another_form_is_refused(tmp_path, form, says):
  folder = sounds.write_an4(tmp_path)
  sounds.tone(folder / WAV, **form)
  with pytest.raises(errors.DataFileError, match=says):
    speech.load('an4', str(folder))


def test_a_cut_off_sph_file_is_seen(tmp_path):
  folder = sounds.write_an4(tmp_path, '.sph')
  path = (folder / WAV).with_suffix('.sph')
  path.write_bytes(path.read_bytes()[:-100])
  with pytest.raises(errors.DataFileError, match='6,350 of 6,400 samples'):
    speech.load('an4', str(folder))


def test_odd_digits_are_told(tmp_path):
  folder = sounds.write_fsdd(tmp_path)
  sounds.tone(folder / '3_cat_7.wav', rate=8000)
  with pytest.raises(errors.DataFileError, match='damaged: 1 of cat; exp'):
    speech.load('fsdd', str(tmp_path))
  (folder / '3_cat_7.wav').rename(folder / 'cat.wav')
  with pytest.raises(errors.DataFileError, match='cat.wav is .* name'):
    speech.load('fsdd', str(tmp_path))
  for path in folder.glob('*.wav'):
    if not path.stem.endswith('_0'):
      path.unlink()
  with pytest.raises(errors.DataFileError, match='damaged: none of one part'):
    speech.load('fsdd', str(tmp_path))


@pytest.mark.parametrize(
  'arguments, says',
  [
    (('an4', '', 'test-clean'), 'test or validation for an4, got'),
    (('librispeech', '', 'train-clean-100'), 'test-other.* got'),
    (('an4', '', 'test', 'words'), "must be letters for an4, got 'words'"),
    (('fsdd', '', 'test', 'phones'), 'letters or words for fsdd'),
  ],
)
def test_unknown_splits_are_told(arguments, says):
  with pytest.raises(errors.ConfigError, match=says):
    speech.load(*arguments)


def test_a_set_that_is_not_there_is_told(tmp_path):
  for name, says in (
    ('fsdd', 'free-spoken-digit'),
    ('an4', 'train.transcription in one of'),
    ('librispeech', 'openslr'),
  ):
    with pytest.raises(errors.DataFileError, match=says):
      speech.load(name, str(tmp_path))


@pytest.mark.slow
@pytest.mark.skipif(
  not os.environ.get('GRADSPARSE_DATA'), reason='needs GRADSPARSE_DATA'
)
def test_the_real_digits_have_their_published_counts():
  corpus = speech.load('fsdd', transcripts='words')
  counts = [
    len({file for u in part.utterances for file in u.files}) for part in corpus
  ]
  assert counts == [2700, 300]
  for part, count in zip(corpus, counts, strict=True):
    assert part.characters.sum() == 4 * count  # each is in four strings
  sampler = speech.Sampler(
    corpus.train, num_workers=4, batch_size=4, seed=0, stride=2
  )
  assert sampler.counts['unalignable'] == 0
  heard = sampler.batch(0).inputs['features']
  assert np.isfinite(heard).all() and heard.shape[-1] == 81
