import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Members of a new consumer group that join one after the other; it prints how long it took until each had one partition.
 * Arguments: bootstrap servers, topic, members, milliseconds between them, how often.
 */
public final class GroupSettling {
    private final int[] owned;
    private final CountDownLatch settled = new CountDownLatch(1);
    private long last;

    private GroupSettling(int members) {
        owned = new int[members];
    }

    private synchronized void change(int member, int partitions) {
        owned[member] += partitions;
        if (settled.getCount() == 0) {
            return;
        }
        last = System.nanoTime();
        for (int each : owned) {
            if (each != 1) {
                return;
            }
        }
        settled.countDown();
    }

    private void live(String[] arguments, String group, int member) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("group.id", group);
        settings.put("group.protocol", "consumer");
        settings.put("key.deserializer", ByteArrayDeserializer.class.getName());
        settings.put("value.deserializer", ByteArrayDeserializer.class.getName());
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings)) {
            consumer.subscribe(List.of(arguments[1]), new ConsumerRebalanceListener() {
                @Override
                public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
                    change(member, -partitions.size());
                }

                @Override
                public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                    change(member, partitions.size());
                }
            });
            while (settled.getCount() > 0) {
                consumer.poll(Duration.ofMillis(100));
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        int members = Integer.parseInt(arguments[2]);
        for (int round = 0; round < Integer.parseInt(arguments[4]); round++) {
            GroupSettling work = new GroupSettling(members);
            String group = "java-" + members + "-" + round + "-" + System.nanoTime();
            List<Thread> threads = new ArrayList<>();
            long begin = System.nanoTime();
            for (int number = 0; number < members; number++) {
                if (number > 0) {
                    Thread.sleep(Long.parseLong(arguments[3]));
                }
                int member = number;
                Thread thread = new Thread(() -> work.live(arguments, group, member));
                threads.add(thread);
                thread.start();
            }
            if (!work.settled.await(1, TimeUnit.MINUTES)) {
                throw new IllegalStateException("not settled after a minute");
            }
            System.out.printf("%.3f%n", (work.last - begin) / 1e9);
            for (Thread thread : threads) {
                thread.join();
            }
        }
    }
}
