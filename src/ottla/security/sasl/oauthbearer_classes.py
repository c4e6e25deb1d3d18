"""The Java classes that settings of OAUTHBEARER may name; Ottla does their work."""

from __future__ import annotations

from typing import Final

OAUTH_PACKAGE: Final = "org.apache.kafka.common.security.oauthbearer."
SIGNED_VALIDATOR: Final = f"{OAUTH_PACKAGE}OAuthBearerValidatorCallbackHandler"
# Its name before Kafka 4.
OLD_SIGNED_VALIDATOR: Final = f"{OAUTH_PACKAGE}secured.OAuthBearerValidatorCallbackHandler"
UNSECURED_VALIDATOR: Final = (
    f"{OAUTH_PACKAGE}internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
)
OAUTH_CLASSES: Final = frozenset(
    (
        SIGNED_VALIDATOR,
        OLD_SIGNED_VALIDATOR,
        UNSECURED_VALIDATOR,
        f"{OAUTH_PACKAGE}OAuthBearerLoginCallbackHandler",
        f"{OAUTH_PACKAGE}secured.OAuthBearerLoginCallbackHandler",
        f"{OAUTH_PACKAGE}internals.unsecured.OAuthBearerUnsecuredLoginCallbackHandler",
        f"{OAUTH_PACKAGE}internals.OAuthBearerRefreshingLogin",
        f"{OAUTH_PACKAGE}internals.OAuthBearerSaslClientCallbackHandler",
    )
)
