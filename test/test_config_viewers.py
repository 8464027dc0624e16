# SPDX-License-Identifier: Apache-2.0
"""The layouts for Foxglove and RViz show topics that there are."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from recorded import recorded

from openeta_ros.episodes.bag import Bag

CONFIG = Path(__file__).parents[1] / 'config'
LAYOUT = json.loads((CONFIG / 'foxglove/episode.json').read_text())
# What the layout's own script makes of the chunks.
SCRIPT_OUTPUT = '/studio_script/action_chunk'


def texts(data: Any) -> list[str]:
    """Return all texts of nested data."""
    if isinstance(data, dict):
        return [text for value in data.values() for text in texts(value)]
    if isinstance(data, list):
        return [text for value in data for text in texts(value)]
    return [data] if isinstance(data, str) else []


@pytest.fixture(scope='module')
def topics(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    with Bag(recorded(tmp_path_factory.mktemp('config') / 'out') / 'episodes/0') as bag:
        return set(bag.topics)


def test_the_foxglove_layout_shows_every_recorded_topic_and_no_other(topics: set[str]) -> None:
    values = texts(LAYOUT['configById'])
    shown = {match for text in values for match in re.findall(r'^(/[a-z_/]+)', text)}
    assert shown == topics | {SCRIPT_OUTPUT}
    (script,) = LAYOUT['userNodes'].values()
    assert f'output = "{SCRIPT_OUTPUT}"' in script['sourceCode']


def test_every_panel_of_the_foxglove_layout_has_its_place() -> None:
    def panels(place: Any) -> list[str]:
        return [place] if isinstance(place, str) else [*panels(place['first']), *panels(place['second'])]

    assert sorted(panels(LAYOUT['layout'])) == sorted(LAYOUT['configById'])


def test_the_rviz_layout_shows_the_cameras(topics: set[str]) -> None:
    manager = yaml.safe_load((CONFIG / 'rviz/episode.rviz').read_text())['Visualization Manager']
    shown = {one['Topic']['Value'] for one in manager['Displays'] if one['Class'].endswith('/Image')}
    assert {f'/{topic}' for topic in shown} == {topic for topic in topics if 'image' in topic}
