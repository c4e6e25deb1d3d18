import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Share consumers in one JVM, by name, each a member of its group. A test sends commands, a JSON object a line on
 * standard input, each answered by one on standard output. It ends with its input, without closing its consumers.
 */
public final class ShareDriver {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Map<String, Member> MEMBERS = new HashMap<>();

    private static final class Member {
        final KafkaShareConsumer<String, String> consumer;
        /** What it was given last, by topic, partition and offset. */
        final Map<String, ConsumerRecord<String, String>> records = new HashMap<>();
        /** What the broker said to acknowledgements since the last answer. */
        ArrayNode said = JSON.createArrayNode();

        Member(Properties config) {
            consumer = new KafkaShareConsumer<>(config, new StringDeserializer(), new StringDeserializer());
            consumer.setAcknowledgementCommitCallback((offsets, error) -> offsets.forEach((partition, acknowledged) -> {
                ObjectNode entry = said.addObject();
                entry.put("topic", partition.topic()).put("partition", partition.partition());
                entry.put("error", error == null ? null : error.getClass().getSimpleName());
                acknowledged.stream().sorted().forEach(entry.putArray("offsets")::add);
            }));
        }
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            ObjectNode answer;
            try {
                answer = run(JSON.readTree(line));
            } catch (Throwable error) {
                StringWriter trace = new StringWriter();
                error.printStackTrace(new PrintWriter(trace));
                answer = JSON.createObjectNode();
                answer.put("failed", error.getClass().getSimpleName()).put("trace", trace.toString());
            }
            answers.println(JSON.writeValueAsString(answer));
        }
        Runtime.getRuntime().halt(0);
    }

    private static ObjectNode run(JsonNode command) {
        String name = command.get("name").asText();
        ObjectNode answer = JSON.createObjectNode();
        Member member = MEMBERS.get(name);
        switch (command.get("do").asText()) {
            case "open":
                MEMBERS.put(name, new Member(properties(command.get("config"))));
                break;
            case "subscribe":
                List<String> topics = new ArrayList<>();
                command.get("topics").forEach(each -> topics.add(each.asText()));
                member.consumer.subscribe(topics);
                break;
            case "poll":
                ArrayNode records = answer.putArray("records");
                member.records.clear();
                for (ConsumerRecord<String, String> record : member.consumer.poll(timeout(command))) {
                    member.records.put(at(record.topic(), record.partition(), record.offset()), record);
                    records.addArray().add(record.topic()).add(record.partition()).add(record.offset())
                        .add(record.deliveryCount().orElse((short) 0)).add(record.value());
                }
                break;
            case "acknowledge":
                AcknowledgeType type = AcknowledgeType.valueOf(command.get("type").asText());
                for (JsonNode at : command.get("records")) {
                    String place = at(at.get(0).asText(), at.get(1).asInt(), at.get(2).asLong());
                    member.consumer.acknowledge(member.records.get(place), type);
                }
                break;
            case "commit":
                ArrayNode results = answer.putArray("results");
                Map<TopicIdPartition, Optional<KafkaException>> committed = member.consumer.commitSync(timeout(command));
                committed.forEach((partition, error) -> results.addObject()
                    .put("topic", partition.topic()).put("partition", partition.partition())
                    .put("error", error.map(each -> each.getClass().getSimpleName()).orElse(null)));
                break;
            case "commit_async":
                member.consumer.commitAsync();
                break;
            case "lock_timeout":
                answer.put("ms", member.consumer.acquisitionLockTimeoutMs().orElse(-1));
                break;
            case "close":
                MEMBERS.remove(name);
                member.consumer.close(timeout(command));
                break;
            default:
                throw new IllegalArgumentException("unknown command " + command.get("do"));
        }
        if (member != null) {
            answer.set("said", member.said);
            member.said = JSON.createArrayNode();
        }
        return answer;
    }

    private static String at(String topic, int partition, long offset) {
        return topic + "-" + partition + "@" + offset;
    }

    private static Duration timeout(JsonNode command) {
        return Duration.ofMillis(command.get("timeout_ms").asLong());
    }

    private static Properties properties(JsonNode config) {
        Properties properties = new Properties();
        config.properties().forEach(entry -> properties.setProperty(entry.getKey(), entry.getValue().asText()));
        return properties;
    }
}
