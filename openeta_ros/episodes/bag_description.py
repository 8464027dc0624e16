# SPDX-License-Identifier: Apache-2.0
"""The robot description that a bag holds, for contracts that take it from the graph."""

from __future__ import annotations

from openeta_ros.embodiment import Embodiment
from openeta_ros.episodes.bag import Bag, decoder
from openeta_ros.episodes.bag_metadata import BagError

STRING = 'std_msgs/msg/String'


def with_description(bag: Bag, embodiment: Embodiment) -> Embodiment:
    """Return a contract with the robot description that was recorded, where it takes it from the graph.

    Bags hold no parameters: for one the topic of its name is taken, on which robot_state_publisher sends it.
    A contract that was given its description already keeps it where the bag has none.

    Raises:
        BagError: there is none.
    """
    wanted = embodiment.live_description
    if wanted is None:
        return embodiment
    name = str(wanted.topic or wanted.parameter)
    found = bag.find(name)
    if found is not None and found.message_type == STRING:
        for recorded in bag.messages([found.name]):
            text = str(decoder()(recorded).data)
            if text:
                return embodiment.described(text, f'topic {found.name} of {bag.path}')
    if embodiment.described_text is not None:
        return embodiment
    why = (
        bag.not_there(name, (STRING,))
        if found is None
        else f'{bag.path}: topic {found.name} holds no description'
    )
    raise BagError(
        f'{why}; the contract takes the robot description from it: record it too, or name a description.file'
    )
