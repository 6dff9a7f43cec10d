package evaluation

import (
	"slices"
	"testing"
	"time"
)

// The history is bounded, keeps the most of each span, and does not depend on which of two
// replicas noted what.
func TestHistory(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var one, a, b DriftHistory
	now := begin
	for i := range 33 * 24 * 6 {
		now = begin.Add(time.Duration(i) * 10 * time.Minute)
		evidence := float64(i%6) / 8 // each hour has its most at its end
		one.Add(now, evidence)
		if i%2 == 0 {
			a.Add(now, evidence)
		} else {
			b.Add(now, evidence)
		}
	}
	a.Merge(now, &b)
	all := one.Since(time.Time{})
	if !slices.Equal(all, a.Since(time.Time{})) {
		t.Error("two replicas know something else than one")
	}
	if n := len(all); n < 31*24 || n > 31*24+2*12+2 {
		t.Errorf("%d points of 31 days", n)
	}
	for _, p := range all[:30*24] {
		if p.Evidence != 5./8 || !p.Start.Equal(p.Start.Truncate(time.Hour)) {
			t.Fatalf("%v has %v", p.Start, p.Evidence)
		}
	}
	if recent := one.Since(now.Add(-time.Hour)); len(recent) != 7 || recent[1].Start.Sub(recent[0].Start) != 10*time.Minute {
		t.Errorf("the last hour has %v", recent)
	}
	data, err := one.MarshalBinary()
	if err != nil || len(data) > 10_000 {
		t.Fatal(len(data), err)
	}
	var back DriftHistory
	if err := back.UnmarshalBinary(data); err != nil || len(back.points) != len(one.points) {
		t.Fatal(err)
	}
	for _, bad := range [][]byte{nil, data[:len(data)-1], append([]byte{9}, data[1:]...), append(slices.Clone(data), data[1:13]...)} {
		if back.UnmarshalBinary(bad) == nil {
			t.Errorf("%d bytes that are no history are taken", len(bad))
		}
	}
}
