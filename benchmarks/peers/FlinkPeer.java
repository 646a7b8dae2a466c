import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.ExternalizedCheckpointRetention;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.KafkaSourceBuilder;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.connector.kafka.source.reader.deserializer.KafkaRecordDeserializationSchema;
import org.apache.flink.core.execution.CheckpointingMode;
import org.apache.flink.runtime.jobgraph.JobGraph;
import org.apache.flink.runtime.jobgraph.SavepointRestoreSettings;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.runtime.minicluster.MiniClusterConfiguration;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.data.GenericRowData;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.data.StringData;
import org.apache.flink.table.types.logical.RowType;
import org.apache.flink.util.Collector;
import org.apache.iceberg.DistributionMode;
import org.apache.iceberg.Table;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.flink.CatalogLoader;
import org.apache.iceberg.flink.FlinkSchemaUtil;
import org.apache.iceberg.flink.TableLoader;
import org.apache.iceberg.flink.sink.IcebergSink;
import org.apache.iceberg.flink.util.FlinkCompatibilityUtil;
import org.apache.kafka.clients.consumer.ConsumerRecord;

/**
 * Flink in one JVM, which stays warm: a cluster that runs one job for each line of its standard input.
 *
 * <p>The sink is {@code IcebergSink}. With Iceberg 1.11.0 the older {@code FlinkSink} lost the last records of a
 * bounded job in 3 of 10 tries with 100,000 records and checkpoints each 100 ms.
 *
 * <p>The arguments are settings, {@code kafka.NAME=VALUE} of the consumer and {@code catalog.NAME=VALUE} of
 * Iceberg's catalog. A line has five fields, separated by tabs: topic, table, checkpoint interval in
 * milliseconds, folder of the checkpoints, and the checkpoint to go on from. Without a folder the job ends at the
 * log end. Each answer is a line, {@code done} or {@code failed}. The process ends with its standard input.
 */
public final class FlinkPeer {
    private static final int CORES = 2;
    private static final int FIELDS = 5;

    public static void main(String[] settings) throws Exception {
        Map<String, String> kafka = withPrefix(settings, "kafka.");
        Map<String, String> catalog = withPrefix(settings, "catalog.");
        PrintStream answers = System.out;
        BlockingQueue<String> lines = new LinkedBlockingQueue<>();
        Thread reader = new Thread(() -> read(lines), "reader");
        reader.setDaemon(true);
        reader.start();
        MiniClusterConfiguration size = new MiniClusterConfiguration.Builder()
                .setConfiguration(new Configuration())
                .setNumTaskManagers(1)
                .setNumSlotsPerTaskManager(CORES)
                .build();
        try (MiniCluster cluster = new MiniCluster(size)) {
            cluster.start();
            answers.println("ready");
            while (true) {
                String[] order = lines.take().split("\t", FIELDS);
                try {
                    cluster.executeJobBlocking(job(order, kafka, catalog));
                    answers.println("done");
                } catch (Exception error) {
                    error.printStackTrace();
                    answers.println("failed");
                }
            }
        }
    }

    private static void read(BlockingQueue<String> lines) {
        try (BufferedReader input = new BufferedReader(new InputStreamReader(System.in))) {
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                lines.add(line);
            }
        } catch (java.io.IOException error) {
            error.printStackTrace();
        }
        Runtime.getRuntime().halt(0);
    }

    private static JobGraph job(String[] order, Map<String, String> kafka, Map<String, String> catalog)
            throws Exception {
        String topic = order[0];
        String name = order[1];
        long interval = Long.parseLong(order[2]);
        String folder = order[3];
        String from = order[4];
        Configuration options = new Configuration();
        if (!folder.isEmpty()) {
            options.set(CheckpointingOptions.CHECKPOINTS_DIRECTORY, "file://" + folder);
            options.set(
                    CheckpointingOptions.EXTERNALIZED_CHECKPOINT_RETENTION,
                    ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION);
        }
        StreamExecutionEnvironment flink = StreamExecutionEnvironment.getExecutionEnvironment(options);
        flink.setParallelism(CORES);
        flink.enableCheckpointing(interval, CheckpointingMode.EXACTLY_ONCE);
        TableLoader loader = TableLoader.fromCatalog(loader(catalog), TableIdentifier.parse(name));
        loader.open();
        Table table = loader.loadTable();
        RowType row = FlinkSchemaUtil.convert(table.schema());
        TypeInformation<RowData> type = FlinkCompatibilityUtil.toTypeInfo(row);
        DataStream<RowData> rows = flink.fromSource(
                source(topic, kafka, type, folder.isEmpty()), WatermarkStrategy.noWatermarks(), "orders");
        IcebergSink.forRowData(rows)
                .table(table)
                .tableLoader(loader)
                .distributionMode(DistributionMode.NONE)
                .append();
        JobGraph graph = flink.getStreamGraph().getJobGraph();
        if (!from.isEmpty()) {
            graph.setSavepointRestoreSettings(SavepointRestoreSettings.forPath("file://" + from));
        }
        return graph;
    }

    private static KafkaSource<RowData> source(
            String topic, Map<String, String> kafka, TypeInformation<RowData> type, boolean bounded) {
        Properties consumer = new Properties();
        consumer.putAll(kafka);
        KafkaSourceBuilder<RowData> builder = KafkaSource.<RowData>builder()
                .setProperties(consumer)
                .setTopics(topic)
                .setStartingOffsets(OffsetsInitializer.earliest())
                .setDeserializer(new Rows(type));
        return (bounded ? builder.setBounded(OffsetsInitializer.latest()) : builder).build();
    }

    private static CatalogLoader loader(Map<String, String> catalog) {
        org.apache.hadoop.conf.Configuration files = new org.apache.hadoop.conf.Configuration();
        files.set("fs.file.impl", "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem");
        return CatalogLoader.custom(
                catalog.get("name"), new HashMap<>(catalog), files, "org.apache.iceberg.jdbc.JdbcCatalog");
    }

    private static Map<String, String> withPrefix(String[] settings, String prefix) {
        Map<String, String> found = new HashMap<>();
        for (String setting : settings) {
            if (setting.startsWith(prefix)) {
                int equals = setting.indexOf('=');
                found.put(setting.substring(prefix.length(), equals), setting.substring(equals + 1));
            }
        }
        return found;
    }

    /** The transform of every way: the order as text next to the offset that it came from. */
    private static final class Rows implements KafkaRecordDeserializationSchema<RowData> {
        private final TypeInformation<RowData> type;

        private Rows(TypeInformation<RowData> type) {
            this.type = type;
        }

        @Override
        public void deserialize(ConsumerRecord<byte[], byte[]> record, Collector<RowData> out) {
            out.collect(GenericRowData.of(
                    StringData.fromString(record.topic()),
                    record.partition(),
                    record.offset(),
                    StringData.fromBytes(record.value())));
        }

        @Override
        public TypeInformation<RowData> getProducedType() {
            return type;
        }
    }
}
