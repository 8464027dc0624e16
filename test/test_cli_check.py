# SPDX-License-Identifier: Apache-2.0
"""`openeta check`: whatever an evaluation would refuse of a policy is named, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from openeta_ros.cli.main import main

ROOT = Path(__file__).parents[1]
GOOD = """
import numpy as np

class Policy:
    action_type = 'qpos'
    def __init__(self, **kwargs): pass
    def reset(self, seed): self.shown = None
    def set_demonstration(self, arrays, info): self.shown = arrays['actions']
    def act(self, observation):
        print('thinking')
        return {'action': np.tile(self.shown[-1], (4, 1)), 'confidence': np.ones(2)}
"""


def written(folder: Path, text: str = GOOD, manifest: str = '') -> Path:
    (folder / 'mine.py').write_text(text)
    (folder / 'policy.yaml').write_text(f'api: 1\npolicy: mine:Policy\n{manifest}')
    return folder


def checked(capsys: pytest.CaptureFixture[str], policy: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Return the exit code, and the checks by name."""
    code = main(['check', str(policy), '--embodiment', 'light_arm', '--json', *arguments])
    return code, {check['name']: check for check in json.loads(capsys.readouterr().out)}


def answering(action: str) -> str:
    """A policy that answers with this."""
    return GOOD.replace('np.tile(self.shown[-1], (4, 1))', action)


def test_nothing_of_a_good_policy_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, checks = checked(capsys, written(tmp_path))
    assert code == 0 and {check['status'] for check in checks.values()} == {'ok'}
    episode = ['reset', 'demonstration', 'act', 'actions of act', 'next act', 'actions of next act']
    again = [f'{name} of the second episode' for name in episode]
    assert list(checks) == ['policy.yaml', 'start', *episode, *again]
    assert '4 rows of 7 float64' in checks['actions of act']['found']


@pytest.mark.parametrize('name', ['replay_policy', 'zero_policy'])
def test_the_examples_are_checked_by_their_names(capsys: pytest.CaptureFixture[str], name: str) -> None:
    code, checks = checked(capsys, Path('examples') / name)
    actions = checks['actions of act']
    # Zeros are far from where the arm is.
    assert (code, actions['status']) == ((0, 'ok') if name == 'replay_policy' else (1, 'refused'))
    assert checks['act']['status'] == 'ok'


@pytest.mark.parametrize(
    ('text', 'manifest', 'name', 'words'),
    [
        (GOOD, 'colour: red\n', 'policy.yaml', ("unknown key(s) 'colour'",)),
        (GOOD, 'requirements: nowhere.txt\n', 'policy.yaml', ('not a file in the repository',)),
        ('raise RuntimeError("no weights here")', '', 'start', ('RuntimeError', 'no weights here')),
        ('import no_such_package', '', 'start', ('ModuleNotFoundError', 'no_such_package')),
        (GOOD.replace("'qpos'", "'torque'"), '', 'start', ("action_type is 'torque'",)),
        (GOOD.replace('self.shown = None', '1 / 0'), '', 'reset', ('ZeroDivisionError',)),
        (GOOD.replace("['actions']", "['tactile']"), '', 'demonstration', ('KeyError', "'tactile'")),
        (answering('None').replace("{'action'", "{'rows'"), '', 'act', ("no 'action'",)),
        (answering('np.array([None] * 7)'), '', 'act', ('dtype object cannot be sent',)),
        (answering("np.array(['a'] * 7)"), '', 'act', ('dtype <U1 cannot be sent',)),
        (answering('np.zeros(5)'), '', 'actions of act', ('(1, 5)', '(shape)')),
        (answering('self.shown[-1] + np.nan'), '', 'actions of act', ('shoulder_yaw is nan', '(not_finite)')),
        (answering('self.shown[-1] > 0'), '', 'actions of act', ('dtype bool', '(dtype)')),
        (answering('self.shown[-1] + 3'), '', 'actions of act', ('row 0',)),
        (answering('__import__("os")._exit(3)'), '', 'act', ('went away',)),
    ],
)  # fmt: skip
def test_what_an_evaluation_would_refuse_is_named(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    text: str,
    manifest: str,
    name: str,
    words: tuple[str, ...],
) -> None:
    code, checks = checked(capsys, written(tmp_path, text, manifest))
    refused = [check for check in checks.values() if check['status'] == 'refused']
    assert code == 1 and refused[0]['name'] == name, checks
    assert all(word in refused[0]['found'] for word in words), refused[0]
    if 'weights' in text:
        assert 'Traceback' in refused[0]['log']


def test_a_list_of_numbers_is_an_action(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, checks = checked(capsys, written(tmp_path, answering('[float(x) for x in self.shown[-1]]')))
    assert code == 0 and '1 row of 7 float64' in checks['actions of act']['found']


def test_an_answer_that_never_comes_ends_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = written(tmp_path, answering('__import__("time").sleep(600)'))
    code, checks = checked(capsys, source, '--timeout', '0.5')
    last = list(checks)[-1]  # on a busy machine one before `act` may be late too
    assert code == 1 and 'no answer within 0.5s' in checks[last]['found']
    assert [check['status'] for check in checks.values()] == ['ok'] * (len(checks) - 1) + ['refused']


def test_packages_that_are_not_installed_are_told_and_not_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / 'requirements.txt').write_text(
        '# what it needs\nnumpy>=1.20\nno-such-package==1.0\n-r more\ngit+https://nowhere.invalid/x.git\n./here\n'
    )
    code, checks = checked(capsys, written(tmp_path, GOOD, 'requirements: requirements.txt\n'))
    assert code == 0 and checks['requirements']['status'] == 'warning'
    assert checks['requirements']['found'] == 'not installed here: no-such-package'


def test_lines_for_people_hold_the_end_of_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['check', str(written(tmp_path, '1 / 0')), '--embodiment', 'light_arm']) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith('ok      policy.yaml: mine:Policy') and lines[1].startswith('refused start: ')
    assert any(line.startswith('    | ') and 'ZeroDivisionError' in line for line in lines)


@pytest.mark.parametrize(
    ('arguments', 'code', 'word'),
    [
        (('nowhere/',), 1, 'does not exist'),
        (('127.0.0.1:5555',), 1, '127.0.0.1:5555 does not exist (name a directory with policy.yaml'),
        (('n' * 300,), 1, 'does not exist'),
        (('examples/zero_policy', '--embodiment', 'octopus'), 2, 'octopus'),
        (('examples/zero_policy', '--timeout', '0'), 2, '--timeout'),
    ],
)
def test_what_is_not_there_is_told(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: int, word: str
) -> None:
    assert main(['check', *arguments]) == code
    out = capsys.readouterr()
    assert word in (out.err if code == 2 else out.out)
