// Worker sends mail no faster than all its recipients' servers, and each of them, may get it. It
// slows down instead of refusing, and all workers together keep to the limits.
//
//	printf 'example.com\nexample.org\n' | go run -C examples/services ./worker
//
// Each line is a domain that gets a mail. At SIGTERM it finishes what it has begun, and says what
// it did not begin.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"sync"
	"time"

	"github.com/tiered-limiter/tiered-limiter/examples/services/service"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

func main() {
	all := flag.String("all", "50/s", "limit of all mail")
	domain := flag.String("domain", "5/s", "limit of the mail to a domain")
	workers := flag.Int("workers", 8, "mails at one time")
	redis := flag.String("redis", os.Getenv("REDIS_URL"), "URL of the Redis that the processes share")
	processes := flag.Int("processes", 1, "the fewest processes that run")
	flag.Parse()
	err := service.Run(*redis, *processes, func(ctx context.Context, group *tiered.Group) error {
		return work(ctx, group, *all, *domain, *workers, os.Stdin)
	})
	if err != nil {
		log.Fatal(err)
	}
}

// patience is the longest that a mail waits for its turn. After that it goes back to the queue.
const patience = time.Minute

func work(ctx context.Context, group *tiered.Group, all, domain string, workers int, queue io.Reader) error {
	perService, err1 := limiter(group, "all-mail", all)
	perDomain, err2 := limiter(group, "mail-to-domain", domain)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	jobs := make(chan string)
	go func() {
		defer close(jobs)
		for lines := bufio.NewScanner(queue); lines.Scan(); {
			jobs <- lines.Text()
		}
	}()
	var busy sync.WaitGroup
	for range workers {
		busy.Go(func() {
			for ctx.Err() == nil {
				select {
				case <-ctx.Done():
				case to, ok := <-jobs:
					if !ok {
						return
					}
					waiting, cancel := context.WithTimeout(ctx, patience)
					err := tiered.All(perService.For("all"), perDomain.For(to)).Wait(waiting) // tokens of both, or of none
					cancel()
					if err != nil {
						fmt.Println("not sent:", to) // nothing was taken: back to the queue
						continue
					}
					send(to)
				}
			}
		})
	}
	busy.Wait() // mails that have begun are sent
	return nil
}

func limiter(group *tiered.Group, name, text string) (*tiered.Limiter, error) {
	limit, err := tiered.ParseLimit(text)
	if err != nil {
		return nil, err
	}
	return group.NewLimiter(tiered.Policy{Name: name, Limit: limit})
}

// send sends a mail.
func send(to string) { fmt.Println("sent:", to) }
