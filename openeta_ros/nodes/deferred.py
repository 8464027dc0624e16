# SPDX-License-Identifier: Apache-2.0
"""Services that the worker answers: the executor goes on meanwhile, and hears who cancels or stops.

rclpy sends what a service's callback returns as soon as it returns. So the callback returns a note of the
request, and sending it means having the worker do the job and then send the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from rclpy.node import Node

from openeta_ros.nodes import messages, runtime

Job = Callable[[Any, Any], None]


class _Note(NamedTuple):
    request: Any
    response: Any


def serve_later(node: Node, process: runtime.Process, service_type: Any, name: str, job: Job) -> Any:
    """Offer a service; `job(request, response)` fills the response on the worker. What it raises becomes the
    response's `failure`, where it has one."""
    service: Any = node.create_service(service_type, name, _Note)
    send = service.send_response

    def answer(note: _Note, header: Any) -> None:
        def work() -> None:
            try:
                job(*note)
            except Exception as error:
                note.response.failure = messages.failure_message(error)
                runtime.log_failure(node, 'refused', error)
            send(note.response, header)

        process.submit(work)

    service.send_response = answer
    return service
