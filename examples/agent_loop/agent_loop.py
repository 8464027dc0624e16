# SPDX-License-Identifier: Apache-2.0
"""An agent in a closed loop: a model writes a snippet, it is run, and what came of it is read by the next.

    python examples/agent_loop/agent_loop.py --env mujoco

runs offline: the model's answers are those of answers.jsonl, the first two of them wrong. With a model:

    ANTHROPIC_API_KEY=... python examples/agent_loop/agent_loop.py --provider anthropic --model NAME
    python examples/agent_loop/agent_loop.py --provider openai --model NAME --api-base http://localhost:8000/v1

Exit code 0: the task was solved; 1: it was not.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from openeta_ros import embodiment
from openeta_ros.code_policy import (
    ApiBackendConfig,
    ApiCodePolicyBackend,
    Budgets,
    CodePolicyApi,
    CodePolicyExecutionRequest,
    CodePolicyPlanner,
    CodePolicySandbox,
    RecordedCodePolicyBackend,
    RecordingCodePolicyBackend,
    SandboxConfig,
    remember,
)
from openeta_ros.envs import EnvFacade, EnvSpec

ANSWERS = Path(__file__).with_name('answers.jsonl')
SKILLS = [
    'To pick something up: open the gripper, go above it, go down to it with the fingers across two of its '
    'sides, close, look whether something is between the fingers, lift.'
]


def run(env, backend, *, turns, output, strict):
    """Write and run snippets until the env says that its task is solved; return whether it did."""
    api = CodePolicyApi.of_facade(env)
    planner = CodePolicyPlanner(backend, api=api.descriptor(), pictures='png')
    sandbox = CodePolicySandbox(SandboxConfig(strict=strict))
    task = env.descriptor()['instruction']
    memory = []
    for turn in range(1, turns + 1):
        print(f'--- turn {turn}: {task}')
        decision = planner.plan(env.observe(), memory=memory, skills=SKILLS, task=task)
        if decision.metadata['generation_status'] != 'planned':
            print(decision.reasoning)
            memory.append(decision.reasoning)
            continue
        print(decision.code)
        result = sandbox.execute(
            CodePolicyExecutionRequest(
                decision.code,
                policy_context=decision.parameters['policy_context'],
                api=api,
                budgets=Budgets(wall_s=300.0),
                output=output / f'turn_{turn}',
            )
        )
        print(result.content, end='\n\n')
        memory.append(remember(result, code=decision.code))
        if result.details['success']:
            print(f'solved in turn {turn}; records are in {output}')
            return True
    print(f'not solved in {turns} turns; records are in {output}')
    return False


def main():
    """Run the loop as the arguments say; return the exit code."""
    parser = argparse.ArgumentParser(description='An agent that writes, runs and corrects snippets.')
    parser.add_argument('--env', default='mujoco')
    parser.add_argument('--task', default='pick_cube')
    parser.add_argument('--embodiment', default='franka_genesis')
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--turns', type=int, default=5)
    parser.add_argument('--provider', choices=('recorded', 'openai', 'anthropic'), default='recorded')
    parser.add_argument('--model', default='')
    parser.add_argument('--api-base', help='where the API is, if not at the provider')
    parser.add_argument('--answers', type=Path, default=ANSWERS, help='what the recorded provider answers')
    parser.add_argument('--save-answers', type=Path, help="append the model's answers to this file")
    parser.add_argument('--no-strict', action='store_true', help='run where the sandbox is not complete, too')
    parser.add_argument('--output', type=Path, help='folder of the records (default: results/<time>-agent)')
    args = parser.parse_args()
    if args.provider == 'recorded':
        backend = RecordedCodePolicyBackend(args.answers)
    else:
        backend = ApiCodePolicyBackend(ApiBackendConfig(args.provider, args.model, api_base=args.api_base))
    if args.save_answers is not None:
        backend = RecordingCodePolicyBackend(backend, args.save_answers)
    output = args.output or Path(f'results/{time.strftime("%Y-%m-%d_%H-%M-%S")}-agent')
    spec = EnvSpec(args.env, args.task, embodiment.load(args.embodiment))
    with EnvFacade.from_spec(spec) as env:
        env.reset(args.seed)
        solved = run(env, backend, turns=args.turns, output=output.absolute(), strict=not args.no_strict)
    return 0 if solved else 1


if __name__ == '__main__':
    sys.exit(main())
