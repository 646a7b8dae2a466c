import datetime as dt

import kafka_liveness_dagster as kl
from kafka_liveness_dagster import testing


@kl.kafka_asset(   # in your project it is in a module of its own
    topics=["orders"], group_id="orders-etl", table="lake.shop.orders",
    batching=kl.Batching(on_bad_record="dead_letter"))
def orders(batch):
    schema = "id BIGINT NOT NULL, price DOUBLE"
    order = kl.from_json(batch.value, schema)
    return batch.select(
        "topic", "partition", "offset", "timestamp", order.alias("o")
    ).selectExpr("topic", "partition", "offset", "o.*",
                 "date(timestamp) AS day")


def test_an_order_becomes_a_row():
    morning = dt.datetime(2026, 11, 26, 10)   # UTC
    [row] = testing.run(orders, [
        testing.Record({"id": 1, "price": 9.5}, timestamp=morning),
    ]).rows
    assert (row.id, row.price, row.day) == (1, 9.5, morning.date())


def test_bad_orders_become_dead_letters():
    result = testing.run(orders, [
        '{"id": 1, "price": 9.5}',            # offset 0, and so on
        '{"id": 2, "price": "abc"}',
        "no JSON",
    ])
    assert [row.id for row in result.rows] == [1]
    assert [(bad.offset, bad.error) for bad in result.dead_letters] == [
        (1, 'field price: expected DOUBLE, got "abc"'),
        (2, "not JSON: Expecting value, at character 1"),
    ]
