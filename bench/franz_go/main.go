// Members of a new consumer group that join one after the other; it prints how long it took until each had one partition.
// Arguments: bootstrap servers, topic, members, milliseconds between them, how often.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

type group struct {
	mutex   sync.Mutex
	owned   []int
	last    time.Time
	settled chan struct{}
}

func (g *group) change(member int, partitions map[string][]int32, sign int) {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	for _, of := range partitions {
		g.owned[member] += sign * len(of)
	}
	g.last = time.Now()
	for _, owned := range g.owned {
		if owned != 1 {
			return
		}
	}
	select {
	case <-g.settled:
	default:
		close(g.settled)
	}
}

func number(text string) int {
	value, err := strconv.Atoi(text)
	if err != nil {
		panic(err)
	}
	return value
}

func join(ctx context.Context, g *group, name string, member int) *kgo.Client {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(os.Args[1]),
		kgo.ConsumeTopics(os.Args[2]),
		kgo.ConsumerGroup(name),
		kgo.ServerSideBalancer(),
		kgo.Balancers(kgo.RangeBalancer()),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, added map[string][]int32) {
			g.change(member, added, 1)
		}),
		kgo.OnPartitionsRevoked(func(_ context.Context, _ *kgo.Client, gone map[string][]int32) {
			g.change(member, gone, -1)
		}),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, gone map[string][]int32) {
			g.change(member, gone, -1)
		}),
	)
	if err != nil {
		panic(err)
	}
	go func() {
		for ctx.Err() == nil {
			client.PollFetches(ctx)
		}
	}()
	return client
}

func main() {
	members, apart, times := number(os.Args[3]), number(os.Args[4]), number(os.Args[5])
	for round := range times {
		ctx, cancel := context.WithCancel(context.Background())
		g := &group{owned: make([]int, members), settled: make(chan struct{})}
		name := fmt.Sprintf("franz-go-%d-%d-%d", members, round, time.Now().UnixNano())
		begin := time.Now()
		clients := []*kgo.Client{}
		for member := range members {
			if member > 0 {
				time.Sleep(time.Duration(apart) * time.Millisecond)
			}
			clients = append(clients, join(ctx, g, name, member))
		}
		select {
		case <-g.settled:
		case <-time.After(time.Minute):
			panic("not settled after a minute")
		}
		g.mutex.Lock()
		fmt.Printf("%.3f\n", g.last.Sub(begin).Seconds())
		g.mutex.Unlock()
		cancel()
		for _, client := range clients {
			client.Close()
		}
	}
}
