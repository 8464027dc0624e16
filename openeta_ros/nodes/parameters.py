# SPDX-License-Identifier: Apache-2.0
"""Every parameter of every node, declared once: nodes, launch files and documents read these tables.

No rclpy in here, so that what starts a graph (and a test that compares) needs no ROS.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

# The environment variable that tells eval the process ids of the other nodes (a JSON object by name), set by
# who started them all, so that an exit is seen at once. Without it a killed node is noticed when its lease
# runs out (config/fastdds.xml).
PEER_PIDS = 'OPENETA_PEER_PIDS'

Value = str | int | float | bool


@dataclass(frozen=True)
class Parameter:
    """One parameter.

    The default's type is the parameter's. `minimum` and `maximum` (both inclusive) bound a number; None does
    not. A text is one of `choices`, where there are any.
    """

    name: str
    default: Value
    description: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()


ENV = Parameter('env', 'genesis', 'The simulator, or arm: a name that `openeta envs` lists.')
TASK = Parameter('task', 'pick_cube', 'The task: one of the env.')
EMBODIMENT = Parameter(
    'embodiment', 'franka_genesis', "The robot's contract: a name, or the path of a YAML file."
)
MAX_STEPS = Parameter(
    'max_steps', 0, "Rows until an episode is lost; 0 takes the task's own number.", 0, 1_000_000
)
EXECUTION_HORIZON = Parameter(
    'execution_horizon',
    0,
    'Rows of each chunk that are executed before the policy is asked again; 0 takes all.',
    0,
    1_000_000,
)
ASYNCHRONOUS = Parameter(
    'asynchronous', False, 'For env arm: the policy is asked while rows are executed; late ones are skipped.'
)
ENABLED = Parameter(
    'enabled', False, 'For env arm: it may move as soon as the node is ACTIVE; false waits for ~/enable.'
)
SPEED = Parameter(
    'speed', 1.0, "For env arm: slow mode; rows take so much longer than the contract's rate says.", 0.01, 1.0
)
DRY_RUN = Parameter('dry_run', False, 'For env arm: commands are logged instead of sent; nothing moves.')
SERVO_HZ = Parameter(
    'servo_hz',
    100.0,
    'For env arm: commands a second to forward controllers, and looks of the guard.',
    10.0,
    1000.0,
)
SUCCESS = Parameter(
    'success',
    'auto',
    'For env arm: who says that a task is solved: the topic scene/success, a person (~/judge), or auto: the '
    'topic where somebody publishes it.',
    choices=('auto', 'topic', 'person'),
)
POLICY = Parameter(
    'policy',
    'examples/replay_policy',
    'A directory with policy.yaml (also one of this package), or the address of a running policy server: '
    'HOST:PORT or a socket.',
)
POLICY_TIMEOUT_S = Parameter(
    'policy_timeout_s', 60.0, 'Seconds that one answer of the policy may take.', 0.001, 86_400.0
)
POLICY_LOG = Parameter(
    'policy_log',
    '',
    "The file that takes the policy's own output; empty keeps it only while the policy runs.",
)
WARM_UP = Parameter(
    'warm_up',
    False,
    'Have the policy answer once to made-up pictures while it is configured, for one whose first answer '
    'takes long. The policy is reset before and after; it is shown no demonstration.',
)
RELIABILITY = Parameter(
    'reliability',
    'auto',
    'How camera, joint and pose topics are received: auto is reliable where all publishers offer it, and '
    'best effort elsewhere.',
    choices=('auto', 'reliable', 'best_effort'),
)
DESCRIPTION_TIMEOUT_S = Parameter(
    'description_timeout_s',
    30.0,
    'Seconds until the robot description must have come, where the contract takes it from a topic or a '
    'parameter.',
    0.1,
    86_400.0,
)
HARDWARE = Parameter(
    'hardware',
    'real',
    "Of env 'arm': the arm that is there, or a mock of it. Kept with the results; real.launch.py starts "
    'the mock.',
    choices=('real', 'mock'),
)
OUTPUT = Parameter('output', '', 'The directory for results.json and episodes/; empty is results/<time>.')
DEMONSTRATION = Parameter(
    'demonstration',
    'expert',
    "What the policy is shown before it acts: 'expert' (the scripted expert in the very scene of each "
    "episode), 'none', or the path of an .npz demonstration.",
)
EPISODES = Parameter('episodes', 3, 'How many episodes.', 1, 1_000_000)
SEED = Parameter('seed', 0, 'Scene of the first episode; each next one adds 1.', 0, 2**62)
AUTOSTART = Parameter(
    'autostart', True, 'Evaluate at once and end; false waits for goals of ~/evaluate and ~/run_episode.'
)
ENV_NODE = Parameter('env_node', 'env', 'Name of the env node, relative to the namespace of this one.')
POLICY_NODE = Parameter(
    'policy_node', 'policy', 'Name of the policy node, relative to the namespace of this one.'
)
DISCOVERY_TIMEOUT_S = Parameter(
    'discovery_timeout_s', 60.0, 'Seconds until the env and policy nodes must be found.', 0.1, 86_400.0
)
CONFIGURE_TIMEOUT_S = Parameter(
    'configure_timeout_s',
    1200.0,
    'Seconds that env and policy may take to get ready (Genesis compiles its kernels for minutes, once).',
    0.1,
    86_400.0,
)
ROW_TIMEOUT_S = Parameter(
    'row_timeout_s',
    20.0,
    'Seconds that one row may take in the env, and a picture on its way.',
    0.1,
    86_400.0,
)

BAG = Parameter(
    'bag',
    '',
    'The recording to play at once, to end with it: an episode folder, a bag folder, or a single .mcap or '
    '.db3 file. Empty waits for goals of ~/replay.',
)
RATE = Parameter('rate', 1.0, 'Times the speed of recording. It may be set while playing.', 0.001, 1000.0)
FROM_S = Parameter('from_s', 0.0, 'Seconds of recording to leave out at its beginning.', 0.0, 1e9)
TO_S = Parameter('to_s', 0.0, 'Seconds of recording after which it ends; 0 is its own end.', 0.0, 1e9)
LOOP = Parameter('loop', False, 'Begin again at the end.')
PAUSED = Parameter(
    'paused', False, 'Begin with time standing: ~/pause lets it go on, ~/step goes on by one step.'
)
CLOCK_HZ = Parameter(
    'clock_hz',
    100.0,
    'How often /clock is published, in real time. 0 publishes none, and plays a /clock that was recorded.',
    0.0,
    10_000.0,
)
DELAY_S = Parameter(
    'delay_s',
    1.0,
    'Seconds before the first message, in which those who listen find the topics.',
    0.0,
    3600.0,
)
WAIT_FOR = Parameter(
    'wait_for',
    '',
    'Topics, separated by spaces, that somebody must listen to before delay_s begins; for a minute at most.',
)

JSON = Parameter('json', False, 'Print a line of JSON each time, and draw nothing.')
PERIOD_S = Parameter('period_s', 0.5, 'Seconds from one time to the next.', 0.05, 3600.0)

CAMERA_HZ = Parameter(
    'camera_hz', 15.0, 'Pictures a second of each camera, if they can be drawn as fast.', 0.1, 1000.0
)
URDF = Parameter(
    'description',
    '',
    "A URDF file: the robot's description, where the contract takes it from a topic (it is published there) "
    'or a parameter.',
)
PARTIAL_JOINTS = Parameter(
    'partial_joints', False, 'Trajectories may name some of the joints, as allow_partial_joints_goal has it.'
)

RECORD = Parameter(
    'record',
    '',
    'The rosbag2 folder to record into at once, until the node ends. Empty waits for ~/start.',
)
FOLDER = Parameter(
    'folder',
    '',
    'Where recordings appear that are started without a path, named by the time; empty is recordings.',
)
TOPICS = Parameter('topics', '', "More topics to record than the contract's, separated by spaces.")
INFO = Parameter(
    'info', '', 'What is recorded at once (seed, policy, task, ...), kept in its metadata: a JSON object.'
)
COMPRESSION = Parameter(
    'compression',
    'none',
    'How chunks of the file are compressed: none takes the least processor time, zstd the least disk.',
    choices=('none', 'zstd'),
)

RECORDS = Parameter(
    'records',
    '',
    'Where the record of each snippet goes, a folder each; empty is results/snippets.',
)
STRICT = Parameter(
    'strict', True, 'Refuse to run snippets where a boundary of their sandbox cannot be enforced.'
)
WALL_S = Parameter('wall_s', 120.0, 'Seconds that a snippet may take, motion included.', 0.001, 86_400.0)
MAX_CALLS = Parameter('max_calls', 1000, 'Calls of the api that a snippet may make.', 1, 1_000_000)
MAX_ROWS = Parameter('max_rows', 2000, 'Rows that a snippet may send.', 1, 1_000_000)
PROVIDER = Parameter(
    'provider',
    'none',
    'Who writes the snippet for a goal that holds a task alone: a model behind an API of OpenAI (or one '
    'compatible with it) or Anthropic, or nobody.',
    choices=('none', 'openai', 'anthropic'),
)
MODEL = Parameter('model', '', "The model's name at that provider.")
API_BASE = Parameter('api_base', '', "Address of the API; empty is the provider's own.")
API_KEY_ENV = Parameter(
    'api_key_env',
    '',
    "The environment variable that holds the key; empty is the provider's own, and no key where api_base is "
    'set.',
)
GENERATION_TIMEOUT_S = Parameter(
    'generation_timeout_s', 60.0, 'Seconds that one answer of the model may take.', 0.001, 86_400.0
)
PICTURES = Parameter(
    'pictures',
    'reference',
    'Whether the model is shown the pictures (png), or told their shapes alone.',
    choices=('reference', 'png'),
)

NODES: Mapping[str, tuple[Parameter, ...]] = {
    'env': (
        ENV,
        TASK,
        EMBODIMENT,
        MAX_STEPS,
        DESCRIPTION_TIMEOUT_S,
        ENABLED,
        SPEED,
        DRY_RUN,
        SERVO_HZ,
        SUCCESS,
    ),
    'policy': (POLICY, EMBODIMENT, POLICY_TIMEOUT_S, POLICY_LOG, WARM_UP, RELIABILITY, DESCRIPTION_TIMEOUT_S),
    'eval': (
        ENV,
        TASK,
        EMBODIMENT,
        POLICY,
        DEMONSTRATION,
        EPISODES,
        SEED,
        MAX_STEPS,
        POLICY_TIMEOUT_S,
        OUTPUT,
        HARDWARE,
        AUTOSTART,
        ENV_NODE,
        POLICY_NODE,
        DISCOVERY_TIMEOUT_S,
        CONFIGURE_TIMEOUT_S,
        ROW_TIMEOUT_S,
        DESCRIPTION_TIMEOUT_S,
        EXECUTION_HORIZON,
        ASYNCHRONOUS,
    ),
    'bridge': (EMBODIMENT, RELIABILITY, DESCRIPTION_TIMEOUT_S),
    'mock': (EMBODIMENT, TASK, SEED, CAMERA_HZ, URDF, PARTIAL_JOINTS),
    'recorder': (EMBODIMENT, RECORD, FOLDER, TOPICS, INFO, COMPRESSION),
    'replay': (BAG, RATE, FROM_S, TO_S, LOOP, PAUSED, CLOCK_HZ, WAIT_FOR, DELAY_S),
    'watch': (ENV_NODE, POLICY_NODE, JSON, PERIOD_S),
    'code_policy': (
        EMBODIMENT,
        RECORDS,
        STRICT,
        WALL_S,
        MAX_CALLS,
        MAX_ROWS,
        PROVIDER,
        MODEL,
        API_BASE,
        API_KEY_ENV,
        GENERATION_TIMEOUT_S,
        PICTURES,
        ENV_NODE,
        DISCOVERY_TIMEOUT_S,
        CONFIGURE_TIMEOUT_S,
        ROW_TIMEOUT_S,
        DESCRIPTION_TIMEOUT_S,
    ),
}
# The nodes of an evaluation; the last one ends when it is done.
EVALUATION = ('env', 'policy', 'eval')


def launch_arguments(nodes: Iterable[str]) -> tuple[Parameter, ...]:
    """Return the parameters of these nodes, each once: what a launch file of them takes."""
    return tuple(dict.fromkeys(parameter for node in nodes for parameter in NODES[node]))
