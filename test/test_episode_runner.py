# SPDX-License-Identifier: Apache-2.0
"""One episode, and an evaluation of several: outcomes, failures, interrupts, and what is kept of each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from point_env import MAX_STEPS, PointEnv, ReplayPolicy, settings

from openeta_ros.envs import EnvError
from openeta_ros.episodes import (
    Demonstration,
    EvaluationError,
    evaluate,
    files,
    record_demonstration,
    run_episode,
    without_times,
)
from openeta_ros.episodes.runner import policy_seed
from openeta_ros.vector_policy import PolicyUnavailable, wire


def stored(output: Path) -> Any:
    return json.loads((output / 'results.json').read_text())


def at(number: int, error: BaseException) -> Any:
    def look(now: int) -> None:
        if now == number:
            raise error

    return look


def test_an_episode_ends_in_the_row_that_succeeds() -> None:
    env, policy = PointEnv(), ReplayPolicy()
    demonstration = record_demonstration(env, 3)
    result = run_episode(env, policy, 3, demonstration=demonstration)
    assert (result.success, result.steps, result.reward, result.error) == (True, 8, 1.0, None)
    assert result.latency_ms is not None and result.latency_ms.count == 3


def test_an_episode_ends_without_success_when_its_budget_is_used_up() -> None:
    env, policy = PointEnv(expert_offset_rad=-0.1), ReplayPolicy()
    result = run_episode(env, policy, 0, demonstration=record_demonstration(env, 0))
    assert (result.success, result.steps, result.reward) == (False, MAX_STEPS, 0.0)


def test_clamped_joints_are_counted_in_the_rows_that_were_executed() -> None:
    env, policy = PointEnv(), ReplayPolicy()
    demonstration = record_demonstration(env, 3)
    env.clamped = ('elbow', 'arm.workspace')
    result = run_episode(env, policy, 3, demonstration=demonstration)
    assert result.clamped == {'elbow': result.steps, 'arm.workspace': result.steps}


def test_the_policy_is_told_a_seed_that_is_not_the_scene_seed() -> None:
    env, policy = PointEnv(), ReplayPolicy()
    result = run_episode(env, policy, 3, demonstration=record_demonstration(env, 3))
    assert policy.seeds == [policy_seed(3)] == [result.policy_seed]
    assert policy_seed(3) != 3 and policy_seed(4) != policy_seed(3) + 1


def test_a_refused_action_loses_the_episode_and_the_evaluation_goes_on(tmp_path: Path) -> None:
    results = evaluate(PointEnv(), ReplayPolicy(poison=np.nan), settings(tmp_path))
    assert results.status == 'complete'
    assert [episode.scored for episode in results.episodes] == [True, True]
    for episode in stored(tmp_path)['episodes']:
        assert (episode['success'], episode['steps']) == (False, 0)
        assert episode['error'] == {'kind': 'not_finite', 'message': 'row 2, joint shoulder_yaw: not finite'}


def test_an_error_that_the_policy_answers_loses_that_episode_only(tmp_path: Path) -> None:
    error = PolicyUnavailable('act: ValueError: no idea', op='act', remote_type='ValueError')
    results = evaluate(PointEnv(), ReplayPolicy(at(1, error)), settings(tmp_path))
    assert [episode.success for episode in results.episodes] == [False, True]
    assert results.episodes[0].steps == 3
    assert results.episodes[0].error.model_dump() == {'kind': 'policy', 'message': 'act: ValueError: no idea'}


def test_a_policy_that_goes_away_ends_the_evaluation_and_keeps_what_there_is(tmp_path: Path) -> None:
    error = PolicyUnavailable('act: the policy went away: EOFError', op='act')
    with pytest.raises(EvaluationError, match='went away') as caught:
        evaluate(PointEnv(), ReplayPolicy(at(4, error)), settings(tmp_path, episodes=3))
    assert (caught.value.kind, caught.value.episodes) == ('policy', 1)
    data = stored(tmp_path)
    assert data['status'] == 'failed'
    assert data['error'] == {'kind': 'policy', 'message': 'act: the policy went away: EOFError'}
    assert [episode['success'] for episode in data['episodes']] == [True]
    assert sorted(path.name for path in (tmp_path / 'episodes').iterdir()) == ['0', '1.partial']


def test_an_env_that_dies_ends_the_evaluation_and_keeps_what_there_is(tmp_path: Path) -> None:
    # 8 rows of the expert and 8 of the policy an episode.
    env = PointEnv(before_row=at(30, EnvError('physics', 'diverged')))
    with pytest.raises(EvaluationError, match='diverged') as caught:
        evaluate(env, ReplayPolicy(), settings(tmp_path, episodes=3))
    assert (caught.value.kind, caught.value.episodes) == ('env', 1)
    assert stored(tmp_path)['status'] == 'failed'


@pytest.mark.parametrize('interrupt', [KeyboardInterrupt(), SystemExit(143)])
def test_an_interrupt_passes_through_and_keeps_what_there_is(
    tmp_path: Path, interrupt: BaseException
) -> None:
    with pytest.raises(type(interrupt)):
        evaluate(PointEnv(before_row=at(27, interrupt)), ReplayPolicy(), settings(tmp_path, episodes=3))
    data = stored(tmp_path)
    assert (data['status'], data['error']['kind'], len(data['episodes'])) == ('interrupted', 'interrupted', 1)
    assert (tmp_path / 'episodes' / '1.partial' / 'bag' / 'metadata.yaml').is_file()


def test_an_expert_that_fails_makes_an_episode_that_is_not_scored(tmp_path: Path) -> None:
    with pytest.raises(
        EvaluationError, match='no episode could be scored: the expert did not solve the scene of seed 0'
    ) as caught:
        evaluate(PointEnv(expert_offset_rad=-0.1), ReplayPolicy(), settings(tmp_path))
    assert caught.value.kind == 'demonstration'
    data = stored(tmp_path)
    assert [episode['scored'] for episode in data['episodes']] == [False, False]
    assert data['episodes'][0]['error']['kind'] == 'demonstration'
    assert data['success_rate'] == {'n': 0, 'successes': 0, 'rate': None, 'low': 0.0, 'high': 1.0}


def test_a_scene_that_the_expert_cannot_reach_does_not_stop_the_others(tmp_path: Path) -> None:
    class Env(PointEnv):
        def expert(self) -> np.ndarray:
            if self._goal_rad < 0.3:
                raise EnvError('no_expert', 'way point 3 is out of reach')
            return super().expert()

    results = evaluate(Env(), ReplayPolicy(), settings(tmp_path, episodes=4))
    assert results.status == 'complete'
    assert {episode.scored for episode in results.episodes} == {True, False}
    assert all(episode.success == episode.scored for episode in results.episodes)
    lost = next(episode for episode in results.episodes if not episode.scored)
    assert lost.error.model_dump() == {'kind': 'demonstration', 'message': 'way point 3 is out of reach'}
    assert results.success_rate.n == results.success_rate.successes < 4


def test_a_given_demonstration_is_shown_in_every_episode(tmp_path: Path) -> None:
    file = tmp_path / 'demo.npz'
    record_demonstration(PointEnv(), 0).save(file)
    results = evaluate(PointEnv(), ReplayPolicy(), settings(tmp_path, demonstration=str(file)))
    assert [episode.success for episode in results.episodes] == [True, False]  # made in the scene of seed 0


def test_a_given_demonstration_that_cannot_be_sent_ends_the_evaluation_in_one_sentence(
    tmp_path: Path,
) -> None:
    class Sends(ReplayPolicy):
        def set_demonstration(self, demonstration: Demonstration) -> None:
            wire.encode('prompt', {}, demonstration.arrays)

    np.savez(tmp_path / 'named.npz', actions=np.zeros((2, 7)), names=np.array(['a', 'b']))
    asked = settings(tmp_path / 'out', demonstration=str(tmp_path / 'named.npz'))
    with pytest.raises(EvaluationError, match="array 'names': dtype <U1 cannot be sent") as caught:
        evaluate(PointEnv(), Sends(), asked)
    assert caught.value.kind == 'demonstration'


def test_an_episode_that_was_never_seen_has_no_video(tmp_path: Path) -> None:
    class Unlucky(ReplayPolicy):
        def reset(self, seed: int) -> None:
            raise PolicyUnavailable('reset: no luck', remote_type='RuntimeError')

    results = evaluate(PointEnv(), Unlucky(), settings(tmp_path, episodes=1))
    (episode,) = results.episodes
    assert episode.files is not None and episode.files.videos == {}
    assert 'the video is not there' not in (tmp_path / 'report.html').read_text()


def test_videos_that_cannot_be_made_end_the_evaluation_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_codec(*arguments: object) -> None:
        raise ValueError('libx264 is unknown')

    monkeypatch.setattr(files, 'VideoFile', no_codec)
    with pytest.raises(EvaluationError, match=r'cannot write videos .*libx264 is unknown') as caught:
        evaluate(PointEnv(), ReplayPolicy(), settings(tmp_path, episodes=1))
    assert caught.value.kind == 'output'


def test_results_are_there_before_the_first_episode_and_after_each(tmp_path: Path) -> None:
    seen = []

    class Look:
        def episode_started(self, index: int, seed: int, note: str) -> None:
            seen.append((stored(tmp_path)['status'], len(stored(tmp_path)['episodes'])))

        def episode_ended(self, index: int, result: Any) -> None: ...
        def started(self, sensors: Any) -> None: ...
        def chunk(self, *arguments: Any) -> None: ...
        def row(self, *arguments: Any) -> None: ...

    evaluate(PointEnv(), ReplayPolicy(), settings(tmp_path), [Look()])
    assert seen == [('running', 0), ('running', 0), ('running', 1), ('running', 1)]
    assert stored(tmp_path)['status'] == 'complete'
    assert not list(tmp_path.glob('*.partial')) and not list((tmp_path / 'episodes').glob('*.partial'))


def test_repeated_runs_are_equal_without_times(tmp_path: Path) -> None:
    for name in ('a', 'b'):
        evaluate(PointEnv(), ReplayPolicy(), settings(tmp_path / name))
    assert stored(tmp_path / 'a') != stored(tmp_path / 'b')
    assert without_times(stored(tmp_path / 'a')) == without_times(stored(tmp_path / 'b'))


def test_a_full_disk_ends_the_evaluation_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / 'episodes').write_text('a file where a folder belongs')
    with pytest.raises(EvaluationError, match='episodes') as caught:
        evaluate(PointEnv(), ReplayPolicy(), settings(tmp_path))
    assert (caught.value.kind, caught.value.episodes) == ('output', 0)
    assert stored(tmp_path)['error']['kind'] == 'output'
