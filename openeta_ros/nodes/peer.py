# SPDX-License-Identifier: Apache-2.0
"""Another node, as a caller sees it: found by name, waited for with a deadline, noticed when it is gone."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lifecycle_msgs.msg import State, Transition
from lifecycle_msgs.srv import ChangeState, GetState
from rclpy.node import Node
from rclpy.task import Future

from openeta_msgs.srv import Describe
from openeta_ros.nodes import messages
from openeta_ros.nodes.parameters import PEER_PIDS
from openeta_ros.nodes.runtime import Process

# A node whose services are not there for so long is gone; discovery may lose sight of one for a moment.
ABSENCE_S = 1.0
POLL_S = 0.02
# Seconds that a lifecycle node may take to say in which state it is.
ANSWER_S = 20.0
# Where a transition leads, or somebody else has led it meanwhile.
REACHED = {
    Transition.TRANSITION_CONFIGURE: (State.PRIMARY_STATE_INACTIVE, State.PRIMARY_STATE_ACTIVE),
    Transition.TRANSITION_ACTIVATE: (State.PRIMARY_STATE_ACTIVE,),
}
# When the wait for a slow start is first told about, and how often from then on.
FIRST_NOTE_S, NOTE_EVERY_S = 3.0, 15.0


class Peer:
    """One lifecycle node with `~/describe`.

    Args:
        node: ours, to make clients with.
        process: our process; when it is told to end, waits raise KeyboardInterrupt.
        name: the other node's name, absolute or relative to our namespace.
        error: makes what is raised when the node is missing, silent or gone.
    """

    def __init__(self, node: Node, process: Process, name: str, error: Callable[[str], Exception]) -> None:
        self.name = name
        self._process = process
        self._error = error
        self._pid = json.loads(os.environ.get(PEER_PIDS, '{}')).get(name)
        self._get_state = node.create_client(GetState, f'{name}/get_state')
        self._change_state = node.create_client(ChangeState, f'{name}/change_state')
        self._describe = node.create_client(Describe, f'{name}/describe')
        self._absent_since: float | None = None
        self._full_name = node.resolve_service_name(f'{name}/describe').removesuffix('/describe')

    def check(self) -> None:
        """Raise when our process is told to end, or when the node is gone."""
        if self._process.stopping:
            raise KeyboardInterrupt
        self._check_pid()
        now = time.monotonic()
        if self._describe.service_is_ready():
            self._absent_since = None
        elif self._absent_since is None:
            self._absent_since = now  # not since it was last seen: nobody may have looked for long
        elif now - self._absent_since > ABSENCE_S:
            raise self._error(f'the node {self._full_name} is gone: its services are no longer there')

    def wait_until_found(self, deadline: float, ready: Sequence[Callable[[], bool]] = ()) -> None:
        """Wait until the node's services, and whatever else must be ready, are discovered.

        `deadline` is of the monotonic clock.
        """
        needed = [
            self._get_state.service_is_ready,
            self._change_state.service_is_ready,
            self._describe.service_is_ready,
            *ready,
        ]
        begin = time.monotonic()
        while not all(is_ready() for is_ready in needed):
            if self._process.stopping:
                raise KeyboardInterrupt
            self._check_pid()
            if time.monotonic() > deadline:
                waited = time.monotonic() - begin
                raise self._error(
                    f'the node {self._full_name} was not found in {waited:.0f} s: is it running, in the same '
                    'ROS_DOMAIN_ID and namespace?'
                )
            time.sleep(POLL_S)

    def state(self) -> int:
        """Return the id of the node's lifecycle state."""
        answer = self.call(self._get_state, GetState.Request(), ANSWER_S)
        return int(answer.current_state.id)

    def begin_transition(self, transition: int) -> Future:
        """Ask for a lifecycle transition."""
        return self._change_state.call_async(ChangeState.Request(transition=Transition(id=transition)))

    def description(self) -> Mapping[str, Any]:
        """Return what the node says of itself.

        Raises:
            Exception: whatever made its last transition fail.
        """
        answer = self.call(self._describe, Describe.Request(), ANSWER_S)
        error = messages.error_of(answer.failure)
        if error is not None:
            raise error
        descriptor: dict[str, Any] = json.loads(answer.descriptor or '{}')
        return descriptor

    def call(self, client: Any, request: Any, timeout_s: float) -> Any:
        """Call a service of the node and return its answer.

        Raises:
            Exception: the node is gone or silent, or what its answer's `failure` tells of.
        """
        answer = self.wait(client.call_async(request), timeout_s, client.srv_name)
        error = messages.error_of(answer.failure) if hasattr(answer, 'failure') else None
        if error is not None and client is not self._describe:
            raise error
        return answer

    def wait(self, future: Future, timeout_s: float, what: str) -> Any:
        """Wait for an answer of the node and return it; `what` names what was asked."""
        done = threading.Event()
        future.add_done_callback(lambda _: done.set())
        deadline = time.monotonic() + timeout_s
        while not done.wait(0.1):
            self.check()
            if time.monotonic() > deadline:
                raise self.silent(what, timeout_s)
        return future.result()

    def silent(self, what: str, timeout_s: float) -> Exception:
        """Return the error of an answer that did not come in time."""
        return self._error(f'{what} of the node {self._full_name} gave no answer within {timeout_s:g} s')

    def _check_pid(self) -> None:
        if self._pid is None:
            return
        try:
            os.kill(self._pid, 0)
        except ProcessLookupError:
            raise self._error(f'the node {self._full_name} is gone: its process ended') from None


def bring_up(peers: Sequence[Peer], timeout_s: float, note: Callable[[str], None]) -> None:
    """Configure and activate nodes, all at the same time, from whatever state they are in.

    Raises:
        Exception: a node's own reason, when it cannot; or that it took too long, or is gone.
    """
    deadline = time.monotonic() + timeout_s
    waking = [peer for peer in peers if peer.state() == State.PRIMARY_STATE_UNCONFIGURED]
    _transit(waking, Transition.TRANSITION_CONFIGURE, deadline, note)
    resting = [peer for peer in peers if peer.state() == State.PRIMARY_STATE_INACTIVE]
    _transit(resting, Transition.TRANSITION_ACTIVATE, deadline, note)


def _transit(peers: Sequence[Peer], transition: int, deadline: float, note: Callable[[str], None]) -> None:
    begin = time.monotonic()
    asked = {peer: peer.begin_transition(transition) for peer in peers}
    next_note = begin + FIRST_NOTE_S
    while asked:
        for peer, future in list(asked.items()):
            peer.check()
            if future.done():
                del asked[peer]
                if not future.result().success and peer.state() not in REACHED[transition]:
                    peer.description()  # raises the reason
                    raise RuntimeError(f'the node {peer.name} refused its transition and gave no reason')
        now = time.monotonic()
        if asked and now > deadline:
            peer = next(iter(asked))
            raise peer.silent('the transition', now - begin)
        if asked and now > next_note:
            next_note = now + NOTE_EVERY_S
            names = ' and '.join(peer.name for peer in asked)
            note(f'waiting for {names} to get ready, {now - begin:.0f} s so far')
        time.sleep(POLL_S)
