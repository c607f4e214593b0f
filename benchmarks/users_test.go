package benchmarks

import (
	"math"
	"reflect"
	"testing"
	"time"
)

func TestSchedule(t *testing.T) {
	for name, u := range map[string]Users{
		"the same for all": {Keys: 50, Rate: 5000},
		"Zipf":             {Keys: 1000, Zipf: 1.1, Rate: 5000},
		"sticky":           {Keys: 50, Rate: 5000, Sticky: true},
	} {
		t.Run(name, func(t *testing.T) {
			const length = 20 * time.Second
			all := u.schedule(1, length)
			if !reflect.DeepEqual(all, u.schedule(1, length)) {
				t.Error("the same seed gives other requests")
			}
			want := u.Rate * length.Seconds()
			if n := float64(len(all)); math.Abs(n-want) > 5*math.Sqrt(want) {
				t.Errorf("%v requests, want about %v", n, want)
			}
			perUser, perProcess, met := make([]float64, u.Keys), make([]float64, fleetSize), map[int]int{}
			last := time.Duration(0)
			for _, a := range all {
				if a.at < last || a.at >= length {
					t.Fatalf("a request at %v after one at %v, of %v", a.at, last, length)
				}
				last = a.at
				perUser[a.key]++
				perProcess[a.process]++
				met[a.key] |= 1 << a.process
			}
			sum := 0.0
			for k, rate := range u.rates() {
				sum += rate
				want := rate * length.Seconds()
				if math.Abs(perUser[k]-want) > 6*math.Sqrt(want)+6 {
					t.Errorf("%v requests of user %d, want about %v", perUser[k], k, want)
				}
				if one := met[k]&(met[k]-1) == 0; u.Sticky && !one {
					t.Errorf("user %d met the processes %b", k, met[k])
				}
			}
			if math.Abs(sum-u.Rate) > 1e-6 {
				t.Errorf("the rates sum to %v, not %v", sum, u.Rate)
			}
			for p, n := range perProcess {
				if math.Abs(n/want-1.0/fleetSize) > 0.03 {
					t.Errorf("process %d gets %v of %v", p, n, want)
				}
			}
		})
	}
}

func TestJudgeFleet(t *testing.T) {
	// 200 requests empty the bucket, and each 10 ms there is a token more.
	burst := func(answer Answer, n int) (all []made) {
		for range n {
			all = append(all, made{0, 0, answer})
		}
		return all
	}
	at := func(before, after time.Duration, answer Answer) made {
		return made{int64(before), int64(after), answer}
	}
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		made []made
		want judgement
	}{
		"nothing":          {nil, judgement{}},
		"the burst":        {burst(Admitted, 200), judgement{requests: 200, admitted: 200, ideal: 200}},
		"one too many":     {burst(Admitted, 201), judgement{requests: 201, admitted: 201, ideal: 200, over: 1 - tolerance}},
		"refused":          {burst(0, 3), judgement{requests: 3, ideal: 3, wrongly: 3}},
		"rightly":          {append(burst(Admitted, 200), at(0, 0, 0)), judgement{requests: 201, admitted: 200, ideal: 200}},
		"after a refill":   {append(burst(Admitted, 200), at(10*ms, 10*ms, Admitted)), judgement{requests: 201, admitted: 201, ideal: 201}},
		"perhaps later":    {append(burst(Admitted, 200), at(0, 10*ms, Admitted)), judgement{requests: 201, admitted: 201, ideal: 200}},
		"in another order": {append([]made{at(10*ms, 10*ms, Admitted)}, burst(Admitted, 200)...), judgement{requests: 201, admitted: 201, ideal: 201}},
	} {
		t.Run(name, func(t *testing.T) {
			f := &Fleet{history: map[int][]made{7: c.made, 8: burst(Admitted, 1000)}}
			got := f.judge(Users{First: 7, Keys: 2}, func(k int) bool { return k == 0 })
			if math.Abs(got.over-c.want.over) > 1e-9 {
				t.Errorf("over by %v, want %v", got.over, c.want.over)
			}
			if got.over = c.want.over; got != c.want {
				t.Errorf("%+v, want %+v", got, c.want)
			}
		})
	}
}

func TestPercentile(t *testing.T) {
	ds := []time.Duration{5, 1, 4, 2, 3}
	for p, want := range map[int]time.Duration{0: 1, 50: 3, 99: 5, 100: 5} {
		if got := percentile(ds, p); got != want {
			t.Errorf("percentile %d is %v, not %v", p, got, want)
		}
	}
}
