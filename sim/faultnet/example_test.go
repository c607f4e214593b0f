package faultnet_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/faultnet"
)

// A service that hears its requests, and whose replies get lost.
func Example() {
	served := make(chan string, 1)
	dial := func(context.Context, string, string) (net.Conn, error) { // to the service
		near, far := net.Pipe()
		go func() {
			defer far.Close()
			line, _ := bufio.NewReader(far).ReadString('\n')
			served <- line
			fmt.Fprintln(far, "OK")
		}()
		return near, nil
	}

	network := faultnet.New(1)
	conn, err := network.Dialer(dial)(context.Background(), "tcp", "service:1")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	if err := network.Set(faultnet.Faults{HoldIn: true}); err != nil {
		fmt.Println(err)
		return
	}

	fmt.Fprintln(conn, "take one")
	fmt.Printf("the service got %q\n", <-served)
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	_, err = conn.Read(make([]byte, 100))
	fmt.Println("we timed out:", errors.Is(err, os.ErrDeadlineExceeded))

	_ = network.Set(faultnet.Faults{}) // healed
	_ = conn.SetReadDeadline(time.Time{})
	line, _ := bufio.NewReader(conn).ReadString('\n')
	fmt.Printf("and got %q later\n", line)
	// Output:
	// the service got "take one\n"
	// we timed out: true
	// and got "OK\n" later
}

// Faults that break a rule are refused, all problems at once.
func ExampleNet_Set() {
	fmt.Println(faultnet.New(1).Set(faultnet.Faults{Delay: -time.Second, CutAfter: 2}))
	// Output:
	// faultnet: Faults.Delay is -1s: must be 0 or more
	// faultnet: Faults.CutAfter is 2: must be a probability, 0 to 1
}
