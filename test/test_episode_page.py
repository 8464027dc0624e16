# SPDX-License-Identifier: Apache-2.0
"""report.html: one file without network that shows success, videos and plots."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from point_env import ReplayPolicy
from recorded import recorded

from openeta_ros.cli.main import main
from openeta_ros.episodes import page
from openeta_ros.episodes.results import read

EMPTY = {'meta', 'circle', 'rect', 'line', 'polyline'}


class Page(HTMLParser):
    """Collects the tags of a page, and refuses those that are not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag not in EMPTY:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in EMPTY:
            assert self._open.pop() == tag

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope='module')
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp('page') / 'out', episodes=2)


def test_an_evaluation_writes_a_page_that_needs_nothing_else(output: Path) -> None:
    text = (output / 'report.html').read_text()
    found = Page(text)
    assert '100.0 %' in text and '95 % interval 34.2 to 100.0 %' in text
    videos = [video['src'] or '' for video in found.of('video')]
    assert len(videos) == 4 and all(source.startswith('data:video/mp4;base64,') for source in videos)
    assert not found.of('script') and not found.of('link')
    assert not re.search(r'(src|href)="(?!data:|#)', text) and 'url(' not in text


def test_it_draws_each_joint_measured_and_commanded_and_the_latencies(output: Path) -> None:
    drawings = re.findall(r'<svg viewBox="0 0 260 110".*?</svg>', (output / 'report.html').read_text())
    assert len(drawings) == 2 * (7 + 1)
    joint, latency = drawings[0], drawings[7]
    assert 'shoulder_yaw' in joint
    measured, commanded = (points.split() for points in re.findall(r'points="([^"]*)"', joint))
    assert (len(measured), len(commanded)) == (9, 8)
    assert measured[1:] == commanded  # the point env is where it is told to be
    assert 'latency of each answer, ms' in latency and latency.count('class="seen"') == 3


def test_many_videos_lie_beside_it(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, 'EMBEDDED_BYTES', 1000)
    found = Page(page.page(read(output / 'results.json'), output))
    assert found.of('video')[0]['src'] == 'episodes/0/front.mp4'


def test_a_lost_episode_says_why_and_markup_in_texts_stays_text(tmp_path: Path) -> None:
    out = recorded(tmp_path / 'out', policy=ReplayPolicy(poison=np.nan))
    data = json.loads((out / 'results.json').read_text())
    data['env']['instruction'] = '<script>alert(1)</script>'
    (out / 'results.json').write_text(json.dumps(data))
    assert main(['report', str(out)]) == 0
    text = (out / 'report.html').read_text()
    assert 'not_finite: row 2, joint shoulder_yaw: not finite' in text
    assert not Page(text).of('script') and '&lt;script&gt;' in text


def test_it_is_made_anew_also_where_files_are_missing(
    output: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(output, tmp_path / 'out')
    shutil.rmtree(tmp_path / 'out/episodes/1')
    (tmp_path / 'out/report.html').unlink()
    assert main(['report', str(tmp_path / 'out')]) == 0
    text = (tmp_path / 'out/report.html').read_text()
    assert 'no plots: ' in text and 'the video is not there' in text
    assert len(Page(text).of('video')) == 2
    assert main(['report', str(tmp_path)]) == 2
    (tmp_path / 'results.json').write_text('{"schema_version": 1}')
    assert main(['report', str(tmp_path)]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 2
