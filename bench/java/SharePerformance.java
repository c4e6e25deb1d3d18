import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Share consumers, a thread each, that read all records of a topic as one new group. It prints how many records there were
 * and how many a second, from the first to the last. With explicit acknowledgement each record is accepted by itself.
 * Arguments: bootstrap servers, group, topic, consumers, records, "implicit" or "explicit".
 */
public final class SharePerformance {
    private static final long TIMEOUT_NANOS = 120_000_000_000L;

    public static void main(String[] arguments) throws Exception {
        String servers = arguments[0];
        String group = arguments[1];
        long wanted = Long.parseLong(arguments[4]);
        try (Admin admin = Admin.create(Map.<String, Object>of("bootstrap.servers", servers))) {
            ConfigEntry entry = new ConfigEntry("share.auto.offset.reset", "earliest");
            admin.incrementalAlterConfigs(Map.of(
                new ConfigResource(ConfigResource.Type.GROUP, group),
                List.of(new AlterConfigOp(entry, AlterConfigOp.OpType.SET)))).all().get();
        }
        AtomicLong read = new AtomicLong();
        AtomicLong first = new AtomicLong();
        AtomicLong last = new AtomicLong();
        long deadline = System.nanoTime() + TIMEOUT_NANOS;
        List<Thread> threads = new ArrayList<>();
        for (int number = 0; number < Integer.parseInt(arguments[3]); number++) {
            Thread thread = new Thread(() -> {
                try (KafkaShareConsumer<byte[], byte[]> consumer = new KafkaShareConsumer<>(settings(arguments))) {
                    consumer.subscribe(List.of(arguments[2]));
                    boolean explicit = arguments[5].equals("explicit");
                    while (read.get() < wanted && System.nanoTime() < deadline) {
                        ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(100));
                        if (records.isEmpty()) {
                            continue;
                        }
                        first.compareAndSet(0, System.nanoTime());
                        if (explicit) {
                            for (ConsumerRecord<byte[], byte[]> record : records) {
                                consumer.acknowledge(record, AcknowledgeType.ACCEPT);
                            }
                        }
                        if (read.addAndGet(records.count()) >= wanted) {
                            last.compareAndSet(0, System.nanoTime());
                        }
                    }
                }
            });
            threads.add(thread);
            thread.start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        double seconds = (last.get() - first.get()) / 1e9;
        System.out.printf("%d records, %.1f records/sec%n", read.get(), read.get() / seconds);
    }

    private static Properties settings(String[] arguments) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("group.id", arguments[1]);
        settings.put("share.acknowledgement.mode", arguments[5]);
        settings.put("key.deserializer", ByteArrayDeserializer.class.getName());
        settings.put("value.deserializer", ByteArrayDeserializer.class.getName());
        return settings;
    }
}
