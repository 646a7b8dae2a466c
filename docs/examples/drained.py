import kafka_liveness_dagster as kl

# Or bootstrap_servers="broker-1.example.com:9092"
kafka = kl.KafkaLivenessResource()

def drain(topic, group_id, handle):
    """Process all pending ranges of a group."""
    # Without a poll this consumer does not join the group
    with kafka.consumer(topics=[topic],
                        group_id=group_id) as consumer:
        partitions = kafka.cluster().partitions([topic])
        pending = [one for at in partitions
                   for one in consumer.pending(*at)]
    with kafka.catch_up(
            group_id=group_id, ranges=pending,
            max_poll_records=300, max_batch_seconds=60) as catch_up:
        # poll returns None when all ranges are done
        while (batch := catch_up.poll()) is not None:
            for record in catch_up.records(batch):
                handle(record)
            catch_up.commit(batch)  # to the catch-up commit log
    return pending
