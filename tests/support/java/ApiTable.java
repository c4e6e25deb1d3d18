import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.server.common.Feature;
import org.apache.kafka.server.common.FeatureVersion;
import org.apache.kafka.server.common.MetadataVersion;

/** Prints what a version of Apache Kafka knows: its APIs, error codes and feature levels, a line each. */
public class ApiTable {
    public static void main(String[] args) {
        for (ApiKeys api : ApiKeys.values()) {
            if (api.oldestVersion() <= api.latestVersion()) {
                System.out.printf("api %d %s %d %d %d %s %s%n", api.id, api.name, api.oldestVersion(),
                    api.latestVersion(true), api.latestVersion(false), api.forwardable, api.clusterAction);
            }
        }
        for (Errors error : Errors.values()) {
            System.out.printf("error %d %s %s%n", error.code(), error.name(),
                error.exception() instanceof RetriableException);
        }
        for (MetadataVersion version : MetadataVersion.VERSIONS) {
            if (version.isProduction()) {
                System.out.printf("metadata %d %s %s%n", version.featureLevel(), version, version.didMetadataChange());
            }
        }
        for (Feature feature : Feature.PRODUCTION_FEATURES) {
            for (FeatureVersion level : feature.featureVersions()) {
                System.out.printf("feature %s %d %d%n", feature.featureName(), level.featureLevel(),
                    level.bootstrapMetadataVersion().featureLevel());
            }
        }
    }
}
