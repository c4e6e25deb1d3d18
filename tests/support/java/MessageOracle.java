import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.MessageUtil;

/**
 * Encodes messages with Apache Kafka's own classes. Each line of the input is a class name, a version and the JSON
 * form of a message, separated by tabs; each line of the output is the bytes as hexadecimal, a tab, and the JSON form
 * of what Kafka reads from these bytes.
 */
public class MessageOracle {
    public static void main(String[] args) throws Exception {
        var input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        var output = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        var mapper = new ObjectMapper();
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] parts = line.split("\t", 3);
            short version = Short.parseShort(parts[1]);
            Class<?> type = Class.forName(parts[0]);
            Class<?> converter = Class.forName(parts[0] + "JsonConverter");
            Message message = (Message) converter.getMethod("read", JsonNode.class, short.class)
                .invoke(null, mapper.readTree(parts[2]), version);
            ByteBuffer buffer = MessageUtil.toByteBufferAccessor(message, version).buffer();
            byte[] bytes = new byte[buffer.remaining()];
            buffer.get(bytes);
            Message again = (Message) type.getDeclaredConstructor().newInstance();
            again.read(new ByteBufferAccessor(ByteBuffer.wrap(bytes)), version);
            Object json = converter.getMethod("write", type, short.class).invoke(null, again, version);
            output.println(HexFormat.of().formatHex(bytes) + "\t" + mapper.writeValueAsString(json));
        }
        output.flush();
    }
}
