import kafka_liveness_dagster as kl

kafka = kl.KafkaLivenessResource()       # or bootstrap_servers="broker-1.example.com:9092"

def process(topic, handle):
    with kafka.consumer(topics=[topic], group_id=f"{topic}-script", max_poll_records=300,
                        max_batch_seconds=60) as consumer:
        while (batch := consumer.poll(timeout_seconds=5)) is not None:   # the first poll joins the group
            for record in consumer.records(batch):                       # of batch.ranges, the partitions in turns
                handle(record)                                           # a confluent_kafka.Message
            consumer.commit(batch)                                       # raises when refused; nothing was lost
