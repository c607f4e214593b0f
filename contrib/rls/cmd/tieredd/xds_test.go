package main_test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	config "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls/internal/behavior"
	"github.com/tiered-limiter/tiered-limiter/contrib/rls/internal/controlplane"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
)

// ofPlane is the environment of a tieredd that follows a control plane, and comes back soon.
func ofPlane(address string, more ...string) []string {
	return append([]string{
		"CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL=" + address, "CONFIG_GRPC_XDS_NODE_ID=" + controlplane.Node,
		"CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL=50ms", "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL=50ms", "XDS_CLIENT_BACKOFF_MAX_INTERVAL=100ms",
	}, more...)
}

// ofUsers is a resource with a limit for each user.
func ofUsers(n int) *config.RateLimitConfig {
	return &config.RateLimitConfig{Name: "users", Domain: "shop", Descriptors: []*config.RateLimitDescriptor{
		{Key: "user", RateLimit: &config.RateLimitPolicy{Unit: config.RateLimitUnit_YEAR, RequestsPerUnit: uint32(n)}},
	}}
}

// limitOf returns the limit of a user; 0 if there is none, -1 if the call fails.
func (p *process) limitOf(t *testing.T, user string) int {
	t.Helper()
	answer, err := p.client.ShouldRateLimit(t.Context(), behavior.Request("shop | user="+user+" +0"))
	if err != nil {
		return -1
	}
	return int(answer.GetStatuses()[0].GetCurrentLimit().GetRequestsPerUnit())
}

// told counts the lines of the log with a text.
func (p *process) told(text string) (n int) {
	for line := range strings.Lines(p.log()) {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

// The life of a process with a control plane: it says who it is, uses what comes and accepts it,
// refuses a mistake by its text, keeps the last good configuration then and while the control plane
// is away, and has no limits when that is what is sent.
func TestControlPlane(t *testing.T) {
	redis := redistest.Start(t)
	plane := controlplane.Start(t)
	plane.Set(t, "1", ofUsers(100))
	p := start(t, "", ofPlane(plane.Address, "REDIS_URL="+redis.URL(), patient, "CONFIG_GRPC_XDS_NODE_METADATA=zone=a,team=b=c",
		"CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS=x-token:secret,x-zone:a:b")...)
	p.play(t, [2]string{"shop | user=a", "OK | OK 99/100"})
	eventually(t, "version 1 is accepted", func() bool { return plane.Acked("1") })
	_, headers := plane.Requests()
	node := plane.NodeOf()
	if is := node.GetMetadata().AsMap(); node.GetId() != controlplane.Node || is["zone"] != "a" || is["team"] != "b=c" ||
		headers.Get("x-token")[0] != "secret" || headers.Get("x-zone")[0] != "a:b" {
		t.Errorf("it asks as %v with %v", node, headers)
	}

	plane.Set(t, "2", ofUsers(200))
	eventually(t, "the new limit counts", func() bool { return p.limitOf(t, "b") == 200 })
	p.play(t, [2]string{"shop | user=a", "OK | OK 198/200"})

	bad := ofUsers(300)
	bad.Descriptors = append(bad.Descriptors, &config.RateLimitDescriptor{Key: "path", Descriptors: []*config.RateLimitDescriptor{
		{Key: "user", RateLimit: &config.RateLimitPolicy{RequestsPerUnit: 1}},
	}})
	plane.Set(t, "3", bad)
	const mistake = `users: descriptors[1].descriptors[0], key "user": unit is "UNKNOWN": must be second, minute, hour, day, week, month or year`
	eventually(t, "the mistake is told", func() bool { return len(plane.Refused()) > 0 })
	all, _ := plane.Requests()
	if last := all[len(all)-1]; last.GetErrorDetail().GetMessage() != mistake || last.GetVersionInfo() != "2" ||
		codes.Code(last.GetErrorDetail().GetCode()) != codes.InvalidArgument {
		t.Errorf("it refuses with %v", last)
	}
	p.play(t, [2]string{"shop | user=a", "OK | OK 197/200"})
	if n := p.told("the configuration is not used"); n != 1 {
		t.Errorf("the mistake is logged %d times", n)
	}

	plane.Kill()
	eventually(t, "the outage is logged", func() bool { return p.told("the control plane does not answer: the last configuration stays") > 0 })
	time.Sleep(500 * time.Millisecond)                           // it has tried again
	if n := p.told("the control plane does not answer"); n > 2 { // the end of the stream, and the refused connection
		t.Errorf("the outage is logged %d times", n)
	}
	p.play(t, [2]string{"shop | user=a", "OK | OK 196/200"})
	plane.Set(t, "4", ofUsers(400))
	plane.Restart(t)
	eventually(t, "it is back, with another limit", func() bool { return p.limitOf(t, "b") == 400 })
	p.play(t, [2]string{"shop | user=a", "OK | OK 395/400"})
	if p.told("the control plane answers again") != 1 {
		t.Error("the end of the outage is not logged")
	}

	doubtful := ofUsers(400)
	doubtful.Descriptors = append(doubtful.Descriptors, &config.RateLimitDescriptor{Key: "path"})
	plane.Set(t, "doubtful", doubtful)
	eventually(t, "it is accepted", func() bool { return plane.Acked("doubtful") })
	const doubt = `users: descriptors[1], key "path": this descriptor has no rate_limit and no descriptors: it limits nothing`
	if _, all := p.get("/rlconfig"); !strings.Contains(all, "\nwarning: "+doubt+"\n") || p.told("may not do what is meant") != 1 {
		t.Errorf("nothing is said of a doubtful rule: %s", all)
	}

	plane.Set(t, "5")
	eventually(t, "nothing is limited", func() bool { return p.limitOf(t, "b") == 0 && plane.Acked("5") })
	p.play(t, [2]string{"shop | user=a", "OK | OK"})
	plane.Set(t, "6", ofUsers(400))
	eventually(t, "the limit is back", func() bool { return p.limitOf(t, "b") == 400 })
	p.play(t, [2]string{"shop | user=a", "OK | OK 394/400"})
	p.terminate(t)
}

// Without a control plane it is alive, says so once, and fails calls. It is ready if it has to be.
func TestNoControlPlane(t *testing.T) {
	nobody := fmt.Sprintf("127.0.0.1:%d", redistest.FreePort(t))
	for _, force := range []bool{false, true} {
		p := start(t, "", ofPlane(nobody, "FORCE_START_WITHOUT_INITIAL_CONFIG=true")...)
		eventually(t, "it says so", func() bool { return p.told("the control plane does not answer") > 0 })
		p.terminate(t)
		p.env = append(p.env, fmt.Sprintf("FORCE_START_WITHOUT_INITIAL_CONFIG=%t", force))
		p.launch(t)
		eventually(t, "it is alive", func() bool { code, _ := p.get("/healthz"); return code == http.StatusOK })
		eventually(t, "it says so", func() bool { return p.told("the control plane does not answer, and there is no configuration yet") > 1 })
		time.Sleep(300 * time.Millisecond)                            // it has tried again
		if n := p.told("the control plane does not answer"); n != 2 { // one of each process
			t.Errorf("it is said %d times", n)
		}
		if _, err := p.client.ShouldRateLimit(t.Context(), behavior.Request("shop | user=a")); status.Code(err) != codes.Unavailable {
			t.Errorf("a call is answered with %v", err)
		}
		if code, _ := p.get("/readyz"); code == http.StatusOK != force {
			t.Errorf("force %t: /readyz answers %d", force, code)
		}
	}
}

// With HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED it is ready while there is a domain.
func TestReadyWithADomain(t *testing.T) {
	plane := controlplane.Start(t)
	plane.Set(t, "1", ofUsers(1))
	p := start(t, "", ofPlane(plane.Address, "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED=true", "FORCE_START_WITHOUT_INITIAL_CONFIG=true")...)
	for _, step := range []struct {
		all  []*config.RateLimitConfig
		want int
	}{{nil, http.StatusServiceUnavailable}, {[]*config.RateLimitConfig{ofUsers(2)}, http.StatusOK}} {
		plane.Set(t, fmt.Sprint(step.want), step.all...)
		eventually(t, "it is ready if there is a domain", func() bool { code, _ := p.get("/readyz"); return code == step.want })
	}
}

// response is an answer of a liar.
func response(version, nonce string, all ...*anypb.Any) *discovery.DiscoveryResponse {
	return &discovery.DiscoveryResponse{VersionInfo: version, Nonce: nonce, TypeUrl: "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig", Resources: all}
}

func anyOf(t *testing.T, m proto.Message) *anypb.Any {
	t.Helper()
	return fatal.Get(anypb.New(m))(t)
}

// Whatever a control plane sends, it is refused by its text or used, told once, and limits go on.
func TestLyingControlPlane(t *testing.T) {
	other := response("2", "n2")
	other.TypeUrl = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	for _, c := range []struct {
		name   string
		sends  *discovery.DiscoveryResponse
		text   string // of the refusal
		logged string
		limit  int
	}{
		{
			"rubbish", response("2", "n2", &anypb.Any{TypeUrl: response("", "").GetTypeUrl(), Value: []byte{0xff, 0xff}}),
			"resources[0] has 2 bytes that are no RateLimitConfig", "the configuration is not used", 100,
		},
		{
			"another type within", response("2", "n2", anyOf(t, ofUsers(7)), anyOf(t, &discovery.DiscoveryRequest{})),
			`resources[1] has the type "type.googleapis.com/envoy.service.discovery.v3.DiscoveryRequest": must have type.googleapis.com/ratelimit`,
			"the configuration is not used", 100,
		},
		{
			"another type", other, `type_url is "type.googleapis.com/envoy.config.cluster.v3.Cluster": must be type.googleapis.com/ratelimit`,
			"the configuration is not used", 100,
		},
		{
			"the same domain twice", response("2", "n2", anyOf(t, ofUsers(7)), anyOf(t, ofUsers(8))),
			`users: domain is "shop": another file or place has it`, "the configuration is not used", 100,
		},
		{
			"the same version with another content", response("1", "n2", anyOf(t, ofUsers(7))),
			"", "another content with the same version: it is used", 7,
		},
		{"no version and no nonce", response("", "", anyOf(t, ofUsers(8))), "", "a new configuration is used", 8},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			plane := controlplane.StartLiar(t, func(send func(*discovery.DiscoveryResponse), receive func() *discovery.DiscoveryRequest) {
				if receive() == nil {
					return
				}
				send(response("1", "n1", anyOf(t, ofUsers(100))))
				for receive() != nil { // each answer brings the same again
					send(c.sends)
				}
			})
			p := start(t, "", ofPlane(plane.Address)...)
			p.play(t, [2]string{"shop | user=a", fmt.Sprintf("OK | OK %d/%d", p.limitOf(t, "a")-1, p.limitOf(t, "a"))})
			eventually(t, "it is used or refused", func() bool { all, _ := plane.Requests(); return len(all) >= 4 && p.limitOf(t, "b") == c.limit })
			all, _ := plane.Requests()
			last := all[len(all)-1]
			if text := last.GetErrorDetail().GetMessage(); !strings.HasPrefix(text, c.text) || (text == "") != (c.text == "") || last.GetResponseNonce() != c.sends.GetNonce() {
				t.Errorf("it is answered with %v", last)
			}
			if n := p.told(c.logged); n != 1 && c.text != "" || n == 0 {
				t.Errorf("%q is logged %d times", c.logged, n)
			}
			begin, before := time.Now(), len(all)
			time.Sleep(time.Second)
			all, _ = plane.Requests()
			if n, took := len(all)-before, time.Since(begin); float64(n) > 11*took.Seconds()+1 {
				t.Errorf("%d answers in %v to one that sends without an end", n, took)
			}
		})
	}
}

// A control plane that has started anew may count its versions anew, and sends nothing to who has
// its version: so a stream begins without one.
func TestControlPlaneStartsAnew(t *testing.T) {
	var streams atomic.Int64
	plane := controlplane.StartLiar(t, func(send func(*discovery.DiscoveryResponse), receive func() *discovery.DiscoveryRequest) {
		n := streams.Add(1)
		for r := receive(); r != nil; r = receive() {
			switch {
			case r.GetVersionInfo() != "1":
				send(response("1", "n", anyOf(t, ofUsers(int(min(n, 2)*100)))))
			case n == 1:
				return // it ends, and is there again at once
			}
		}
	})
	p := start(t, "", ofPlane(plane.Address)...)
	eventually(t, "the content of the second stream is used", func() bool { return p.limitOf(t, "a") == 200 })
	if n := p.told("another content with the same version"); n != 0 {
		t.Errorf("it is told %d times, and nothing is wrong", n)
	}
}

// A control plane that is connected and says nothing is told of, and calls fail meanwhile.
func TestSlowControlPlane(t *testing.T) {
	if testing.Short() {
		t.Skip("it is told after ten seconds")
	}
	silent := fatal.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { _ = silent.Close() })
	go func() {
		for {
			if _, err := silent.Accept(); err != nil {
				return
			}
		}
	}()
	told := make(chan struct{})
	plane := controlplane.StartLiar(t, func(send func(*discovery.DiscoveryResponse), receive func() *discovery.DiscoveryRequest) {
		if receive() == nil {
			return
		}
		<-told
		send(response("1", "n1", anyOf(t, ofUsers(100))))
		receive()
		receive()
	})
	for address, text := range map[string]string{
		plane.Address:          "the control plane has sent no configuration yet",
		silent.Addr().String(): "the control plane does not answer, and there is no configuration yet",
	} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			p := start(t, "", ofPlane(address, "FORCE_START_WITHOUT_INITIAL_CONFIG=true")...)
			eventually(t, "it is told", func() bool { return p.told(text) == 1 })
			if n := p.limitOf(t, "a"); n != -1 {
				t.Errorf("a call is answered: %d", n)
			}
			if address == plane.Address {
				close(told)
				eventually(t, "it is used", func() bool { return p.limitOf(t, "a") == 100 })
			}
		})
	}
}

// Mutual TLS with a control plane: its certificate has to be for the name, one that has expired is
// told once, ours too, and a file that is replaced is used.
func TestControlPlaneTLS(t *testing.T) {
	good, stranger := newAuthority(t, "good"), newAuthority(t, "stranger")
	soon, past := time.Now().Add(time.Hour), time.Now().Add(-time.Hour)
	dir := t.TempDir()
	put := func(name string, text []byte) string {
		path := filepath.Join(dir, name)
		fatal.If(t, os.WriteFile(path+".next", text, 0o600))
		fatal.If(t, os.Rename(path+".next", path))
		return path
	}
	serverCert, serverKey := good.issue(t, "envoy-gateway", soon)
	var serverPair atomic.Pointer[tls.Certificate]
	present := func(cert, key []byte) { serverPair.Store(new(fatal.Get(tls.X509KeyPair(cert, key))(t))) }
	present(serverCert, serverKey)
	roots := x509.NewCertPool()
	roots.AddCert(good.cert)
	config := &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: roots, NextProtos: []string{"h2"}}
	config.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return serverPair.Load(), nil }
	plane := controlplane.Start(t, grpc.Creds(credentials.NewTLS(config)))
	plane.Set(t, "1", ofUsers(100))

	cert, key := good.issue(t, "envoy-ratelimit", soon)
	env := ofPlane(plane.Address, "FORCE_START_WITHOUT_INITIAL_CONFIG=true", "CONFIG_GRPC_XDS_SERVER_USE_TLS=true", "CONFIG_GRPC_XDS_SERVER_TLS_SAN=envoy-gateway",
		"CONFIG_GRPC_XDS_CLIENT_TLS_CERT="+put("tls.crt", cert), "CONFIG_GRPC_XDS_CLIENT_TLS_KEY="+put("tls.key", key),
		"CONFIG_GRPC_XDS_SERVER_TLS_CACERT="+put("ca.crt", good.pem()))
	p := start(t, "", env...)
	eventually(t, "it is used", func() bool { return p.limitOf(t, "a") == 100 })

	for _, c := range []struct {
		name  string
		spoil func()
		text  string
	}{
		{"its certificate has expired", func() {
			a, b := good.issue(t, "envoy-gateway", past)
			present(a, b)
		}, "certificate has expired"},
		{"it is for another name", func() {
			a, b := good.issue(t, "else", soon)
			present(a, b)
		}, "not envoy-gateway"},
		{"of another authority", func() {
			a, b := stranger.issue(t, "envoy-gateway", soon)
			present(a, b)
		}, "unknown authority"},
		{"ours has expired", func() {
			a, b := good.issue(t, "envoy-ratelimit", past)
			put("tls.crt", a)
			put("tls.key", b)
		}, "CONFIG_GRPC_XDS_CLIENT_TLS_CERT is .*: the certificate has expired at .*: must be replaced"},
		{"ours is away", func() { fatal.If(t, os.Remove(filepath.Join(dir, "tls.crt"))) }, "CONFIG_GRPC_XDS_CLIENT_TLS_CERT and CONFIG_GRPC_XDS_CLIENT_TLS_KEY: open .*tls.crt"},
		{"the authority is none", func() { put("ca.crt", []byte("x")) }, "CONFIG_GRPC_XDS_SERVER_TLS_CACERT is .*: must have a certificate in PEM"},
	} {
		t.Run(c.name, func(t *testing.T) {
			plane.Kill()
			c.spoil()
			plane.Restart(t)
			is := regexp.MustCompile("the control plane does not answer: the last configuration stays.*" + c.text)
			count := func() (n int) { return len(is.FindAllString(p.log(), -1)) }
			eventually(t, "it is told", func() bool { return count() > 0 })
			time.Sleep(300 * time.Millisecond) // it has tried again
			if n := count(); n != 1 {
				t.Errorf("it is told %d times", n)
			}
			if p.limitOf(t, "a") != 100 {
				t.Error("the last configuration is gone")
			}
			present(serverCert, serverKey)
			put("tls.crt", cert)
			put("tls.key", key)
			put("ca.crt", good.pem())
			plane.Set(t, c.name, ofUsers(100))
			before, _ := plane.Requests()
			eventually(t, "it is connected again", func() bool { all, _ := plane.Requests(); return len(all) > len(before) && plane.Acked(c.name) })
		})
	}
}

// 100 000 rules are more than a message of the default size: the log says what to raise. Then they
// are used.
func TestHundredThousandRules(t *testing.T) {
	if testing.Short() {
		t.Skip("100 000 rules")
	}
	many := &config.RateLimitConfig{Name: "many", Domain: "shop", Descriptors: ofUsers(200).GetDescriptors()}
	for i := range 100_000 {
		many.Descriptors = append(many.Descriptors, &config.RateLimitDescriptor{
			Key: "path", Value: fmt.Sprintf("/api/v1/organizations/17/resource/%d", i), RateLimit: &config.RateLimitPolicy{Unit: config.RateLimitUnit_MINUTE, RequestsPerUnit: 100},
		})
	}
	plane := controlplane.Start(t)
	plane.Set(t, "1", ofUsers(100))
	p := start(t, "", ofPlane(plane.Address)...)
	plane.Set(t, "2", many)
	eventually(t, "the log says what to raise", func() bool { return p.told("raise XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES") > 0 })
	time.Sleep(500 * time.Millisecond) // it has tried again
	if n := p.told("raise XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES"); n != 1 || p.limitOf(t, "a") != 100 {
		t.Errorf("it is told %d times, and the limit is %d", n, p.limitOf(t, "a"))
	}
	p.terminate(t)
	p.env = append(p.env, "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES=100000000", "GOMEMLIMIT=600MiB")
	begin := time.Now()
	p.run(t)
	if p.limitOf(t, "a") != 200 {
		t.Error("they are not used")
	}
	t.Logf("ready after %v, with %d MB", time.Since(begin), p.peak(t)>>20)
}

// A rule that is taken back while leases are out, and comes again, has counted all the time.
func TestRuleTakenBack(t *testing.T) {
	redis := redistest.Start(t)
	plane := controlplane.Start(t)
	plane.Set(t, "1", ofUsers(1000))
	p := start(t, "", ofPlane(plane.Address, "REDIS_URL="+redis.URL(), patient)...)
	admitted := 0
	ask := func(n int) {
		for range n {
			answer := fatal.Get(p.client.ShouldRateLimit(t.Context(), behavior.Request("shop | user=a")))(t)
			if answer.GetOverallCode() == pb.RateLimitResponse_OK && answer.GetStatuses()[0].GetCurrentLimit() != nil {
				admitted++
			}
		}
	}
	for i := range 4 {
		ask(150)
		plane.Set(t, fmt.Sprint("without ", i))
		eventually(t, "it is gone", func() bool { return p.limitOf(t, "a") == 0 })
		ask(10)
		plane.Set(t, fmt.Sprint("with ", i), ofUsers(1000))
		eventually(t, "it is back", func() bool { return p.limitOf(t, "a") == 1000 })
	}
	eventually(t, "all is used", func() bool { ask(100); return admitted >= 1000 })
	ask(200)
	if admitted != 1000 {
		t.Errorf("%d are admitted", admitted)
	}
	p.terminate(t)
}
