# SPDX-License-Identifier: Apache-2.0
"""An answer that comes before its request is noted must not be lost: a policy's act then never returned."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip('rclpy')

# The handle sends, and returns only when the answer is long there: what a busy machine does now and then.
ASK = """
import os, threading, time
import rclpy
from rclpy.action import ActionServer
from rclpy.executors import SingleThreadedExecutor
from openeta_msgs.action import Act
from openeta_ros.nodes.remote import PatientActionClient

class Delayed:
    def __init__(self, handle):
        self.handle = handle
    def __enter__(self):
        return self.handle.__enter__()
    def __exit__(self, *arguments):
        return self.handle.__exit__(*arguments)
    def __getattr__(self, name):
        return getattr(self.handle, name)
    def send_goal_request(self, request):
        return self.slowly(self.handle.send_goal_request(request))
    def send_result_request(self, request):
        return self.slowly(self.handle.send_result_request(request))
    def slowly(self, number):
        time.sleep(0.2)
        return number

def carry_out(goal):
    goal.succeed()
    return Act.Result(latency_ms=7.0)

def wait(future):
    deadline = time.monotonic() + 120
    while not future.done():
        assert time.monotonic() < deadline, 'the answer was lost'
        time.sleep(0.01)
    return future.result()

rclpy.init()
asked, asking = rclpy.create_node('asked'), rclpy.create_node('asking')
server = ActionServer(asked, Act, 'act', carry_out)
client = PatientActionClient(asking, Act, 'act')
for node in (asked, asking):
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    threading.Thread(target=executor.spin, daemon=True).start()
assert client.wait_for_server(120)
client._client_handle = Delayed(client._client_handle)
handle = wait(client.send_goal_async(Act.Goal()))
assert handle.accepted
print(wait(handle.get_result_async()).result.latency_ms, flush=True)
os._exit(0)
"""


def test_an_answer_that_overtakes_its_request_is_received() -> None:
    from openeta_ros.nodes.graph import graph_environment

    with graph_environment() as environment:
        done = subprocess.run(
            [sys.executable, '-c', ASK],
            env=environment,
            cwd=Path(__file__).parents[1],
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
    assert (done.returncode, done.stdout) == (0, '7.0\n'), done.stderr
