package remote_test

import (
	"crypto/tls"
	"crypto/x509"
	"log"
	"os"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/remote"
)

func ExampleOpen() {
	store, err := remote.Open("redis://:p%40ss@127.0.0.1:6379/1", &remote.RedisOptions{Prefix: "checkout:"})
	if err != nil {
		log.Fatal(err) // nothing of the URL is in it
	}
	defer store.Close()
}

func ExampleOpen_sentinel() {
	store, err := remote.Open("sentinel://10.0.0.1:26379?addr=10.0.0.2:26379&addr=10.0.0.3:26379&master_name=primary",
		nil)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
}

func ExampleNewRedis() {
	client := redis.NewClient(&redis.Options{
		Addr:                  "127.0.0.1:6379",
		ContextTimeoutEnabled: true, // hooks see the store's calls too
	})
	defer client.Close()

	store := remote.NewRedis(client, nil)
	defer store.Close() // leaves the client open
}

// An authority of your own, which the operating system does not know.
func ExampleNewRedis_tls() {
	roots := x509.NewCertPool()
	text, err := os.ReadFile("/etc/redis/ca.pem")
	if err != nil || !roots.AppendCertsFromPEM(text) {
		log.Fatalf("no certificate in /etc/redis/ca.pem: %v", err)
	}
	client := redis.NewClient(&redis.Options{
		Addr:     "redis.internal:6380",
		Username: "tiered", Password: os.Getenv("REDIS_PASSWORD"),
		// and Certificates, where Redis asks for one
		TLSConfig:             &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		ContextTimeoutEnabled: true,
		DialerRetries:         1, // an error in the log is what is wrong with the certificate
	})
	defer client.Close()

	store := remote.NewRedis(client, nil)
	defer store.Close() // leaves the client open
}
