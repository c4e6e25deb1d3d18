"""Descriptors of Protobuf schemas, as Google's library reads them."""

from __future__ import annotations

import base64

from google.protobuf import descriptor_pb2, descriptor_pool

from ottla.schemas.protobuf_definition import ProtobufDefinition, parse_protobuf

MONEY = 'syntax = "proto3"; package shop; message Money { sint64 units = 1; }'
PROTO3 = """
syntax = "proto3";
package shop.orders;
import public "money.proto";
import "google/protobuf/timestamp.proto";
option java_package = "org.shop";
option java_multiple_files = true;
message Order {
  reserved 4, 10 to 12; reserved "old";
  int64 id = 1; optional string note = 2; repeated Line lines = 3; map<string, Money> totals = 5;
  map<int32, State> by_state = 13;
  oneof payment { string card = 6; Cash cash = 7; }
  google.protobuf.Timestamp at = 8 [deprecated = true]; State state = 9;
  message Line { .shop.Money price = 1; uint32 count = 2 [json_name = "amount"]; }
  message Cash {}
  enum State { option allow_alias = true; NEW = 0; OPEN = 0; PAID = 1 [deprecated = true]; reserved 5 to 7; }
}
service Orders {
  rpc Watch (Order) returns (stream Order.Line) { option idempotency_level = NO_SIDE_EFFECTS; }
}
"""
PROTO2 = """
syntax = "proto2";
message Old {
  required int32 id = 1; optional string name = 2 [default = "none"]; optional Kind kind = 3 [default = B];
  repeated group Part = 4 { optional int32 size = 5; }
  extensions 100 to 199;
  enum Kind { A = 0; B = -2; }
}
extend Old { optional bool extra = 100; }
"""


def described(definition: ProtobufDefinition) -> descriptor_pb2.FileDescriptorProto:
    found = descriptor_pb2.FileDescriptorProto()
    found.ParseFromString(base64.b64decode(definition.formatted_text("serialized")))
    return found


def pool_with(*files: tuple[str, ProtobufDefinition]) -> descriptor_pool.DescriptorPool:
    from google.protobuf import timestamp_pb2

    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    for name, definition in files:
        file = described(definition)
        assert file.name == "default"
        file.name = name
        pool.Add(file)
    return pool


def test_a_descriptor_has_what_the_text_has() -> None:
    money = parse_protobuf(MONEY)
    order = parse_protobuf(PROTO3, {"money.proto": money})
    pool = pool_with(("money.proto", money), ("order.proto", order))
    message = pool.FindMessageTypeByName("shop.orders.Order")
    fields = message.fields_by_name
    assert [each.name for each in message.oneofs] == ["payment", "_note"]
    assert fields["card"].containing_oneof.name == "payment"
    assert fields["note"].has_presence
    assert not fields["id"].has_presence
    assert fields["totals"].message_type.GetOptions().map_entry
    assert fields["totals"].message_type.fields_by_name["value"].message_type.full_name == "shop.Money"
    assert fields["by_state"].message_type.name == "ByStateEntry"
    assert fields["lines"].message_type.fields_by_name["count"].json_name == "amount"
    assert fields["at"].GetOptions().deprecated
    assert fields["state"].enum_type.values_by_name["PAID"].number == 1
    file = described(order)
    assert file.options.java_package == "org.shop"
    assert list(file.public_dependency) == [1]
    assert [(each.start, each.end) for each in file.message_type[0].reserved_range] == [(4, 5), (10, 13)]
    assert file.service[0].method[0].server_streaming
    # What the descriptor says is the same schema again.
    again = parse_protobuf(order.formatted_text("serialized"), {"money.proto": money})
    assert described(again) == file


def test_groups_defaults_and_extensions_of_proto2() -> None:
    old = parse_protobuf(PROTO2)
    pool = pool_with(("old.proto", old))
    message = pool.FindMessageTypeByName("Old")
    assert message.fields_by_name["name"].default_value == "none"
    assert message.fields_by_name["kind"].default_value == -2
    assert message.fields_by_name["part"].message_type.full_name == "Old.Part"
    assert pool.FindExtensionByName("extra").number == 100
    assert "extend Old" in old.canonical_text
    assert "extend Old" not in old.formatted_text("ignore_extensions")
