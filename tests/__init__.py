"""Tests of penstock."""

from tests.support.numbers import refuse_numbers

refuse_numbers()  # before other modules of the package import `pack`
