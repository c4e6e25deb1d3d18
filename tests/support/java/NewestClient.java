import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.DescribeStreamsGroupsOptions;
import org.apache.kafka.clients.admin.FeatureUpdate;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.StreamsGroupDescription;
import org.apache.kafka.clients.admin.UpdateFeaturesOptions;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.acl.AccessControlEntry;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * A round through what the Java client of Kafka 4.4 does: records, transactions, groups of all kinds, and what is new
 * for administrators. Prints a line for each result. Arguments: bootstrap servers, a name, and the replication factor.
 */
public class NewestClient {
    private static final int RECORDS = 200;
    private static String servers;
    private static String name;

    public static void main(String[] args) throws Exception {
        servers = args[0];
        name = args[1];
        short replicas = Short.parseShort(args[2]);
        try (Admin admin = Admin.create(properties())) {
            admin.createTopics(List.of(new NewTopic(name + "-in", 3, replicas), new NewTopic(name + "-out", 2, replicas)))
                .all().get();
            produce();
            transform();
            for (String protocol : List.of("classic", "consumer")) {
                System.out.println(protocol + " " + read(protocol));
            }
            System.out.println("share " + share(admin));
            administer(admin);
        }
    }

    private static Properties properties(String... pairs) {
        Properties found = new Properties();
        found.put("bootstrap.servers", servers);
        found.put("metadata.cluster.check.enable", "true");
        found.put("key.serializer", StringSerializer.class.getName());
        found.put("value.serializer", StringSerializer.class.getName());
        found.put("key.deserializer", StringDeserializer.class.getName());
        found.put("value.deserializer", StringDeserializer.class.getName());
        for (int at = 0; at < pairs.length; at += 2) {
            found.put(pairs[at], pairs[at + 1]);
        }
        return found;
    }

    private static void produce() {
        try (var producer = new KafkaProducer<String, String>(properties("compression.type", "lz4"))) {
            for (int n = 0; n < RECORDS; n++) {
                producer.send(new ProducerRecord<>(name + "-in", "" + n, "value " + n));
            }
        }
    }

    /** Exactly once from one topic to the other, in several transactions of which one is aborted. */
    private static void transform() {
        Properties reading = properties("group.id", name + "-transform", "group.protocol", "consumer",
            "auto.offset.reset", "earliest", "enable.auto.commit", "false", "max.poll.records", "50");
        try (var consumer = new KafkaConsumer<String, String>(reading);
             var producer = new KafkaProducer<String, String>(properties("transactional.id", name))) {
            producer.initTransactions();
            consumer.subscribe(List.of(name + "-in"));
            boolean isFirst = true;
            for (int done = 0; done < RECORDS;) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofSeconds(1));
                if (records.isEmpty()) {
                    continue;
                }
                producer.beginTransaction();
                Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                for (ConsumerRecord<String, String> record : records) {
                    producer.send(new ProducerRecord<>(name + "-out", record.key(), record.value()));
                    offsets.put(new TopicPartition(record.topic(), record.partition()),
                        new OffsetAndMetadata(record.offset() + 1));
                }
                producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
                if (isFirst) {
                    producer.abortTransaction();
                    for (TopicPartition partition : records.partitions()) {
                        consumer.seek(partition, records.records(partition).get(0).offset());
                    }
                    isFirst = false;
                } else {
                    producer.commitTransaction();
                    done += records.count();
                }
            }
        }
    }

    private static String read(String protocol) {
        Properties reading = properties("group.id", name + "-" + protocol, "group.protocol", protocol,
            "auto.offset.reset", "earliest", "isolation.level", "read_committed");
        List<String> keys = new ArrayList<>();
        try (var consumer = new KafkaConsumer<String, String>(reading)) {
            consumer.subscribe(List.of(name + "-out"));
            while (keys.size() < RECORDS) {
                consumer.poll(Duration.ofSeconds(1)).forEach(record -> keys.add(record.key()));
            }
            consumer.commitSync();
        }
        return keys.size() + " " + new TreeSet<>(keys).size();
    }

    private static String share(Admin admin) throws Exception {
        String group = name + "-share";
        var setting = new AlterConfigOp(new ConfigEntry("share.auto.offset.reset", "earliest"), AlterConfigOp.OpType.SET);
        admin.incrementalAlterConfigs(Map.of(new ConfigResource(ConfigResource.Type.GROUP, group), List.of(setting)))
            .all().get();
        List<String> keys = new ArrayList<>();
        try (var consumer = new KafkaShareConsumer<String, String>(properties("group.id", group))) {
            consumer.subscribe(List.of(name + "-in"));
            while (keys.size() < RECORDS) {
                consumer.poll(Duration.ofSeconds(1)).forEach(record -> keys.add(record.key()));
            }
            consumer.commitSync();
        }
        return keys.size() + " " + new TreeSet<>(keys).size();
    }

    private static void administer(Admin admin) throws Exception {
        var range = new AclBinding(new ResourcePattern(ResourceType.TOPIC, name, PatternType.LITERAL),
            new AccessControlEntry("User:alice", "10.0.0.0/8", AclOperation.READ, AclPermissionType.ALLOW));
        say("range before", admin.createAcls(List.of(range)).all());
        say("unregister before", admin.unregisterController(4711).all());
        say("upgrade", admin.updateFeatures(Map.of("metadata.version",
            new FeatureUpdate((short) 33, FeatureUpdate.UpgradeType.UPGRADE)), new UpdateFeaturesOptions()).all());
        say("range", admin.createAcls(List.of(range)).all());
        say("unregister", admin.unregisterController(4711).all());
        say("delete", admin.deleteConsumerGroups(List.of(name + "-transform")).all());
        say("delete again", admin.deleteConsumerGroups(List.of(name + "-transform")).all());
        Map<String, KafkaFuture<StreamsGroupDescription>> described = admin.describeStreamsGroups(
            List.of("app"), new DescribeStreamsGroupsOptions().includeTopologyDescription(true)).describedGroups();
        StreamsGroupDescription group = described.get("app").get();
        System.out.println("streams " + group.assignorName().orElse("none") + " " + group.topologyDescriptionStatus()
            + " " + group.topologyDescription().map(each -> each.subtopologies().size()).orElse(0));
    }

    private static void say(String what, KafkaFuture<?> result) throws Exception {
        try {
            result.get();
            System.out.println(what + " ok");
        } catch (ExecutionException error) {
            System.out.println(what + " " + error.getCause().getClass().getSimpleName() + " " + error.getCause().getMessage());
        }
    }
}
