# SPDX-License-Identifier: Apache-2.0
"""Snippets that are broken or hostile do no harm, end within their limits, and get an error that fits."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from hostile_snippets import Case, corpus
from point_env import PointEnv

from openeta_ros.code_policy import (
    Budgets,
    CodePolicyApi,
    CodePolicyExecutionRequest,
    CodePolicyExecutionResult,
    CodePolicySandbox,
    CodePolicyStatus,
    SandboxConfig,
)
from openeta_ros.code_policy.isolation import without_bubblewrap

BUDGETS = Budgets(
    wall_s=0.5,
    cpu_s=1,
    memory_bytes=500 << 20,
    output_bytes=20_000,
    file_bytes=4 << 20,
    message_bytes=8 << 20,
    calls=50,
    rows=50,
    checkpoints=5,
)
# What works in one of them may not in the other; bubblewrap adds walls to the same process.
EVERYWHERE = SandboxConfig(isolation='process', preflight=False)


CONTROLS = {*map(chr, range(9)), *map(chr, range(11, 32)), *map(chr, range(127, 160))}
LOCAL = threading.local()


class Outside:
    """What a snippet might harm: a file, a folder, a port, this process."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.canary = folder / 'canary'
        self.canary.write_text('alive')
        self.folder = folder
        self.listener = socket.create_server(('127.0.0.1', 0))
        self.listener.setblocking(False)

    def fill_in(self, code: str) -> str:
        values = {
            'SPOILS_NAME': 'spoils',
            'SPOILS': str(self.folder / 'spoils'),
            'CANARY': str(self.canary),
            'PORT': str(self.listener.getsockname()[1]),
            'PARENT': str(os.getpid()),
        }
        for name, value in values.items():
            code = code.replace(name, value)
        return code

    def check(self) -> None:
        assert self.canary.read_text() == 'alive'
        assert os.listdir(self.folder) == ['canary']
        with pytest.raises(BlockingIOError):
            self.listener.accept()
        self.listener.close()


def own_api() -> CodePolicyApi:
    """Return the api of this thread."""
    if not hasattr(LOCAL, 'api'):
        env = PointEnv()
        LOCAL.api = CodePolicyApi(env, env.embodiment)
    api: CodePolicyApi = LOCAL.api
    return api


def run_case(case: Case, outside: Outside, config: SandboxConfig) -> CodePolicyExecutionResult:
    # Only those that would use up all of it have little time: machines may be busy.
    budgets = BUDGETS if {'timeout', 'cpu'} & set(case.kinds) else replace(BUDGETS, wall_s=240.0, cpu_s=60)
    code = outside.fill_in(case.code)
    request = CodePolicyExecutionRequest(code, api=own_api(), seed=1, budgets=budgets)
    return CodePolicySandbox(config).execute(request)


def check_result(case: Case, result: CodePolicyExecutionResult) -> None:
    error = result.details['error']
    assert (error and error['kind']) in case.kinds, result.content
    assert result.status is (CodePolicyStatus.FAILED if error else CodePolicyStatus.EXECUTED), result.content
    if error:
        assert error['message'] and result.content.startswith('failed (')
    assert result.details['isolation']['not_enforced'] == []
    assert len(result.details['output'].encode()) <= BUDGETS.output_bytes
    json.dumps(result.to_dict(), allow_nan=False)
    assert CONTROLS.isdisjoint(result.content), 'a terminal would obey it'
    result.content.encode('utf-8')


def children() -> set[str]:
    found: set[str] = set()
    for path in Path('/proc/self/task').glob('*/children'):
        with contextlib.suppress(OSError):  # a thread that has just ended
            found |= set(path.read_text().split())
    return found


Runs = dict[str, tuple[Outside, 'Future[CodePolicyExecutionResult]']]


@pytest.fixture(scope='module')
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """All of them, three at a time: most of a run is the start of its process."""
    folder = tmp_path_factory.mktemp('hostile')
    scratch = folder / 'scratch'
    scratch.mkdir()
    before = children()
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(3) as pool:
        patch.setattr(tempfile, 'tempdir', str(scratch))
        started: Runs = {}
        for case in corpus():
            outside = Outside(folder / case.name)
            started[case.name] = (outside, pool.submit(run_case, case, outside, EVERYWHERE))
        first = started['division_by_zero'][1].result().details['error']
        if first['kind'] == 'isolation':
            pytest.skip(first['message'])
        yield started
    assert list(scratch.iterdir()) == [], 'a scratch folder is left behind'
    assert children() <= before, 'a process is left behind'


def test_the_corpus_is_large_enough() -> None:
    names = [case.name for case in corpus()]
    assert len(names) == len(set(names)) >= 120


@pytest.mark.parametrize('case', corpus(), ids=lambda case: case.name)
def test_no_harm_is_done(case: Case, runs: Runs) -> None:
    outside, run = runs[case.name]
    check_result(case, run.result())
    outside.check()


INSIDE = ('files_outside', 'network', 'fork_bomb', 'signals', 'endless_loop', 'segmentation_fault',
          'use_of_the_scratch_folder', 'memory_bomb')  # fmt: skip


@pytest.mark.skipif(bool(without_bubblewrap('auto')), reason=without_bubblewrap('auto'))
@pytest.mark.parametrize(
    'case', [case for case in corpus() if case.name in INSIDE], ids=lambda case: case.name
)
def test_no_harm_is_done_in_bubblewrap(case: Case, tmp_path: Path) -> None:
    outside = Outside(tmp_path / 'outside')
    result = run_case(case, outside, SandboxConfig(isolation='bubblewrap', preflight=False))
    check_result(case, result)
    assert 'bubblewrap' in result.details['isolation']['layers']
    outside.check()
