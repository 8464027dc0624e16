# SPDX-License-Identifier: Apache-2.0
"""An evaluation by several workers at once, with the results that one of them would have.

Each worker is an `openeta eval` of its own (a graph in a ROS domain of its own, where the transport is ros)
for a share of the episodes that lie one after the other. What they write is put together: results.json holds
the episodes that are done, in their order, while it runs with the files where the workers write them.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from openeta_ros.episodes.settings import EvalSettings
from openeta_ros.nodes.start import HELD_SIGNALS, signals_held

if TYPE_CHECKING:
    from openeta_ros.episodes import EpisodeResult, Report, Results
    from openeta_ros.episodes.results import Failure

FOLDER = 'workers'
LOG = 'worker.log'
POLL_S = 0.1
# How long a worker may take to end when it is told to: its own graph gets 8 s.
END_S = 15.0
PR_SET_PDEATHSIG = 1
SAYS = 'openeta eval: '
# Options that are not called as the setting is.
OPTIONS = {'policy_timeout_s': '--policy-timeout', 'execution_horizon': '--horizon'}


def run_workers(settings: EvalSettings, count: int) -> int:
    """Evaluate with `count` workers, tell how it goes, and return the exit code."""
    from rich.console import Console

    from openeta_ros.episodes import Report

    evaluation = _Evaluation(settings, count)
    with Report(Console(), settings.episodes) as report:
        report.note(f'{len(evaluation.workers)} workers; their output is in {evaluation.folder}')
        try:
            results = evaluation.run(report)
        except OSError as error:
            print(f'openeta eval: {error}', file=sys.stderr)
            return 1
    if results is not None and results.status == 'complete':
        report.finished(results)
        return 0
    if results is None or results.error is None:
        print(f'openeta eval: {evaluation.failure}', file=sys.stderr)
    else:
        kept = (
            f'{len(results.episodes)} of {settings.episodes} episodes are in {settings.output}/results.json'
        )
        print(f'openeta eval: {results.error.message}; {kept}', file=sys.stderr)
    return evaluation.code or 1


@dataclass
class _Worker:
    """One `openeta eval` and the episodes that it does: `first` and on."""

    first: int
    settings: EvalSettings
    process: subprocess.Popen[bytes] | None = None
    results: Results | None = None
    written_ns: int = 0

    @property
    def folder(self) -> Path:
        return Path(self.settings.output)

    @property
    def done(self) -> bool:
        """Whether each of its episodes came to its end."""
        return self.results is not None and len(self.results.episodes) == self.settings.episodes

    def start(self) -> None:
        """Start it. It ends when this process does."""
        libc = ctypes.CDLL(None)  # loaded before the fork

        def prepare() -> None:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_SIGNALS)

        self.folder.mkdir(parents=True)
        with (self.folder / LOG).open('wb') as log, signals_held():
            self.process = subprocess.Popen(
                command(self.settings),
                # Each graph has a domain of its own.
                env={name: value for name, value in os.environ.items() if name != 'ROS_DOMAIN_ID'},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C in the terminal is this process's to handle
                preexec_fn=prepare,
            )

    def look(self) -> list[EpisodeResult]:
        """Read its results.json, where that changed, and return the episodes that are new in it."""
        from openeta_ros.episodes.results import FILENAME, read

        path = self.folder / FILENAME
        try:
            written_ns = path.stat().st_mtime_ns
        except FileNotFoundError:
            return []
        if written_ns == self.written_ns:
            return []
        known = len(self.results.episodes) if self.results is not None else 0
        self.written_ns, self.results = written_ns, read(path)
        return list(self.results.episodes[known:])

    def failure(self) -> str:
        """Return why it ended early."""
        assert self.process is not None
        log = self.folder / LOG
        lines = log.read_text(errors='replace').splitlines()
        said = [line.removeprefix(SAYS) for line in lines if line.startswith(SAYS)]
        ended = f'a worker ended with exit code {self.process.returncode}; its output is in {log}'
        return said[-1] if said else ended


class _Evaluation:
    def __init__(self, settings: EvalSettings, count: int) -> None:
        from openeta_ros.episodes.runner import utc_now

        self.folder = Path(settings.output) / FOLDER
        self.failure = ''
        self.code = 0
        self._settings = settings
        self._started_at, self._begin = utc_now(), time.monotonic()
        self._latencies_ms: dict[int, list[float]] = {}
        count = min(count, settings.episodes)
        bounds = [settings.episodes * index // count for index in range(count + 1)]
        self.workers = [
            _Worker(
                first,
                replace(
                    settings,
                    output=str(self.folder / str(index)),
                    seed=settings.seed + first,
                    episodes=end - first,
                ),
            )
            for index, (first, end) in enumerate(itertools.pairwise(bounds))
        ]

    def run(self, report: Report) -> Results | None:
        """Carry it out as far as it goes; return the results, None when there is nothing to tell."""
        try:
            for worker in self.workers:
                worker.start()
            while self._look(report):
                time.sleep(POLL_S)
        except (KeyboardInterrupt, SystemExit):
            from openeta_ros.episodes.results import Failure

            self._end()
            self._look(report)
            self._write(
                'interrupted', Failure(kind='interrupted', message='stopped from outside'), moved=True
            )
            raise
        finally:
            self._end()
        self._look(report)
        return self._finished()

    def _look(self, report: Report) -> bool:
        """Tell of what is new; return whether there is anything to wait for."""
        news = False
        for worker in self.workers:
            known = len(worker.results.episodes) if worker.results is not None else 0
            for offset, episode in enumerate(worker.look(), known):
                news = True
                index = worker.first + offset
                self._latencies_ms[index] = _latencies_ms(worker.folder, episode)
                report.episode_ended(index, episode)
        if news:
            self._write('running')
        ended = [worker for worker in self.workers if worker.process and worker.process.poll() is not None]
        failed = [
            worker for worker in ended if worker.process and worker.process.returncode and not worker.done
        ]
        return len(ended) < len(self.workers) and not failed

    def _end(self) -> None:
        """End the workers that still run."""
        running = [one.process for one in self.workers if one.process and one.process.poll() is None]
        for process in running:
            process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + END_S
        for process in running:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _finished(self) -> Results | None:
        from openeta_ros.episodes.page import write_page
        from openeta_ros.episodes.results import Failure

        failed = [one for one in self.workers if not one.done and one.process and one.process.returncode]
        own = [one for one in failed if one.process and one.process.returncode not in (130, -signal.SIGINT)]
        if failed:
            worker = (own or failed)[0]
            assert worker.process is not None
            self.code = worker.process.returncode
            self.failure = worker.failure()
            error = worker.results.error if worker.results is not None else None
            return self._write('failed', error or Failure(kind='worker', message=self.failure), moved=True)
        episodes = [one for worker in self.workers if worker.results for one in worker.results.episodes]
        if not any(episode.scored for episode in episodes):
            first = episodes[0].error
            assert first is not None  # what is not scored says why
            message = f'no episode could be scored: {first.message}'
            return self._write('failed', Failure(kind='demonstration', message=message), moved=True)
        results = self._write('complete', moved=True)
        assert results is not None
        write_page(results, Path(self._settings.output))
        return results

    def _write(self, status: str, error: Failure | None = None, *, moved: bool = False) -> Results | None:
        """Write results.json of the episodes that are done, and return it; None when no worker has begun.

        `moved`: their files come to the places that they have without workers.
        """
        from openeta_ros.episodes.results import FILENAME, Latency, SuccessRate

        begun = next((one.results for one in self.workers if one.results is not None), None)
        if begun is None:
            return None
        episodes: list[EpisodeResult] = []
        for worker in self.workers:
            for offset, episode in enumerate(worker.results.episodes if worker.results is not None else ()):
                here, there = worker.folder / f'episodes/{offset}', f'episodes/{worker.first + offset}'
                if not moved:
                    there = os.path.relpath(here, self._settings.output)
                elif here.exists():
                    (Path(self._settings.output) / there).parent.mkdir(exist_ok=True)
                    here.rename(Path(self._settings.output) / there)
                episodes.append(_placed(episode, f'episodes/{offset}', there))
        latencies_ms = [one for index in sorted(self._latencies_ms) for one in self._latencies_ms[index]]
        results = begun.model_copy(
            update={
                'status': status,
                'error': error,
                'settings': self._settings,
                'episodes': tuple(episodes),
                'success_rate': SuccessRate.of(episodes),
                'latency_ms': Latency.of(latencies_ms),
                'started_at': self._started_at,
                'wall_s': round(time.monotonic() - self._begin, 3),
            }
        )
        results.write()
        if moved:
            for worker, name in itertools.product(self.workers, (FILENAME, 'report.html')):
                (worker.folder / name).unlink(missing_ok=True)  # of episodes that are there no more
        return results


def _placed(episode: EpisodeResult, before: str, after: str) -> EpisodeResult:
    """Return an episode whose files are in another folder."""
    if episode.files is None:
        return episode
    bag = episode.files.bag.replace(before, after, 1)
    videos = {name: path.replace(before, after, 1) for name, path in episode.files.videos.items()}
    return episode.model_copy(
        update={'files': episode.files.model_copy(update={'bag': bag, 'videos': videos})}
    )


def _latencies_ms(folder: Path, episode: EpisodeResult) -> list[float]:
    """Return how long each answer took, of which the figures of several episodes together are made."""
    from openeta_ros.episodes.bag_metadata import read_metadata

    metadata = read_metadata(folder / episode.files.bag, []) if episode.files is not None else None
    return [] if metadata is None else list(json.loads(metadata.custom_data.get('latencies_ms', '[]')))


def command(settings: EvalSettings) -> list[str]:
    """Return the `openeta eval` of these settings."""
    arguments = []
    for name, value in asdict(settings).items():
        option = OPTIONS.get(name, f'--{name.replace("_", "-")}')
        if value is True:
            arguments.append(option)
        elif value is not None and value is not False:
            arguments += [option, str(value)]
    return [sys.executable, '-m', 'openeta_ros.cli', 'eval', *arguments]
