import kafka_liveness_dagster as kl

kafka = kl.KafkaLivenessResource()       # or bootstrap_servers="broker-1.example.com:9092"

def drain(topic, group_id, handle):
    """Process all pending ranges of a group."""
    with kafka.consumer(topics=[topic], group_id=group_id) as consumer:
        partitions = kafka.cluster().partitions([topic])             # without a poll it does not join
        pending = [r for at in partitions for r in consumer.pending(*at)]
    with kafka.catch_up(group_id=group_id, ranges=pending,
                        max_poll_records=300, max_batch_seconds=60) as catch_up:
        while (batch := catch_up.poll()) is not None:                # None when all is done
            for record in catch_up.records(batch):
                handle(record)
            catch_up.commit(batch)                                   # to the catch-up commit log
    return pending
