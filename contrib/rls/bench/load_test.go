package bench_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// callers ask one after the other at random times, all together at a rate.
const callers = 32

// load is an open load: a caller that is late does not wait to be less late.
type load struct {
	descriptor string  // its key
	rate       float64 // calls per second
	keys       int     // as many values
	zipf       float64 // value k comes with a frequency ∝ 1/k^zipf; 0 means that all are equally frequent
	first      int     // the first of them
}

// used is what a load cost a service, and what it was answered.
type used struct {
	calls, admitted int
	replicas, redis time.Duration // processor time
	commands        float64
	p50, p99        time.Duration
}

func (u used) per(x float64) float64 { return x / float64(u.calls) }

func (u used) String() string {
	micros := func(d time.Duration) float64 { return u.per(d.Seconds()) * 1e6 }
	return fmt.Sprintf("%d calls, %d admitted, processor time per call %.1f µs in the service and %.1f µs in Redis, "+
		"%.4f commands, p50 %v, p99 %v", u.calls, u.admitted, micros(u.replicas), micros(u.redis), u.per(u.commands), u.p50, u.p99)
}

// request asks for one hit.
func request(key, value string) *pb.RateLimitRequest {
	return &pb.RateLimitRequest{Domain: "bench", Descriptors: []*ratelimit.RateLimitDescriptor{
		{Entries: []*ratelimit.RateLimitDescriptor_Entry{{Key: key, Value: value}}},
	}}
}

// offer offers the load for a time.
func (s *service) offer(t *testing.T, l load, length time.Duration) (u used) {
	t.Helper()
	before := s.cost(t)
	var mu sync.Mutex
	var trips []time.Duration
	var all sync.WaitGroup
	begin := time.Now()
	for i := range callers {
		all.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), uint64(l.first)))
			value := func() int { return random.IntN(l.keys) }
			if l.zipf > 0 {
				zipf := rand.NewZipf(random, l.zipf, 1, uint64(l.keys-1))
				value = func() int { return int(zipf.Uint64()) }
			}
			client := s.replicas[i%len(s.replicas)].client
			var mine []time.Duration
			admitted := 0
			for at := time.Duration(0); ; {
				at += time.Duration(random.ExpFloat64() / l.rate * callers * float64(time.Second))
				if at > length {
					break
				}
				time.Sleep(at - time.Since(begin))
				r := request(l.descriptor, "u"+strconv.Itoa(l.first+value()))
				sent := time.Now()
				answer, err := client.ShouldRateLimit(context.Background(), r)
				if err != nil {
					t.Errorf("%s: %v", s.name, err)
					return
				}
				mine = append(mine, time.Since(sent))
				if answer.GetOverallCode() == pb.RateLimitResponse_OK {
					admitted++
				}
			}
			mu.Lock()
			defer mu.Unlock()
			trips = append(trips, mine...)
			u.admitted += admitted
		})
	}
	all.Wait()
	after := s.cost(t)
	u.calls = len(trips)
	u.replicas, u.redis = after.replicas-before.replicas, after.redis-before.redis
	u.commands = after.commands - before.commands - 1 // one is INFO
	if u.commands <= 0 || u.replicas <= 0 || u.redis <= 0 {
		t.Errorf("%s: %v: a meter counts nothing", s.name, u)
	}
	slices.Sort(trips)
	if u.calls > 0 {
		u.p50, u.p99 = trips[u.calls/2], trips[u.calls*99/100]
	}
	return u
}
