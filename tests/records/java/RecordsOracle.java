import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;

import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.CompressionType;
import org.apache.kafka.common.record.internal.ControlRecordType;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecordsBuilder;
import org.apache.kafka.common.record.internal.MutableRecordBatch;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.requests.ProduceResponse;
import org.apache.kafka.common.utils.BufferSupplier;
import org.apache.kafka.common.utils.PrimitiveRef;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.common.utils.Utils;
import org.apache.kafka.storage.internals.log.AppendOrigin;
import org.apache.kafka.storage.internals.log.LogValidator;
import org.apache.kafka.storage.internals.log.RecordValidationException;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Proxy;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.HashMap;
import java.util.Map;

/** Answers one JSON object per line about record batches with the classes of Kafka's own broker. */
public final class RecordsOracle {
    private static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] args) throws Exception {
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            ObjectNode answer = JSON.createObjectNode();
            try {
                JsonNode ask = JSON.readTree(line);
                switch (ask.get("op").asText()) {
                    case "build" -> build(ask, answer);
                    case "read" -> read(ask, answer);
                    case "validate" -> validate(ask, answer);
                    case "filter" -> filter(ask, answer);
                    default -> throw new IllegalArgumentException(line);
                }
            } catch (RecordValidationException e) {
                answer.put("error", Errors.forException(e.invalidException()).name());
                ArrayNode indices = answer.putArray("indices");
                for (ProduceResponse.RecordError error : e.recordErrors())
                    indices.add(error.batchIndex);
            } catch (Throwable e) {
                answer.put("error", Errors.forException(e).name()).put("detail", e.toString());
            }
            out.println(JSON.writeValueAsString(answer));
            out.flush();
        }
    }

    private static byte[] bytes(JsonNode node) {
        return node == null || node.isNull() ? null : Base64.getDecoder().decode(node.asText());
    }

    private static String text(ByteBuffer buffer) {
        return buffer == null ? null : Base64.getEncoder().encodeToString(Utils.toArray(buffer));
    }

    private static Compression compression(JsonNode ask) {
        CompressionType type = CompressionType.forId(ask.get("codec").asInt());
        if (!ask.hasNonNull("level"))
            return Compression.of(type).build();
        int level = ask.get("level").asInt();
        return switch (type) {
            case GZIP -> Compression.gzip().level(level).build();
            case LZ4 -> Compression.lz4().level(level).build();
            case ZSTD -> Compression.zstd().level(level).build();
            default -> Compression.of(type).build();
        };
    }

    private static void build(JsonNode ask, ObjectNode answer) {
        TimestampType type = TimestampType.forName(ask.get("timestampType").asText());
        MemoryRecordsBuilder builder = MemoryRecords.builder(ByteBuffer.allocate(1024), RecordBatch.MAGIC_VALUE_V2,
            compression(ask), type, ask.get("baseOffset").asLong(), ask.get("appendTime").asLong(),
            ask.get("producerId").asLong(), (short) ask.get("producerEpoch").asInt(), ask.get("baseSequence").asInt(),
            ask.get("transactional").asBoolean(), ask.get("leaderEpoch").asInt());
        for (JsonNode record : ask.get("records")) {
            JsonNode pairs = record.get("headers");
            Header[] headers = new Header[pairs.size()];
            for (int i = 0; i < headers.length; i++)
                headers[i] = new RecordHeader(pairs.get(i).get(0).asText(), bytes(pairs.get(i).get(1)));
            builder.appendWithOffset(record.get("offset").asLong(), record.get("timestamp").asLong(),
                bytes(record.get("key")), bytes(record.get("value")), headers);
        }
        answer.put("data", text(builder.build().buffer()));
    }

    private static void read(JsonNode ask, ObjectNode answer) {
        ArrayNode batches = answer.putArray("batches");
        for (MutableRecordBatch batch : MemoryRecords.readableRecords(ByteBuffer.wrap(bytes(ask.get("data")))).batches()) {
            batch.ensureValid();
            ObjectNode shown = batches.addObject();
            shown.put("baseOffset", batch.baseOffset()).put("lastOffset", batch.lastOffset())
                .put("leaderEpoch", batch.partitionLeaderEpoch()).put("maxTimestamp", batch.maxTimestamp())
                .put("timestampType", batch.timestampType().name).put("producerId", batch.producerId())
                .put("producerEpoch", (int) batch.producerEpoch()).put("baseSequence", batch.baseSequence())
                .put("lastSequence", batch.lastSequence()).put("transactional", batch.isTransactional())
                .put("control", batch.isControlBatch()).put("codec", batch.compressionType().id)
                .put("offsetOfMaxTimestamp", batch.offsetOfMaxTimestamp().orElse(null));
            if (batch.deleteHorizonMs().isPresent())
                shown.put("deleteHorizon", batch.deleteHorizonMs().getAsLong());
            ArrayNode records = shown.putArray("records");
            for (Record record : batch) {
                ObjectNode each = records.addObject().put("offset", record.offset()).put("timestamp", record.timestamp())
                    .put("sequence", record.sequence()).put("key", text(record.key())).put("value", text(record.value()));
                if (batch.isControlBatch())
                    each.put("controlType", ControlRecordType.parse(record.key()).name());
                ArrayNode headers = each.putArray("headers");
                for (Header header : record.headers())
                    headers.addArray().add(header.key())
                        .add(header.value() == null ? null : Base64.getEncoder().encodeToString(header.value()));
            }
        }
    }

    private static void validate(JsonNode ask, ObjectNode answer) {
        MemoryRecords records = MemoryRecords.readableRecords(ByteBuffer.wrap(bytes(ask.get("data"))));
        CompressionType source = CompressionType.NONE;
        for (MutableRecordBatch batch : records.batches()) {
            batch.ensureValid();
            if (batch.compressionType() != CompressionType.NONE)
                source = batch.compressionType();
        }
        long now = ask.get("now").asLong();
        Time time = (Time) Proxy.newProxyInstance(Time.class.getClassLoader(), new Class<?>[] {Time.class},
            (proxy, method, arguments) -> method.getName().equals("milliseconds") ? (Object) now : (Object) (now * 1_000_000));
        LogValidator.MetricsRecorder quiet = (LogValidator.MetricsRecorder) Proxy.newProxyInstance(
            LogValidator.class.getClassLoader(), new Class<?>[] {LogValidator.MetricsRecorder.class}, (p, m, a) -> null);
        Compression target = ask.hasNonNull("codec") ? compression(ask) : Compression.of(source).build();
        PrimitiveRef.LongRef offset = PrimitiveRef.ofLong(ask.get("firstOffset").asLong());
        LogValidator.ValidationResult result = new LogValidator(records, new TopicPartition("t", 0), time, source, target,
            ask.get("compacted").asBoolean(), RecordBatch.MAGIC_VALUE_V2,
            TimestampType.forName(ask.get("timestampType").asText()), ask.get("before").asLong(),
            ask.get("after").asLong(), ask.get("leaderEpoch").asInt(), AppendOrigin.valueOf(ask.get("origin").asText())
        ).validateMessagesAndAssignOffsets(offset, quiet, BufferSupplier.NO_CACHING);
        answer.put("data", text(result.validatedRecords().buffer())).put("maxTimestamp", result.maxTimestampMs())
            .put("nextOffset", offset.value);
    }

    private static void filter(JsonNode ask, ObjectNode answer) {
        Map<ByteBuffer, Long> newest = new HashMap<>();
        for (JsonNode pair : ask.get("map"))
            newest.put(ByteBuffer.wrap(bytes(pair.get(0))), pair.get(1).asLong());
        long latest = ask.get("latestOffset").asLong();
        boolean marker = ask.get("marker").asBoolean();
        MemoryRecords.RecordFilter filter = new MemoryRecords.RecordFilter(ask.get("now").asLong(),
                ask.get("deleteRetention").asLong()) {
            @Override
            protected BatchRetentionResult checkBatchRetention(RecordBatch batch) {
                return new BatchRetentionResult(BatchRetention.valueOf(ask.get("retention").asText()), marker);
            }

            @Override
            protected boolean shouldRetainRecord(RecordBatch batch, Record record) {
                if (batch.isControlBatch() || record.offset() > latest)
                    return true;
                if (!record.hasKey())
                    return false;
                boolean tombstonesStay = batch.deleteHorizonMs().isEmpty()
                    || currentTime < batch.deleteHorizonMs().getAsLong();
                return record.offset() >= newest.getOrDefault(record.key(), -1L) && (record.hasValue() || tombstonesStay);
            }
        };
        ByteBuffer out = ByteBuffer.allocate(1 << 20);
        MemoryRecords.FilterResult result = MemoryRecords.readableRecords(ByteBuffer.wrap(bytes(ask.get("data"))))
            .filterTo(filter, out, BufferSupplier.NO_CACHING);
        ByteBuffer written = result.outputBuffer();
        written.flip();
        answer.put("data", text(written)).put("retained", result.messagesRetained());
    }
}
