"""Java missing, too old, or behind another name."""

from __future__ import annotations

import os
import re

import pytest

from kafka_liveness_dagster.embedded.jars import find_java
from kafka_liveness_dagster.embedded.state import JavaNotFoundError


@pytest.fixture
def java_on_path(tmp_path, monkeypatch):
    """Put a ``java`` that says a version on the PATH, and nothing else."""

    def put(version):
        java = tmp_path / "bin" / "java"
        java.parent.mkdir()
        java.write_text(f"#!/bin/sh\necho '    java.version = {version}' >&2\n")
        java.chmod(0o755)
        monkeypatch.setenv("PATH", str(java.parent))
        monkeypatch.delenv("JAVA_HOME", raising=False)
        return java

    return put


def test_no_java_names_the_remedy(tmp_path, monkeypatch):
    """Without any Java the error says how to get one."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(JavaNotFoundError, match=r"PATH has no java. Fix: install one \(`apt-get install"):
        find_java()


@pytest.mark.parametrize("version", ["11.0.21", "1.8.0_392"])
def test_a_java_older_than_17_is_named_with_its_version(java_on_path, version):
    """An old Java is refused with its path and version, before it fails with a class file error."""
    java = java_on_path(version)
    with pytest.raises(JavaNotFoundError, match=re.escape(f"{java} is {version}. Fix: install one")):
        find_java()


@pytest.mark.parametrize("version", ["17", "17.0.15", "21.0.2+13", "25-ea"])
def test_a_java_of_17_or_newer_is_taken(java_on_path, version):
    """Every spelling of 17 or newer counts."""
    java = java_on_path(version)
    assert find_java() == java


def test_a_broken_java_home_does_not_hide_the_java_on_the_path(java_on_path, monkeypatch, tmp_path):
    """JAVA_HOME goes first, but one that holds no working Java is passed over."""
    java = java_on_path("17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    assert find_java() == java


def test_the_binary_behind_a_link_is_found():
    """What is returned is Java's own binary, so that its grandparent is a JAVA_HOME."""
    java = find_java()
    assert os.access(java, os.X_OK)
    assert (java.parent.parent / "lib").is_dir()
