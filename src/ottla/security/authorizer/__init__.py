"""What clients may do: Kafka's StandardAuthorizer over the ACLs of the metadata image.

* `acl_index`: the ACLs, found by resource, prefix and principal without a walk over all,
* `standard_authorizer`: super users, the index and the decisions that were taken before,
* `audit_log`: one line for each denial and each change by an administrator.
"""
