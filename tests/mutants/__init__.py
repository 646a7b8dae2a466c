"""Deliberate defects, each with the test that has to fail for it."""

from tests.mutants.kafka_and_lanes import MUTANTS as KAFKA_AND_LANES
from tests.mutants.spark_and_sensor import MUTANTS as SPARK_AND_SENSOR

ALL = (*KAFKA_AND_LANES, *SPARK_AND_SENSOR)
