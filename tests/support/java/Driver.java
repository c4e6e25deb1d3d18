import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * One JVM that a test run keeps and sends commands to, a JSON object a line on standard input, answered by one on
 * standard output: producers, consumers and command-line tools without a JVM start for each. Bytes travel as base64.
 * It compiles against kafka-clients 3.5 and 4.3 alike, so it knows only what both have. It ends with its input.
 */
public final class Driver {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Map<String, KafkaProducer<byte[], byte[]>> PRODUCERS = new HashMap<>();

    /** The first exit status that the tool under way asked for: some catch what ends them and ask again. */
    private static Integer exitStatus;

    private static final class ToolExit extends Error {
        ToolExit() {
            super("exit", null, false, false);
        }
    }

    private static void exit(int status) {
        exitStatus = exitStatus == null ? status : exitStatus;
        throw new ToolExit();
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        catchExits();
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            ObjectNode answer;
            try {
                answer = run(JSON.readTree(line));
            } catch (Throwable error) {
                answer = failure(error);
            }
            answers.println(JSON.writeValueAsString(answer));
        }
        for (KafkaProducer<byte[], byte[]> producer : PRODUCERS.values()) {
            producer.close(Duration.ZERO);
        }
        Runtime.getRuntime().halt(0);
    }

    /** Tools end the JVM by Kafka's `Exit`, which Kafka 4.4 has moved. */
    private static void catchExits() throws Exception {
        Class<?> exit;
        try {
            exit = Class.forName("org.apache.kafka.common.utils.Exit");
        } catch (ClassNotFoundException error) {
            exit = Class.forName("org.apache.kafka.common.utils.internals.Exit");
        }
        Class<?> procedure = Class.forName(exit.getName() + "$Procedure");
        Object catcher = Proxy.newProxyInstance(Driver.class.getClassLoader(), new Class<?>[] {procedure},
            (proxy, method, arguments) -> {
                exit((int) arguments[0]);
                return null;
            });
        exit.getMethod("setExitProcedure", procedure).invoke(null, catcher);
        exit.getMethod("setHaltProcedure", procedure).invoke(null, catcher);
    }

    private static ObjectNode run(JsonNode command) throws Exception {
        switch (command.get("do").asText()) {
            case "tool":
                return tool(command);
            case "start":
                start(command);
                return JSON.createObjectNode();
            case "property":
                System.setProperty(name(command), command.get("value").asText());
                return JSON.createObjectNode();
            case "producer.open":
                PRODUCERS.put(name(command), new KafkaProducer<>(
                    properties(command.get("config")), new ByteArraySerializer(), new ByteArraySerializer()));
                return JSON.createObjectNode();
            case "producer.init":
                producer(command).initTransactions();
                return JSON.createObjectNode();
            case "producer.begin":
                producer(command).beginTransaction();
                return JSON.createObjectNode();
            case "producer.send":
                return send(producer(command), command);
            case "producer.offsets":
                producer(command).sendOffsetsToTransaction(
                    offsets(command.get("offsets")), new ConsumerGroupMetadata(command.get("group").asText()));
                return JSON.createObjectNode();
            case "producer.commit":
                producer(command).commitTransaction();
                return JSON.createObjectNode();
            case "producer.abort":
                producer(command).abortTransaction();
                return JSON.createObjectNode();
            case "producer.close":
                PRODUCERS.remove(name(command)).close(Duration.ofMillis(command.get("timeout_ms").asLong()));
                return JSON.createObjectNode();
            case "consume":
                return consume(command);
            default:
                throw new IllegalArgumentException("unknown command " + command.get("do"));
        }
    }

    /** Runs a program beside the commands, until the JVM ends. */
    private static void start(JsonNode command) {
        Thread thread = new Thread(() -> {
            try {
                runMain(command);
            } catch (Exception error) {
                error.printStackTrace();
            }
        });
        thread.setDaemon(true);
        thread.start();
    }

    private static void runMain(JsonNode command) throws Exception {
        List<String> arguments = new ArrayList<>();
        command.get("args").forEach(each -> arguments.add(each.asText()));
        Class.forName(command.get("main").asText())
            .getMethod("main", String[].class)
            .invoke(null, (Object) arguments.toArray(new String[0]));
    }

    private static ObjectNode tool(JsonNode command) throws Exception {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        ByteArrayOutputStream err = new ByteArrayOutputStream();
        PrintStream oldOut = System.out;
        PrintStream oldErr = System.err;
        exitStatus = null;
        System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
        try {
            runMain(command);
        } catch (InvocationTargetException wrapped) {
            if (!(wrapped.getCause() instanceof ToolExit)) {
                wrapped.getCause().printStackTrace(System.err);
                exitStatus = 1;
            }
        } finally {
            System.setOut(oldOut);
            System.setErr(oldErr);
        }
        return JSON.createObjectNode()
            .put("exit", exitStatus == null ? 0 : exitStatus)
            .put("out", out.toString(StandardCharsets.UTF_8))
            .put("err", err.toString(StandardCharsets.UTF_8));
    }

    private static ObjectNode send(KafkaProducer<byte[], byte[]> producer, JsonNode command) throws Exception {
        int flushEvery = command.get("flush_every").asInt();
        List<Future<RecordMetadata>> futures = new ArrayList<>();
        for (JsonNode record : command.get("records")) {
            Long timestamp = record.hasNonNull("timestamp") ? record.get("timestamp").asLong() : null;
            ProducerRecord<byte[], byte[]> message = new ProducerRecord<>(
                record.get("topic").asText(),
                record.get("partition").asInt(),
                timestamp,
                bytes(record.get("key")),
                bytes(record.get("value")));
            for (JsonNode header : record.get("headers")) {
                message.headers().add(header.get(0).asText(), bytes(header.get(1)));
            }
            futures.add(producer.send(message));
            if (flushEvery > 0 && futures.size() % flushEvery == 0) {
                producer.flush();
            }
        }
        producer.flush();
        ObjectNode answer = JSON.createObjectNode();
        ArrayNode results = answer.putArray("results");
        for (Future<RecordMetadata> future : futures) {
            ObjectNode result = results.addObject();
            try {
                RecordMetadata metadata = future.get();
                result.put("partition", metadata.partition());
                result.put("offset", metadata.offset());
                result.put("timestamp", metadata.timestamp());
            } catch (ExecutionException error) {
                result.put("error", error.getCause().getClass().getSimpleName());
                result.put("message", error.getCause().getMessage());
            }
        }
        return answer;
    }

    private static ObjectNode consume(JsonNode command) {
        ObjectNode answer = JSON.createObjectNode();
        ArrayNode records = answer.putArray("records");
        TopicPartition partition =
            new TopicPartition(command.get("topic").asText(), command.get("partition").asInt());
        Duration timeout = Duration.ofMillis(command.get("timeout_ms").asLong());
        long deadline = System.nanoTime() + timeout.toNanos();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(
                properties(command.get("config")), new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.assign(List.of(partition));
            if (command.hasNonNull("start")) {
                consumer.seek(partition, command.get("start").asLong());
            } else {
                consumer.seekToBeginning(List.of(partition));
            }
            long end = consumer.endOffsets(List.of(partition), timeout).get(partition);
            while (consumer.position(partition, timeout) < end) {
                if (System.nanoTime() > deadline) {
                    throw new IllegalStateException(
                        partition + " read up to " + consumer.position(partition) + " of " + end + " in time");
                }
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                    ObjectNode entry = records.addObject();
                    entry.put("offset", record.offset());
                    entry.put("timestamp", record.timestamp());
                    entry.put("timestamp_type", record.timestampType().id);
                    entry.put("leader_epoch", record.leaderEpoch().orElse(-1));
                    entry.put("key", text(record.key()));
                    entry.put("value", text(record.value()));
                    ArrayNode headers = entry.putArray("headers");
                    for (Header header : record.headers()) {
                        headers.addArray().add(header.key()).add(text(header.value()));
                    }
                }
            }
            answer.put("position", consumer.position(partition, timeout));
            answer.put("end_offset", end);
            answer.put("beginning_offset", consumer.beginningOffsets(List.of(partition), timeout).get(partition));
        }
        return answer;
    }

    private static ObjectNode failure(Throwable error) {
        StringWriter trace = new StringWriter();
        error.printStackTrace(new PrintWriter(trace));
        return JSON.createObjectNode().put("failed", error.getClass().getSimpleName()).put("trace", trace.toString());
    }

    private static String name(JsonNode command) {
        return command.get("name").asText();
    }

    private static KafkaProducer<byte[], byte[]> producer(JsonNode command) {
        return PRODUCERS.get(name(command));
    }

    private static Properties properties(JsonNode config) {
        Properties properties = new Properties();
        config.fields().forEachRemaining(entry -> properties.setProperty(entry.getKey(), entry.getValue().asText()));
        return properties;
    }

    private static Map<TopicPartition, OffsetAndMetadata> offsets(JsonNode entries) {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        for (JsonNode entry : entries) {
            offsets.put(
                new TopicPartition(entry.get(0).asText(), entry.get(1).asInt()),
                new OffsetAndMetadata(entry.get(2).asLong()));
        }
        return offsets;
    }

    private static byte[] bytes(JsonNode node) {
        return node == null || node.isNull() ? null : Base64.getDecoder().decode(node.asText());
    }

    private static String text(byte[] data) {
        return data == null ? null : Base64.getEncoder().encodeToString(data);
    }
}
