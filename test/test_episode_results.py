# SPDX-License-Identifier: Apache-2.0
"""results.json: its interval, its documentation, and that it is written whole."""

from __future__ import annotations

import re
import typing
from pathlib import Path
from typing import Any

import pytest
from point_env import PointEnv, ReplayPolicy, settings
from pydantic import BaseModel

from openeta_ros.episodes import EvalSettings, Results, SettingsError, evaluate
from openeta_ros.episodes.results import VARYING, Latency, read, wilson_interval, without_times
from openeta_ros.episodes.settings import LEAST_TIMEOUT_S, MOST
from openeta_ros.nodes.parameters import NODES

DOCUMENT = Path(__file__).parents[1] / 'docs' / 'reference' / 'results.md'


@pytest.mark.parametrize(('successes', 'n'), [(0, 3), (2, 3), (3, 3), (15, 20), (50, 100), (999, 1000)])
def test_the_interval_ends_where_the_score_test_rejects(successes: int, n: int) -> None:
    """Wilson's definition: the shares p from which the observed one is 1.96 standard deviations of p away."""
    share = successes / n
    low, high = wilson_interval(successes, n)
    assert 0 <= low <= share <= high <= 1
    for end in {low, high} - {0.0, 1.0}:
        assert abs(share - end) == pytest.approx(1.959964 * (end * (1 - end) / n) ** 0.5, rel=1e-6)
    assert (low == 0) == (successes == 0) and (high == 1) == (successes == n)


def test_without_an_episode_nothing_is_known() -> None:
    assert wilson_interval(0, 0) == (0.0, 1.0)


def test_latency_counts_every_call_and_names_the_first() -> None:
    latency = Latency.of([100.0, 1.0, 2.0, 3.0, 4.0])
    assert latency is not None
    assert (latency.count, latency.first, latency.p50, latency.max) == (5, 100.0, 3.0, 100.0)
    assert Latency.of([]) is None


def names_of(model: Any, prefix: str = '') -> set[str]:
    """Dotted names of every field: `[]` marks a list's items, `.*` a mapping's values."""
    if typing.get_origin(model) is tuple:
        return names_of(typing.get_args(model)[0], f'{prefix}[]')
    for part in typing.get_args(model):
        if isinstance(part, type) and issubclass(part, BaseModel):
            return names_of(part, prefix)
    if model is EvalSettings:
        return {f'{prefix}.{name}' for name in EvalSettings.__dataclass_fields__}
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        return set()
    names = set()
    for name, field in model.model_fields.items():
        path = f'{prefix}.{name}' if prefix else name
        names |= {path} | names_of(field.annotation, path)
    return names


def test_every_field_is_documented_and_nothing_else() -> None:
    documented = set(re.findall(r'^\| `([a-z_.\[\]0-9]+)` \|', DOCUMENT.read_text(), flags=re.MULTILINE))
    assert documented == names_of(Results)


def test_the_fields_that_vary_are_documented() -> None:
    sentence = re.search(r'without_times` removes (.*?)\.\n', DOCUMENT.read_text(), flags=re.DOTALL)
    assert sentence is not None
    assert set(re.findall(r'`(\w+)`', sentence[1])) == VARYING


def test_results_are_read_back_as_they_were(tmp_path: Path) -> None:
    results = evaluate(PointEnv(), ReplayPolicy(), settings(tmp_path))
    assert read(tmp_path / 'results.json') == results


def test_what_varies_is_removed_at_any_depth() -> None:
    data = {
        'wall_s': 1,
        'episodes': [{'seed': 0, 'latency_ms': {'p50': 1}}],
        'env': {'versions': {}, 'task': 'x'},
    }
    assert without_times(data) == {'episodes': [{'seed': 0}], 'env': {'task': 'x'}}


@pytest.mark.parametrize(
    ('changes', 'words'),
    [
        ({'episodes': 0}, 'episodes must be at least 1, not 0'),
        ({'seed': -1}, 'seed must not be negative'),
        ({'max_steps': 0}, 'max_steps must be at least 1'),
        ({'policy_timeout_s': float('nan')}, 'policy_timeout_s must be a positive number'),
        ({'policy_timeout_s': 1e300}, 'policy_timeout_s must be at most 86400.0, not 1e'),
        ({'policy_timeout_s': 1e-9}, 'policy_timeout_s must be at least 0.001 s'),
        ({'seed': 10**30}, 'seed must be at most 4611686018427387904'),
        ({'transport': 'smoke'}, "transport 'smoke' is not one of local, ros"),
    ],
)
def test_settings_that_cannot_be_used_are_refused_by_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        settings('/somewhere', **changes)


def test_settings_have_the_bounds_of_the_nodes_parameters() -> None:
    table = {parameter.name: parameter for parameter in (*NODES['eval'], *NODES['env'], *NODES['policy'])}
    assert {name: table[name].maximum for name in MOST} == MOST
    assert table['policy_timeout_s'].minimum == LEAST_TIMEOUT_S
