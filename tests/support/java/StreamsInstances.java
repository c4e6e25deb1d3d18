import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.CloseOptions;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.StreamsMetadata;
import org.apache.kafka.streams.TaskMetadata;
import org.apache.kafka.streams.ThreadMetadata;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;

/**
 * Instances of one application as a streams group, in one JVM, each with its own process id, state and endpoint.
 * Lines of the input are commands: `start NAME THREADS PORT`, `stop NAME`, `threads NAME` (one more), `end`.
 * Each line of the output is the time in milliseconds and what an instance has now:
 * `MILLIS NAME STATE active TASKS standby TASKS endpoints PORT=PARTITIONS/STANDBY-PARTITIONS`.
 * Arguments: bootstrap servers, state directory, application id, input topic.
 */
public final class StreamsInstances {
    private static final Map<String, KafkaStreams> INSTANCES = new ConcurrentHashMap<>();

    public static void main(String[] arguments) throws Exception {
        Thread printer = new Thread(StreamsInstances::print);
        printer.setDaemon(true);
        printer.start();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null && !line.equals("end"); line = input.readLine()) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "start" -> start(arguments, words[1], words[2], words[3]);
                case "stop" -> INSTANCES.get(words[1]).close(
                    CloseOptions.timeout(Duration.ofSeconds(60))
                        .withGroupMembershipOperation(CloseOptions.GroupMembershipOperation.LEAVE_GROUP));
                case "threads" -> INSTANCES.get(words[1]).addStreamThread();
                default -> throw new IllegalArgumentException(line);
            }
        }
        Runtime.getRuntime().halt(0);
    }

    private static void start(String[] arguments, String name, String threads, String port) {
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, arguments[2]);
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, arguments[1] + "/" + name);
        settings.put(StreamsConfig.GROUP_PROTOCOL_CONFIG, "streams");
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, threads);
        settings.put(StreamsConfig.APPLICATION_SERVER_CONFIG, "localhost:" + port);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 200);
        settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "earliest");
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(arguments[3], Consumed.with(Serdes.String(), Serdes.String()))
            .flatMapValues(line -> Arrays.asList(line.split(" ")))
            .groupBy((key, word) -> word, Grouped.with("words", Serdes.String(), Serdes.String()))
            .count(Materialized.as("counts"));
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        INSTANCES.put(name, streams);
        System.out.println(System.currentTimeMillis() + " " + name + " starts");
        streams.start();
    }

    private static void print() {
        Map<String, String> before = new TreeMap<>();
        while (true) {
            INSTANCES.forEach((name, streams) -> {
                String now = state(streams);
                if (!now.equals(before.put(name, now))) {
                    System.out.println(System.currentTimeMillis() + " " + name + " " + now);
                }
            });
            try {
                Thread.sleep(5);
            } catch (InterruptedException ended) {
                return;
            }
        }
    }

    private static String state(KafkaStreams streams) {
        TreeSet<String> active = new TreeSet<>();
        TreeSet<String> standby = new TreeSet<>();
        TreeMap<Integer, String> endpoints = new TreeMap<>();
        if (streams.state().isRunningOrRebalancing()) {
            for (ThreadMetadata thread : streams.metadataForLocalThreads()) {
                for (TaskMetadata task : thread.activeTasks()) {
                    active.add(task.taskId().toString());
                }
                for (TaskMetadata task : thread.standbyTasks()) {
                    standby.add(task.taskId().toString());
                }
            }
            for (StreamsMetadata each : streams.metadataForAllStreamsClients()) {
                endpoints.put(each.port(), each.topicPartitions().size() + "/" + each.standbyTopicPartitions().size());
            }
        }
        return streams.state() + " active " + String.join(",", active) + " standby " + String.join(",", standby)
            + " endpoints " + endpoints.toString().replace(" ", "");
    }

    private StreamsInstances() {}
}
