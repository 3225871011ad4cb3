"""State of a test's host engine: the JSON in $FAKE_DCGM_STATE, read at every call."""

import json
import os

from dcgm_structs import DCGMError


def state():
    with open(os.environ["FAKE_DCGM_STATE"]) as file:
        return json.load(file)


def connected(handle):
    found = state()
    if found["run"] != handle:
        raise DCGMError("The connection to the host engine is not valid any longer")
    return found
