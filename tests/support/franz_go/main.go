// A client made of franz-go: it logs in, writes a few records, reads them back in a group, and says how that went.
// In a share group it acknowledges each record as its value says.
//
// Its settings come as JSON on the standard input, and what it saw goes to the standard output as JSON.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

type settings struct {
	Bootstrap   string   `json:"bootstrap"`
	Authority   string   `json:"authority"`   // a PEM file; none means plain text
	Certificate string   `json:"certificate"` // a PEM file with the key; none means no client certificate
	Mechanism   string   `json:"mechanism"`
	User        string   `json:"user"`
	Password    string   `json:"password"`
	Token       string   `json:"token"`
	Topic       string   `json:"topic"`
	Group       string   `json:"group"`
	Values      []string `json:"values"`
	Deliveries  int      `json:"deliveries"` // of a share group; none means a consumer group
	Seconds     int      `json:"seconds"`
}

type outcome struct {
	Read  []string `json:"read"`
	Error string   `json:"error"`
	Code  string   `json:"code"` // Kafka's name of the error, if it is one of Kafka's
}

func main() {
	var given settings
	if err := json.NewDecoder(os.Stdin).Decode(&given); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	read, err := run(given)
	found := outcome{Read: read}
	if err != nil {
		found.Error = err.Error()
		var ofKafka *kerr.Error
		if errors.As(err, &ofKafka) {
			found.Code = ofKafka.Message
		}
	}
	if err := json.NewEncoder(os.Stdout).Encode(found); err != nil {
		os.Exit(2)
	}
}

func run(given settings) ([]string, error) {
	options, err := access(given)
	if err != nil {
		return nil, err
	}
	options = append(options,
		kgo.SeedBrokers(given.Bootstrap),
		kgo.AllowAutoTopicCreation(),
		kgo.DefaultProduceTopic(given.Topic),
		kgo.ConsumeTopics(given.Topic),
	)
	acknowledged := acknowledgements{}
	if given.Deliveries > 0 {
		options = append(options, kgo.ShareGroup(given.Group), kgo.ShareAckCallback(acknowledged.add))
	} else {
		options = append(options,
			kgo.ConsumerGroup(given.Group),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		)
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(given.Seconds)*time.Second)
	defer cancel()
	// Says why a connection failed; a producer would try again until its time is up.
	if err := client.Ping(ctx); err != nil {
		return nil, err
	}
	for _, value := range given.Values {
		if err := client.ProduceSync(ctx, kgo.StringRecord(value)).FirstErr(); err != nil {
			return nil, err
		}
	}
	if given.Deliveries > 0 {
		read, err := share(ctx, client, given.Deliveries)
		return read, errors.Join(err, acknowledged.failure())
	}
	read := []string{}
	for len(read) < len(given.Values) {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return read, err
		}
		fetches.EachRecord(func(record *kgo.Record) { read = append(read, string(record.Value)) })
	}
	return read, client.CommitUncommittedOffsets(ctx)
}

// What brokers said to acknowledgements.
type acknowledgements struct {
	lock    sync.Mutex
	results kgo.ShareAckResults
}

func (a *acknowledgements) add(_ *kgo.Client, results kgo.ShareAckResults) {
	a.lock.Lock()
	defer a.lock.Unlock()
	a.results = append(a.results, results...)
}

func (a *acknowledgements) failure() error {
	a.lock.Lock()
	defer a.lock.Unlock()
	return a.results.Error()
}

// Take so many deliveries; return each as its value and its count. A record "release" is released when it comes first,
// and "renew" is renewed before it is accepted.
func share(ctx context.Context, client *kgo.Client, deliveries int) ([]string, error) {
	read := []string{}
	for len(read) < deliveries {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return read, err
		}
		for _, record := range fetches.Records() {
			read = append(read, fmt.Sprintf("%s %d", record.Value, record.DeliveryCount()))
			status := kgo.AckAccept
			switch value := string(record.Value); {
			case value == "reject":
				status = kgo.AckReject
			case value == "release" && record.DeliveryCount() == 1:
				status = kgo.AckRelease
			case value == "renew":
				record.Ack(kgo.AckRenew)
				if err := client.FlushAcks(ctx); err != nil {
					return read, err
				}
			}
			record.Ack(status)
		}
	}
	return read, client.FlushAcks(ctx)
}

func access(given settings) ([]kgo.Opt, error) {
	options := []kgo.Opt{}
	if given.Authority != "" {
		pem, err := os.ReadFile(given.Authority)
		if err != nil {
			return nil, err
		}
		config := &tls.Config{RootCAs: x509.NewCertPool()}
		config.RootCAs.AppendCertsFromPEM(pem)
		if given.Certificate != "" {
			certificate, err := tls.LoadX509KeyPair(given.Certificate, given.Certificate)
			if err != nil {
				return nil, err
			}
			config.Certificates = []tls.Certificate{certificate}
		}
		options = append(options, kgo.DialTLSConfig(config))
	}
	mechanisms := map[string]sasl.Mechanism{
		"PLAIN":         plain.Auth{User: given.User, Pass: given.Password}.AsMechanism(),
		"SCRAM-SHA-256": scram.Auth{User: given.User, Pass: given.Password}.AsSha256Mechanism(),
		"SCRAM-SHA-512": scram.Auth{User: given.User, Pass: given.Password}.AsSha512Mechanism(),
		"OAUTHBEARER":   oauth.Auth{Token: given.Token}.AsMechanism(),
	}
	if given.Mechanism != "" {
		mechanism, known := mechanisms[given.Mechanism]
		if !known {
			return nil, fmt.Errorf("no mechanism %s", given.Mechanism)
		}
		options = append(options, kgo.SASL(mechanism))
	}
	return options, nil
}
