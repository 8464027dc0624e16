# SPDX-License-Identifier: Apache-2.0
"""One facade for every env: simulated, and later physical and recorded ones.

The `Rlinf...` names are OpenETA's, with its signatures.
"""

from openeta_ros.envs import registry
from openeta_ros.envs.errors import EnvError
from openeta_ros.envs.facade import EnvFacade
from openeta_ros.envs.openeta import RlinfEnvFacade, RlinfEnvSpec, RlinfStepResult
from openeta_ros.envs.spec import EnvSpec, Sensors, StepResult

__all__ = [
    'EnvError',
    'EnvFacade',
    'EnvSpec',
    'RlinfEnvFacade',
    'RlinfEnvSpec',
    'RlinfStepResult',
    'Sensors',
    'StepResult',
    'registry',
]
