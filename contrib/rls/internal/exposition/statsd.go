package exposition

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/DataDog/datadog-go/v5/statsd"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls/statistics"
)

// StatsdOptions are the options of Statsd.
type StatsdOptions struct {
	Address    string
	Dog        bool              // DogStatsD by UDP, and otherwise statsd by TCP
	Tags       map[string]string // of all that is sent. Statsd has them in the name
	Mogrifiers []Mogrifier       // of DogStatsD: the first that fits counts
	Every      time.Duration
	Quiet      bool // nobody has asked for it: it is no warning that statsd is away
	Logger     *slog.Logger
}

// Mogrifier makes another name and tags of a name.
type Mogrifier struct {
	Pattern *regexp.Regexp
	Name    string            // with $1 for the first group
	Tags    map[string]string // the same
}

// Statsd sends what was counted since it sent the last time. What cannot be sent is sent later.
type Statsd struct {
	o        StatsdOptions
	counters *statistics.Counters
	suffix   string   // of a name: the tags
	tags     []string // the same for DogStatsD
	sent     [][statistics.Kinds]uint64
	totals   map[string]*uint64
	away     bool
}

// line is one that was sent. Its value counts as sent once that is known.
type line struct {
	sent  *uint64
	value uint64
}

// NewStatsd returns a Statsd for Counters.
func NewStatsd(c *statistics.Counters, o StatsdOptions) *Statsd {
	s := &Statsd{o: o, counters: c, totals: map[string]*uint64{}}
	for _, name := range slices.Sorted(maps.Keys(o.Tags)) {
		s.suffix += ".__" + plainTag.Replace(name) + "=" + plainTag.Replace(o.Tags[name])
		s.tags = append(s.tags, name+":"+o.Tags[name])
	}
	return s
}

// plainTag makes a text one that may be a part of a name.
var plainTag = strings.NewReplacer(".", "_", ":", "_", "|", "_", "\n", "_")

// Run sends until ctx ends, and then once more.
func (s *Statsd) Run(ctx context.Context) {
	tick := time.NewTicker(s.o.Every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			s.report(s.Send())
			return
		case <-tick.C:
			s.report(s.Send())
		}
	}
}

// report tells that statsd is away, and that it is back, each once.
func (s *Statsd) report(err error) {
	level := slog.LevelWarn
	if s.o.Quiet {
		level = slog.LevelInfo
	}
	switch {
	case err != nil && !s.away:
		s.o.Logger.Log(context.Background(), level, "statistics cannot be sent: they are sent when it answers again",
			"to", s.o.Address, "error", err)
	case err == nil && s.away:
		s.o.Logger.Log(context.Background(), level, "statistics are sent again", "to", s.o.Address)
	}
	s.away = err != nil
}

// longestSend is the longest that sending may take. A process that ends waits for it.
const longestSend = time.Second

// linesAtOnce is how many lines are sent before the next are made: the client drops what its queue
// does not take.
const linesAtOnce = 100

// longestPayload is what is written at once by TCP, which has room for the longest name.
const longestPayload = 8192

// refusal is how long it is waited for the message that nobody has the port: of UDP nothing else
// tells that.
const refusal = 50 * time.Millisecond

// Send sends what is new, by a connection of its own: statsd may have moved. If nobody answers
// nothing counts as sent. If somebody reads no more, what the kernel took does, but for the last
// lines: up to a hundred may be sent twice.
func (s *Statsd) Send() (err error) {
	network := "tcp"
	if s.o.Dog {
		network = "udp"
	}
	conn, err := net.DialTimeout(network, s.o.Address, longestSend)
	if err != nil {
		return err
	}
	_ = conn.SetDeadline(time.Now().Add(longestSend))
	failed := make(chan error, 1)
	options := []statsd.Option{
		statsd.WithoutTelemetry(), statsd.WithoutClientSideAggregation(), statsd.WithoutOriginDetection(),
		statsd.WithErrorHandler(func(err error) {
			select {
			case failed <- err:
			default:
			}
		}),
	}
	if !s.o.Dog {
		options = append(options, statsd.WithMaxBytesPerPayload(longestPayload))
	}
	client, err := statsd.NewWithWriter(conn, options...)
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	var lines []line
	flush := func(last bool) error {
		err := client.Flush()
		select {
		case write := <-failed:
			return errors.Join(err, write)
		default:
		}
		if s.o.Dog {
			if !last {
				return err
			}
			err = errors.Join(err, refused(conn))
		}
		if err == nil {
			for _, l := range lines {
				*l.sent = l.value
			}
			lines = lines[:0]
		}
		return err
	}
	count := func(name string, sent *uint64, value uint64) {
		n := value - *sent
		if n == 0 || err != nil {
			return
		}
		if s.o.Dog {
			name, tags := s.mogrify(name)
			_ = client.Count(name, int64(n), tags, 1)
		} else {
			_ = client.Count(name+s.suffix, int64(n), nil, 1)
		}
		if lines = append(lines, line{sent, value}); len(lines)%linesAtOnce == 0 {
			err = flush(false)
		}
	}
	all := s.counters.All()
	s.sent = append(s.sent, make([][statistics.Kinds]uint64, len(all)-len(s.sent))...)
	for i, counts := range all {
		for kind := range statistics.Kinds {
			count(counts.Name(kind), &s.sent[i][kind], counts.Value(kind))
		}
	}
	s.counters.Totals(func(name string, n uint64) {
		if s.totals[name] == nil {
			s.totals[name] = new(uint64)
		}
		count(name, s.totals[name], n)
	})
	if err == nil {
		err = flush(true)
	}
	return errors.Join(err, client.Close())
}

// refused returns an error if the other end of a connection by UDP has said that nobody is there.
func refused(conn net.Conn) error {
	_ = conn.SetReadDeadline(time.Now().Add(refusal))
	_, err := conn.Read(make([]byte, 1))
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return err
}

// mogrify returns the name and the tags that DogStatsD gets.
func (s *Statsd) mogrify(name string) (string, []string) {
	for _, m := range s.o.Mogrifiers {
		found := m.Pattern.FindStringSubmatch(name)
		if found == nil {
			continue
		}
		tags := slices.Clone(s.tags)
		for _, tag := range slices.Sorted(maps.Keys(m.Tags)) {
			tags = append(tags, tag+":"+fill(m.Tags[tag], found))
		}
		return fill(m.Name, found), tags
	}
	return name, s.tags
}

var group = regexp.MustCompile(`\$\d+`)

// fill puts what groups have found into a text. Those that are not there stay.
func fill(text string, found []string) string {
	return group.ReplaceAllStringFunc(text, func(of string) string {
		if n, err := strconv.Atoi(of[1:]); err == nil && n < len(found) {
			return found[n]
		}
		return of
	})
}

// NewMogrifier returns the mogrifier of a name, from the variables that begin with it.
func NewMogrifier(name string, get func(variable string) string) (m Mogrifier, err error) {
	prefix := "DOG_STATSD_MOGRIFIER_" + name + "_"
	pattern := get(prefix + "PATTERN")
	m.Name = get(prefix + "NAME")
	switch {
	case pattern == "":
		return m, fmt.Errorf("%sPATTERN is empty: must be a regular expression", prefix)
	case m.Name == "":
		return m, fmt.Errorf("%sNAME is empty: must be a name", prefix)
	}
	if m.Pattern, err = regexp.Compile(pattern); err != nil {
		return m, fmt.Errorf("%sPATTERN: %w", prefix, err)
	}
	m.Tags, err = Pairs(prefix+"TAGS", get(prefix+"TAGS"))
	return m, err
}

// Pairs reads a list such as a:1,b:2.
func Pairs(variable, text string) (map[string]string, error) {
	all := map[string]string{}
	for pair := range strings.SplitSeq(text, ",") {
		if text == "" {
			break
		}
		key, value, ok := strings.Cut(pair, ":")
		if key = strings.TrimSpace(key); !ok || key == "" || value == "" {
			return nil, fmt.Errorf("%s has %.64q: must be a name, a colon and a value", variable, pair)
		}
		all[key] = value
	}
	return all, nil
}
