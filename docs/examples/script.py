import kafka_liveness_dagster as kl

# Or bootstrap_servers="broker-1.example.com:9092"
kafka = kl.KafkaLivenessResource()

def process(topic, handle):
    with kafka.consumer(
            topics=[topic], group_id=f"{topic}-script",
            max_poll_records=300, max_batch_seconds=60) as consumer:
        # The first poll joins the group
        while (batch := consumer.poll(timeout_seconds=5)) is not None:
            # The records of batch.ranges, the partitions in turns
            for record in consumer.records(batch):
                handle(record)  # a confluent_kafka.Message
            # Raises if the broker refuses; no record is lost then
            consumer.commit(batch)
