import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.StringReader;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Copies one topic into another in transactions, to be killed and paused at will: the twin of
 * `tests/guarantees/transformer.py`, with the same journal on standard output. A producer that cannot go on ends the
 * process, and whoever started it starts it again. Arguments: bootstrap servers, input topic, output topic, number of
 * partitions of the output, transactional id, protocol of the group.
 */
public final class Transformer {
    private static final String DOOMED = "|doomed";
    private static final int DOOMED_EVERY = 5;
    private static final Duration ROUND = Duration.ofMillis(200);
    private static final int TIMEOUT_MS = 10_000;
    private static final FileOutputStream JOURNAL = new FileOutputStream(FileDescriptor.out);

    private final String target;
    private final int partitions;
    private final String life;
    private final KafkaConsumer<String, String> consumer;
    private final KafkaProducer<String, String> producer;
    private int number = 0;

    private Transformer(String bootstrap, String source, String target, int partitions, String name, String protocol) {
        this.target = target;
        this.partitions = partitions;
        // A name of its own for each life, so that no two transactions share one.
        this.life = name + "-" + ProcessHandle.current().pid() + "-" + System.nanoTime();
        Properties reading = settings();
        reading.put("bootstrap.servers", bootstrap);
        reading.put("group.id", source + "-to-" + target);
        reading.put("group.protocol", protocol);
        reading.put("auto.offset.reset", "earliest");
        reading.put("enable.auto.commit", "false");
        reading.put("isolation.level", "read_committed");
        reading.put("max.poll.records", "40");
        reading.put("default.api.timeout.ms", String.valueOf(TIMEOUT_MS));
        reading.put("reconnect.backoff.max.ms", "500");
        if (protocol.equals("classic")) {
            reading.put("session.timeout.ms", "3000");
            reading.put("heartbeat.interval.ms", "300");
        }
        consumer = new KafkaConsumer<>(reading, new StringDeserializer(), new StringDeserializer());
        consumer.subscribe(List.of(source));
        Properties writing = settings();
        writing.put("bootstrap.servers", bootstrap);
        writing.put("transactional.id", name);
        writing.put("transaction.timeout.ms", "5000");
        writing.put("linger.ms", "1");
        writing.put("max.block.ms", String.valueOf(TIMEOUT_MS));
        writing.put("reconnect.backoff.max.ms", "500");
        producer = new KafkaProducer<>(writing, new StringSerializer(), new StringSerializer());
    }

    /** Those of the environment, such as how to log in. */
    private static Properties settings() {
        Properties found = new Properties();
        try {
            found.load(new StringReader(System.getenv().getOrDefault("TRANSFORMER_SETTINGS", "")));
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
        return found;
    }

    /** One line of JSON, in one piece and with the kernel before the next step is taken. */
    private static void journal(String entry) {
        String line = "{" + entry + ", \"at\": " + System.currentTimeMillis() / 1000.0 + "}\n";
        try {
            JOURNAL.write(line.getBytes(StandardCharsets.UTF_8));
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    private void run() {
        journal("\"life\": \"" + life + "\"");
        patiently(producer::initTransactions);
        while (true) {
            List<ConsumerRecord<String, String>> records = new ArrayList<>();
            consumer.poll(ROUND).forEach(records::add);
            if (!records.isEmpty()) {
                round(records);
            }
        }
    }

    private void round(List<ConsumerRecord<String, String>> records) {
        number++;
        boolean doomed = number % DOOMED_EVERY == 2;
        String ending = "|" + life + "/" + number + (doomed ? DOOMED : "");
        List<ProducerRecord<String, String>> appends = new ArrayList<>();
        Map<TopicPartition, OffsetAndMetadata> positions = new HashMap<>();
        for (ConsumerRecord<String, String> record : records) {
            int partition = Integer.parseInt(record.value()) % partitions;
            appends.add(new ProducerRecord<>(target, partition, null, record.value() + ending));
            positions.put(
                new TopicPartition(record.topic(), record.partition()), new OffsetAndMetadata(record.offset() + 1));
        }
        journal("\"begin\": " + number + ", \"appends\": " + appends.stream()
            .map(each -> "[" + each.partition() + ", \"" + each.value() + "\"]")
            .collect(Collectors.joining(", ", "[", "]")));
        producer.beginTransaction();
        try {
            appends.forEach(producer::send);
            producer.sendOffsetsToTransaction(positions, consumer.groupMetadata());
            if (doomed) {
                abort();
                return;
            }
            journal("\"commit_asked\": " + number);
            patiently(producer::commitTransaction);
            journal("\"committed\": " + number);
        } catch (KafkaException error) {
            journal("\"error\": \"" + error.getClass().getSimpleName() + "\", \"number\": " + number);
            // Throws again, and ends the process, if there is nothing that this producer may still do.
            abort();
        }
    }

    private void abort() {
        patiently(producer::abortTransaction);
        journal("\"aborted\": " + number);
        // Back to what is committed: the records of an aborted round are to be read again.
        Map<TopicPartition, OffsetAndMetadata> committed = new HashMap<>();
        patiently(() -> committed.putAll(consumer.committed(consumer.assignment())));
        committed.forEach((partition, offset) -> consumer.seek(partition, offset == null ? 0 : offset.offset()));
    }

    /** What timed out may be tried again, and only that. */
    private static void patiently(Runnable step) {
        while (true) {
            try {
                step.run();
                return;
            } catch (TimeoutException again) {
                System.err.println(again);
            }
        }
    }

    public static void main(String[] arguments) {
        try {
            new Transformer(
                arguments[0], arguments[1], arguments[2], Integer.parseInt(arguments[3]), arguments[4], arguments[5])
                .run();
        } catch (Throwable error) {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
    }
}
