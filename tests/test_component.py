"""The component: what its YAML means, what it refuses, and what ``dg`` makes of it in a project."""

from __future__ import annotations

import re
import subprocess
import sys
import typing
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from inspect import Parameter, signature
from pathlib import Path

import dagster as dg
import pytest
import typing_extensions
import yaml
from dagster.components.core.package_entry import DG_PLUGIN_ENTRY_POINT_GROUP
from dagster.components.testing import create_defs_folder_sandbox

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.assets.yaml import AssetAttributes
from kafka_liveness_dagster.settings.asset_arguments import AssetArguments

TYPE = "kafka_liveness_dagster.KafkaAssetComponent"
PAGE = Path(__file__).parents[1] / "docs" / "component.md"
SHOWN = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
SQL = "SELECT topic, partition, offset FROM batch"
ORDERS = {"topics": ["orders"], "group_id": "orders-etl", "table": "lake.shop.orders", "sql": SQL}
EMBEDDED = {"kafka": {"bootstrap_servers": "embedded"}, "spark": {}}
CODE = {"on_event", "event_jobs", "backfill_policy"}
GROUPS = {
    "batching": kl.Batching,
    "crash_lag": kl.CrashLag,
    "offsets": kl.Offsets,
    "membership": kl.Membership,
    "sensor": kl.Sensor,
    "sla": kl.Sla,
    "iceberg": kl.Iceberg,
    "maintenance": kl.Maintenance,
    "completeness": kl.Completeness,
    "resources": kl.ResourceKeys,
}

pytestmark = [
    pytest.mark.filterwarnings("ignore::dagster.BetaWarning"),  # what Dagster itself uses to load components
    pytest.mark.filterwarnings("ignore:.parse_obj_as.:DeprecationWarning"),
]


@pytest.fixture
def project():
    """A project with nothing in its ``defs``."""
    with create_defs_folder_sandbox() as sandbox:
        yield sandbox


def write(project, folder="orders", **attributes):
    """A ``defs.yaml`` with settings that are fine unless a test says otherwise; None leaves one out."""
    here = project.defs_folder_path / folder
    here.mkdir()
    told = {key: value for key, value in {**ORDERS, **attributes}.items() if value is not None}
    (here / "defs.yaml").write_text(yaml.safe_dump({"type": TYPE, "attributes": told}))
    return here


def load(project, folder="orders"):
    """The component and what it gives."""
    with (
        project.load_component_and_build_defs(Path(folder)) as (component, _),
        project.build_all_defs() as defs,
    ):
        return component, defs


def refused(project, **attributes):
    """Everything that is said when the project does not load."""
    write(project, **attributes)
    with pytest.raises(Exception) as error, project.build_all_defs():
        pass
    said, cause = [], error.value
    while cause is not None:
        said.append(str(cause))
        cause = cause.__cause__
    return "\n".join(said)


def test_no_setting_is_forgotten():
    """The component has ``kafka_asset``'s settings with type, default and description, and four more."""
    fields = {
        k: one
        for k, one in kl.KafkaAssetComponent.model_fields.items()
        if k not in AssetAttributes.model_fields
    }
    seen = {
        "Sequence": Sequence, "Callable": Callable, "Sink": Callable[..., typing.Any],
        "Unpack": typing_extensions.Unpack,
    }  # fmt: skip
    types = typing.get_type_hints(kl.kafka_asset, localns=seen)
    told = typing.get_type_hints(kl.KafkaAssetComponent)
    asked = {
        k: one
        for k, one in signature(kl.kafka_asset).parameters.items()
        if one.kind is Parameter.KEYWORD_ONLY
    }
    assert set(AssetArguments.__annotations__) - set(AssetAttributes.model_fields) == {"ins", "hooks"}
    assert set(fields) ^ set(asked) == {"sql", "transform", "kafka", "spark"}
    for name, parameter in asked.items():
        field = fields[name]
        assert field.description, name
        assert field.is_required() == (parameter.default is Parameter.empty), name
        assert field.is_required() or field.default == parameter.default, name
        wanted = types[name] if name != "topics" else str | types[name]  # one topic needs no list in YAML
        assert told[name] == wanted, name


def test_editors_are_told_every_setting():
    """Of the schema.

    Its words and default, and of a group each of its own, but for what only Python can say.
    """
    schema = kl.KafkaAssetComponent.get_model_cls().model_json_schema()
    assert [name for name, told in schema["properties"].items() if not told.get("description")] == []
    for name, group in GROUPS.items():
        assert schema["properties"][name]["default"] == {}
        section = schema["$defs"][group.__name__]
        assert section["additionalProperties"] is False
        assert set(section["properties"]) == set(group.model_fields) - CODE
        for setting, told in section["properties"].items():
            field = group.fields_with_descriptions()[setting]
            assert told["description"] == " ".join(field.description.replace("``", "`").split()).replace(
                ":class:", ""
            )
            default = getattr(field.default, "value", field.default)
            assert told["default"] == (list(default) if isinstance(default, tuple) else default), setting


def test_every_setting_arrives(project, monkeypatch):
    """What YAML says is what ``kafka_asset`` is told, setting by setting."""
    told = {
        "max_poll_records": 300, "max_batch_seconds": 60.0, "enable_parallel_rebalance": True,
        "idle_seconds": 1.5, "materialize_interval_seconds": 30.0, "include_headers": True,
        "complete_every": "15min",
        "completeness": {
            "start": "2026-11-01-05:00", "timezone": "Europe/Amsterdam", "allowed_lateness_seconds": 600.0,
            "reopen_on_late": True,
            "mark_empty": False,
        },
        "batching": {
            "allocation": "greedy", "in_flight": 1, "on_slow_record": "quarantine",
            "commit_interval_seconds": 60.0, "max_batch_bytes": 134_217_728,
            "on_bad_record": "dead_letter", "max_dead_letters": 5,
        },
        "crash_lag": {"min_offsets": 70, "max_ranges": 3, "auto_catch_up": True, "max_age_seconds": 3600.0},
        "offsets": {
            "on_data_loss": "write_off", "on_missing_rows": "crash_lag", "auto_offset_reset": "latest",
        },
        "membership": {"liveness": "progress", "group_instance_id": "etl-0"},
        "sensor": {
            "max_live_runs": 1, "minimum_interval_seconds": 30, "default_status": "RUNNING", "max_lag": 5_000,
            "ghost_after_seconds": 30.0, "fail_ghost_runs": True,
        },
        "sla": {"fresh_seconds": 30.0, "complete_minutes": 15.0},
        "iceberg": {
            "snapshots": "append", "partition_by": ["days(placed_at)"], "sort_by": ["id DESC"],
            "table_properties": {"format-version": "3"},
        },
        "maintenance": {
            "cron_schedule": "@daily", "default_status": "RUNNING", "min_files": 5, "max_snapshots": 50,
            "max_snapshot_age_seconds": 3600.0, "orphan_file_age_seconds": 86_400.0,
        },
        "resources": {"kafka": "k", "spark": "s"},
        "group_name": "shop", "name": "web_orders", "topics": "orders",
    }  # fmt: skip
    heard = {}

    def listen(**settings):
        heard.update(settings)
        return kl.kafka_asset(**settings)

    monkeypatch.setattr("kafka_liveness_dagster.assets.component.kafka_asset", listen)
    write(project, **told, **EMBEDDED)
    load(project)
    told["sensor"]["default_status"] = dg.DefaultSensorStatus.RUNNING
    told["maintenance"]["default_status"] = dg.DefaultScheduleStatus.RUNNING
    groups = {name: group(**told[name]) for name, group in GROUPS.items()}
    wanted = {**ORDERS, **told, **groups, "sink": None}
    assert heard == {name: value for name, value in wanted.items() if name != "sql"}
    assert set(heard) == set(signature(kl.kafka_asset).parameters) - {"of_dagster"}, (
        "a new setting is not told here yet"
    )
    for name, group in GROUPS.items():
        assert set(told[name]) == set(group.model_fields) - CODE, "a new setting is not told here yet"


def test_what_dg_lets_yaml_say_of_any_asset_arrives(project):
    """By Dagster's names, on both assets.

    Conditions and policies by a template, and afterwards by post-processing.
    """
    here = write(
        project, **{**ORDERS, "group_id": "eu-etl"}, **EMBEDDED, key_prefix="eu", description="Orders.",
        owners=["team:shop"], tags={"tier": 1}, metadata={"since": 2026}, kinds=["python"],
        deps=["crm/customers"], code_version="7", op_tags={"a": "b"},
        automation_condition="{{ dg.AutomationCondition.eager() }}",
        retry_policy={"max_retries": 2, "delay": 1.5}, pool="etl", run_tags={"cost": 5},
    )  # fmt: skip
    told = yaml.safe_load((here / "defs.yaml").read_text())
    told["post_processing"] = {
        "assets": [{"target": "*", "attributes": {"owners": ["team:etl"], "group_name": "shop"}}]
    }
    (here / "defs.yaml").write_text(yaml.safe_dump(told))
    _, defs = load(project)
    dg.Definitions.validate_loadable(defs)
    graph = defs.resolve_asset_graph()
    live, crash_lag = (graph.get(dg.AssetKey(["eu", name])) for name in ("orders", "orders_crash_lag"))
    for node in (live, crash_lag):
        assert (node.owners, node.group_name, node.code_version) == (["team:etl"], "shop", "7")
        assert (node.tags["tier"], node.metadata["since"]) == ("1", 2026)
        assert "python" in node.kinds
        assert dg.AssetKey(["crm", "customers"]) in node.parent_keys
    assert (live.description, live.automation_condition) == ("Orders.", dg.AutomationCondition.eager())
    job = defs.resolve_job_def("eu__orders_job")
    assert job.tags["cost"] == "5"
    (op,) = job.all_node_defs
    assert (op.retry_policy, op.pool, op.tags["a"]) == (dg.RetryPolicy(max_retries=2, delay=1.5), "etl", "b")


def test_the_page_shows_what_loads(project, monkeypatch):
    """The YAML of the page gives what it says, and asks for no variable before a run does."""
    for name in ("KAFKA_BOOTSTRAP_SERVERS", "SPARK_REMOTE"):
        monkeypatch.delenv(name, raising=False)
    here = write(project)
    (here / "defs.yaml").write_text(SHOWN[0])
    _, defs = load(project)
    repository = defs.get_repository_def()
    dg.Definitions.validate_loadable(defs)
    keys = {key.to_user_string() for key in repository.asset_graph.get_all_asset_keys()}
    assert keys == {"kafka/orders_topic", "orders", "orders_crash_lag"}
    assert {job.name for job in repository.get_all_jobs()} >= {"orders_job", "orders_crash_lag_job"}
    assert [sensor.name for sensor in repository.sensor_defs] == ["orders_sensor"]


def test_a_secret_stays_a_name(project, monkeypatch):
    """``{{ env.NAME }}`` of a resource is the variable, not its value; what must be a number is the value."""
    monkeypatch.setenv("KAFKA_PASSWORD", "sesame")
    monkeypatch.setenv("SESSION", "9")
    login = {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_username": "etl"}
    secret = {
        "sasl_password": "{{ env.KAFKA_PASSWORD }}",
        "extra": {"client.rack": "{{ env.KAFKA_PASSWORD }}"},
    }
    write(project, kafka={**login, **secret, "session_timeout_seconds": "{{ env.SESSION }}"}, spark={})
    component, _ = load(project)
    assert type(component.kafka.sasl_password) is type(component.kafka.extra["client.rack"]) is dg.EnvVar
    assert component.kafka.session_timeout_seconds == 9
    assert "sesame" not in repr(component)


def test_text_is_text_and_a_template_may_give_a_number(project, monkeypatch):
    """A variable holds text where a number or a truth is wanted.

    What is quoted in the YAML is meant as text.
    """
    monkeypatch.setenv("LAG", "5")
    monkeypatch.setenv("JUMPS", "true")
    monkeypatch.setenv("STATUS", "RUNNING")
    write(
        project,
        group_id="5",
        topics=["7", "{{ 'or' ~ 'ders' }}"],
        sensor={
            "max_lag": "{{ env.LAG }}",
            "default_status": "{{ env.STATUS }}",
            "fail_ghost_runs": "{{ env.JUMPS }}",
        },
        membership={"group_instance_id": "5"},
        batching={"in_flight": "{{ 1 + 1 }}", "allocation": "{{ 'gree' ~ 'dy' }}"},
        enable_parallel_rebalance="{{ env.JUMPS }}",
        max_poll_records="{% if true %}auto{% endif %}",
        idle_seconds="{{ env('IDLE', '1.5') }}",
    )
    component, _ = load(project)
    told = ("group_id", "topics", "enable_parallel_rebalance", "max_poll_records", "idle_seconds")
    assert [getattr(component, name) for name in told] == ["5", ["7", "orders"], True, "auto", 1.5]
    running = dg.DefaultSensorStatus.RUNNING
    assert component.sensor == kl.Sensor(max_lag=5, default_status=running, fail_ghost_runs=True)
    assert component.membership == kl.Membership(group_instance_id="5")
    assert component.batching == kl.Batching(in_flight=2, allocation="greedy")


def test_a_function_beside_the_yaml_is_found(project):
    """A leading dot means the folder; the function serves both lanes as it is, and describes the asset."""
    here = write(project, sql=None, transform=".rows:rows", **EMBEDDED)
    (here / "rows.py").write_text('def rows(batch):\n    """Rows as they are."""\n    return batch\n')
    component, defs = load(project)
    assert component.transform("batch") == "batch"
    assert (
        defs.resolve_assets_def("orders").specs_by_key[dg.AssetKey("orders")].description
        == "Rows as they are."
    )


def test_a_sink_beside_the_yaml_is_found(project):
    """Instead of a table: the asset says where its rows go."""
    here = write(project, table=None, sink=".rows:keep", **EMBEDDED)
    (here / "rows.py").write_text("def keep(replacement):\n    return None\n")
    _, defs = load(project)
    assert defs.resolve_assets_def("orders").metadata_by_key[dg.AssetKey("orders")]["sink"] == "keep"


def test_what_a_function_lacks_is_told_as_it_is(project):
    """A module that is there and cannot be imported is not called missing."""
    here = write(project, sql=None, transform=".rows:rows")
    (here / "rows.py").write_text("import nonesuch")
    with pytest.raises(Exception, match="Error while loading") as error, project.build_all_defs():
        pass
    said = str(error.value.__cause__)
    assert "No module named 'nonesuch'" in said
    assert "there is no such module" not in said


def test_sql_describes_its_asset(project):
    """Who looks at the asset sees the query."""
    write(project, **EMBEDDED)
    spec = load(project)[1].resolve_assets_def("orders").specs_by_key[dg.AssetKey("orders")]
    assert "```" not in spec.description, "the lineage shows it as it is written"
    assert spec.metadata["sql"].value == f"```sql\n{SQL}\n```"


@pytest.mark.parametrize(
    ("attributes", "says"),
    [
        ({"sql": None}, r"attributes at .*orders/defs\.yaml:\d+`\n.*both missing"),
        ({"transform": ".rows:rows"}, "both set"),
        ({"sql": "SELECT * FROM orders"}, "does not read the batch"),
        ({"sql": None, "transform": "rows"}, "names no function"),
        ({"sql": None, "transform": ".rows:rows"}, r"defs\.orders\.rows, but there is no such module"),
        ({"sql": None, "transform": "json:nope"}, "'nope' of json, which has no such function"),
        ({"max_pol_records": 300}, r"max_pol_records at .*orders/defs\.yaml:\d+"),
        (
            {"kafka": {"bootstrap_server": "localhost:9092"}},
            r"kafka.*bootstrap_server at .*orders/defs\.yaml:\d+",
        ),
        (
            {"max_poll_records": "many"},
            "the component of group orders-etl is 'many': wanted a whole number",
        ),
        (
            {"max_poll_records": "{{ 'many' }}", "name": "sales"},
            "max_poll_records of asset sales is 'many': wanted",
        ),
        (
            {"offsets": {"on_data_loss": "ignore"}},
            (
                "offsets.on_data_loss of the component of group orders-etl is 'ignore': wanted 'raise' or "
                "'write_off'"
            ),
        ),
        (
            {"batching": {"in_flight": 3}, "name": "sales"},
            "batching.in_flight of asset sales is 3: wanted 1 or 2",
        ),
        ({"batching": {"in_flight": "{{ 'two' }}"}}, "batching.in_flight of .* is 'two': wanted 1 or 2"),
        (
            {"sensor": {"max_lag": "5"}, "crash_lag": {"min_offsets": True}, "topics": "a b"},
            (
                r"topics.* of .* is 'a b': .*\ncrash_lag.min_offsets of .* is True: .*"
                r"\nsensor.max_lag of .* is '5': "
            ),
        ),
        (
            {"batching": {"in_fligth": 2}},
            r"(?s)defs\.yaml:\d+.*'in_fligth' is no setting of Batching: did you mean in_flight\?",
        ),
        ({"sensor": {"on_event": "page"}}, "'on_event' is no setting of Sensor"),
        ({"batching": 7}, r"attributes.batching.* at .*orders/defs\.yaml:\d+"),
        ({"crash_lag": "{{ 'soon' }}"}, r"crash_lag of .* is 'soon': wanted kl\.CrashLag"),
        ({"topics": ["orders", "5", 5]}, r"topics\[2\] of .* is 5: wanted a Kafka topic"),
        (
            {"enable_parallel_rebalance": "no"},
            "enable_parallel_rebalance of .* is 'no': wanted True or False",
        ),
        ({"group_id": 5}, "group_id of the component of group 5 is 5: wanted 1 to 249 printable"),
        (
            {"kafka": {"session_timeout_seconds": "5"}},
            r"defs.yaml:\d+(?s:.*)session_timeout_seconds .* is '5': ",
        ),
        ({"kafka": 7}, r"attributes.kafka.* at .*orders/defs\.yaml:\d+"),
        (
            {"sensor": {"default_status": "ON"}},
            "sensor.default_status of .* is 'ON': wanted .*RUNNING or STOPPED",
        ),
        ({"group_id": "etl.catch-up"}, "catch-up commit log"),
        ({"table": "orders"}, "catalog.namespace.table"),
    ],
)
def test_what_is_wrong_is_told_when_the_project_is_loaded(project, attributes, says):
    """With the component's place in the project, and the line where that can be known."""
    said = refused(project, **attributes)
    assert re.search(says, said), said
    assert "defs.yaml" in said


def test_two_components_share_a_topic_and_its_resources(project):
    """Two groups may read one topic, and both may say where the broker is."""
    write(project, "orders", **EMBEDDED)
    write(project, "audit", group_id="audit-etl", table="lake.shop.audit", **EMBEDDED)
    with project.build_all_defs() as defs:
        dg.Definitions.validate_loadable(defs)
        assert sorted(sensor.name for sensor in defs.get_repository_def().sensor_defs) == [
            "audit_sensor",
            "orders_sensor",
        ]


def test_one_key_is_one_resource(project):
    """Two brokers under one key are refused, naming both groups; under two keys they are two."""
    write(project, "audit", group_id="audit-etl", table="lake.shop.audit", **EMBEDDED)
    elsewhere = {"kafka": {"bootstrap_servers": "other:9092"}}
    said = refused(project, **elsewhere)
    assert "'audit-etl' and 'orders-etl' declare different resources under one key, 'kafka'" in said
    (project.defs_folder_path / "orders" / "defs.yaml").unlink()
    (project.defs_folder_path / "orders").rmdir()
    write(project, **elsewhere, resources={"kafka": "other_kafka"})
    with project.build_all_defs() as defs:
        dg.Definitions.validate_loadable(defs)


def test_a_folder_name_need_not_be_a_dagster_name(project):
    """Topics and folders may have hyphens, assets may not."""
    write(project, "web-orders", **EMBEDDED)
    assert dg.AssetKey("web_orders") in load(project, "web-orders")[1].resolve_all_asset_keys()


def test_dg_finds_the_package_and_looks_at_it_cheaply():
    """Discovery takes every public name of the registered module: neither client is loaded by that."""
    (registered,) = [
        found for found in entry_points(group=DG_PLUGIN_ENTRY_POINT_GROUP) if found.value == kl.__name__
    ]
    code = (
        "import sys; from dagster.components.core import package_entry as entries;"
        " import kafka_liveness_dagster as kl;"
        f"print(*[n for n, _ in entries.get_package_objects_in_module(__import__({registered.value!r}))]);"
        "print(*sorted({'pyspark', 'confluent_kafka'} & set(sys.modules)));"
        "from dagster_shared.libraries import DagsterLibraryRegistry as known; print(*known.get())"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert told[:2] == ["KafkaAssetComponent", ""]
    assert "kafka-liveness-dagster" in told[2]
