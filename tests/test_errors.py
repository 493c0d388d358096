"""The one error that a user can cause."""

import copy
import pickle

from pearl_sim.errors import InputError


def test_an_input_error_says_where_and_what():
    assert str(InputError("file.toml", "is empty")) == "file.toml: is empty"


def test_an_input_error_survives_the_way_between_processes_and_through_simpy():
    error = InputError("file.toml", "is empty")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert str(copy.copy(error)) == str(error)
    assert str(type(error)(*error.args)) == str(error)  # how SimPy raises a process's error again
