//! Producing in transactions, one of which is aborted, and consuming what is committed.

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::Message;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(60);

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let (servers, topic) = (&arguments[1], &arguments[2]);
    let producer: BaseProducer = ClientConfig::new()
        .set("bootstrap.servers", servers)
        .set("transactional.id", "rust")
        .create()
        .unwrap();
    producer.init_transactions(TIMEOUT).unwrap();
    for round in 0..10 {
        producer.begin_transaction().unwrap();
        for number in 0..10 {
            let value = format!("{round}.{number}");
            producer.send(BaseRecord::to(topic).key("k").payload(&value)).unwrap();
        }
        if round % 2 == 0 {
            producer.commit_transaction(TIMEOUT).unwrap();
        } else {
            producer.flush(TIMEOUT).unwrap();
            producer.abort_transaction(TIMEOUT).unwrap();
        }
    }
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", servers)
        .set("group.id", "rust")
        .set("auto.offset.reset", "earliest")
        .set("isolation.level", "read_committed")
        .create()
        .unwrap();
    consumer.subscribe(&[topic]).unwrap();
    let (mut read, began) = (0, Instant::now());
    while read < 50 {
        assert!(began.elapsed() < TIMEOUT, "only {read} came");
        // Nothing comes where an event was served instead.
        if let Some(message) = consumer.poll(Duration::from_secs(1)) {
            println!("{}", String::from_utf8_lossy(message.unwrap().payload().unwrap()));
            read += 1;
        }
    }
}
