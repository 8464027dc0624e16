# SPDX-License-Identifier: Apache-2.0
"""`openeta show`: our recordings, those of others, and broken ones."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from recorded import recorded
from rosbags.rosbag2 import StoragePlugin, Writer

from openeta_ros.cli.main import main
from openeta_ros.episodes.definitions import typestore


@pytest.fixture(scope='module')
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp('show') / 'out')


def test_an_episode_tells_what_it_is_and_its_topics(output: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['show', str(output / 'episodes' / '0')]) == 0
    lines = capsys.readouterr().out.splitlines()
    told = dict(line.split(maxsplit=1) for line in lines)
    assert told['task'] == 'point in point' and told['seed'] == '0'
    assert told['policy'] == 'point_env:ReplayPolicy (qpos)'
    assert told['outcome'] == 'success after 8 steps, reward 1'
    assert told['/camera/front/image_raw'].split() == ['9', '20.00', 'Hz', 'sensor_msgs/msg/Image']
    assert not any(line.startswith('note') for line in lines)


def test_the_mcap_alone_tells_the_same(output: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for place in ('bag', 'bag/bag.mcap'):
        assert main(['show', str(output / 'episodes' / '0' / place), '--json']) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0]['facts'] == found[1]['facts'] and found[0]['topics'] == found[1]['topics']
    assert found[0]['facts']['contract'].startswith('# Our own arm')
    assert found[0]['facts']['episode']['success'] is True


@pytest.mark.parametrize('storage', list(StoragePlugin))
def test_rates_and_gaps_of_a_recording_of_others(
    tmp_path: Path, storage: StoragePlugin, capsys: pytest.CaptureFixture[str]
) -> None:
    types = typestore()
    message = types.types['std_msgs/msg/String'](data='x')
    with Writer(tmp_path / 'bag', version=9, storage_plugin=storage) as writer:
        connection = writer.add_connection('/chatter', 'std_msgs/msg/String', typestore=types)
        for tick in (*range(10), *range(15, 25)):
            data = types.serialize_cdr(message, 'std_msgs/msg/String')
            writer.write(connection, 1_000_000_000 + tick * 100_000_000, data)
    assert main(['show', str(tmp_path / 'bag'), '--json']) == 0
    (topic,) = json.loads(capsys.readouterr().out)['topics']
    assert (topic['messages'], topic['gaps'], topic['longest_gap_s']) == (20, 1, pytest.approx(0.6))
    assert topic['rate_hz'] == pytest.approx(19 / 2.4)


def test_a_truncated_file_is_shown_as_far_as_it_is_whole(
    output: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = (output / 'episodes/0/bag/bag.mcap').read_bytes()
    (tmp_path / 'cut.mcap').write_bytes(whole[:-37])
    assert main(['show', str(tmp_path / 'cut.mcap')]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[:2] == ['/joint_states', '9'] for line in lines)
    assert lines[-1].startswith('note: ')


def test_what_is_no_recording_is_refused_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / 'noise.mcap').write_bytes(np.random.default_rng(0).bytes(1000))
    assert main(['show', str(tmp_path / 'noise.mcap')]) == 1
    assert main(['show', str(tmp_path / 'nothing.mcap')]) == 2
    assert [line.split(':')[0] for line in capsys.readouterr().err.splitlines()] == ['openeta show'] * 2


@pytest.mark.skipif(importlib.util.find_spec('rerun') is not None, reason='rerun-sdk is installed')
def test_without_the_viewer_installed_it_says_how_to_get_it(
    output: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(['show', str(output / 'episodes' / '0'), '--rerun', str(tmp_path / 'x.rrd')]) == 2
    assert 'pip install rerun-sdk' in capsys.readouterr().err
    assert not (tmp_path / 'x.rrd').exists()
